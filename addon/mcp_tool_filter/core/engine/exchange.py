"""One request and its answer: what we ask the listener, in which order, and what we send.

    ARRIVING ──► COLLECTING ──► DECIDING ──► ASKING ──► STREAMING ──► OVER
    the gate      the body      listener,    the         an event
    looks at      comes         rules and    upstream    stream has
    the head                    logins       answers     begun
                                     └──► OVER (our own answer)

Any phase may end: with our own answer (nothing was sent yet), or by being cut (something was). What
leaves is what was judged last: other addons run between the steps (``point``), and what they change
is judged again.

Nothing is kept longer than needed. A body is kept until the answer begins, since the request may
have to be sent again. An answer is kept until it is judged; of an event stream, only the unfinished
event and what is behind a waiting decision.

Time: everything runs within the call that brings the bytes, unless a decision, a hook or a point
waits; what goes on later (``_later``) first asks whether the exchange is over. An exception in our
own code ends the exchange with an error and closes the connection (``fail``): no byte passes.

The cost of a call is one judged message in each direction, since what was decided on a head is
remembered with it (``RequestNotes``, ``AnswerNotes``).
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from functools import partial
from typing import TYPE_CHECKING, Protocol

from mcp_tool_filter.core.conversation.policy_in_force import INVALID_ANSWER, LOST_ANSWER
from mcp_tool_filter.core.engine.service import nothing
from mcp_tool_filter.core.engine.wire import (
    NO_BODY,
    NOT_IMPLEMENTED,
    AnswerHead,
    Fault,
    RequestHead,
    render_request,
)
from mcp_tool_filter.core.errors import ProtocolError
from mcp_tool_filter.core.http.asked import Answered, HttpExchange, Passed
from mcp_tool_filter.core.http.asker import Page, page_of, problem_in_source
from mcp_tool_filter.core.http.bodies import (
    is_event_stream,
    refuse_partial,
)
from mcp_tool_filter.core.http.head import (
    SAFE_METHODS,
    AnswerNotes,
    Fields,
    Head,
    RequestNotes,
    describes_body,
    fields_for_upstream,
    links_in,
    text_of,
    without_our_cookie,
)
from mcp_tool_filter.core.http.listener import Listener
from mcp_tool_filter.core.http.urls import WITH_URLS
from mcp_tool_filter.core.messages.messages import (
    INTERNAL_ERROR,
    INVALID_REQUEST,
    UPSTREAM_LOST,
    ids_in,
    render_batch,
    render_error,
)
from mcp_tool_filter.core.messages.sse import render_event
from mcp_tool_filter.core.policy.effects import Deciding, InOrder
from mcp_tool_filter.core.policy.verdict import Reason, Reply, Why

if TYPE_CHECKING:
    from mcp_tool_filter.core.engine.client_h1 import H1Client
    from mcp_tool_filter.core.engine.service import Address, Host, Service
    from mcp_tool_filter.core.engine.upstream import Upstream
    from mcp_tool_filter.core.http.event_stream import EventStream

log = logging.getLogger(__name__)

FORBIDDEN = render_error(None, INVALID_REQUEST, "Forbidden: unknown Host or Origin")
FORBIDDEN_SITE = render_error(None, INVALID_REQUEST, "Forbidden: sent by a page of another site")
INVALID_HTTP = render_error(None, INVALID_REQUEST, "Invalid Request")
NO_UPGRADE = render_error(
    None, INVALID_REQUEST, "Only HTTP/1.1 passes here: no upgrade (WebSocket, h2c), no CONNECT"
)
TOO_LARGE = render_error(None, INVALID_REQUEST, "Request too large")
INTERNAL = render_error(None, INTERNAL_ERROR, "Internal error")
INVALID = render_error(None, INTERNAL_ERROR, INVALID_ANSWER)
LOST = render_error(None, UPSTREAM_LOST, LOST_ANSWER)
FULL = render_error(None, UPSTREAM_LOST, "Too many clients are connected")
_TOO_MUCH = "Too many unfinished messages: try again later"
_RETRY = ((b"retry-after", b"1"),)

_LOGIN_OF_CONNECTION = re.compile(rb"(?:ntlm|negotiate)\b", re.IGNORECASE)
_SAFE_MESSAGES = frozenset({
    "initialize", "ping", "server/discover", "tools/list", "prompts/list", "prompts/get",
    "resources/list", "resources/templates/list", "resources/read", "completion/complete",
    "logging/setLevel",
})  # fmt: skip


class Phase(Enum):
    """How far an exchange is."""

    ARRIVING = auto()
    COLLECTING = auto()
    DECIDING = auto()
    ASKING = auto()
    STREAMING = auto()
    OVER = auto()


class Outcome(Enum):
    """How an exchange has ended."""

    ANSWERED = auto()
    """By the upstream, by another addon, or by ourselves."""
    CLIENT_LEFT = auto()
    UPSTREAM_FAILED = auto()
    """It could not be reached, or disconnected too early."""
    CUT = auto()
    """By ourselves, after the answer had begun."""


@dataclass(slots=True, eq=False)
class Answer:
    """An answer on its way to the client. Other addons may change it before it is sent."""

    status: int
    reason: bytes | None = None
    """None for the usual one."""
    fields: Fields = ()
    """Without those that frame it."""
    body: bytes = b""
    length: int | None = None
    """The length that the upstream has announced; it counts if there is no body to measure."""

    def get(self, name: bytes) -> str:
        """Return the value of a field; several are joined."""
        return text_of(self.fields, name)


def answer_to(fault: Fault) -> Answer:
    """Return our answer to bytes that are not HTTP as we accept it."""
    fields = ((b"content-type", b"application/json"), *fault.fields)
    said = NO_UPGRADE if fault.status == NOT_IMPLEMENTED else INVALID_HTTP
    return Answer(fault.status, None, fields, said)


class Tap(Protocol):
    """Sees what comes and goes, for a host that shows it."""

    def head(self, status: int, fields: Fields) -> None:
        """The upstream's head has come."""

    def data(self, data: bytes) -> None:
        """Bytes of the upstream's body have come; none are its end."""

    def said(self, data: bytes) -> None:
        """The client gets these bytes of a stream."""


class ClientSide(Protocol):
    """What an exchange orders for its client."""

    host: Host
    is_slow: bool
    """True while the client does not read what we send."""

    @property
    def lacks_seat(self) -> bool:
        """Whether there are too many clients to serve this one."""

    def go_ahead(self) -> None: ...
    def respond(self, answer: Answer, *, is_bare: bool) -> None:
        """Send a whole answer, and turn to the next request."""

    def stream(self, data: bytes, *, head: Answer | None = None, is_last: bool = False) -> None:
        """Send a piece of an answer: the first with its head, behind the last the turn ends."""

    def cut(self, exchange: Exchange) -> None: ...


class Exchange:
    """One request and its answer."""

    # Most exchanges leave these as they are.
    outcome: Outcome | None = None
    """How it has ended."""
    why = ""
    """Why it has failed, for people."""
    stream: EventStream | None = None
    most_idle = 0.0
    """Seconds for which a connection may have been idle, unless the request ``may_use_any``."""
    _tries = 0
    _course = 0  # changes when what was waited for no longer counts
    _has_ended = False  # the upstream's stream has, but some of it still waits

    # Only other addons set these.
    flow: object = None
    """The host's own view of the exchange."""
    tap: Tap | None = None
    made: tuple[AnswerHead, bytes] | None = None
    """Another addon's answer instead of the upstream's; it is judged like the upstream's. It may
    come before the request's body."""
    address: Address | None = None
    """Where another addon sends the request; our headers and logins do not follow it there."""
    authority: bytes | None = None
    """The Host that another addon wants to send."""
    transform: Callable[[bytes], bytes | Iterable[bytes]] | None = None
    """Another addon's changes to the bytes of a stream; they are judged."""
    was_changed = False
    """True if another addon has changed the answer since it was judged."""
    _is_lost = False  # the upstream is, but some of its stream still waits
    _links: Fields = ()  # the links of the answer before another addon has changed it
    _was_shown = False  # other addons have seen the answer, and see no other

    def __init__(
        self, service: Service, down: ClientSide, head: RequestHead, body: bytes | None = None
    ) -> None:
        """``body`` is all of it, if it is here."""
        self.service = service
        self.down = down
        self.head = head
        """The request's head; another addon may replace it."""
        self.phase = Phase.ARRIVING
        self.has_all = body is not None
        """True once the whole request is here."""
        self.size = len(body) if body else 0
        """Bytes of the message that comes now: of the request, then of the answer."""
        self.body = b""
        """The request's body, once it is complete."""
        self.asked: HttpExchange | None = None
        """What the listener knows about the request; None before it has decided."""
        self.added: Fields = ()
        """Fields that observers add for the upstream, such as a trace's."""
        self.out_fields: Fields = ()
        """The fields that the upstream gets."""
        self.up: Upstream | None = None
        self.answer: Answer | None = None
        self._notes: AnswerNotes | None = None  # on the head of the upstream's answer
        self._out_head: bytes | None = None
        self._parts = [body] if body else []

    @property
    def is_over(self) -> bool:
        return self.phase is Phase.OVER

    @property
    def has_begun(self) -> bool:
        """Whether the client has got a part of the answer."""
        return self.phase is Phase.STREAMING

    @property
    def peer(self) -> str:
        """The client's address and port, for people."""
        host, port = self.down.host.peer, self.down.host.port
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    @property
    def held_bytes(self) -> int:
        """Bytes of both messages in memory."""
        if self.is_over:
            return 0
        held = len(self.body) + sum(map(len, self._parts))
        if self.answer is not None:
            held += len(self.answer.body)
        return held + (self.stream.held_bytes if self.stream is not None else 0)

    # What another addon changes

    def change_head(self, method: str, target: str, fields: Fields) -> None:
        """Send another head than the client's."""
        self.head = replace(
            self.head, method=method, target=target, fields=fields, authority=None,
            notes=RequestNotes(),
        )  # fmt: skip

    def change_stream_head(self, status: int, fields: Fields) -> None:
        """Change the head of an event stream before it is sent."""
        assert self.answer is not None
        self._links = links_in(self.answer.fields)
        self.answer.status, self.answer.fields, self.was_changed = status, fields, True

    def change_answer(self, status: int, reason: bytes, fields: Fields, body: bytes) -> None:
        """Replace an answer before it is sent; also an event stream, which then ends."""
        if self.stream is not None:
            self._let_go()
            self.stream = None
        if self.answer is not None and not self.was_changed:
            self._links = links_in(self.answer.fields)
        self.answer, self.was_changed = Answer(status, reason, fields, body), True

    # The request

    @classmethod
    def begin_for(cls, service: Service, down: H1Client, head: RequestHead) -> None:
        """Begin an exchange for a client; the head may have its body."""
        body, head.body = head.body, None
        exchange = down.exchange = cls(service, down, head, body)
        exchange.begin()

    def begin(self) -> None:
        """Judge the head: who asks, and how much will come."""
        self.service.exchanges.add(self)
        if not self.head.target.startswith("/"):
            self.head.split_target()
        self.point("requestheaders", self._admit)

    def _admit(self) -> None:
        service, head = self.service, self.head
        if self.down.lacks_seat:
            return self._refuse(503, FULL, "max_clients", _RETRY)
        if self._is_stopped_at_the_gate(may_visit=True):
            return None
        if head.length is not None and head.length > service.listener.policy.config.limits.pending:
            return self._refuse(413, TOO_LARGE, "Request too large")
        self.phase = Phase.COLLECTING
        if self.has_all:
            self._collected()
        elif head.expects and self.made is not None:
            self._play_made(service.listener.unasked())
        elif head.expects:
            self.down.go_ahead()
        return None

    def _is_stopped_at_the_gate(self, *, may_visit: bool) -> bool:
        """Refuse a request by the page or name that it comes from; ``may_visit`` lets pass those
        that may be a part of a login."""
        head, service = self.head, self.service
        notes, config = head.notes, service.listener.policy.config
        if notes.config is not config:
            host, fields = self.down.host, without_our_cookie(head.fields)
            known = notes.head = Head(head.method, head.target, fields, host.peer)
            notes.config, notes.problem, notes.out_fields = config, None, None
            if not service.listener.is_forward:  # there the upstream itself can check both
                notes.problem = problem_in_source(
                    config.allowed_hosts, known, authority=head.authority, own=host.own
                )
        is_of_site = notes.problem == "Sec-Fetch-Site"
        is_visit = service.is_visit if is_of_site and may_visit else None
        if notes.problem is None or (is_visit is not None and is_visit(self)):
            return False
        said = FORBIDDEN_SITE if is_of_site else FORBIDDEN
        self._refuse(403, said, notes.problem)
        return True

    def take(self, data: bytes) -> None:
        """Take bytes of the body."""
        if self.is_over:
            return
        if self.made is None:
            self._parts.append(data)
        self.size += len(data)
        if self.size > self.service.listener.policy.config.limits.pending:
            self._refuse(413, TOO_LARGE, "Request too large")

    def _refuse(self, status: int, said: bytes, detail: str, fields: Fields = ()) -> None:
        """Answer at once; only a page whose request was too large may read that."""
        is_large = status == 413
        why = Why.OVERSIZED if is_large else Why.FORBIDDEN
        self.service.listener.tell_refused(Reply(said, Reason(why, detail=detail)), self)
        if status == 503:
            self.head.keeps = False
        self.reply(Answered(status, said), with_cors=is_large, fields=fields)

    def end_of_request(self) -> None:
        """The whole request is here."""
        self.has_all = True
        if self.phase is Phase.COLLECTING:
            self._collected()

    def _collected(self) -> None:
        parts, self._parts = self._parts, []
        if self.made is not None:
            return self._play_made(self.service.listener.unasked())
        self.body = parts[0] if len(parts) == 1 else b"".join(parts)
        self.phase = Phase.DECIDING
        self.point("request", self._judge)
        return None

    def _judge(self) -> None:
        """Judge the request as it is now: this is the last check before it is sent."""
        if self.service.is_ending:
            ids = (*ids_in(self.body),) or (None,)
            return self.reply(Answered(200, _joined(_lost(id) for id in ids)))
        before, may_be_login = self.service.before_judging, self.service.may_be_login
        if before is not None and (may_be_login is None or may_be_login(self.head.target)):
            return before(self, self._going_on(self._judge_message))
        return self._judge_message()

    def move_to(self, service: Service) -> None:
        """Let another service judge the request, because its upstream runs only now."""
        self.service.exchanges.discard(self)
        self.service = service
        service.exchanges.add(self)
        self.guarded(self._judge)
        self.down.host.wake()

    def _judge_message(self) -> None:
        if self._is_stopped_at_the_gate(may_visit=False):  # something may have changed since
            return None
        known = self.head.notes.head
        assert known is not None
        outcome = self.service.listener.judge_request(known, self.body, self)
        if isinstance(outcome, Passed | Answered):
            return self._judged(outcome)
        self._carry_out(outcome, self._judged)
        return None

    def _carry_out[T](self, decision: Deciding[T], step: Callable[[T], None]) -> None:
        """Take a step with what a decision that waits comes to."""
        self.service.effects.carry_out(decision, partial(self._later, self._course, step))

    def _judged(self, outcome: Passed | Answered) -> None:
        if isinstance(outcome, Answered):
            if self.made is not None and self.made[0].status >= 400:
                return self._play_made(self.service.listener.unasked())
            if outcome.stream and outcome.body and outcome.stream.reply(outcome.body):
                outcome = Answered(202)
            return self.reply(outcome)
        if self.service.is_ending:
            return self._judge()
        asked = self.asked = outcome.exchange
        if outcome.body is not None:
            self.body = outcome.body
        self._address(asked.head, outcome)
        if self.made is not None:
            return self._play_made(asked)
        if self.service.before_sending is not None and self.address is None:
            return self.service.before_sending(self, self._going_on(self._send))
        return self._send()

    def _play_made(self, asked: HttpExchange) -> None:
        """Judge another addon's answer as if the upstream had sent it."""
        assert self.made is not None
        self.asked, self.phase = asked, Phase.ASKING
        self.on_answer(*self.made)

    def _address(self, head: Head, passed: Passed) -> None:
        """Write the head that the upstream gets."""
        notes = self.head.notes
        is_usual = (
            passed.body is None and not passed.headers and not self.added
            and self.address is None and self.authority is None
        )  # fmt: skip
        if is_usual and notes.out_fields is not None:
            self.out_fields, self._out_head = notes.out_fields, notes.out_head
            return
        self.out_fields = self._fields_for_upstream(head, passed)
        self._out_head = None
        # Which requests get the operator's headers changes while endpoints come and go.
        if is_usual and not self.service.listener.legacy.endpoints:
            notes.out_fields = self.out_fields
            notes.out_head = self._out_head = self._rendered()

    def _rendered(self) -> bytes:
        return render_request(self.head.method, self.head.target, self.out_fields)

    def _fields_for_upstream(self, head: Head, passed: Passed) -> Fields:
        listener, elsewhere = self.service.listener, self.address
        host = self.authority
        if host is None and elsewhere is not None:
            host = elsewhere.authority
        elif host is None and listener.keeps_host:
            host = (self.head.authority or head.get(b"host") or "").encode("latin-1")
        ours = () if elsewhere is not None else listener.headers_for(head)
        added = [(name.encode(), value.encode()) for name, value in ours]
        return fields_for_upstream(
            head,
            passed,
            host=self.service.authority if host is None else host,
            added=(*added, *self.added),
        )

    def add_field(self, name: bytes, value: bytes) -> None:
        """Send a header with the request that nobody else sees, in place of one of that name."""
        kept = [one for one in self.out_fields if one[0].lower() != name]
        self.out_fields = (*kept, (name, value))
        self._out_head = None

    def _send(self) -> None:
        self.phase = Phase.ASKING
        self.most_idle = self.service.limits.young
        self._connect()

    def _connect(self) -> None:
        connect = self.service.connect if self.address is None else None
        if (idle := (connect or self.down.host.connect)(self)) is not None:
            self.connected(idle)

    # The upstream

    @property
    def may_use_any(self) -> bool:
        """Whether the request may be sent on a connection that was idle for long."""
        return self._tries == 0 and self._may_be_repeated

    @property
    def _may_be_repeated(self) -> bool:
        """Whether sending the request twice changes nothing."""
        if self.head.method in SAFE_METHODS:
            return True
        methods = self.asked.conversation.exchanges.methods if self.asked is not None else ()
        return bool(methods) and _SAFE_MESSAGES.issuperset(methods)

    @property
    def _logs_connection_in(self) -> bool:
        """Whether the client logs in for all that follows on the upstream's connection."""
        asked = self.asked
        return (
            asked is not None
            and b"authorization" in asked.head.names.places
            and any(
                name.lower() == b"authorization" and _LOGIN_OF_CONNECTION.match(value)
                for name, value in self.out_fields
            )
        )

    def connected(self, up: Upstream) -> None:
        """The host has found a connection."""
        self.guarded(self._ask, up)

    def unreachable(self, why: str) -> None:
        """The host has found no connection."""
        self.guarded(self.lose, why)

    def _ask(self, up: Upstream) -> None:
        if self.is_over:
            return up.idle()
        self.up = up
        self._tries += 1
        if self._logs_connection_in:
            up.owner = self.down.host
        head = self._rendered() if self._out_head is None else self._out_head
        up.begin(self, head=head, method=self.head.method, body=self.body)
        if self.down.is_slow:
            up.slow_down(True)
        return None

    def upstream_is_slow(self, on: bool) -> None:
        """The upstream reads slowly, or again: nothing to do, since the request is sent already."""

    def upstream_lost(self, *, was_idle: bool) -> None:
        """The connection has ended before the answer did."""
        self.up = None
        if self.is_over:
            return None
        if was_idle and self.answer is None and self._tries < 2 and self._may_be_repeated:
            self.most_idle = 0.0
            return self._connect()
        return self.lose("the upstream closed the connection")

    def lose(self, why: str) -> None:
        """End the exchange because the upstream is lost; the client first gets an error."""
        if self.is_over:
            return None
        self.why = why
        self.service.suspect()
        if self.stream is not None and self.stream.is_waiting and not self._is_lost:
            self._is_lost = True  # a second loss does not wait: the process ends
            return self._drop_upstream()
        replies: tuple[bytes, ...] = ()
        listener, asked = self.service.listener, self.asked
        if asked is None:
            replies = tuple(map(_lost, ids_in(self.body)))
        elif asked.is_legacy and self.head.method != "GET":
            listener.tell_of_loss(self.head.target, self.body)
        else:
            replies = listener.lost_replies(asked)
        if self.has_begun:
            return self._end_stream_with(replies, Outcome.UPSTREAM_FAILED)
        answered = Answered(200, _joined(replies)) if replies else Answered(502, LOST)
        return self.reply(answered, outcome=Outcome.UPSTREAM_FAILED)

    def _end_stream_with(self, replies: Iterable[bytes], outcome: Outcome) -> None:
        """End a stream that has begun, with these last messages."""
        self._let_go()
        last = b"".join(map(render_event, replies))
        if last and self.tap is not None:
            self.tap.said(last)
        self._over(outcome)
        self.tell("error")
        self.down.stream(last, is_last=True)

    def _say(self, data: bytes, head: Answer | None = None, *, is_last: bool = False) -> None:
        if data and self.tap is not None:
            self.tap.said(data)
        self.down.stream(data, head=head, is_last=is_last)

    # The answer

    def on_answer(self, head: AnswerHead, body: bytes) -> None:
        """Take a whole answer."""
        course, self._has_ended = self._course, True
        self.on_head(head, body)
        if course == self._course and self.answer is not None and self.stream is None:
            self.on_end()  # a stream ends itself, perhaps when another addon has looked at it

    def on_head(self, head: AnswerHead, body: bytes = b"") -> None:
        """Take the head of the upstream's answer, and the bytes behind it. Raises ProtocolError."""
        asked, listener, status = self.asked, self.service.listener, head.status
        if asked is None:
            raise RuntimeError("an answer to nothing")
        if status == 101:
            raise ProtocolError("an upgrade that was not requested")
        if self.tap is not None:
            self.tap.head(status, head.fields)
        self.size = len(body)  # no matter if it is an event stream
        if body:
            self._parts.append(body)
            if self.tap is not None:
                self.tap.data(body)
        if self.tap is not None and self._has_ended:
            self.tap.data(b"")
        notes = self._notes = head.notes
        fields = _fields_of(head, listener)
        answer = self.answer = Answer(status, notes.reason, fields, length=head.length)
        before = self.service.before_answering
        if before is not None and before(self, self._going_on(self._send_again)):
            self.answer = None
            return self._drop_upstream()
        if b"origin" in asked.head.names.places and (page := self._page()):
            is_preflight = (
                self.head.method == "OPTIONS"
                and b"access-control-request-method" in asked.head.names.places
            )
            listener.cors.learn(page, status, fields, is_preflight=is_preflight)
        if notes.session or status == 404 or self.head.method == "DELETE":
            listener.note_answer_head(asked, status, notes.session)
        if not notes.stays and asked.waits:
            raise ProtocolError("a redirect that leads away from us")
        self._note_logins(notes.locations, notes.challenges)
        if is_event_stream(notes.kind) and status not in NO_BODY and self.head.method != "HEAD":
            self._open_stream(asked, answer, notes)
        return None

    def _note_logins(self, locations: Sequence[str], challenges: Sequence[str]) -> None:
        """Learn from the head of an answer where clients log in, and let a refusal name us."""
        service = self.service
        if service.listener.policy.config.only_mcp or service.learns_logins:
            service.listener.logins.learn_head(
                self.head.method, self.head.target, locations, challenges
            )
        refuses = self.answer is not None and self.answer.status in (401, 403)
        if refuses and service.rewrite_refusal is not None:
            service.rewrite_refusal(self)

    def _send_again(self) -> None:
        """Send the request once more: the hook has renewed its token."""
        self.answer, self._parts, self._has_ended = None, [], False
        self._send()

    def _open_stream(self, asked: HttpExchange, answer: Answer, notes: AnswerNotes) -> None:
        if notes.coding.strip().lower() not in ("", "identity"):
            raise ProtocolError("an event stream in a coding that was not requested")
        refuse_partial(answer.status, notes.kind)
        self.stream = self._filter(asked, answer)
        self.point("responseheaders", self._begin_stream)

    def _filter(self, asked: HttpExchange, answer: Answer) -> EventStream:
        """Return the filter for the event stream that answers a request."""
        send = self.inject if self.head.method == "GET" else None
        listener, wake = self.service.listener, partial(self._later, self._course, self._wake)
        if not listener.policy.config.shadow:  # which changes nothing
            answer.fields = tuple([one for one in answer.fields if not describes_body(one[0])])

        def make_queue() -> InOrder[bytes]:
            most = listener.policy.config.limits.pending
            return InOrder(self.service.effects.carry_out, wake, most=most)

        return listener.open_stream(asked, self.head.target, send, make_queue)

    def _begin_stream(self) -> None:
        answer = self.answer
        assert answer is not None
        if self.was_changed:
            if self.stream is None:
                return self._judge_changed()
            self.was_changed = False
            if not is_event_stream(self._judge_changed_head(answer).kind):
                raise ProtocolError("an event stream under another name")
        self.phase = Phase.STREAMING
        self.body, self._notes, self.out_fields, self._out_head = b"", None, (), None
        if self.up is not None and self.head.method == "GET":  # it may stay open for hours
            self.up.wire.forget()
        parts, self._parts = self._parts, []
        return self._feed(b"".join(parts), answer)

    def on_data(self, data: bytes) -> None:
        """Take bytes of the answer. Raises ProtocolError."""
        if self.tap is not None:
            self.tap.data(data)
        if self.phase is Phase.STREAMING:
            return self._feed(data)
        if self.is_over:
            return None
        self._parts.append(data)
        self.size += len(data)
        self._refuse_too_long()
        return None

    def _refuse_too_long(self) -> None:
        if self.size > self.service.listener.policy.config.limits.pending:
            raise ProtocolError("a longer answer than we keep")

    def _feed(self, data: bytes, head: Answer | None = None) -> None:
        """Filter bytes of the stream, and send what may pass."""
        if (stream := self.stream) is None:
            return
        if data and self.transform is not None:
            made = self.transform(data)
            data = made if isinstance(made, bytes) else b"".join(made)
        self._pass_on(stream.feed(data, self) if data else b"", head)

    def _wake(self) -> None:
        """Some waiting events are decided now."""
        if self.stream is not None and self.has_begun:
            self._pass_on(self.stream.take())

    def _pass_on(self, seen: bytes, head: Answer | None = None) -> None:
        """Send what may be seen of the stream; end with it, once nothing waits."""
        stream = self.stream
        assert stream is not None
        last = stream.finish(self) if self._has_ended else None
        if last is None or stream.failure is not None:
            if seen or head is not None:
                self._say(seen, head)
            if stream.failure is not None:
                self.refuse_answer(stream.failure)
            elif self._is_lost and not stream.is_waiting:
                self.lose(self.why)
            return None
        if self.asked is not None and self.asked.is_legacy:
            self._close_stream()
            self.service.suspect()
        elif self.head.method == "GET":
            self.service.note_end_of_stream()
        if self.down.host.point is None:
            return self._end_stream(seen + last, head)
        self._say(seen + last, head)
        return self.point("response", self._end_stream)

    def inject(self, data: bytes) -> bool:
        """Send our own bytes on the event stream; return False if there is none."""
        if self.phase is not Phase.STREAMING:
            return False
        self._say(data)
        self.down.host.wake()
        return True

    def tell_list_changed(self) -> None:
        """Tell the client on its open stream, if that is suitable, that its list has changed."""
        if self.stream is not None:
            # Not in the answer to a POST, unless the client has subscribed with it.
            in_session = self.head.method == "GET"
            for notice in self.stream.conversation.list_changed_notices(in_session=in_session):
                self.inject(render_event(notice))

    def on_end(self) -> None:
        """The upstream's answer is complete."""
        if self.is_over:
            return None
        if self.tap is not None and not self._has_ended:
            self.tap.data(b"")
        self._has_ended = True
        if self.stream is not None:
            return self._pass_on(b"") if self.phase is Phase.STREAMING else None
        self._refuse_too_long()
        parts, self._parts = self._parts, []
        return self._judge_body(parts[0] if len(parts) == 1 else b"".join(parts), self._shown)

    def _end_stream(self, last: bytes = b"", head: Answer | None = None) -> None:
        self._over(Outcome.ANSWERED)
        self.tell("answered")
        self._say(last, head, is_last=True)

    def _judge_body(self, raw: bytes, go_on: Callable[[], None]) -> None:
        answer, asked, notes = self.answer, self.asked, self._notes
        if answer is None or asked is None or notes is None:
            raise RuntimeError("an answer to nothing")
        if self.head.method == "HEAD":
            answer.body = b""
            return go_on()
        answer.body = raw
        decision = self.service.listener.judge_answer(
            asked, answer.status, notes.kind, notes.coding, raw, self
        )
        if decision is None or isinstance(decision, Answered):
            return self._put(answer, go_on, decision)
        self._carry_out(decision, partial(self._put, answer, go_on))
        return None

    def _put(self, answer: Answer, go_on: Callable[[], None], answered: Answered | None) -> None:
        """Replace the upstream's body with what was decided."""
        if answered is not None:
            kept = [
                (name, value)
                for name, value in answer.fields
                if name.lower() != b"content-type" and not describes_body(name)
            ]
            answer.fields = (*kept, (b"content-type", answered.content_type.encode()))
            answer.status, answer.reason, answer.body = answered.status, None, answered.body
        if self.service.rewrite_body is not None:
            self.service.rewrite_body(self)
        listener = self.service.listener
        if (
            (listener.policy.config.only_mcp or self.service.learns_logins)
            and answer.status == 200
            and listener.logins.is_document(self.head.target)
        ):
            listener.logins.learn_document(answer.body)
        go_on()

    @property
    def our_address(self) -> str:
        """Our address as the client calls us: by its Host header, which the gate has admitted, and
        with the server's prefix if we serve several.

        A balancer in front of us may do TLS. We believe the user, who allows an https origin, and
        no header that anybody can send.
        """
        hosts = [value for name, value in self.head.fields if name.lower() == b"host"]
        if len(hosts) != 1:
            raise ProtocolError("a request that names no host")
        host, listener = hosts[0].decode("latin-1"), self.service.listener
        is_tls = self.down.host.is_tls or listener.config.allowed_hosts.has_https(host)
        return f"{'https' if is_tls else 'http'}://{host}{listener.mount.prefix}"

    def _shown(self) -> None:
        """The answer is judged: show it to other addons, and judge their changes again."""
        if self.down.host.point is None or self._was_shown:
            return self._deliver()
        self._was_shown = True
        return self.point("responseheaders", partial(self.point, "response", self._looked_at))

    def _looked_at(self) -> None:
        return self._judge_changed() if self.was_changed else self._deliver()

    def _judge_changed(self) -> None:
        """Judge an answer that another addon has changed; the requests it answers are unknown."""
        answer = self.answer
        assert answer is not None
        self.was_changed = False
        notes = self._notes = self._judge_changed_head(answer)
        if is_event_stream(notes.kind):
            raise ProtocolError("an event stream that came too late to be judged")
        self.asked = self.service.listener.unasked()
        self._judge_body(answer.body, self._deliver)

    def _judge_changed_head(self, answer: Answer) -> AnswerNotes:
        if answer.status == 101:
            raise ProtocolError("an upgrade that was not requested")
        head = AnswerHead(answer.status, answer.reason or b"", answer.fields)
        notes = notes_on(head, self.service.listener)
        links = links_in(answer.fields)
        if links == self._links:  # they were judged, or are our own
            kept = [one for one in notes.fields if one[0].lower() not in WITH_URLS]
            notes.fields = (*kept, *links)
        elif not notes.stays and self.asked is not None and self.asked.waits:
            raise ProtocolError("a redirect that leads away from us")
        if self.stream is not None and notes.coding.strip().lower() not in ("", "identity"):
            raise ProtocolError("an event stream in a coding that was not requested")
        answer.fields, answer.reason = notes.fields, notes.reason or None
        return notes

    def _deliver(self) -> None:
        answer = self.answer
        assert answer is not None
        self._over(self.outcome or Outcome.ANSWERED)
        if self.outcome is Outcome.ANSWERED:
            self.tell("answered")
        self.down.respond(answer, is_bare=self.head.method == "HEAD")

    # Our own answers, and other endings

    def reply(
        self,
        answered: Answered,
        *,
        with_cors: bool = True,
        fields: Fields = (),
        outcome: Outcome = Outcome.ANSWERED,
    ) -> None:
        """Answer ourselves."""
        if self.is_over:
            return None
        self._let_go()
        self.phase, self.outcome = Phase.DECIDING, outcome
        self._course += 1
        answer = self.answer = Answer(answered.status, body=answered.body)
        if answered.body:
            fields = ((b"content-type", answered.content_type.encode()), *fields)
        if with_cors and (page := self._page()):
            fields = (*fields, *self.service.listener.cors.headers_for(page))
        answer.fields = fields
        if challenges := answered.challenges:
            answer.fields = (*fields, *((b"www-authenticate", one) for one in challenges))
            self._note_logins((), [one.decode("latin-1") for one in challenges])
        if outcome is not Outcome.ANSWERED:
            return self.point("error", self._deliver)
        return self._shown()

    def _page(self) -> Page | None:
        """Return the web page that sent the request, if one did."""
        known = self.head.notes.head
        return page_of(known) if known is not None and b"origin" in known.names.places else None

    def refuse_answer(self, error: Exception) -> None:
        """End the exchange because the upstream's answer must not pass."""
        self.service.note_failure(error)
        if self.is_over:
            return None
        self.why = str(error)
        answered = Answered(502, INVALID)
        if self.asked is not None:
            answered = self.service.listener.invalid_answer(self.asked, self.why, self)
        if not self.has_begun:
            return self.reply(answered)
        return self._end_stream_with([answered.body] if answered.status == 200 else [], Outcome.CUT)

    def give_up(self, said: str = _TOO_MUCH) -> None:
        """End the exchange, such as because all of them hold too much memory; what waits for an
        answer gets this error."""
        if self.is_over:
            return None
        self.why = said
        ids = self.asked.conversation.exchanges.take_all() if self.asked is not None else []
        replies = [render_error(id, INTERNAL_ERROR, said) for id in (*ids,) or (None,)]
        if self.has_begun:
            return self._end_stream_with(replies if ids else [], Outcome.CUT)
        return self.reply(Answered(200 if ids else 503, _joined(replies)), fields=_RETRY)

    def end(self, last: bytes = b"") -> bool:
        """End an event stream cleanly, with these last bytes; False if there is none."""
        if self.phase is not Phase.STREAMING:
            return False
        self._let_go()
        self._say(last)
        self.point("response", self._end_stream)
        self.down.host.wake()
        return True

    def fail(self, error: Exception) -> None:
        """End the exchange: its answer must not pass, or our own code has raised. Never raises."""
        try:
            is_of_answer = self.answer is not None or self.phase is Phase.ASKING
            if isinstance(error, Fault) or (isinstance(error, ProtocolError) and is_of_answer):
                return self.refuse_answer(error)
            self.service.note_failure(error)
            if self.is_over or self.has_begun:
                return self.cut("internal error")
            self.head.keeps = False
            if self.phase is Phase.ASKING and self.asked is not None:
                why = "an error of our own"
                return self.reply(self.service.listener.invalid_answer(self.asked, why, self))
            return self.reply(Answered(500, INTERNAL))
        except Exception as again:
            self.service.note_failure(again)
            self.phase = Phase.OVER
            self.service.exchanges.discard(self)
            self.down.host.abort()

    def kill(self) -> None:
        """The user of the host wants the exchange to end."""
        if not self.is_over:
            self.cut("Connection killed.")

    def cut(self, why: str) -> None:
        """Cut the exchange off, so that the client notices."""
        self.why = why
        self._end(Outcome.CUT)
        self.down.cut(self)

    def client_left(self) -> None:
        """The client is gone: cancel what it waits for."""
        if self.is_over:
            return
        self.why = "Client disconnected."
        self._end(Outcome.CLIENT_LEFT)

    def _end(self, outcome: Outcome) -> None:
        if self.is_over:
            return
        self._let_go()
        self._over(outcome)
        self.tell("error")

    def _over(self, outcome: Outcome) -> None:
        self.phase, self.outcome = Phase.OVER, outcome
        # An observer may remember us for long, and a stream refers to us: keep nothing large.
        self.up = self.stream = None
        self.body, self._parts = b"", []
        self.service.exchanges.discard(self)
        if self.service.note_over is not None:
            self.service.note_over(self)

    def _let_go(self) -> None:
        """The answer is not wanted any more."""
        self._drop_upstream()
        self._close_stream()

    def _close_stream(self) -> None:
        if self.stream is not None and self.asked is not None:
            self.stream.abandon()
            if self.asked.is_legacy:
                self.service.listener.close_stream(self.asked)

    def _drop_upstream(self) -> None:
        up, self.up = self.up, None
        if up is not None:
            up.drop()

    # Steps that run later

    def point(self, name: str, go_on: Callable[[], None]) -> None:
        """Let other addons run, if there are any."""
        point = self.down.host.point
        if point is None:
            go_on()
        else:
            point(name, self, self._going_on(go_on))

    def tell(self, name: str) -> None:
        """Tell other addons what they can no longer change."""
        if (point := self.down.host.point) is not None:
            point(name, self, nothing)

    def _going_on(self, step: Callable[[], None]) -> Callable[[], None]:
        """Return a function that takes a step once, unless the exchange takes another course."""
        steps, course = [step], self._course

        def go_on() -> None:
            if steps:
                self._later(course, steps.pop())

        return go_on

    def _later(self, course: int, step: Callable[..., None], *came: object) -> None:
        """Take a step after a wait, with what was waited for."""
        if course != self._course or self.is_over:
            return
        if came and isinstance(came[0], Exception):
            self.fail(came[0])
        else:
            self.guarded(step, *came)
        self.down.host.wake()

    def guarded[*Args](self, step: Callable[[*Args], None], *args: *Args) -> None:
        """Take a step; if it raises, only this exchange ends."""
        try:
            step(*args)
        except Exception as error:
            self.fail(error)


def notes_on(head: AnswerHead, listener: Listener) -> AnswerNotes:
    """Note with an answer's head which of its fields may pass, and what they say."""
    notes = head.notes
    notes.judge(head.status, head.reason, head.fields, listener)
    return notes


def _fields_of(head: AnswerHead, listener: Listener) -> Fields:
    """Return the fields of an answer that may pass, with its own date. Raises ProtocolError."""
    notes = head.notes
    if notes.names is not listener.names:
        notes_on(head, listener)
    at = notes.date_at
    if at is not None and notes.fields[at][1] != head.date:  # for all answers of this second
        dated = notes.fields[at][0], head.date or b""
        notes.fields = (*notes.fields[:at], dated, *notes.fields[at + 1 :])
    return notes.fields


def _lost(id: str | None) -> bytes:
    return render_error(id, UPSTREAM_LOST, LOST_ANSWER)


def _joined(replies: Iterable[bytes]) -> bytes:
    """Return one reply, or several as a batch."""
    said = list(replies)
    return said[0] if len(said) == 1 else render_batch(said)
