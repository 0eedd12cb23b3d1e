"""One listener: an upstream, its snapshot, and what becomes of the HTTP that comes by.

It knows HTTP and no host: requests and answers come in as values, what becomes of them goes out
as values, and whoever owns the connection carries it out.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import assert_never
from urllib.parse import urljoin, urlsplit

from mcp_tool_filter.conversation.fetched import Fetched
from mcp_tool_filter.conversation.session import Envelopes, Exchanges, Session, Sessions
from mcp_tool_filter.errors import FetchFailed, ProtocolError
from mcp_tool_filter.http.codings import decode_body, looks_like_json
from mcp_tool_filter.http.cors import CorsMemory, page_of
from mcp_tool_filter.http.event_stream import INVALID_ANSWER, FilteredStream
from mcp_tool_filter.http.exchange import Answered, Asked, LegacyEndpoint, LegacyStream, Passed
from mcp_tool_filter.http.guard import UpstreamNames, kept_with_us
from mcp_tool_filter.http.head import (
    Head,
    oversized_head,
    refuse_body,
    refuse_head,
    refuse_mismatch,
)
from mcp_tool_filter.http.identity import has_usual_params, is_like_the_fetch
from mcp_tool_filter.http.login_paths import LoginPaths
from mcp_tool_filter.http.operator_headers import HeaderPairs, headers_to_add
from mcp_tool_filter.http.other_answers import could_show_tool, refuse_packed, refuse_partial
from mcp_tool_filter.policy.chain import (
    Situation,
    decide_from_client,
    decide_from_upstream,
    refusal,
)
from mcp_tool_filter.policy.config import Config
from mcp_tool_filter.policy.judged_lists import JudgedLists
from mcp_tool_filter.policy.paths import plain_path
from mcp_tool_filter.policy.snapshot import Snapshot, take_snapshot
from mcp_tool_filter.policy.verdict import Drop, Forward, Reason, Reply, Rewrite, Verdict, Why
from mcp_tool_filter.protocol.limits import Limits, OverLimit
from mcp_tool_filter.protocol.messages import (
    HEADER_MISMATCH,
    INTERNAL_ERROR,
    INVALID_REQUEST,
    UPSTREAM_LOST,
    Message,
    Request,
    Response,
    ids_guessed_in,
    ids_in,
    parse_message,
    render_batch,
    render_error,
    singles,
)
from mcp_tool_filter.protocol.revisions import KNOWN_REVISIONS, has_initialize
from mcp_tool_filter.protocol.sse import render_event
from mcp_tool_filter.protocol.tools import (
    Listing,
    in_parts,
    parse_list_request,
    parse_listing,
)

NOT_SERVED = render_error(None, INVALID_REQUEST, "Not found: only the MCP endpoint is served here")
LOST_ANSWER = "Upstream connection lost"
_LONGEST_ENDPOINT = 8 * 1024  # characters of a URL
_LONGEST_REVISION = 64  # characters
_DEEPEST_READ = 5000  # levels, to find the id of a message that is too deep
_STATUS = {
    Why.MALFORMED: 400,
    Why.MISMATCH: 400,
    Why.FORBIDDEN: 403,
    Why.OVERSIZED: 431,
}

type Watcher = Callable[[Message | None, Verdict], None]


@dataclass(slots=True, kw_only=True)
class Listener:
    """What stands before one upstream."""

    upstream: str
    config: Config
    fetched: Fetched
    watch: Watcher
    clock: Callable[[], float] = time.monotonic
    names: UpstreamNames = field(default_factory=lambda: UpstreamNames(""))
    """By default, only the name in the URL."""
    keeps_host: bool = False
    """The upstream gets the Host that the client wrote."""
    snapshot: Snapshot = field(init=False)
    sessions: Sessions = field(init=False)
    envelopes: Envelopes = field(default_factory=Envelopes)
    legacy: dict[str, LegacyEndpoint] = field(default_factory=dict)
    judged: JudgedLists = field(default_factory=JudgedLists)
    cors: CorsMemory = field(default_factory=CorsMemory)
    logins: LoginPaths = field(init=False)

    def __post_init__(self) -> None:
        if not self.names.url:
            self.names = UpstreamNames(self.upstream)
        self.snapshot = self._take_snapshot(self.config)
        self.sessions = Sessions(self.config.limits)
        self.logins = LoginPaths(self.upstream)

    @property
    def listings(self) -> Iterator[Listing]:
        """The pages of the tool list, as they were fetched: read anew, for that takes much room."""
        return chain.from_iterable(map(_listings_in, self.fetched.pages))

    def snapshot_for(self, config: Config) -> Snapshot:
        """Apply other patterns to what was fetched."""
        if (config.deny, config.allow) == (self.config.deny, self.config.allow):
            return self.snapshot
        return self._take_snapshot(config)

    def _take_snapshot(self, config: Config) -> Snapshot:
        return take_snapshot(map(self._note_page, self.listings), config.deny, config.allow)

    def _note_page(self, listing: Listing) -> Listing:
        """Keep what stands around the tools of the first page."""
        self.envelopes.learn(self.fetched.revision, listing)
        return listing

    # Requests

    def judge_request(self, head: Head, raw: bytes) -> Passed | Answered:
        """Decide on a request before the upstream sees any of it."""
        if why := oversized_head(head):
            return self._refused(b"", Why.OVERSIZED, f"request too large: {why}")
        if why := refuse_head(head):
            return self._refused(b"", Why.MALFORMED, why)
        if self.config.only_mcp and not self.serves(head.method, head.target):
            self.watch(None, Reply(NOT_SERVED, Reason(Why.FORBIDDEN, detail="path")))
            return Answered(404, NOT_SERVED)
        limit = self.config.limits.message
        try:
            if len(raw) > limit:
                raise OverLimit(f"more than {limit} bytes")
            body = decode_body(raw, head.get(b"content-encoding") or "", limit=limit)
        except OverLimit as error:
            return self._oversized(head, raw, str(error))
        except ProtocolError as error:
            return self._refused(b"", Why.MALFORMED, str(error))
        outcome = self._judge_body(head, raw, body)
        if isinstance(outcome, Passed) and outcome.body is None and _reads_otherwise(raw, body):
            return Passed(outcome.asked, body)
        return outcome

    def _judge_body(self, head: Head, raw: bytes, body: bytes) -> Passed | Answered:
        if not body or not head.may_have_body:
            return self._judge_other_body(head, raw, "")
        try:
            message = parse_message(body, self.config.limits)
        except OverLimit as error:
            return self._judge_long_body(head, body, str(error))
        except ProtocolError as error:
            return self._judge_other_body(head, body, str(error))
        try:
            return self._judge_message(head, message, body)
        except ProtocolError as error:
            return self._refused(body, Why.MALFORMED, str(error))

    def _judge_long_body(self, head: Head, body: bytes, error: str) -> Passed | Answered:
        """Refuse a message that is over a limit; what is no message has no limit but its size."""
        is_endpoint = self._is_endpoint(head.target)
        if refuse_body(head, body, is_endpoint=is_endpoint, limits=self.config.limits):
            return self._oversized(head, body, error)
        return Passed(Asked(Exchanges()))

    def _judge_other_body(self, head: Head, body: bytes, error: str) -> Passed | Answered:
        is_endpoint = self._is_endpoint(head.target)
        why = refuse_body(head, body, is_endpoint=is_endpoint, limits=self.config.limits)
        if why:
            return self._refused(body, Why.MALFORMED, error or why)
        if head.method == "DELETE" and (session_id := head.get(b"mcp-session-id")):
            self.sessions.close(session_id)
        asked = Asked(Exchanges())
        session_id = head.get(b"mcp-session-id")
        session = self.sessions.get(session_id, self.clock()) if session_id else None
        self._note_asker(head, asked, session)
        return Passed(asked)

    def _judge_message(self, head: Head, message: Message, body: bytes) -> Passed | Answered:
        if why := refuse_mismatch(head, message):
            return self._refused(body, Why.MISMATCH, why, HEADER_MISMATCH)
        stream = self._stream_of(head.target)
        asked = self._asked(head, stream)
        asked.is_legacy = head.target in self.legacy
        verdict = decide_from_client(message, self._situation(head, message, asked))
        self.watch(message, verdict)
        match verdict:
            case Forward():
                asked.exchanges.note_asked(message)
                asked.is_first_page = not _has_cursor(message)
                return Passed(asked)
            case Rewrite(text, _, owed):
                asked.exchanges.note_asked(parse_message(text, self.config.limits))
                asked.owed = self._pay(stream, owed)
                return Passed(asked, text)
            case Reply(text):
                return Answered(200, text, stream)
            case Drop():
                return Answered(202)
            case unexpected:
                assert_never(unexpected)

    def _asked(self, head: Head, stream: LegacyStream | None) -> Asked:
        if stream is not None:
            asked = Asked(stream.session.exchanges, stream.session)
        else:
            session_id = head.get(b"mcp-session-id")
            session = self.sessions.get(session_id, self.clock()) if session_id else None
            said = head.get(b"mcp-protocol-version")
            asked = Asked(
                Exchanges(most=self.config.limits.exchanges),
                session,
                session_id,
                session.revision if session else None if session_id else said,
            )
        self._note_asker(head, asked, asked.session)
        return asked

    def _note_asker(self, head: Head, asked: Asked, session: Session | None) -> None:
        """Note whether the upstream can tell the client from us; it may remember for a session."""
        if is_like_the_fetch(head) and not self.keeps_host:
            return
        config = self.config
        replaced = config.header_names if config.header_override else frozenset()
        page = page_of(head.get(b"origin"), head.target, has_cookie=False)
        known = page is not None and self.cors.is_allowed(page)
        is_like = is_like_the_fetch(head, replaced=replaced, known_origin=known)
        asked.is_like_the_fetch = is_like and not self.keeps_host
        if session and not asked.is_like_the_fetch:
            session.is_like_the_fetch = False

    def _situation(self, head: Head, message: Message, asked: Asked) -> Situation:
        if not isinstance(message, Request) or message.method != "tools/list":
            return Situation(snapshot=self.snapshot)
        revision = asked.session.revision if asked.session else asked.revision
        return Situation(
            snapshot=self.snapshot,
            list_from=self.config.tools_list,
            envelope=self.envelopes.get(revision),
            may_use_cache=self._may_use_cache(head, message, asked, revision),
        )

    def _may_use_cache(
        self, head: Head, message: Request, asked: Asked, revision: str | None
    ) -> bool:
        """Tell whether the upstream would have answered this with the list it gave us."""
        session = asked.session
        if revision is None or not asked.is_like_the_fetch or not has_usual_params(message):
            return False
        if session and not session.is_like_the_fetch:
            return False
        if asked.is_legacy:
            return asked.session is not None
        if not self._is_endpoint(head.target) or not _accepts_both(head):
            return False
        if has_initialize(revision):
            opened = asked.session is not None or not (asked.session_id or self.fetched.sessions)
            return opened and head.get(b"mcp-protocol-version") in (None, revision)
        return revision == _revision_in(message) and head.get(b"mcp-method") == message.method

    def _pay(self, stream: LegacyStream | None, owed: tuple[bytes, ...]) -> tuple[bytes, ...]:
        """Give the replies we owe where they are waited for; return those still owed."""
        if stream is None:
            return owed
        for reply in owed:
            stream.send(render_event(reply))
        return ()

    def _refused(self, body: bytes, why: Why, detail: str, code: int = INVALID_REQUEST) -> Answered:
        is_told = why in (Why.MISMATCH, Why.OVERSIZED)
        text = detail[:1].upper() + detail[1:] if is_told else "Invalid Request"
        reply = refusal(body, why, code, text, self.config.limits)
        self.watch(None, Reply(reply.text, Reason(why, detail=detail)))
        return Answered(_STATUS[why], reply.text)

    def _oversized(self, head: Head, body: bytes, detail: str) -> Answered:
        """Answer with HTTP 200 where an id can be read: a 4xx ends the session of some clients."""
        anything = Limits(message=len(body), depth=_DEEPEST_READ)
        ids = ids_in(body, anything) or list(dict.fromkeys(ids_guessed_in(body)))
        text = f"Request too large: {detail}"
        reply = render_error(ids[0] if len(ids) == 1 else None, INVALID_REQUEST, text)
        self.watch(None, Reply(reply, Reason(Why.OVERSIZED, detail=text)))
        if len(ids) == 1:
            return Answered(200, reply, self._stream_of(head.target))
        return Answered(413, reply)

    def _stream_of(self, target: str) -> LegacyStream | None:
        endpoint = self.legacy.get(target)
        return endpoint.stream if endpoint else None

    def _is_endpoint(self, target: str) -> bool:
        return target == self.fetched.endpoint or target in self.legacy

    def headers_for(self, head: Head) -> HeaderPairs:
        """Return which of the user's headers a request gets."""
        config = self.config
        if not config.upstream_headers or not self._takes_headers(head.target):
            return ()
        return headers_to_add(head, config.upstream_headers, override=config.header_override)

    def serves(self, method: str, target: str) -> bool:
        """Tell whether a path passes where only MCP and logins do."""
        return self._takes_headers(target) or self.logins.has(method, target)

    def _takes_headers(self, target: str) -> bool:
        """Tell whether a path is the MCP endpoint, named by it, or named by the user."""
        endpoints = (self.fetched.endpoint, self.config.endpoint or self.fetched.endpoint)
        return (
            plain_path(target) in map(plain_path, endpoints)
            or target in self.legacy
            or self.config.header_paths.has(target)
        )

    # Answers

    def note_answer_head(self, asked: Asked, status: int, session_id: str | None) -> None:
        """Take from an answer's head what it says of sessions."""
        if session_id and "initialize" in asked.exchanges.methods:
            asked.session = self.sessions.open(session_id, self.clock())
            asked.session.is_like_the_fetch = asked.is_like_the_fetch
        if status == 404 and asked.session_id:
            self.sessions.close(asked.session_id)

    def judge_answer(
        self, asked: Asked, status: int, content_type: str, coding: str, raw: bytes
    ) -> Answered | None:
        """Decide on a whole answer; None if it goes on as it came."""
        limit = self.config.limits.message
        try:
            body = decode_body(raw, coding, limit=limit)
            if len(body) > limit:
                raise OverLimit(f"longer than {limit} bytes")
            refuse_partial(status, content_type)
            judged = self._judge_answer(asked, status, content_type, body)
        except ProtocolError as error:
            return self.invalid_answer(asked, str(error))
        if judged is None and body is not raw:
            return Answered(status, body, content_type=content_type)
        return judged

    def _judge_answer(
        self, asked: Asked, status: int, content_type: str, body: bytes
    ) -> Answered | None:
        if not body:
            if asked.waits and status == 200:
                raise ProtocolError("an empty answer")
            return self._pay_alone(asked, status)
        known = self._recall(asked, body, self.snapshot)
        try:
            message = known[0] if known else parse_message(body, self.config.limits)
        except ProtocolError as error:
            self._check_other_answer(asked, status, content_type, body, error)
            return self._pay_alone(asked, status)
        verdict = known[1] if known else self._decide(asked, message, body, self.snapshot)
        self._note_answer(asked, message, verdict)
        match verdict:
            case Forward():
                return Answered(status, asked.with_owed(body)) if asked.owed else None
            case Rewrite(text):
                return Answered(status, asked.with_owed(text))
            case Reply() | Drop():
                raise ProtocolError("an answer that may not be seen")
            case unexpected:
                assert_never(unexpected)

    def _pay_alone(self, asked: Asked, status: int) -> Answered | None:
        """Give what we owe to a batch whose rest has no answer of its own."""
        if not asked.owed or status >= 300:
            return None
        return Answered(200, render_batch(list(asked.owed)))

    def _judge_said(self, asked: Asked, raw: bytes) -> tuple[Message, Verdict]:
        """Read what the upstream says, and decide by what is in force now. Raises ProtocolError."""
        snapshot = self.snapshot
        if known := self._recall(asked, raw, snapshot):
            return known
        message = parse_message(raw, self.config.limits)
        return message, self._decide(asked, message, raw, snapshot)

    def _decide(self, asked: Asked, message: Message, raw: bytes, snapshot: Snapshot) -> Verdict:
        method_of = asked.exchanges.method_of
        verdict = decide_from_upstream(message, Situation(snapshot=snapshot), method_of)
        if isinstance(verdict, Forward | Rewrite) and self._is_mere_list(asked, message):
            self.judged.remember(raw, verdict, snapshot)
        return verdict

    def _recall(
        self, asked: Asked, raw: bytes, snapshot: Snapshot
    ) -> tuple[Response, Verdict] | None:
        """Return a list that the upstream has said before, and what became of it."""
        if len(raw) > self.config.limits.message:
            return None
        known = self.judged.recall(raw, snapshot)
        return known if known and self._is_mere_list(asked, known[0]) else None

    def _is_mere_list(self, asked: Asked, message: Message) -> bool:
        """Tell whether this answers a tools/list, and there is nothing else to learn from it."""
        if not isinstance(message, Response) or message.result is None:
            return False
        is_list = asked.exchanges.method_of(message) == "tools/list"
        return is_list and self._new_revision(asked) is None

    def _note_answer(self, asked: Asked, message: Message, verdict: Verdict) -> None:
        self._learn(asked, message, verdict, asked.exchanges.method_of(message))
        asked.exchanges.note_answered(message)

    def _check_other_answer(
        self, asked: Asked, status: int, content_type: str, body: bytes, error: ProtocolError
    ) -> None:
        """Raise ProtocolError unless an answer that is no message may pass."""
        if asked.waits and 200 <= status < 300 and status not in (202, 204):
            raise error
        if "event-stream" in content_type.lower():  # as some clients look for it, too
            raise error
        refuse_packed(content_type, body)
        if could_show_tool(body, self.snapshot.denied, self.config.limits):
            raise error

    def invalid_answer(self, asked: Asked, why: str = "not HTTP") -> Answered:
        """Answer those who wait for what the upstream said so that it cannot be passed on."""
        ids = [] if asked.is_legacy else asked.exchanges.take_all()
        errors = [render_error(id, INTERNAL_ERROR, INVALID_ANSWER) for id in ids]
        replies = [*errors, *asked.owed]
        reason = Reason(Why.INVALID, detail=why)
        if not replies:
            self.watch(None, Drop(reason))
            return Answered(502, render_error(None, INTERNAL_ERROR, INVALID_ANSWER))
        body = replies[0] if len(replies) == 1 else render_batch(replies)
        self.watch(None, Reply(body, reason))
        return Answered(200, body)

    def lost_replies(self, asked: Asked) -> tuple[bytes, ...]:
        """Return what a client gets that still waits when the upstream is lost."""
        ids = asked.exchanges.take_all()
        replies = [render_error(id, UPSTREAM_LOST, LOST_ANSWER) for id in ids]
        return (*replies, *asked.owed) if replies else ()

    def tell_of_loss(self, target: str, raw: bytes) -> None:
        """Tell a client of the older transport on its stream that a POST was lost."""
        if stream := self._stream_of(target):
            for id in stream.session.exchanges.take(ids_in(raw)):
                stream.send(render_event(render_error(id, UPSTREAM_LOST, LOST_ANSWER)))

    # WebSocket

    def judge_spoken(self, asked: Asked, raw: bytes, from_client: bool) -> Verdict:
        """Decide on one message of a connection on which both sides speak."""
        try:
            if from_client:
                return self._judge_heard(asked, parse_message(raw, self.config.limits))
            message, verdict = self._judge_said(asked, raw)
        except ProtocolError as error:
            verdict = self._judge_unreadable(asked, raw, from_client, str(error))
            self.watch(None, verdict)
        else:
            self._note_answer(asked, message, verdict)
        return verdict

    def _judge_heard(self, asked: Asked, message: Message) -> Verdict:
        verdict = decide_from_client(message, Situation(snapshot=self.snapshot))
        self.watch(message, verdict)
        if isinstance(verdict, Forward):
            asked.exchanges.note_asked(message)
        elif isinstance(verdict, Rewrite):
            asked.exchanges.note_asked(parse_message(verdict.text, self.config.limits))
        return verdict

    def _judge_unreadable(
        self, asked: Asked, raw: bytes, from_client: bool, detail: str
    ) -> Verdict:
        if from_client:
            return refusal(raw, Why.MALFORMED, limits=self.config.limits)
        ids = asked.exchanges.take(ids_guessed_in(raw))
        errors = [render_error(id, INTERNAL_ERROR, INVALID_ANSWER) for id in ids]
        reason = Reason(Why.INVALID, detail=detail)
        return Rewrite(errors[0], reason, tuple(errors[1:])) if errors else Drop(reason)

    # Streams

    def open_stream(
        self, asked: Asked, target: str, send: Callable[[bytes], bool] | None
    ) -> FilteredStream:
        """Stand between an event stream and its client; ``send`` puts bytes into it."""
        return FilteredStream(
            lambda: Situation(snapshot=self.snapshot),
            asked.exchanges,
            limits=self.config.limits,
            on_endpoint=partial(self._meet_endpoint, asked, target, send),
            on_verdict=partial(self._learn, asked),
            decide=partial(self._judge_said, asked),
        )

    def close_stream(self, asked: Asked) -> None:
        """Forget a stream that has ended."""
        for target, endpoint in list(self.legacy.items()):
            endpoint.streams = [one for one in endpoint.streams if one.session is not asked.session]
            if not endpoint.streams:
                del self.legacy[target]

    def _meet_endpoint(
        self, asked: Asked, target: str, send: Callable[[bytes], bool] | None, url: str
    ) -> str | None:
        """Remember where a client of the older transport will post; keep it with us."""
        kept = kept_with_us(url, self.names) if len(url) <= _LONGEST_ENDPOINT else None
        if kept is None or send is None:
            return None
        asked.session = asked.session or Session(
            exchanges=asked.exchanges, is_like_the_fetch=asked.is_like_the_fetch
        )
        asked.is_legacy = True
        self.close_stream(asked)  # it may have named another endpoint before
        place = urlsplit(urljoin("http://us" + target, kept))
        endpoint = place.path + (f"?{place.query}" if place.query else "")
        stream = LegacyStream(send, asked.session, endpoint)
        self.legacy.setdefault(endpoint, LegacyEndpoint()).add(stream)
        return kept

    def _learn(
        self, asked: Asked, message: Message | None, verdict: Verdict, method: str | None
    ) -> None:
        """Keep what an answer says of its session and its revision; tell those who watch."""
        self.watch(message, verdict)
        if isinstance(message, Response) and message.result is not None:
            if method == "initialize" and asked.session:
                version = message.result.get("protocolVersion")
                asked.session.revision = (
                    (version.text or "")[:_LONGEST_REVISION] if version else None
                )
            elif method == "tools/list" and (revision := self._new_revision(asked)):
                self._learn_frame(message, revision)

    def _new_revision(self, asked: Asked) -> str | None:
        """Return the revision of which the answer would be the first list that we see."""
        revision = asked.session.revision if asked.session else asked.revision
        if not asked.is_first_page or revision not in KNOWN_REVISIONS:
            return None
        return revision if self.envelopes.get(revision) is None else None

    def _learn_frame(self, message: Response, revision: str) -> None:
        if listing := parse_listing(message):
            self.envelopes.learn(revision, listing)


def _listings_in(page: bytes) -> Iterator[Listing]:
    try:
        for part in in_parts(page):
            message = parse_message(part, Limits(message=len(part)))
            for listing in map(parse_listing, singles(message)):
                if listing is None:
                    raise FetchFailed(why="The answer holds no tool list")
                yield listing
    except ProtocolError as error:
        raise FetchFailed(why=f"The tool list cannot be read for sure: {error}") from None


def _reads_otherwise(raw: bytes, body: bytes) -> bool:
    """Tell whether an upstream that does not undo codings could find another message."""
    return body is not raw and looks_like_json(raw)


def _has_cursor(message: Message) -> bool:
    return any(
        isinstance(one, Request) and one.params and one.params.get("cursor")
        for one in singles(message)
    )


def _accepts_both(head: Head) -> bool:
    accept = (head.get(b"accept") or "").lower()
    return "application/json" in accept and "text/event-stream" in accept


def _revision_in(message: Request) -> str | None:
    return parse_list_request(message).revision
