"""One listener: an upstream, its policy, and what becomes of the HTTP that comes by.

It knows HTTP and no host: requests and answers come in as values, what becomes of them goes out
as values, and whoever owns the connection carries it out. What the messages in them mean is for
``conversation`` to say. Where a decision waits, a generator of effects returns the same value.

It is one module because its methods share one state: the policy, the sessions, the open streams.
"""

from __future__ import annotations

import hmac
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from secrets import token_bytes
from typing import assert_never

from mcp_tool_filter.conversation.conversation import Conversation
from mcp_tool_filter.conversation.fetched import Fetched
from mcp_tool_filter.conversation.judged import INVALID_ANSWER, LOST_ANSWER, Judged
from mcp_tool_filter.conversation.policy_in_force import Observer, PolicyInForce
from mcp_tool_filter.conversation.session import Sessions
from mcp_tool_filter.errors import ProtocolError
from mcp_tool_filter.http.codings import decode_body, looks_like_json
from mcp_tool_filter.http.cors import CorsMemory, page_of
from mcp_tool_filter.http.event_stream import EventStream
from mcp_tool_filter.http.exchange import Answered, HttpExchange, Passed, refused
from mcp_tool_filter.http.guard import UpstreamNames, kept_with_us
from mcp_tool_filter.http.head import (
    Head,
    headers_after,
    oversized_head,
    refuse_body,
    refuse_head,
)
from mcp_tool_filter.http.identity import credentials_in, identity_in, is_like_the_fetch
from mcp_tool_filter.http.legacy import LONGEST_ENDPOINT, LegacyEndpoints, LegacyStream
from mcp_tool_filter.http.login_paths import LoginPaths
from mcp_tool_filter.http.media_type import may_be_event_stream
from mcp_tool_filter.http.operator_headers import HeaderPairs, headers_to_add
from mcp_tool_filter.http.other_answers import could_show_tool, refuse_packed, refuse_partial
from mcp_tool_filter.policy.config import Config
from mcp_tool_filter.policy.effects import Decision, then
from mcp_tool_filter.policy.exchange import Client, Session, Via
from mcp_tool_filter.policy.paths import plain_path
from mcp_tool_filter.policy.snapshot import Definitions, Snapshot
from mcp_tool_filter.policy.verdict import Drop, Forward, Reason, Reply, Rewrite, Verdict, Why
from mcp_tool_filter.protocol.limits import OverLimit
from mcp_tool_filter.protocol.messages import (
    INTERNAL_ERROR,
    INVALID_REQUEST,
    UPSTREAM_LOST,
    ids_in,
    render_batch,
    render_error,
)
from mcp_tool_filter.protocol.sse import render_event

NOT_SERVED = render_error(None, INVALID_REQUEST, "Not found: only the MCP endpoint is served here")
_STATUS = {
    Why.MALFORMED: 400,
    Why.MISMATCH: 400,
    Why.FORBIDDEN: 403,
}

_NOTHING = Snapshot(allowed=Definitions([]), denied={})

type Outcome = Passed | Answered


@dataclass(slots=True, kw_only=True)
class Listener:
    """What sits in front of one upstream."""

    upstream: str
    policy: PolicyInForce
    names: UpstreamNames
    keeps_host: bool = False
    """The upstream gets the Host that the client wrote."""
    is_forward: bool = False
    """Clients call the upstream by its own name, through a forward proxy: URLs stay as they are."""
    sessions: Sessions = field(init=False)
    _hash_key: bytes = field(default_factory=partial(token_bytes, 32), repr=False)
    legacy: LegacyEndpoints = field(default_factory=LegacyEndpoints)
    cors: CorsMemory = field(default_factory=CorsMemory)
    logins: LoginPaths = field(init=False)

    def __post_init__(self) -> None:
        self.sessions = Sessions(self.config.limits)
        self.logins = LoginPaths(self.upstream)

    @property
    def config(self) -> Config:
        return self.policy.config

    @property
    def fetched(self) -> Fetched:
        return self.policy.fetched

    @property
    def snapshot(self) -> Snapshot:
        """What was fetched at start: nothing, where the upstream lists only to users."""
        return self.policy.snapshot if self.policy.kinds.start.is_listed else _NOTHING

    # Requests

    def judge_request(self, head: Head, raw: bytes, origin: object = None) -> Decision[Outcome]:
        """Decide on a request before the upstream sees any of it; ``origin`` is the host's."""
        if why := oversized_head(head):
            return self._refuse(f"request too large: {why}", origin, why=Why.OVERSIZED)
        if why := refuse_head(head):
            return self._refuse(why, origin)
        config = self.policy.config
        if config.only_mcp and not self.serves(head.method, head.target):
            self.tell_refused(Reply(NOT_SERVED, Reason(Why.FORBIDDEN, detail="path")), origin)
            return Answered(404, NOT_SERVED)
        limit = config.limits.message
        try:
            if len(raw) > limit:
                raise OverLimit(f"more than {limit} bytes")
            body = decode_body(raw, head.get(b"content-encoding") or "", limit=limit)
        except OverLimit as error:
            exchange = self._exchange_for(head)
            too_large = exchange.conversation.oversized_from_client(raw, str(error), origin)
            return self._carry_out(exchange, raw, raw, too_large)
        except ProtocolError as error:
            return self._refuse(str(error), origin)
        if not body or not head.may_have_body:
            return self._judge_without_message(head, raw, origin)
        exchange = self._exchange_for(head)
        judged = exchange.conversation.from_client(body, origin, exchange)
        if isinstance(judged, Judged):
            return self._carry_out(exchange, raw, body, judged)
        return then(judged, partial(self._carry_out, exchange, raw, body))

    def unasked(self) -> HttpExchange:
        """Begin an exchange of which we have not seen the request."""
        return HttpExchange(Conversation(self.policy))

    def _judge_without_message(self, head: Head, raw: bytes, origin: object) -> Outcome:
        is_endpoint = self._is_endpoint(head.target)
        if why := refuse_body(head, raw, is_endpoint=is_endpoint, limits=self.config.limits):
            return self._refuse(why, origin, raw)
        if head.method == "DELETE" and head.said.session_id:
            self.sessions.close(head.said.session_id)
        client = Client(Via.HTTP, self._session_of(head))
        if self.policy.links:
            self._describe(client, head)
        exchange = HttpExchange(Conversation(self.policy, client), head)
        self._note_asker(exchange, client.session)
        return Passed(exchange)

    def _carry_out(
        self, exchange: HttpExchange, raw: bytes, body: bytes, judged: Judged
    ) -> Outcome:
        endpoints = self.legacy.endpoints
        stream = self.legacy.stream_of(exchange.head.target) if endpoints else None
        match judged.verdict:
            case Forward():
                return Passed(exchange, body if body is not raw and looks_like_json(raw) else None)
            case Rewrite(text, _, owed):
                exchange.owed = self._pay(stream, owed)
                return Passed(
                    exchange, text, headers_after(exchange.head, text, self.config.limits)
                )
            case Reply(text, reason):
                if reason.why is Why.OVERSIZED and not ids_in(text):
                    return Answered(413, text)
                status = _STATUS.get(reason.why, 200)
                return Answered(status, text, stream if status == 200 else None)
            case Drop():
                return Answered(202)
            case unexpected:
                assert_never(unexpected)

    def _exchange_for(self, head: Head) -> HttpExchange:
        """Begin with what is known of who asks."""
        policy, said, target = self.policy, head.said, head.target
        is_legacy = target in self.legacy.endpoints
        is_endpoint = is_legacy or target == policy.fetched.endpoint
        if is_legacy and (stream := self.legacy.stream_of(target)):
            conversation = stream.conversation
        else:
            id = said.session_id
            session = self.sessions.get(id, policy.clock()) if id else None
            client = Client(Via.HTTP, session, None if id else said.revision)
            if policy.links:
                self._describe(client, head)
            conversation = Conversation(policy, client)
        exchange = HttpExchange(conversation, head, is_endpoint, (), is_legacy)
        self._note_asker(exchange, conversation.client.session)
        return exchange

    def _describe(self, client: Client, head: Head) -> None:
        """Add what only links want to know: who asks, and from where."""
        client.identity = credentials_in(head)
        client.address = head.address
        client.claimed_session = head.said.session_id
        client.upstream_has_sessions = self.fetched.sessions

    def _session_of(self, head: Head) -> Session | None:
        id = head.said.session_id
        return self.sessions.get(id, self.policy.clock()) if id else None

    def _note_asker(self, exchange: HttpExchange, session: Session | None) -> None:
        """Note whether the upstream can tell the client from us; it may remember for a session."""
        config, head = self.policy.config, exchange.head
        replaced = config.header_names if config.header_override else frozenset()
        known = False
        if b"origin" in head.names:
            page = page_of(head.get(b"origin"), head.target, has_cookie=False)
            known = page is not None and self.cors.is_allowed(page)
        is_like = is_like_the_fetch(head, replaced=replaced, known_origin=known)
        exchange.is_like_the_fetch = is_like and not self.keeps_host
        if exchange.is_like_the_fetch:
            return
        if session:
            session.is_like_the_fetch = False
        exchange.conversation.client.credential = self._hash_of(identity_in(head))

    def _hash_of(self, identity: bytes) -> str:
        """Hash what tells an asker from others, so that nobody finds it in our memory."""
        return hmac.digest(self._hash_key, identity, "sha256")[:16].hex()

    def _pay(self, stream: LegacyStream | None, owed: tuple[bytes, ...]) -> tuple[bytes, ...]:
        """Give the replies we owe where they are waited for; return those still owed."""
        if stream is None:
            return owed
        for reply in owed:
            stream.send(render_event(reply))
        return ()

    def tell_refused(self, verdict: Verdict, origin: object = None) -> None:
        """Tell the observers of a request that was refused by its head."""
        Conversation(self.policy).refuse_from_client(verdict, 0, origin)

    def _refuse(
        self, detail: str, origin: object, body: bytes = b"", why: Why = Why.MALFORMED
    ) -> Answered:
        reply = refused(body, why, detail, self.config.limits)
        self.tell_refused(reply, origin)
        return Answered(431 if why is Why.OVERSIZED else _STATUS[why], reply.text)

    def _is_endpoint(self, target: str) -> bool:
        return target == self.policy.fetched.endpoint or target in self.legacy.endpoints

    def headers_for(self, head: Head) -> HeaderPairs:
        """Return which of the user's headers a request gets."""
        config = self.policy.config
        if not config.upstream_headers or not self.takes_headers(head.target):
            return ()
        return headers_to_add(head, config.upstream_headers, override=config.header_override)

    def serves(self, method: str, target: str) -> bool:
        """Tell whether a path passes where only MCP and logins do."""
        return self.takes_headers(target) or self.logins.has(method, target)

    def takes_headers(self, target: str) -> bool:
        """Tell whether a path is the MCP endpoint, named by it, or named by the user."""
        endpoints = (self.fetched.endpoint, self.config.endpoint or self.fetched.endpoint)
        return (
            plain_path(target) in map(plain_path, endpoints)
            or target in self.legacy
            or self.config.header_paths.has(target)
        )

    # Answers

    def note_answer_head(self, exchange: HttpExchange, status: int, session_id: str | None) -> None:
        """Take from an answer's head what it says of sessions."""
        conversation = exchange.conversation
        if session_id and "initialize" in conversation.exchanges.methods:
            session = self.sessions.open(session_id, self.policy.clock())
            session.is_like_the_fetch = exchange.is_like_the_fetch
            conversation.client.session = session
        if status == 404 and (named := exchange.head.said.session_id):
            self.sessions.close(named)

    def judge_answer(
        self,
        exchange: HttpExchange,
        status: int,
        content_type: str,
        coding: str,
        raw: bytes,
        origin: object = None,
    ) -> Decision[Answered | None]:
        """Decide on a whole answer; None if it goes on as it came."""
        limit = self.policy.config.limits.message
        try:
            body = decode_body(raw, coding, limit=limit)
            if len(body) > limit:
                raise OverLimit(f"longer than {limit} bytes")
            refuse_partial(status, content_type)
            if not body and exchange.waits and status == 200:
                raise ProtocolError("an empty answer")
        except ProtocolError as error:
            return self.invalid_answer(exchange, str(error), origin)
        answer = _Answer(exchange, status, content_type, raw, body, origin)
        if not body:
            return self._pay_alone(answer)
        try:
            judged = exchange.conversation.from_upstream(body, origin)
        except ProtocolError as error:
            return self._judge_other_answer(answer, error)
        if isinstance(judged, Judged):
            return self._carry_back(answer, judged)
        return then(judged, partial(self._carry_back, answer))

    def _carry_back(self, answer: _Answer, judged: Judged) -> Answered | None:
        match judged.verdict:
            case Forward():
                owed = answer.exchange.owed
                return answer.with_owed(answer.body) if owed else answer.as_it_came
            case Rewrite(text):
                return answer.with_owed(text)
            case Reply() | Drop():
                why = "an answer that may not be seen"
                return self.invalid_answer(answer.exchange, why, answer.origin)
            case unexpected:
                assert_never(unexpected)

    def _judge_other_answer(self, answer: _Answer, error: ProtocolError) -> Answered | None:
        """Let an answer pass that is no message and shows no tool."""
        exchange, status = answer.exchange, answer.status
        try:
            if exchange.waits and 200 <= status < 300 and status not in (202, 204):
                raise error
            if may_be_event_stream(answer.content_type):
                raise error
            refuse_packed(answer.content_type, answer.body)
            denied = exchange.conversation.kind.snapshot.denied
            if could_show_tool(answer.body, denied, self.config.limits):
                raise error
        except ProtocolError as why:
            return self.invalid_answer(exchange, str(why), answer.origin)
        return self._pay_alone(answer)

    def _pay_alone(self, answer: _Answer) -> Answered | None:
        """Give what we owe to a batch whose rest has no answer of its own."""
        owed = answer.exchange.owed
        if not owed or answer.status >= 300:
            return answer.as_it_came
        return Answered(200, render_batch(list(owed)))

    def invalid_answer(
        self, exchange: HttpExchange, why: str = "not HTTP", origin: object = None
    ) -> Answered:
        """Answer those who wait for what the upstream said so that it cannot be passed on."""
        conversation = exchange.conversation
        ids = [] if exchange.is_legacy else conversation.exchanges.take_all()
        verdict = conversation.fail(ids, why, origin=origin).verdict
        errors = (verdict.text, *verdict.owed) if isinstance(verdict, Rewrite) else ()
        replies = [*errors, *exchange.owed]
        if not replies:
            return Answered(502, render_error(None, INTERNAL_ERROR, INVALID_ANSWER))
        return Answered(200, replies[0] if len(replies) == 1 else render_batch(replies))

    def lost_replies(self, exchange: HttpExchange) -> tuple[bytes, ...]:
        """Return what a client gets that still waits when the upstream is lost."""
        replies = exchange.conversation.lose()
        return (*replies, *exchange.owed) if replies else ()

    def tell_of_loss(self, target: str, raw: bytes) -> None:
        """Tell a client of the older transport on its stream that a POST was lost."""
        if stream := self.legacy.stream_of(target):
            for id in stream.conversation.exchanges.take(ids_in(raw)):
                stream.send(render_event(render_error(id, UPSTREAM_LOST, LOST_ANSWER)))

    # Streams and sockets

    def open_stream(
        self, exchange: HttpExchange, target: str, send: Callable[[bytes], bool] | None
    ) -> EventStream:
        """Stand between an event stream and its client; ``send`` puts bytes into it."""
        return EventStream(
            exchange.conversation,
            on_endpoint=partial(self._open_legacy, exchange, target, send),
            begins_with=b"".join(map(render_event, exchange.owed)),
        )

    def close_stream(self, exchange: HttpExchange) -> None:
        """Forget a stream that has ended."""
        self.legacy.close(exchange.conversation)

    def open_socket(self, exchange: HttpExchange) -> Conversation:
        """Begin what is said over a WebSocket, by both sides."""
        client = exchange.conversation.client
        is_like = exchange.is_like_the_fetch
        session = Session(started=self.policy.clock(), is_like_the_fetch=is_like)
        client = replace(client, via=Via.WEBSOCKET, session=session, said_revision=None)
        return Conversation(self.policy, client)

    def _open_legacy(
        self,
        exchange: HttpExchange,
        target: str,
        send: Callable[[bytes], bool] | None,
        url: str,
    ) -> str | None:
        """Remember where a client of the older transport will post; keep it with us."""
        kept = kept_with_us(url, self.names) if len(url) <= LONGEST_ENDPOINT else None
        if kept is None or send is None:
            return None
        client = exchange.conversation.client
        client.via = Via.LEGACY_SSE
        client.session = client.session or Session(
            started=self.policy.clock(), is_like_the_fetch=exchange.is_like_the_fetch
        )
        exchange.is_legacy = True
        self.legacy.open(target, kept, LegacyStream(send, exchange.conversation))
        return url if self.is_forward else kept


def open_listener(
    *,
    upstream: str,
    config: Config,
    fetched: Fetched,
    observe: Observer | None = None,
    clock: Callable[[], float] = time.monotonic,
    names: UpstreamNames | None = None,
    keeps_host: bool = False,
) -> Listener:
    """Take the snapshot. Raises StartError if what was fetched cannot be judged."""
    policy = PolicyInForce(config=config, fetched=fetched, clock=clock)
    if observe:
        policy.observe = observe
    names = names or UpstreamNames(upstream)
    return Listener(upstream=upstream, policy=policy, names=names, keeps_host=keeps_host)


@dataclass(slots=True, eq=False)
class _Answer:
    """What the upstream answered."""

    exchange: HttpExchange
    status: int
    content_type: str
    raw: bytes
    body: bytes
    """Without its coding."""
    origin: object

    @property
    def as_it_came(self) -> Answered | None:
        """None, or what was judged of an answer in a coding that nobody asked for."""
        if self.body is self.raw:
            return None
        return Answered(self.status, self.body, content_type=self.content_type)

    def with_owed(self, body: bytes) -> Answered:
        return Answered(self.status, self.exchange.with_owed(body))
