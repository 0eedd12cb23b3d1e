"""One listener: an upstream, its policy, and the decisions on its HTTP traffic.

It knows HTTP but no host: requests and answers come in as values, decisions go out as values, and
the host carries them out. ``conversation`` judges the messages. If a decision waits, a generator of
effects returns the same value.

``judge_request`` forwards a client's request or answers it; ``judge_answer`` forwards the
upstream's answer unchanged or replaces it. Both need the upstream's sessions, endpoints and policy,
so this is one class, although it is long.
"""

from __future__ import annotations

import hmac
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from secrets import token_bytes
from typing import assert_never

from mcp_tool_filter.core.conversation.conversation import Conversation
from mcp_tool_filter.core.conversation.memory import Fetched, Sessions
from mcp_tool_filter.core.conversation.policy_in_force import (
    INVALID_ANSWER,
    LOST_ANSWER,
    Judged,
    Observer,
    PolicyInForce,
)
from mcp_tool_filter.core.errors import ProtocolError
from mcp_tool_filter.core.http.asked import (
    LONGEST_ENDPOINT,
    Answered,
    HttpExchange,
    LegacyEndpoints,
    LegacyStream,
    Passed,
    refused,
)
from mcp_tool_filter.core.http.asker import (
    CorsMemory,
    HeaderPairs,
    asker_in,
    credentials_in,
    headers_to_add,
    identity_in,
    is_like_the_fetch,
    page_of,
)
from mcp_tool_filter.core.http.bodies import (
    could_show_tool,
    decode_body,
    looks_like_json,
    may_be_event_stream,
    refuse_non_text,
    refuse_partial,
)
from mcp_tool_filter.core.http.event_stream import EventStream
from mcp_tool_filter.core.http.head import WITHOUT_BODY, Head, headers_after, problem_in_body
from mcp_tool_filter.core.http.operator import (
    leads_to,
    operators_target,
    without_credentials,
    without_decided,
)
from mcp_tool_filter.core.http.places import ALONE, KnownPaths, PathMap
from mcp_tool_filter.core.http.urls import UpstreamNames, is_server_card, kept_with_us
from mcp_tool_filter.core.messages.limits import OverLimit, Transport
from mcp_tool_filter.core.messages.messages import (
    INTERNAL_ERROR,
    INVALID_REQUEST,
    UPSTREAM_LOST,
    ids_in,
    parse_message,
    render_batch,
    render_error,
)
from mcp_tool_filter.core.policy.config import Config, is_misleading, plain_path
from mcp_tool_filter.core.policy.effects import Deciding, Decision, InOrder, then
from mcp_tool_filter.core.policy.situation import Client, Session, Via
from mcp_tool_filter.core.policy.snapshot import Definitions, Snapshot
from mcp_tool_filter.core.policy.verdict import Drop, Forward, Reason, Reply, Rewrite, Verdict, Why

_NOTHING = Snapshot(allowed=Definitions([]), denied={})


NOT_SERVED = render_error(None, INVALID_REQUEST, "Not found: only the MCP endpoint is served here")
_NO_CARD = render_error(None, INVALID_REQUEST, "Not found")
_CARD_WARNING = (
    "a client that asks for a Server Card or a catalog gets 404: it would name the upstream's URL"
)
_STATUS = {Why.MALFORMED: 400, Why.MISMATCH: 400, Why.FORBIDDEN: 403}

type Outcome = Passed | Answered


@dataclass(slots=True, kw_only=True)
class Listener:
    """Judges the traffic of one upstream; it also opens streams and sockets."""

    upstream: str
    policy: PolicyInForce
    names: UpstreamNames
    keeps_host: bool = False
    """True if the upstream gets the client's own Host header."""
    is_forward: bool = False
    """True for a forward proxy: clients use the upstream's own name, so URLs stay unchanged."""
    called: str = ""
    """What people call the upstream if not by its URL, without secrets."""
    mount: PathMap = ALONE
    """Where clients find it, if we serve several."""
    sessions: Sessions = field(init=False)
    _hash_key: bytes = field(default_factory=partial(token_bytes, 32), repr=False)
    legacy: LegacyEndpoints = field(default_factory=LegacyEndpoints)
    cors: CorsMemory = field(default_factory=CorsMemory)
    logins: KnownPaths = field(default_factory=KnownPaths)

    def __post_init__(self) -> None:
        self.sessions = Sessions(self.config.limits)

    @property
    def config(self) -> Config:
        return self.policy.config

    @property
    def fetched(self) -> Fetched:
        return self.policy.fetched

    @property
    def snapshot(self) -> Snapshot:
        """The snapshot of the start; empty if the upstream lists its tools only to logged-in
        users."""
        return self.policy.snapshot if self.policy.kinds.start.is_listed else _NOTHING

    def unasked(self) -> HttpExchange:
        """Return an exchange whose request we have not seen."""
        return HttpExchange(Conversation(self.policy))

    def _is_endpoint(self, target: str) -> bool:
        return target == self.policy.fetched.endpoint or target in self.legacy.endpoints

    def _may_carry_mcp(self, target: str) -> bool:
        """Tell whether messages may pass to a path; if not, only logins may.

        Of several servers, one gets messages only at the very URL of its endpoint: with another
        query, or a slash more, it may be that of another server.
        """
        if not self.config.only_mcp:
            return True
        return self._is_endpoint(target) if self.mount.prefix else self.takes_headers(target)

    def takes_headers(self, target: str) -> bool:
        """Tell whether the user's headers are sent to a path: only to an MCP endpoint."""
        endpoints = (self.fetched.endpoint, self.config.endpoint or self.fetched.endpoint)
        return plain_path(target) in map(plain_path, endpoints) or target in self.legacy.endpoints

    def headers_for(self, head: Head) -> HeaderPairs:
        """Return which of the user's headers a request gets."""
        headers = self.policy.config.upstream_headers
        if not headers or self.takes_headers(head.target):
            return headers_to_add(head, headers) if headers else ()
        # Credentials go to the endpoint alone; the rest also to what some server takes for it.
        return without_credentials(headers) if self._leads_to_endpoint(head.target) else ()

    def _leads_to_endpoint(self, target: str) -> bool:
        return leads_to(target, self.config.endpoint or self.fetched.endpoint)

    def as_decided(self, head: Head) -> Head:
        """Return a request without what the operator has decided otherwise."""
        config, own = self.config, self.config.endpoint or ""
        if self.is_forward or not (config.upstream_headers or "?" in own):
            return head
        target = operators_target(head.target, own or self.fetched.endpoint)
        fields = head.headers
        if self.takes_headers(target) or self._leads_to_endpoint(target):
            fields = without_decided(fields, config.upstream_headers)
        return replace(head, target=target, headers=fields)

    # Requests

    def judge_request(self, head: Head, raw: bytes, origin: object = None) -> Decision[Outcome]:
        """Decide on a request before the upstream sees any of it.

        ``origin`` is the host's own object.
        """
        if problem := head.problem:
            detail, is_oversized = problem
            why = Why.OVERSIZED if is_oversized else Why.MALFORMED
            return self._refuse(detail, origin, why=why)
        config = self.policy.config
        may_carry_mcp = self._may_carry_mcp(head.target)
        if not may_carry_mcp and not self.logins.has(head.method, head.target):
            return self._refuse_path(origin)
        is_elsewhere = not (self.is_forward or self._is_endpoint(head.target))
        if is_elsewhere and is_server_card(head.target):
            return self._refuse_card(origin)
        limit = config.limits.message
        try:
            if len(raw) > limit:
                raise OverLimit(f"more than {limit} bytes")
            coding = head.said.coding
            body = decode_body(raw, coding, limit=limit) if coding else raw
        except OverLimit as error:
            exchange = self._exchange_for(head)
            too_large = exchange.conversation.oversized_from_client(raw, str(error), origin)
            return self._carry_out(exchange, raw, raw, too_large)
        except ProtocolError as error:
            return self._refuse(str(error), origin)
        if not body or head.method in WITHOUT_BODY:
            return self._judge_without_message(head, raw, origin)
        if not may_carry_mcp:
            is_message = problem_in_body(head, body, is_endpoint=False, limits=config.limits)
            if is_message:
                return self._refuse_path(origin)
        exchange = self._exchange_for(head)
        judged = exchange.conversation.from_client(body, origin, exchange)
        if isinstance(judged, Judged):
            return self._carry_out(exchange, raw, body, judged)
        return then(judged, partial(self._carry_out, exchange, raw, body))

    def _judge_without_message(self, head: Head, raw: bytes, origin: object) -> Outcome:
        is_endpoint = self._is_endpoint(head.target)
        if why := problem_in_body(head, raw, is_endpoint=is_endpoint, limits=self.config.limits):
            return self._refuse(why, origin, raw)
        client = self._client_of(head)
        exchange = HttpExchange(Conversation(self.policy, client), head, is_endpoint)
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
                if stream is None:
                    exchange.owed = owed
                else:
                    for reply in owed:
                        stream.reply(reply)
                message = parse_message(text, self.config.limits)
                changed = headers_after(exchange.head, message, judged.snapshot.allowed)
                return Passed(exchange, text, changed)
            case Reply(text, reason):
                if reason.why is Why.OVERSIZED and not ids_in(text):
                    return Answered(413, text)
                if reason.by_upstream is not None:
                    status, challenges = reason.by_upstream
                    return Answered(status, text, challenges=challenges)
                status = _STATUS.get(reason.why, 200)
                return Answered(status, text, stream if status == 200 else None)
            case Drop():
                return Answered(202)
            case unexpected:
                assert_never(unexpected)

    def _exchange_for(self, head: Head) -> HttpExchange:
        """Return an exchange with what we know about the client."""
        policy, said, target = self.policy, head.said, head.target
        is_legacy = target in self.legacy.endpoints
        is_endpoint = is_legacy or target == policy.fetched.endpoint
        stream = self.legacy.stream_of(target) if is_legacy else None
        if stream is not None:
            conversation = stream.conversation
        else:
            conversation = Conversation(policy, self._client_of(head))
        exchange = HttpExchange(conversation, head, is_endpoint, (), is_legacy)
        exchange.stream = stream
        exchange.announces = said.method is not None or said.name is not None
        client = conversation.client
        is_unknown = client.session is None and client.claimed_session
        if not (is_endpoint and head.names.are_harmless) or self.keeps_host or is_unknown:
            self._note_asker(exchange, client.session)
        return exchange

    def _client_of(self, head: Head) -> Client:
        """Return the client of a request, with its session if we know it."""
        said = head.said
        id = said.session_id or None
        session = self.sessions.get(id, self.policy.clock()) if id else None
        client = Client(Via.HTTP, session, None if session else said.revision, claimed_session=id)
        if self.policy.links:  # only they need it
            client.identity = credentials_in(head)
            client.asker = partial(asker_in, head)
            client.address = head.address
            client.upstream_has_sessions = self.fetched.sessions
        return client

    def _note_asker(self, exchange: HttpExchange, session: Session | None) -> None:
        """Note whether the upstream can distinguish the client from us; a session keeps this.

        A session that we do not know (we were restarted, or have forgotten it) is an asker of its
        own: we cannot tell what list its client got.
        """
        head = exchange.head
        known = False
        if b"origin" in head.names.places:
            page = page_of(head)
            known = page is not None and self.cors.is_allowed(page)
        is_like = is_like_the_fetch(head, known_origin=known)
        is_elsewhere = self._is_elsewhere(head)
        exchange.is_like_the_fetch = is_like and not self.keeps_host and not is_elsewhere
        if session and not exchange.is_like_the_fetch:
            session.is_like_the_fetch = False
        client = exchange.conversation.client
        identity = b""
        if not exchange.is_like_the_fetch:
            identity = identity_in(head, head.target if is_elsewhere else "")
            if self.keeps_host:
                identity += b"\nhost:" + (head.get(b"host") or "").encode("latin-1")
        if client.session is None and client.claimed_session:
            identity += b"\nsession:" + client.claimed_session.encode("latin-1")
        # Credentials do not stay in our memory.
        digest = hmac.digest(self._hash_key, identity, "sha256")[:16] if identity else b""
        client.credential = digest.hex()

    def _is_elsewhere(self, head: Head) -> bool:
        """Tell whether the URL could make the upstream list other tools.

        Some upstreams identify users by the URL; some have several servers, each at its own path.
        But the older transport never has the same path as the newer one.
        """
        fetched, target = self.policy.fetched, head.target
        if self._is_endpoint(target):
            return False
        is_newer = fetched.transport is not Transport.LEGACY_SSE
        return not (is_newer and head.method == "GET" and "?" not in target)

    def tell_refused(self, verdict: Verdict, origin: object = None) -> None:
        """Tell the observers about a request that was refused by its head."""
        Conversation(self.policy).refuse_from_client(verdict, 0, origin)

    def _refuse_path(self, origin: object) -> Answered:
        self.tell_refused(Reply(NOT_SERVED, Reason(Why.FORBIDDEN, detail="path")), origin)
        return Answered(404, NOT_SERVED)

    def _refuse_card(self, origin: object) -> Answered:
        """Answer as if the upstream had no such document: it would lead clients past us."""
        refusal = Reply(_NO_CARD, Reason(Why.FORBIDDEN, detail="server card"))
        judged = Conversation(self.policy).refuse_from_client(refusal, 0, origin)
        self.policy.tell_hidden((_CARD_WARNING,), judged)
        return Answered(404, _NO_CARD)

    def _refuse(
        self, detail: str, origin: object, body: bytes = b"", why: Why = Why.MALFORMED
    ) -> Answered:
        reply = refused(body, why, detail, self.config.limits)
        self.tell_refused(reply, origin)
        return Answered(431 if why is Why.OVERSIZED else _STATUS[why], reply.text)

    # Answers

    def note_answer_head(self, exchange: HttpExchange, status: int, session_id: str | None) -> None:
        """Learn from an answer's head which session was opened or closed."""
        conversation = exchange.conversation
        if session_id and "initialize" in conversation.exchanges.methods:
            session = self.sessions.open(session_id, self.policy.clock())
            session.is_like_the_fetch = exchange.is_like_the_fetch
            conversation.client.session = session
        if exchange.is_endpoint and (named := exchange.head.said.session_id):
            # Upstreams without a GET stream, or that end no sessions, refuse these two methods.
            ended = {"POST": status == 404, "DELETE": 200 <= status < 300 or status == 404}
            if ended.get(exchange.head.method):
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
        """Decide on a complete answer; None forwards it unchanged."""
        limit = self.policy.config.limits.message
        try:
            body = decode_body(raw, coding, limit=limit) if coding else raw
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
        return self._judge_later(answer, judged)

    def _judge_later(
        self, answer: _Answer, decision: Deciding[Judged]
    ) -> Deciding[Answered | None]:
        """Decide on an answer that is read in steps, or waits for rules."""
        try:
            judged = yield from decision
        except ProtocolError as error:
            return self._judge_other_answer(answer, error)
        return self._carry_back(answer, judged)

    def _carry_back(self, answer: _Answer, judged: Judged) -> Answered | None:
        exchange = answer.exchange
        match judged.verdict:
            case Forward() if not exchange.owed:
                return answer.as_it_came
            case Forward():
                return Answered(answer.status, exchange.with_owed(answer.body))
            case Rewrite(text):
                whole = exchange.with_owed(text) if exchange.owed else text
                return Answered(answer.status, whole)
            case Reply() | Drop():
                why = "an answer that may not be seen"
                return self.invalid_answer(exchange, why, answer.origin)
            case unexpected:
                assert_never(unexpected)

    def _judge_other_answer(self, answer: _Answer, error: ProtocolError) -> Answered | None:
        """Forward an answer that is not a message and shows no tool."""
        exchange, status = answer.exchange, answer.status
        try:
            if exchange.waits and 200 <= status < 300 and status not in (202, 204):
                raise error
            if may_be_event_stream(answer.content_type):
                raise error
            refuse_non_text(answer.content_type, answer.body)
            asked = exchange.conversation
            names, known = asked.never_shown, asked.hidden_names
            if could_show_tool(answer.body, names, self.config.limits, in_text=known):
                raise error
        except ProtocolError as why:
            return self.invalid_answer(exchange, str(why), answer.origin)
        return self._pay_alone(answer)

    def _pay_alone(self, answer: _Answer) -> Answered | None:
        """Answer a batch with only our own replies, because the rest gets no answer."""
        owed = answer.exchange.owed
        if not owed or answer.status >= 300:
            return answer.as_it_came
        return Answered(200, render_batch(list(owed)))

    def invalid_answer(
        self, exchange: HttpExchange, why: str = "not HTTP", origin: object = None
    ) -> Answered:
        """Answer the waiting requests with errors, because the upstream's answer cannot be
        forwarded."""
        conversation = exchange.conversation
        ids = [] if exchange.is_legacy else conversation.exchanges.take_all()
        verdict = conversation.fail(ids, why, origin=origin).verdict
        errors = (verdict.text, *verdict.owed) if isinstance(verdict, Rewrite) else ()
        replies = [*errors, *exchange.owed]
        if not replies:
            return Answered(502, render_error(None, INTERNAL_ERROR, INVALID_ANSWER))
        return Answered(200, replies[0] if len(replies) == 1 else render_batch(replies))

    def lost_replies(self, exchange: HttpExchange) -> tuple[bytes, ...]:
        """Return the errors for a client that still waits when the upstream is lost."""
        replies = exchange.conversation.lose()
        return (*replies, *exchange.owed) if replies else ()

    def tell_of_loss(self, target: str, raw: bytes) -> None:
        """Tell a client of the older transport, on its stream, that a POST was lost."""
        if stream := self.legacy.stream_of(target):
            stream.fail(raw, UPSTREAM_LOST, LOST_ANSWER)

    # Streams and sockets

    def open_stream(
        self,
        exchange: HttpExchange,
        target: str,
        send: Callable[[bytes], bool] | None,
        make_queue: Callable[[], InOrder[bytes]] | None = None,
    ) -> EventStream:
        """Return the filter for an event stream; ``send`` adds bytes of ours to the stream."""
        return EventStream(
            exchange.conversation,
            on_endpoint=partial(self._open_legacy, exchange, target, send),
            owed=exchange.owed,
            make_queue=make_queue,
        )

    def close_stream(self, exchange: HttpExchange) -> None:
        """Forget a stream that has ended."""
        if self.legacy.endpoints:
            self.legacy.close(exchange.conversation)

    def _open_legacy(
        self, exchange: HttpExchange, target: str, send: Callable[[bytes], bool] | None, url: str
    ) -> str | None:
        """Remember the endpoint where a client of the older transport will post, and make it lead
        to us."""
        kept = kept_with_us(url, self.names) if len(url) <= LONGEST_ENDPOINT else None
        if kept is None or send is None:
            return None
        if not self._may_carry_mcp(target) or self.logins.is_of_other(plain_path(kept)):
            return None  # a page of a login names no endpoint, and nobody names that of another
        client = exchange.conversation.client
        client.via = Via.LEGACY_SSE
        client.session = client.session or Session(
            started=self.policy.clock(), is_like_the_fetch=exchange.is_like_the_fetch
        )
        exchange.is_legacy = True
        stream = LegacyStream(send, exchange.conversation)
        self.legacy.open(target, kept, stream)
        if self.mount is not ALONE:  # some clients would resolve %2e%2e to another server's path
            leaves = is_misleading(stream.target.partition("?")[0])
            return None if leaves else self.mount.outward(stream.target)
        return url if self.is_forward else kept


@dataclass(slots=True, eq=False)
class _Answer:
    """The upstream's answer."""

    exchange: HttpExchange
    status: int
    content_type: str
    raw: bytes
    body: bytes
    """The decoded body."""
    origin: object

    @property
    def as_it_came(self) -> Answered | None:
        """Forward the answer: unchanged, or decoded if nobody asked for its coding."""
        if self.body is self.raw:
            return None
        return Answered(self.status, self.body, content_type=self.content_type)


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
    """Return a listener with its snapshot.

    Raises StartError if the fetched list cannot be judged.
    """
    policy = PolicyInForce(config=config, fetched=fetched, clock=clock)
    if observe:
        policy.observe = observe
    names = names or UpstreamNames(upstream)
    return Listener(upstream=upstream, policy=policy, names=names, keeps_host=keeps_host)
