"""One HTTP request with its answer: what we know about it, and what happens to it.

In the older transport, HTTP+SSE, answers come on other streams: ``LegacyEndpoints`` knows them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from urllib.parse import urljoin, urlsplit

from mcp_tool_filter.core.conversation.conversation import Conversation
from mcp_tool_filter.core.conversation.policy_in_force import Arrival, oversized
from mcp_tool_filter.core.errors import ProtocolError
from mcp_tool_filter.core.http.bodies import EVENT_STREAM, JSON
from mcp_tool_filter.core.http.head import Head, problem_in_body, problem_in_mirrored
from mcp_tool_filter.core.messages.limits import Limits, OverLimit, frozen, has_initialize
from mcp_tool_filter.core.messages.messages import (
    HEADER_MISMATCH,
    INVALID_REQUEST,
    Message,
    ids_in,
    render_batch,
    render_error,
)
from mcp_tool_filter.core.messages.sse import render_event
from mcp_tool_filter.core.messages.tool_requests import ListRequest
from mcp_tool_filter.core.policy.chain import refusal
from mcp_tool_filter.core.policy.verdict import Forward, Reply, Verdict, Why

LONGEST_ENDPOINT = 8 * 1024  # characters of a URL


@dataclass(slots=True, eq=False)
class LegacyStream:
    """The open GET stream of a client of the older transport; all its answers go there."""

    send: Callable[[bytes], bool]
    conversation: Conversation
    target: str = ""
    """The endpoint where the client posts; set once the upstream has named it."""

    def reply(self, text: bytes) -> bool:
        """Send a message of ours; return False if the stream has ended."""
        return self.send(render_event(text))

    def fail(self, request: bytes, code: int, sentence: str) -> None:
        """Answer what waits of the requests in a body with an error."""
        for id in self.conversation.exchanges.take(ids_in(request)):
            self.reply(render_error(id, code, sentence))


class LegacyEndpoints:
    """The endpoints of the older transport, and the streams on which they were named."""

    def __init__(self) -> None:
        self.endpoints: dict[str, list[LegacyStream]] = {}
        """By path and query. Most requests only check whether there are any."""
        self._shared: set[str] = set()
        """Those that two streams had at once, so that we cannot tell whose a request is."""

    def open(self, page: str, url: str, stream: LegacyStream) -> None:
        """Remember the endpoint named on a stream that was opened at ``page``."""
        self.close(stream.conversation)  # the stream may have named another endpoint before
        place = urlsplit(urljoin("http://us" + page, url))
        stream.target = place.path + (f"?{place.query}" if place.query else "")
        streams = self.endpoints.setdefault(stream.target, [])
        streams.append(stream)
        if len(streams) > 1:
            self._shared.add(stream.target)

    def close(self, conversation: Conversation) -> None:
        """Forget a stream that has ended."""
        for target, streams in list(self.endpoints.items()):
            streams[:] = [stream for stream in streams if stream.conversation is not conversation]
            if not streams:
                del self.endpoints[target]
                self._shared.discard(target)
        conversation.lose_ours()

    def stream_of(self, target: str) -> LegacyStream | None:
        """Return the stream for our answers; None if we cannot tell which client posts."""
        streams = self.endpoints.get(target)
        return streams[0] if streams and target not in self._shared else None

    def __iter__(self) -> Iterator[LegacyStream]:
        return iter([stream for streams in self.endpoints.values() for stream in streams])


_NO_HEAD = Head("", "", ())


@dataclass(slots=True, eq=False)
class HttpExchange(Arrival):
    """One HTTP request and its answer, with the messages that they carry."""

    conversation: Conversation
    head: Head = _NO_HEAD
    is_endpoint: bool = False
    """True if it was sent to the MCP endpoint."""
    owed: tuple[bytes, ...] = ()
    """Our own replies that must be added to the answer."""
    is_legacy: bool = False
    """True for the older transport: its messages are answered on a separate stream."""
    is_like_the_fetch: bool = True
    """True if its head identifies the client no more than our own fetch identifies us."""
    announces: bool = True
    stream: LegacyStream | None = None
    """The stream on which a client of the older transport gets its answers, if we know it."""

    @property
    def waits(self) -> bool:
        """True if requests wait for exactly this answer."""
        return not self.is_legacy and len(self.conversation.exchanges) > 0

    def speaks(self, revision: str | None) -> bool:
        """Tell whether head, body and session name the same revision."""
        known = self.conversation.client.revision
        return {known, None} >= {revision, self.head.said.revision}

    @property
    def can_list(self) -> bool:
        """False for a client of the older transport whose stream we do not know: the upstream would
        answer there."""
        return not self.is_legacy or self.stream is not None

    def problem_in(self, message: Message, raw: bytes, limits: Limits) -> Reply | None:
        """Return a refusal if the head announces a different message, else None."""
        why = problem_in_mirrored(self.head, message)
        return refused(raw, Why.MISMATCH, why, limits) if why else None

    def judge_unreadable(self, raw: bytes, error: ProtocolError, limits: Limits) -> Verdict:
        """Forward a body that is not a message but harmless, such as a login form; else refuse
        it."""
        if not problem_in_body(self.head, raw, is_endpoint=self.is_endpoint, limits=limits):
            return Forward()
        if isinstance(error, OverLimit):
            return oversized(raw, str(error))
        return refused(raw, Why.MALFORMED, str(error), limits)

    def compare(self, asks: ListRequest) -> tuple[bool, bool]:
        if not self.is_like_the_fetch:
            return False, False
        client = self.conversation.client
        revision = client.session.revision if client.session else client.said_revision
        could_be_ours = {revision, None} >= {asks.revision, self.head.said.revision}
        return could_be_ours, self._gets_fetched_list(asks, revision)

    def _gets_fetched_list(self, asks: ListRequest, revision: str | None) -> bool:
        """Tell whether the upstream would answer this with the list that we fetched."""
        session, said = self.conversation.client.session, self.head.said
        if revision is None or not asks.is_usual:
            return False
        if session and not session.is_like_the_fetch:
            return False
        if self.is_legacy:
            return session is not None
        if not self.is_endpoint or not _accepts_both(self.head):
            return False
        if has_initialize(revision):
            gives_ids = self.conversation.policy.fetched.sessions
            opened = session is not None or not (said.session_id or gives_ids)
            return opened and said.revision in (None, revision)
        return revision == asks.revision and said.method == "tools/list"

    def with_owed(self, body: bytes) -> bytes:
        """Return the upstream's answer to a batch together with our own replies."""
        answer = body.strip()
        members = answer[1:-1] if answer.startswith(b"[") else answer
        return render_batch([*filter(None, [members.strip()]), *self.owed])


@frozen
class Passed:
    """The request is forwarded, with another body if one is given."""

    exchange: HttpExchange
    body: bytes | None = None
    headers: tuple[tuple[str, str | None], ...] = ()
    """Headers to change; None removes the header."""


@frozen
class Answered:
    """The client gets this answer instead of the upstream's."""

    status: int
    body: bytes = b""
    stream: LegacyStream | None = None
    """The stream that gets the body instead, in the older transport."""
    content_type: str = JSON
    challenges: tuple[bytes, ...] = ()
    """The upstream's WWW-Authenticate headers."""


def refused(body: bytes, why: Why, detail: str, limits: Limits) -> Reply:
    """Return a refusal of a request; only observers see the reason."""
    code, text = INVALID_REQUEST, "Invalid Request"
    if why in (Why.MISMATCH, Why.OVERSIZED):
        text = detail[:1].upper() + detail[1:]
    if why is Why.MISMATCH:
        code = HEADER_MISMATCH
    return refusal(body, why, code, text, limits, detail)


def _accepts_both(head: Head) -> bool:
    accept = (head.get(b"accept") or "").lower()
    return JSON in accept and EVENT_STREAM in accept
