"""A client connection that speaks HTTP/1.1: one request after the other.

    IDLE ──► READING ──► ANSWERING ──► IDLE …
                 └──► DISCARDING ──► CLOSED      answered before the whole request was here
    any ──► CLOSED                               a fault, the last answer, or the client has left

A request is read when the one before it is answered; what a client sends ahead waits in the wire,
at most a mebibyte of it; after so many pieces (requests, chunks of a body) others are served first.
Behind an event stream it might wait for ever: there we close the connection, since while we
do not read from it we cannot notice that the client has left. We also do not read while the client
does not read our answers.

There are no timers here: ``tick`` compares the present state with that at the last tick, so
time-outs cost a request nothing.
"""

from __future__ import annotations

import math
from enum import Enum, auto
from typing import TYPE_CHECKING

from mcp_tool_filter.core.engine.exchange import Exchange, begin_exchange
from mcp_tool_filter.core.engine.service import Host, Service, Silence
from mcp_tool_filter.core.engine.steps import INVALID_HTTP, Answer, answer_to
from mcp_tool_filter.core.engine.wire import (
    CONTINUE,
    LAST_CHUNK,
    NOT_IMPLEMENTED,
    End,
    Fault,
    RequestHead,
    RequestWire,
)
from mcp_tool_filter.core.engine.writing import LONG, PHRASES, render_chunk
from mcp_tool_filter.core.http.bodies import EVENT_STREAM
from mcp_tool_filter.core.http.head import without_body
from mcp_tool_filter.core.policy.verdict import Reason, Reply, Why

if TYPE_CHECKING:
    from mcp_tool_filter.core.engine.service import Asking
    from mcp_tool_filter.core.http.head import AnswerNotes, Fields

_CLOSE = b"connection: close\r\n"
_SAYS_CALL = b'"tools/call"'
_TIMED_OUT = 408
_DETAILS = {_TIMED_OUT: "not sent in time", NOT_IMPLEMENTED: "an upgrade or a tunnel"}
"""For people who watch: why a request was refused before it was one."""


class Turn(Enum):
    """Whose turn it is on the connection."""

    IDLE = auto()
    """The client's: no request, or only a part of its head."""
    READING = auto()
    """The client's: it sends the rest of a request."""
    ANSWERING = auto()
    """Ours."""
    SKIPPING = auto()
    """The client's: a request without a body was answered by its head, and ends now."""
    DISCARDING = auto()
    """The client's: it sends the rest of a request that was answered."""
    CLOSED = auto()


_CLIENTS_TURN = (Turn.IDLE, Turn.READING, Turn.SKIPPING, Turn.DISCARDING)


class H1Client:
    """A client connection."""

    def __init__(
        self, service: Service, host: Host, exchange_type: type[Exchange] = Exchange
    ) -> None:
        """``exchange_type`` is made for each request: a host may show exchanges to others."""
        self.service, self.host, self._exchange_type = service, host, exchange_type
        self._has_lane = exchange_type is Exchange  # else somebody wants to see all exchanges
        self.turn = Turn.IDLE
        self.exchange: Asking | None = None
        self.is_slow = False
        """True while the client does not read what we send."""
        self.heard: float | None = 0.0
        self.was_served = False
        self.wire = RequestWire(service.limits)
        self._is_running = self._waits = False
        self._is_held = False  # we do not read from the client
        self._is_chunked = False  # the answer
        self._served = 0
        self._silence = Silence()
        if service.seats is not None:
            service.seats.enter(self)

    # Called by the host

    def receive(self, data: bytes) -> None:
        """Take bytes from the client."""
        try:
            if self.turn is not Turn.CLOSED:
                self._run(data)
        except Exception as error:
            self._fail(error)

    def gone(self) -> None:
        """The client has left, or has closed its half of the connection."""
        if self.service.seats is not None:
            self.service.seats.leave(self)
        self._leave()

    def held(self, on: bool) -> None:
        """The client reads slowly, or reads again: read from the upstream as slowly."""
        self.is_slow = on
        if self.exchange is not None and self.exchange.up is not None:
            self.exchange.up.slow_down(on)
        if not on:
            self._run()

    def tick(self, now: float) -> None:
        """Close the connection if the client has been silent for too long."""
        limits, number = self.service.limits, self._served
        state: tuple[object, ...] = ()
        seconds = math.inf
        match self.turn:
            case _ if self.is_slow:
                pass
            case Turn.IDLE if self.wire.unread:
                state, seconds = ("head", number), limits.head_time
            case Turn.IDLE:
                state, seconds = ("idle", number), limits.idle_time
            case Turn.READING:
                size = self.exchange.size if self.exchange is not None else 0
                state, seconds = ("body", number, size), limits.body_time
            case Turn.DISCARDING:
                state, seconds = ("rest", number), limits.discard_time
        if self._silence.lasts(state, now) < seconds:
            return
        if self.turn is Turn.READING or (self.turn is Turn.IDLE and self.wire.unread):
            self._refuse_bytes(Fault("a request that does not come", _TIMED_OUT))
        else:
            self._leave()
            self.host.close()
        self.host.wake()

    def close_silent(self) -> None:
        """Give the seat to another client."""
        if self.turn is Turn.CLOSED:  # it has not read all of its last answer
            self.host.abort()
        else:
            self._leave()
            self.host.close()

    def _leave(self) -> Asking | None:
        """End the exchange, if there is one, without an answer; return it."""
        exchange, self.exchange = self.exchange, None
        self.turn = Turn.CLOSED
        if exchange is not None:
            exchange.client_left()
        return exchange

    # Requests

    def _run(self, data: bytes = b"") -> None:
        """Read what has arrived, as long as it is the client's turn."""
        if self._is_running or self._waits:
            return self.wire.receive(data) if data else None
        self._is_running = True
        try:
            self._read(data)
        except Fault as fault:
            self._refuse_bytes(fault)
        except Exception as error:
            self._fail(error)
        finally:
            self._is_running = False
        if (self.wire.unread or self._is_held) and self.turn is not Turn.CLOSED:
            is_full = self.wire.ahead > self.service.limits.ahead
            if is_full and self.exchange is not None and self.exchange.stream is not None:
                self.exchange.cut("the client sends too much ahead")
            elif (is_full or self._waits) != self._is_held:
                self._is_held = not self._is_held
                self.host.hold(self._is_held)
        return None

    def _read(self, data: bytes) -> None:
        wire, last = self.wire, self.wire.pieces + self.service.limits.turn
        while self._may_read and (data or wire.unread or self.turn is not Turn.IDLE):
            if wire.pieces >= last and wire.unread:
                self._waits = True
                return self.host.call_later(0, self._go_on)
            event = wire.next_joined(data)
            data = b""
            if event is not None:
                self._take(event)
            else:
                return None
        return wire.receive(data) if data else None

    @property
    def _may_read(self) -> bool:
        return self.turn in _CLIENTS_TURN and not self.is_slow

    def _go_on(self) -> None:
        """Continue after other connections were served."""
        self._waits = False
        if self.turn is not Turn.CLOSED:
            self._run()

    def _take(self, event: RequestHead | bytes | End) -> None:
        if isinstance(event, RequestHead):
            if event.upgrades:  # MCP needs none, and what follows could not be judged
                raise Fault("an upgrade", NOT_IMPLEMENTED)
            self._begin(event)
        elif isinstance(event, bytes):
            if self.turn is Turn.READING and self.exchange is not None:
                self.exchange.take(event)
        elif self.turn is Turn.READING and self.exchange is not None:
            self.turn, self.heard, self.was_served = Turn.ANSWERING, None, True
            self.exchange.end_of_request()
        elif self.turn is Turn.SKIPPING:
            self.turn, self.wire.state = Turn.IDLE, "head"
        else:
            self._close()

    def _note_request(self, *, is_whole: bool) -> None:
        """A request has begun; perhaps all of it is here, and the client waits for us."""
        self._served += 1
        seats = self.service.seats
        if is_whole:
            self.turn, self.heard, self.was_served = Turn.ANSWERING, None, True
        else:
            self.turn = Turn.READING
            self.heard = seats.clock() if seats is not None else 0.0
        if seats is not None and seats.standing:
            seats.note_request(self)

    def _begin(self, head: RequestHead) -> None:
        service = self.service if self.service.route is None else self.service.route(head)
        if head.method == "CONNECT" and service.route is None:
            raise Fault("a tunnel", NOT_IMPLEMENTED)
        self._note_request(is_whole=head.body is not None)
        body, head.body = head.body, None
        # The first with its head always goes the whole way.
        # (``find`` takes a third of the time of ``in``, which asks first whether it is a number.)
        take_lane = service.take_lane if self._has_lane else None
        if take_lane and head.notes.out_head and body and body.find(_SAYS_CALL) >= 0:
            self.exchange = lane = take_lane(service, self, head, body)
            if lane is not None:
                return lane.begin()
        return begin_exchange(self._exchange_type, service, self, head, body)

    def _refuse_bytes(self, fault: Fault) -> None:
        """The client's bytes are not HTTP: answer if it waits for an answer, then close."""
        was_answered = self.turn in (Turn.ANSWERING, Turn.DISCARDING)
        exchange = self._leave()
        if not was_answered:
            detail = _DETAILS.get(fault.status, "not valid HTTP")
            self.service.listener.tell_refused(
                Reply(INVALID_HTTP, Reason(Why.MALFORMED, detail=detail)), exchange
            )
            self.respond(answer_to(fault), is_bare=False)
        self.host.close()

    def _fail(self, error: Exception) -> None:
        """Our own code has failed: refuse this exchange, or close the connection."""
        if self.exchange is not None:
            self.exchange.fail(error)
        else:
            self.service.note_failure(error)
            self.turn = Turn.CLOSED
            self.host.abort()

    # Called by an exchange

    @property
    def lacks_seat(self) -> bool:
        seats = self.service.seats
        return seats is not None and bool(seats.standing) and self in seats.standing

    def go_ahead(self) -> None:
        """Let the client send the body."""
        self.host.send(CONTINUE)

    @property
    def _keeps(self) -> bool:
        exchange = self.exchange
        if exchange is None or not exchange.head.keeps or self.service.is_draining:
            return False
        is_bare = not exchange.head.length and not exchange.head.is_chunked
        return self.turn is Turn.ANSWERING or (self.turn is Turn.READING and is_bare)

    def respond(self, answer: Answer, *, is_bare: bool) -> None:
        """Send a whole answer; a bare one has no body, whatever its length says."""
        body = b"" if is_bare else answer.body
        if answer.status == 204:
            ending = b""
        elif not is_bare and answer.status != 304:
            ending = b"content-length: %d\r\n" % len(body)
        else:
            ending = b"content-length: %d\r\n" % answer.length if answer.length is not None else b""
        if not self._keeps:
            ending += _CLOSE
        head = _head_of(answer, ending)
        if len(body) > LONG:  # joining would copy it
            self.host.send(head)
            self.host.send(body)
        else:
            self.host.send(head + body)
        self._end_turn()

    def respond_plainly(self, notes: AnswerNotes, fields: Fields, body: bytes) -> None:
        """Send an answer with status 200."""
        head = _written_head(notes, fields)
        ending = b"\r\n" if self._keeps else _CLOSE + b"\r\n"
        if len(body) > LONG:
            self.host.send(b"%bcontent-length: %d\r\n%b" % (head, len(body), ending))
            self.host.send(body)
        else:
            self.host.send(b"%bcontent-length: %d\r\n%b%b" % (head, len(body), ending, body))
        self._end_turn()

    def stream_plainly(self, notes: AnswerNotes, fields: Fields, data: bytes = b"") -> None:
        """Begin an event stream with status 200; with data, it ends, too."""
        self.stream(data, written=_written_head(notes, fields), is_last=bool(data))

    def stream(
        self, data: bytes, *, head: Answer | None = None, written: bytes = b"",
        is_last: bool = False,
    ) -> None:  # fmt: skip
        """Send a piece of an answer; the first with its head, or with what is written of it."""
        said = b""
        if head is not None or written:
            assert self.exchange is not None
            asked = self.exchange.head
            if asked.method == "GET":  # it may stay open for hours
                self.wire.forget()
            self._is_chunked = asked.is_11
            asked.keeps = asked.keeps and self._is_chunked
            ending = b"transfer-encoding: chunked\r\n" if self._is_chunked else b""
            if not self._keeps:
                ending += _CLOSE
            said = _head_of(head, ending) if head is not None else b"%b%b\r\n" % (written, ending)
        said += render_chunk(data) if self._is_chunked else data
        if is_last and self._is_chunked:
            said += LAST_CHUNK
        if said:
            self.host.send(said)
        if is_last:
            self._end_turn()

    def cut(self, exchange: object) -> None:
        """Cut the answer off, so that the client notices."""
        if exchange is not self.exchange:
            return  # its answer is complete
        self.exchange = None
        self.turn = Turn.CLOSED
        self.host.abort()

    def _end_turn(self) -> None:
        """The answer is complete."""
        try:
            self._go_to_next()
        except Exception as error:
            self.service.note_failure(error)
            self.turn = Turn.CLOSED
            self.host.abort()

    def _go_to_next(self) -> None:
        exchange, keeps = self.exchange, self._keeps
        if keeps and self.turn is Turn.READING:  # only its end is still to be read
            self.exchange, self.turn = None, Turn.SKIPPING
        elif keeps:
            self.exchange, self.turn, self.wire.state = None, Turn.IDLE, "head"
            if (seats := self.service.seats) is not None:
                self.heard = seats.clock()
            if not self._is_running and (self.wire.unread or self._is_held):
                self._run()
        elif self.turn is Turn.READING and exchange is not None and not exchange.head.expects:
            self.exchange, self.turn = None, Turn.DISCARDING
        else:
            self._close()

    def _close(self) -> None:
        self.exchange, self.turn = None, Turn.CLOSED
        self.heard = self.service.seats.clock() if self.service.seats is not None else 0.0
        self.host.close()


def _written_head(notes: AnswerNotes, fields: Fields) -> bytes:
    """Return the head of an answer with status 200, without its end, and without its length or
    coding.

    (It is the same for all answers of a second, so it is remembered.)
    """
    if notes.written is None or notes.written[0] is not fields:
        is_stream = notes.kind == EVENT_STREAM
        kept = without_body(fields) if is_stream else fields
        notes.written = fields, _head_of(Answer(200, notes.reason, kept), b"")[:-2]
    return notes.written[1]


def _head_of(answer: Answer, ending: bytes) -> bytes:
    """Return an answer's head; ``ending`` are the lines that say how its body is framed."""
    reason = PHRASES.get(answer.status, b"") if answer.reason is None else answer.reason
    fields = b"".join([b"%b: %b\r\n" % field for field in answer.fields])
    return b"HTTP/1.1 %d %b\r\n%b%b\r\n" % (answer.status, reason, fields, ending)
