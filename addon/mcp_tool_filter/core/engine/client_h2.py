"""A client connection that speaks HTTP/2, by the h2 library: many exchanges side by side.

The upstream gets HTTP/1.1. A frame can hold what a line cannot, such as a line end in a value, so
heads are checked strictly here, and a wrong one gets 400 on its own stream. Trailers are dropped.

h2 gets whole frames, one at a time: it would copy its buffer for each frame, and read all of a
frame before it judges its length. Frames that ask for nothing (pings, settings, resets, priorities,
windows, tiny pieces of a body) are counted: a client that sends too many of them without letting us
answer anything is disconnected.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import cast

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    Event,
    RemoteSettingsChanged,
    RequestReceived,
    StreamEnded,
    StreamReset,
    WindowUpdated,
)
from h2.exceptions import ProtocolError

from mcp_tool_filter.core.engine.exchange import INVALID_HTTP, Answer, Exchange, answer_to
from mcp_tool_filter.core.engine.service import Host, Service, Silence
from mcp_tool_filter.core.engine.wire import LENGTH, Fault, RequestHead
from mcp_tool_filter.core.http.head import Fields
from mcp_tool_filter.core.policy.verdict import Reason, Reply, Why

log = logging.getLogger(__name__)

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_HEAD = 9  # bytes before the payload of a frame
_DATA, _END_STREAM = 0, 1  # a frame's type, and its flag
_TINY = 64  # bytes of a body in one frame
_RESET_COSTS = 10  # useless frames: it may have opened a connection to the upstream
_WIDEST = 1 << 24
"""The window of the connection; each stream has its own of 64 KB, and its body a limit."""

_NAME = re.compile(rb"[!#$%&'*+.^_`|~0-9a-z-]+").fullmatch
_VALUE = re.compile(rb"(?:[!-~\x80-\xff](?:[\t -~\x80-\xff]*[!-~\x80-\xff])?)?").fullmatch
_METHOD = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+").fullmatch
_PATH = re.compile(rb'/[!-"$-~]*|\*').fullmatch  # no fragment
_AUTHORITY = re.compile(rb"[A-Za-z0-9._~!$&'()*+,;=:%\[\]-]+").fullmatch  # no user name in it
_PSEUDO = frozenset({b":method", b":scheme", b":authority", b":path"})
_OF_CONNECTIONS = frozenset(
    {b"connection", b"proxy-connection", b"keep-alive", b"transfer-encoding", b"upgrade"}
)


@dataclass(frozen=True, slots=True)
class H2Limits:
    """The limits of one connection."""

    frames: int = 64
    """Frames that we read before others are served."""
    useless: int = 2000
    """Useless frames that we accept between two ticks."""
    unsent: int = 1 << 20
    """Bytes of an answer that wait for the client; with more, its upstream is not read."""
    bodies: int = 4
    """How many bodies of the maximum length may be incomplete at the same time."""


DEFAULT_H2_LIMITS = H2Limits()


class H2Stream:
    """One request and its answer: the ``ClientSide`` of its exchange."""

    def __init__(self, connection: H2Client, number: int) -> None:
        self.connection = self.holder = connection
        self.number, self.host = number, connection.host
        self.exchange: Exchange | None = None
        self.has_all = False
        """True once the client has sent everything."""
        self.silence = Silence()
        self.received = 0
        self.unsent = bytearray()
        """What waits for the client."""
        self.is_slow = connection.is_slow
        """True while the client does not read this answer."""
        self._is_ended = False

    # Called by an exchange

    def go_ahead(self) -> None:
        self._say_head(((b":status", b"100"),))

    def respond(self, answer: Answer, *, is_bare: bool) -> None:
        length = len(answer.body)
        if is_bare or answer.status == 304:
            length = -1 if answer.length is None else answer.length
        if length >= 0 and answer.status != 204:
            length_field = b"content-length", b"%d" % length
            answer = replace(answer, fields=(*answer.fields, length_field))
        self.stream(b"" if is_bare else answer.body, head=answer, is_last=True)

    def stream(self, data: bytes, *, head: Answer | None = None, is_last: bool = False) -> None:
        if head is not None:
            fields = ((name.lower(), value) for name, value in head.fields)
            self._say_head(((b":status", b"%d" % head.status), *fields))
        self.unsent += data
        self._is_ended = is_last or self._is_ended
        self.pump()

    def switch(self, answer: Answer) -> bytes:
        raise RuntimeError("no head of HTTP/2 asks for an upgrade")

    def cut(self, exchange: Exchange) -> None:
        self.connection.reset(self, ErrorCodes.INTERNAL_ERROR)

    def _say_head(self, head: Fields) -> None:
        if not self.connection.has(self):
            return None
        try:
            self.connection.h2.send_headers(self.number, head)
        except ProtocolError:
            log.warning("An answer cannot be written in HTTP/2; its stream was reset")
            return self.connection.reset(self, ErrorCodes.INTERNAL_ERROR)
        return self.connection.flush()

    # Flow control

    def pump(self) -> None:
        """Send what the client takes."""
        while self.send_one():
            pass
        self.settle()

    def send_one(self) -> bool:
        """Send one frame, if the client takes it."""
        connection = self.connection
        if connection.is_slow or not connection.has(self):
            return False
        if not self.unsent:
            if self._is_ended:
                connection.finish(self)
            return False
        h2 = connection.h2
        room = min(h2.local_flow_control_window(self.number), h2.max_outbound_frame_size)
        if room <= 0:
            return False
        h2.send_data(self.number, bytes(self.unsent[:room]))
        del self.unsent[:room]
        connection.note_use(2)  # the client may open two windows for it
        return True

    def settle(self) -> None:
        """Do not read from the upstream while the client does not read from us."""
        connection = self.connection
        self.is_slow = connection.is_slow or len(self.unsent) > connection.limits.unsent
        if self.exchange is not None and self.exchange.up is not None:
            self.exchange.up.slow_down(self.is_slow)
        connection.flush()

    def abandon(self) -> None:
        """The client has cancelled the request."""
        self.unsent.clear()
        if self.exchange is not None:
            self.exchange.client_left()


class H2Client:
    """A client connection that speaks HTTP/2."""

    def __init__(self, service: Service, host: Host, limits: H2Limits = DEFAULT_H2_LIMITS) -> None:
        self.service, self.host, self.limits = service, host, limits
        config = H2Configuration(
            client_side=False,
            header_encoding=None,
            validate_inbound_headers=False,  # a mistake would end all streams: see _head_of
            normalize_inbound_headers=False,
        )
        self.h2 = H2Connection(config)
        self.streams: dict[int, H2Stream] = {}
        self.is_slow = False
        """True while the client reads nothing at all."""
        self.heard: float | None = 0.0
        self.was_served = False
        self._buffer = bytearray()
        self._has_begun = self._is_running = self._waits = False
        self._is_closed = self._is_retiring = False
        self._useless = 0
        self._silence = Silence()
        if service.seats is not None:
            service.seats.enter(self)
        self.h2.initiate_connection()
        self.h2.increment_flow_control_window(_WIDEST)
        self.flush()

    @property
    def unsent(self) -> int:
        """Bytes that wait for the client."""
        return sum(len(stream.unsent) for stream in self.streams.values())

    # Called by the host

    def receive(self, data: bytes) -> None:
        """Take bytes from the client."""
        if not self._is_closed:
            self._buffer += data
            if not self._waits:
                self._run()

    def gone(self) -> None:
        """The client has left."""
        self._is_closed = True
        if self.service.seats is not None:
            self.service.seats.leave(self)
        streams, self.streams = list(self.streams.values()), {}
        for stream in streams:
            stream.abandon()

    def held(self, on: bool) -> None:
        """The client reads slowly, or reads again."""
        self.is_slow = on
        if on:
            for stream in self.streams.values():
                stream.settle()
        else:
            self._pump_all()

    def tick(self, now: float) -> None:
        """Close the connection, or end a request, if the client has been silent for too long."""
        self._useless = 0
        limits, seconds = self.service.limits, math.inf
        state: tuple[int, ...] = ()
        if not self.is_slow and not self._is_closed and (self._buffer or not self.streams):
            state = len(self._buffer), self.h2.highest_inbound_stream_id
            seconds = limits.head_time if self._buffer else limits.idle_time
        if self._silence.lasts(state, now) >= seconds:
            return self.close_silent()
        if self.is_slow or self._is_closed:
            return None
        for stream in list(self.streams.values()):
            if stream.has_all or stream.exchange is None or stream.exchange.is_over:
                continue
            if stream.silence.lasts(stream.received, now) >= limits.body_time:
                self.reset(stream, ErrorCodes.CANCEL)
                stream.abandon()  # its exchange does not know it yet
        return self.host.wake()

    def close_silent(self) -> None:
        """Send GOAWAY, and close the connection."""
        self._end(ErrorCodes.NO_ERROR)

    def retire(self) -> None:
        """Take no more requests; send GOAWAY and close when those under way are answered.

        Not before: clients that use the h2 library read no answers behind a GOAWAY.
        """
        self._is_retiring = True
        self._close_if_retired()
        self.host.wake()

    # Frames

    def _run(self) -> None:
        """Read frames, up to the limit for one turn."""
        if self._is_running or self._is_closed:
            return
        self._is_running = True
        try:
            for _ in range(self.limits.frames):
                if self._is_closed or (frame := self._next_frame()) is None:
                    break
                for event in self.h2.receive_data(frame):
                    self._take(event)
            else:
                self._waits = True
                self.host.hold(True)
                self.host.call_later(0, self._go_on)
            self.flush()
        except Fault:
            self._refuse_bytes()
            self._end(ErrorCodes.ENHANCE_YOUR_CALM)
        except ProtocolError:  # h2 has written its own GOAWAY
            self._refuse_bytes()
            self._end(None)
        except Exception as error:
            self.service.note_failure(error)
            self._end(ErrorCodes.INTERNAL_ERROR)
        finally:
            self._is_running = False

    def _go_on(self) -> None:
        self._waits = False
        if not self._is_closed:
            self.host.hold(False)
            self._run()

    def _next_frame(self) -> bytes | None:
        """Cut off the next whole frame. Raises Fault for what is not worth reading."""
        if not self._has_begun:
            if not self._buffer.startswith(_PREFACE[: len(self._buffer)]):
                raise Fault("not HTTP/2")
            if len(self._buffer) < len(_PREFACE):
                return None
            self._has_begun = True
            return self._cut(len(_PREFACE))
        if len(self._buffer) < _HEAD:
            return None
        length = int.from_bytes(self._buffer[:3])
        if length > self.h2.max_inbound_frame_size:
            raise Fault("a frame that is too long")
        if len(self._buffer) < _HEAD + length:
            return None
        is_tiny = length < _TINY and not self._buffer[4] & _END_STREAM
        if self._buffer[3] != _DATA or is_tiny:  # an answer makes up for the head of a request
            self._useless += 1
            if self._useless > self.limits.useless:
                raise Fault("a flood of frames")
        return self._cut(_HEAD + length)

    def _cut(self, size: int) -> bytes:
        frame = bytes(self._buffer[:size])
        del self._buffer[:size]
        return frame

    def note_use(self, worth: int) -> None:
        """Note that an answer, or a part of it, went out."""
        self._useless = max(0, self._useless - worth)

    def _end(self, code: ErrorCodes | None) -> None:
        """End the connection and all requests on it."""
        if self._is_closed:
            return
        if code is not None:
            self.h2.close_connection(code)
        self.flush()
        self.gone()
        self.host.close()

    def _refuse_bytes(self) -> None:
        reason = Reason(Why.MALFORMED, detail="not valid HTTP")
        self.service.listener.tell_refused(Reply(INVALID_HTTP, reason), None)

    def flush(self) -> None:
        if data := self.h2.data_to_send():
            self.host.send(data)

    # Events

    def _take(self, event: Event) -> None:
        match event:
            case RequestReceived():
                self._begin(event)
            case DataReceived():
                self._take_data(event)
            case StreamEnded():
                self._end_request(event)
            case StreamReset():
                if stream := self.streams.get(event.stream_id or 0):
                    self._useless += _RESET_COSTS
                    self._forget(stream)
                    stream.abandon()
            case WindowUpdated(stream_id=int(number)) if number:
                if stream := self.streams.get(number):
                    stream.pump()
            case WindowUpdated() | RemoteSettingsChanged():  # both open windows
                self._pump_all()
            case ConnectionTerminated():
                self._end(None)

    def _begin(self, event: RequestReceived) -> None:
        assert event.stream_id is not None
        stream = self.streams[event.stream_id] = H2Stream(self, event.stream_id)
        stream.has_all = event.stream_ended is not None  # h2 has read the end with the head
        if self._is_retiring:
            return self.reset(stream, ErrorCodes.REFUSED_STREAM)
        try:
            head = _head_of(cast("Sequence[tuple[bytes, bytes]]", event.headers or ()))
        except Fault as fault:
            self._refuse_bytes()
            return stream.respond(answer_to(fault), is_bare=False)
        if (seats := self.service.seats) is not None:
            self.heard = None if self.heard is None else seats.clock()
            seats.note_request(self)
        service = self.service if self.service.route is None else self.service.route(head)
        exchange = stream.exchange = Exchange(service, stream, head)
        return exchange.guarded(exchange.begin)

    def _take_data(self, event: DataReceived) -> None:
        assert event.stream_id is not None
        assert event.flow_controlled_length is not None
        self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
        stream = self.streams.get(event.stream_id)
        if stream is None or stream.exchange is None or not event.data:
            return
        stream.received += len(event.data)
        stream.exchange.guarded(stream.exchange.take, event.data)
        unfinished = [one for one in self.streams.values() if not one.has_all]
        most = self.limits.bodies * self.service.listener.config.limits.pending
        if sum(one.received for one in unfinished) > most:
            largest = max(unfinished, key=lambda one: one.received)
            if largest.exchange is not None:
                largest.exchange.give_up()

    def _end_request(self, event: StreamEnded) -> None:
        stream = self.streams.get(event.stream_id or 0)
        if stream is None:
            return
        stream.has_all = True
        if stream.exchange is not None and not stream.exchange.is_over:
            self.heard, self.was_served = None, True
            stream.exchange.guarded(stream.exchange.end_of_request)

    # Streams

    def has(self, stream: H2Stream) -> bool:
        return stream.number in self.streams

    def finish(self, stream: H2Stream) -> None:
        """All of an answer is sent; the rest of an unfinished request is not wanted."""
        self.h2.end_stream(stream.number)
        self.note_use(2)
        if stream.has_all:
            self._forget(stream)
        else:
            self.reset(stream, ErrorCodes.NO_ERROR)

    def reset(self, stream: H2Stream, code: ErrorCodes) -> None:
        if self.has(stream):
            self.h2.reset_stream(stream.number, code)
            self._forget(stream)

    def _forget(self, stream: H2Stream) -> None:
        del self.streams[stream.number]
        self.flush()
        if not self.streams and self.service.seats is not None:
            self.heard = self.service.seats.clock()
        self._close_if_retired()

    def _pump_all(self) -> None:
        """Give each stream its turn: one long answer does not delay the others."""
        streams = list(self.streams.values())
        while streams:
            streams = [one for one in streams if one.send_one()]
        for one in list(self.streams.values()):
            one.settle()
        self.flush()

    def _close_if_retired(self) -> None:
        if self._is_retiring and not self.streams:
            self._end(ErrorCodes.NO_ERROR)


def _head_of(headers: Sequence[tuple[bytes, bytes]]) -> RequestHead:
    """Return the head in HTTP/1.1. Raises Fault if that is impossible or ambiguous."""
    pseudo: dict[bytes, bytes] = {}
    fields: list[tuple[bytes, bytes]] = []
    cookies: list[bytes] = []
    length: int | None = None
    for header in headers:
        name, value = bytes(header[0]), bytes(header[1])
        if not _VALUE(value):
            raise Fault("a header's value")
        if name[:1] == b":":
            if fields or cookies or name in pseudo or name not in _PSEUDO:
                raise Fault("a pseudo-header")
            pseudo[name] = value
            continue
        if not _NAME(name) or name in _OF_CONNECTIONS or (name == b"te" and value != b"trailers"):
            raise Fault("a header that HTTP/2 does not have")
        if name == b"content-length":
            if length is not None or not LENGTH(value):
                raise Fault("content-length")
            length = int(value)
        elif name == b"cookie":  # RFC 9113, 8.2.3
            cookies.append(value)
            continue
        fields.append((name, value))
    if cookies:
        fields.append((b"cookie", b"; ".join(cookies)))
    method, path = pseudo.get(b":method", b""), pseudo.get(b":path", b"")
    if not _METHOD(method) or method == b"CONNECT" or not _PATH(path):
        raise Fault("a request line")
    if (path == b"*" and method != b"OPTIONS") or pseudo.get(b":scheme") not in (b"http", b"https"):
        raise Fault("a request line")
    host = _host_of(pseudo.get(b":authority"), fields)
    if pseudo.get(b":authority") is not None:
        fields = [(b"host", host), *(field for field in fields if field[0] != b"host")]
    return RequestHead(
        method.decode(),
        path.decode(),
        tuple(fields),
        length=length,
        expects=(b"expect", b"100-continue") in fields,
        authority=host.decode(),
    )


def _host_of(authority: bytes | None, fields: Sequence[tuple[bytes, bytes]]) -> bytes:
    """Return the one host that a request names. Raises Fault if there is none, or two."""
    hosts = {value for name, value in fields if name == b"host"}
    if authority is not None:
        hosts.add(authority)
    if len(hosts) != 1 or not _AUTHORITY(host := hosts.pop()):
        raise Fault("not one host")
    return host
