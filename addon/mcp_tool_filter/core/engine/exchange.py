"""One request and its answer: what we ask the listener, in which order, and what we send.

    ARRIVING ──► COLLECTING ──► DECIDING ──► ASKING ──► STREAMING ──► OVER
    the gate      the body      listener,    the         an event
    looks at      comes         rules and    upstream    stream has
    the head                    logins       answers     begun
                                     └──► OVER (our own answer)

Any phase may end: with our own answer (nothing was sent yet), or by being cut (something was). What
leaves is what was judged last: other addons run between the steps (``point``), and what they change
is judged again. (``rooms/mitmproxy`` has such addons; here these steps go on at once.)

Nothing is kept longer than needed. A body is kept until the answer begins, since the request may
have to be sent again. An answer is kept until it is judged; of an event stream, only the unfinished
event and what is behind a waiting decision.

Time: everything runs within the call that brings the bytes, unless a decision, a hook or a point
waits; what goes on later (``Steps``) first asks whether the exchange is over. An exception in our
own code ends the exchange with an error and closes the connection (``fail``): no byte passes.

The cost of a call is one judged message in each direction, since what was decided on a head is
remembered with it (``RequestNotes``, ``AnswerNotes``).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from enum import Enum, auto
from functools import partial
from typing import TYPE_CHECKING

from mcp_tool_filter.core.conversation.policy_in_force import INVALID_ANSWER, LOST_ANSWER
from mcp_tool_filter.core.engine.gate import problem_at_the_gate, refusal_for
from mcp_tool_filter.core.engine.outgoing import logs_connection_in, may_be_repeated, write_head
from mcp_tool_filter.core.engine.steps import Answer, ClientSide, Outcome, Steps
from mcp_tool_filter.core.engine.streaming import StreamedAnswer, open_stream
from mcp_tool_filter.core.engine.wire import NO_BODY, AnswerHead, Fault, RequestHead
from mcp_tool_filter.core.engine.writing import render_request
from mcp_tool_filter.core.errors import ProtocolError
from mcp_tool_filter.core.http.asked import Answered, HttpExchange, Passed
from mcp_tool_filter.core.http.asker import Page, page_of
from mcp_tool_filter.core.http.bodies import is_event_stream
from mcp_tool_filter.core.http.head import AnswerNotes, Fields, describes_body
from mcp_tool_filter.core.http.listener import Listener
from mcp_tool_filter.core.messages.messages import (
    INTERNAL_ERROR,
    INVALID_REQUEST,
    UPSTREAM_LOST,
    ids_in,
    render_batch,
    render_error,
)
from mcp_tool_filter.core.messages.sse import render_event
from mcp_tool_filter.core.policy.verdict import Reason, Reply, Why

if TYPE_CHECKING:
    from mcp_tool_filter.core.engine.client_h1 import H1Client
    from mcp_tool_filter.core.engine.service import Address, Service
    from mcp_tool_filter.core.engine.upstream import Upstream

log = logging.getLogger(__name__)

TOO_LARGE = render_error(None, INVALID_REQUEST, "Request too large")
INTERNAL = render_error(None, INTERNAL_ERROR, "Internal error")
INVALID = render_error(None, INTERNAL_ERROR, INVALID_ANSWER)
LOST = render_error(None, UPSTREAM_LOST, LOST_ANSWER)
FULL = render_error(None, UPSTREAM_LOST, "Too many clients are connected")
CROWDED = render_error(None, UPSTREAM_LOST, "Too many clients wait for this server")
_TOO_MUCH = "Too many unfinished messages: try again later"
_RETRY = ((b"retry-after", b"1"),)
_LARGE = 4096
"""Bytes of a piece that is kept as it came."""


class Phase(Enum):
    """How far an exchange is."""

    ARRIVING = auto()
    COLLECTING = auto()
    DECIDING = auto()
    ASKING = auto()
    STREAMING = auto()
    OVER = auto()


class Collected:
    """A body that comes in pieces, in as much memory as its bytes.

    A piece of two bytes is an object of 35, and a place in a list: ten megabytes in such pieces
    would hold 200. So small pieces are written one behind the other; a large one is not copied.
    """

    __slots__ = ("_pieces", "size")

    def __init__(self, first: bytes = b"") -> None:
        self._pieces: list[bytes | bytearray] = [first] if first else []
        self.size = len(first)

    def add(self, data: bytes) -> None:
        pieces = self._pieces
        if len(data) >= _LARGE or not pieces:
            pieces.append(data)
        elif isinstance(pieces[-1], bytearray):
            pieces[-1] += data
        else:
            pieces.append(bytearray(data))
        self.size += len(data)

    def take(self) -> bytes:
        """Return all bytes, and forget them."""
        pieces, self._pieces, self.size = self._pieces, [], 0
        if len(pieces) == 1 and isinstance(pieces[0], bytes):
            return pieces[0]
        return b"".join(pieces)


class Exchange(Steps):
    """One request and its answer."""

    # Most exchanges leave these as they are.
    outcome: Outcome | None = None
    """How it has ended."""
    why = ""
    """Why it has failed, for people."""
    stream: StreamedAnswer | None = None
    """Set if the upstream answers with an event stream."""
    most_idle = 0.0
    """Seconds for which a connection may have been idle, unless the request ``may_use_any``."""
    is_answered = False
    """True once the upstream has said all; of a stream, some may still wait."""
    called = ""
    """What the client calls the tool, if the request is our own and has another name for it."""
    flow: object = None
    """The host's own view of the exchange."""
    address: Address | None = None
    """Where it goes if not to the upstream; our headers and logins do not follow it there."""
    authority: bytes | None = None
    """The Host to send, if it was chosen for this request."""
    tries = 0
    """How often it was sent."""

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
        self.out_head: bytes | None = None
        """The written head, if it will be used for other requests, too."""
        self._notes: AnswerNotes | None = None  # on the head of the upstream's answer
        self._came = Collected(body or b"")  # of the message that comes now

    @property
    def is_over(self) -> bool:
        return self.phase is Phase.OVER

    @property
    def has_begun(self) -> bool:
        """Whether the client has got a part of the answer."""
        return self.phase is Phase.STREAMING

    @property
    def held_bytes(self) -> int:
        """Bytes of both messages in memory."""
        if self.is_over:
            return 0
        held = len(self.body) + self._came.size
        if self.up is not None:
            held += len(self.up.wire.unread)
        if self.answer is not None:
            held += len(self.answer.body)
        return held + (self.stream.held_bytes if self.stream is not None else 0)

    # The request

    def begin(self) -> None:
        """Judge the head: who asks, and how much will come."""
        self.service.open.add(self)
        if not self.head.target.startswith("/"):
            self.head.split_target()
        self.point("requestheaders", self._admit)

    def _admit(self) -> None:
        service, head = self.service, self.head
        # In the order of cost: a crowd is turned away before anything of it is read or held.
        if service.seats is not None and service.seats.standing and self.down.lacks_seat:
            return self._refuse(503, FULL, "max_clients", _RETRY)
        if service.shares_seats and service.is_crowded:
            return self._refuse(503, CROWDED, "max_clients", _RETRY)
        if not _has_passed(self) and (problem := problem_at_the_gate(self, may_visit=True)):
            return self._refuse(403, refusal_for(problem), problem)
        if head.length is not None and head.length > service.listener.policy.config.limits.pending:
            return self._refuse(413, TOO_LARGE, "Request too large")
        self.phase = Phase.COLLECTING
        if self.has_all:
            self.end_of_request()
        elif head.expects:
            self._invite_body()
        return None

    def _invite_body(self) -> None:
        self.down.go_ahead()

    def take(self, data: bytes) -> None:
        """Take bytes of the body."""
        if self.is_over:
            return
        self._came.add(data)
        self.size += len(data)
        if self.size > self.service.listener.policy.config.limits.pending:
            self._refuse(413, TOO_LARGE, "Request too large")

    def _refuse(self, status: int, said: bytes, detail: str, fields: Fields = ()) -> None:
        """Answer at once; only a page whose request was too large may read that."""
        is_large = status == 413
        why = Why.OVERSIZED if is_large else Why.FORBIDDEN
        self.service.listener.tell_refused(Reply(said, Reason(why, detail=detail)), self)
        if status == 503:  # its connection is what others wait for
            self.head.keeps = False
        self.reply(Answered(status, said), with_cors=is_large, fields=fields)

    def end_of_request(self) -> None:
        """The whole request is here."""
        self.has_all = True
        if self.phase is not Phase.COLLECTING:
            return
        self.body = self._came.take()
        self.phase = Phase.DECIDING
        self.point("request", self.judge)

    def judge(self) -> None:
        """Judge the request as it is now: this is the last check before it is sent."""
        if self.service.is_ending:
            ids = (*ids_in(self.body),) or (None,)
            return self.reply(Answered(200, _joined(_lost(id) for id in ids)))
        before, may_be_login = self.service.before_judging, self.service.may_be_login
        if before is not None and (may_be_login is None or may_be_login(self.head.target)):
            return before(self, self.once(self._judge_message))
        return self._judge_message()

    def _judge_message(self) -> None:
        # Its head may have changed since, and may be that of a visit.
        if not _has_passed(self) and (problem := problem_at_the_gate(self, may_visit=False)):
            return self._refuse(403, refusal_for(problem), problem)
        known = self.head.notes.head
        assert known is not None
        self.head.target = known.target
        outcome = self.service.listener.judge_request(known, self.body, self)
        if isinstance(outcome, Passed | Answered):
            return self._judged(outcome)
        self.carry_out(outcome, self._judged)
        return None

    def _judged(self, outcome: Passed | Answered) -> None:
        if isinstance(outcome, Answered):
            # In the older transport a POST is only accepted; what answers it goes on the stream.
            if outcome.stream and outcome.body and outcome.stream.reply(outcome.body):
                outcome = Answered(202)
            return self.reply(outcome)
        if self.service.is_ending:  # since: the decision may have waited
            return self.judge()
        asked = self.asked = outcome.exchange
        if outcome.body is not None:
            self.body = outcome.body
        is_usual = _is_usual(self, outcome)
        notes = self.head.notes
        if is_usual and notes.out_fields is not None:  # written for an equal head
            self.out_fields, self.out_head = notes.out_fields, notes.out_head
        else:
            write_head(self, asked.head, outcome, is_usual=is_usual)
        return self._go_out()

    def _go_out(self) -> None:
        """Send the request that was judged."""
        if self.service.before_sending is not None and self.address is None:
            return self.service.before_sending(self, self.once(self._send))
        return self._send()

    def rendered_head(self) -> bytes:
        """Return the head as it is sent, without its end and its length."""
        return render_request(self.head.method, self.head.target, self.out_fields)

    def _send(self, most_idle: float | None = None) -> None:
        """Send the request; also once more, with another token or on another connection."""
        self.answer, self.is_answered = None, False
        self._came.take()  # of an answer that the client does not get
        self.phase = Phase.ASKING
        self.most_idle = self.service.limits.young if most_idle is None else most_idle
        connect = self.service.connect if self.address is None else None
        if (idle := (connect or self.down.host.connect)(self)) is not None:
            self._ask(idle)

    # The upstream

    @property
    def may_use_any(self) -> bool:
        """Whether the request may be sent on a connection that was idle for long."""
        return self.tries == 0 and may_be_repeated(self)

    def connected(self, up: Upstream) -> None:
        """The host has found a connection."""
        self.guarded(self._ask, up)

    def unreachable(self, why: str) -> None:
        """The host has found no connection."""
        self.guarded(self.lose, why)

    def _ask(self, up: Upstream) -> None:
        if self.is_over:  # the client has left while we connected; another one can use it
            return up.idle()
        self.up = up
        self.tries += 1
        asked = self.asked
        if asked and b"authorization" in asked.head.names.places and logs_connection_in(self):
            up.owner = self.down.host  # nobody else may ask on it from now on
        head = self.rendered_head() if self.out_head is None else self.out_head
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
        # Servers close idle connections, perhaps just as we send. Whether they have read it nobody
        # knows: so only what may be done twice is sent again, on a connection that is new.
        if was_idle and self.answer is None and self.tries < 2 and may_be_repeated(self):
            return self._send(most_idle=0.0)
        return self.lose("the upstream closed the connection")

    def lose(self, why: str) -> None:
        """End the exchange because the upstream is lost; the client first gets an error."""
        if self.is_over:
            return None
        self.why = why
        self.service.suspect()
        # What came before the loss and still waits for a decision is the client's: it gets it.
        if self.stream is not None and self.stream.waits_after_loss():
            return self._let_go(keeps_stream=True)
        replies: tuple[bytes, ...] = ()
        listener, asked = self.service.listener, self.asked
        if asked is None:
            replies = tuple(map(_lost, ids_in(self.body)))
        elif asked.is_legacy and self.head.method != "GET":
            listener.tell_of_loss(self.head.target, self.body)
        else:
            replies = listener.lost_replies(asked)
        if self.has_begun:
            return self.end_stream_with(replies, Outcome.UPSTREAM_FAILED)
        answered = Answered(200, _joined(replies)) if replies else Answered(502, LOST)
        return self.reply(answered, outcome=Outcome.UPSTREAM_FAILED)

    def end_stream_with(self, replies: Iterable[bytes], outcome: Outcome) -> None:
        """End a stream that has begun, with these last messages."""
        self._let_go()
        self._over(outcome)
        self.tell("error")
        self.down.stream(b"".join(map(render_event, replies)), is_last=True)

    def say(self, data: bytes, head: Answer | None = None) -> None:
        """Send a piece of the stream; the first with its head."""
        self.down.stream(data, head=head)

    # The answer

    def on_answer(self, head: AnswerHead, body: bytes) -> None:
        """Take a whole answer."""
        course, self.is_answered = self._course, True
        self.on_head(head, body)  # which may answer the client itself, or ask once more
        if course == self._course and self.answer is not None and self.stream is None:
            self.on_end()  # a stream ends itself, perhaps when another addon has looked at it

    def on_head(self, head: AnswerHead, body: bytes = b"") -> None:
        """Take the head of the upstream's answer, and the bytes behind it. Raises ProtocolError."""
        asked, listener, status = self.asked, self.service.listener, head.status
        if asked is None:
            raise RuntimeError("an answer to nothing")
        if status == 101:
            raise ProtocolError("an upgrade that was not requested")
        self.size = len(body)  # no matter if it is an event stream
        if body:
            self._came.add(body)
        notes = self._notes = head.notes
        fields = fields_of(head, listener)
        answer = self.answer = Answer(status, notes.reason, fields, length=head.length)
        before = self.service.before_answering
        if before is not None and before(self, self.once(self._send)):
            self.answer = None
            return self._let_go()
        if b"origin" in asked.head.names.places and (page := _page_of(self.head)):
            is_preflight = (
                self.head.method == "OPTIONS"
                and b"access-control-request-method" in asked.head.names.places
            )
            listener.cors.learn(page, status, fields, is_preflight=is_preflight)
        if notes.session or status == 404 or self.head.method == "DELETE":
            listener.note_answer_head(asked, status, notes.session)
        if not notes.stays and asked.waits:
            raise ProtocolError("a redirect that leads away from us")
        if notes.locations or notes.challenges or status in (401, 403):
            self.service.see_head(self, notes.locations, notes.challenges)
        if is_event_stream(notes.kind) and status not in NO_BODY and self.head.method != "HEAD":
            self.stream = open_stream(self, asked, answer, notes)
            self.point("responseheaders", self._begin_stream)
        return None

    def _begin_stream(self) -> None:
        self.phase = Phase.STREAMING
        self.body, self._notes, self.out_fields, self.out_head = b"", None, (), None
        if self.up is not None and self.head.method == "GET":  # it may stay open for hours
            self.up.wire.forget()
        assert self.stream is not None
        self.stream.feed(self._came.take(), self.answer)

    def on_data(self, data: bytes) -> None:
        """Take bytes of the answer. Raises ProtocolError."""
        if self.stream is not None and self.phase is Phase.STREAMING:
            return self.stream.feed(data)
        if self.is_over:
            return None
        self._came.add(data)
        self.size += len(data)
        _refuse_too_long(self)
        return None

    def on_end(self) -> None:
        """The upstream's answer is complete."""
        if self.is_over:
            return None
        self.is_answered = True
        if self.stream is not None:
            return self.stream.feed(b"") if self.phase is Phase.STREAMING else None
        _refuse_too_long(self)
        return self._judge_body(self._came.take(), self._deliver)

    def end_stream(self, last: bytes = b"", head: Answer | None = None) -> None:
        """End an event stream as it should, with these last bytes."""
        self._over(Outcome.ANSWERED)
        self.tell("answered")
        self.down.stream(last, head=head, is_last=True)

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
        self.carry_out(decision, partial(self._put, answer, go_on))
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

    def _deliver(self) -> None:
        """Send the answer, which is judged."""
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
        self._course += 1  # what was waited for until now no longer counts
        answer = self.answer = Answer(answered.status, body=answered.body)
        if answered.body:
            fields = ((b"content-type", answered.content_type.encode()), *fields)
        if with_cors and (page := _page_of(self.head)):
            fields = (*fields, *self.service.listener.cors.headers_for(page))
        answer.fields = fields
        if challenges := answered.challenges:
            answer.fields = (
                *fields,
                *((b"www-authenticate", challenge) for challenge in challenges),
            )
            self.service.see_head(
                self, (), [challenge.decode("latin-1") for challenge in challenges]
            )
        return self._deliver()

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
        return self.end_stream_with([answered.body] if answered.status == 200 else [], Outcome.CUT)

    def give_up(self, said: str = _TOO_MUCH) -> None:
        """End the exchange, such as because all of them hold too much memory; what waits for an
        answer gets this error."""
        if self.is_over:
            return None
        self.why = said
        ids = self.asked.conversation.exchanges.take_all() if self.asked is not None else []
        replies = [render_error(id, INTERNAL_ERROR, said) for id in (*ids,) or (None,)]
        if self.has_begun:
            return self.end_stream_with(replies if ids else [], Outcome.CUT)
        return self.reply(Answered(200 if ids else 503, _joined(replies)), fields=_RETRY)

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
            self.service.open.discard(self)
            self.down.host.abort()

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
        self.body = b""
        self._came.take()
        self.service.open.discard(self)
        if self.service.note_over is not None:
            self.service.note_over(self)

    def _let_go(self, *, keeps_stream: bool = False) -> None:
        """The answer is not wanted any more; ``keeps_stream`` keeps what of it still waits."""
        up, self.up = self.up, None
        if up is not None:
            up.drop()
        if self.stream is not None and not keeps_stream:
            self.stream.close()

    # What a host overrides that lets other addons take part

    def point(self, _name: str, go_on: Callable[[], None]) -> None:
        """Let other addons run, then go on."""
        go_on()

    def tell(self, name: str) -> None:
        """Tell other addons what they can no longer change."""


def begin_exchange(
    make: type[Exchange], service: Service, down: H1Client, head: RequestHead, body: bytes | None
) -> None:
    """Begin the next exchange of a connection, which knows it from its first step on."""
    exchange = down.exchange = make(service, down, head, body)
    exchange.begin()


def notes_on(head: AnswerHead, listener: Listener) -> AnswerNotes:
    """Note with an answer's head which of its fields may pass, and what they say."""
    notes = head.notes
    notes.judge(head.status, head.reason, head.fields, listener)
    return notes


def fields_of(head: AnswerHead, listener: Listener) -> Fields:
    """Return the fields of an answer that may pass, with its own date. Raises ProtocolError."""
    notes = head.notes
    if notes.names is not listener.names:
        notes_on(head, listener)
    at = notes.date_at
    if at is not None and notes.fields[at][1] != head.date:  # for all answers of this second
        dated = notes.fields[at][0], head.date or b""
        notes.fields = (*notes.fields[:at], dated, *notes.fields[at + 1 :])
    return notes.fields


def _page_of(head: RequestHead) -> Page | None:
    """Return the web page that sent a request, if one did."""
    known = head.notes.head
    return page_of(known) if known is not None and b"origin" in known.names.places else None


def _has_passed(exchange: Exchange) -> bool:
    """Tell whether the gate has let an equal head pass, under the configuration in force."""
    notes = exchange.head.notes
    return notes.problem is None and notes.config is exchange.service.listener.policy.config


def _is_usual(exchange: Exchange, passed: Passed) -> bool:
    """Tell whether a request goes on as all others with its head."""
    return (
        passed.body is None and not passed.headers and not exchange.added
        and exchange.address is None and exchange.authority is None
    )  # fmt: skip


def _refuse_too_long(exchange: Exchange) -> None:
    if exchange.size > exchange.service.listener.policy.config.limits.pending:
        raise ProtocolError("a longer answer than we keep")


def _lost(id: str | None) -> bytes:
    return render_error(id, UPSTREAM_LOST, LOST_ANSWER)


def _joined(replies: Iterable[bytes]) -> bytes:
    """Return one reply, or several as a batch."""
    said = list(replies)
    return said[0] if len(said) == 1 else render_batch(said)
