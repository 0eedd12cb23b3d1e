"""Fix mitmproxy's HTTP/1 before a message's head and after its body.

mitmproxy would hold a head that never ends forever, wait after a blank line before a request,
answer an unreadable head twice (with an HTML page), accept an interim answer (100, 102, 103) as the
answer, let everybody wait while it passes on thousands of tiny chunks one by one, and fail on
trailers. We cannot judge trailers, so we drop them (RFC 9110, section 6.5.1).
"""

from __future__ import annotations

import re

from h11 import Data, EndOfMessage, RemoteProtocolError
from h11._readers import ChunkedReader
from h11._receivebuffer import ReceiveBuffer
from mitmproxy.proxy import commands, events, layer
from mitmproxy.proxy.context import Context
from mitmproxy.proxy.layers.http._base import HttpEvent, ReceiveHttp
from mitmproxy.proxy.layers.http._events import (
    ErrorCode,
    RequestProtocolError,
    ResponseProtocolError,
)
from mitmproxy.proxy.layers.http._http1 import Http1Client, Http1Server

from mcp_tool_filter.adapters.mitmproxy.forward.safe.orders import Steps

LONGEST_HEAD = 256 * 1024
"""Bytes of an unfinished head, or of an unfinished line before a chunk."""
LONGEST_QUEUE = 16 * 1024 * 1024
"""Bytes of further requests that may wait for an answer."""
LONGEST_TRAILERS = 16 * 1024
"""Bytes of trailers."""
MOST_SINGLE = 64
"""Chunks that came together and are passed on one by one; the rest becomes one chunk."""
_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,8})(?:;[^\r\n]*+)?\r\n")
_BLANK_LINES = re.compile(rb"[\r\n]+")
_LINE_ENDS = (b"\r", b"\n")
# 101 (switching protocols) is final.
_INTERIM = re.compile(rb"HTTP/1\.\d +1(?!01)\d\d\b[^\n]*\n(?:[^\r\n][^\n]*\n)*\r?\n")
# Stricter than for a head: lines end with CRLF, and none continues on the next line.
_TRAILER = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+:[^\0\r\n]*\r\n")
_TOO_LONG = b"HTTP/1.1 431 Too Long\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
_UNREADABLE = (
    b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n"
    b"Content-Type: application/json\r\nContent-Length: 79\r\n\r\n"
    b'{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"Invalid Request"}}'
)


class TrailerDropper(ChunkedReader):
    """Reads a chunked body, and drops its trailers. Many chunks that came together become one."""

    _trailer_bytes = 0
    _in_a_row = 0  # chunks that came together

    def __call__(self, buf: ReceiveBuffer) -> Data | EndOfMessage | None:
        if not self._reading_trailer or (buf._data[:1] == b"\n" and not self._trailer_bytes):
            if self._in_a_row >= MOST_SINGLE and (many := self._read_many(buf)):
                return many
            read = super().__call__(buf)  # this calls us again for the trailers
            self._in_a_row = 0 if read is None else self._in_a_row + 1
            return read
        while (line := buf.maybe_extract_next_line()) is not None:
            if line == b"\r\n":
                return EndOfMessage()
            self._trailer_bytes += len(line)
            if self._trailer_bytes > LONGEST_TRAILERS or not _TRAILER.fullmatch(line):
                raise RemoteProtocolError("malformed trailers, or too many")
        if b"\n" in buf._data or len(buf) > LONGEST_TRAILERS:
            raise RemoteProtocolError("malformed trailers, or too many")
        return None

    def _read_many(self, buf: ReceiveBuffer) -> Data | None:
        """Read all complete chunks as one; None if h11 must read what comes next."""
        data, end = buf._data, len(self._bytes_to_discard)
        if self._bytes_in_chunk or data[:end] != self._bytes_to_discard:
            return None
        pieces: list[bytearray] = []
        while (head := _CHUNK.match(data, end)) and (size := int(head[1], 16)):
            start, stop = head.end(), head.end() + size
            if data[stop : stop + 2] != b"\r\n":
                break
            pieces.append(data[start:stop])
            end = stop + 2
        if not pieces:
            return None
        buf.maybe_extract_at_most(end)
        self._bytes_to_discard = b""
        return Data(data=b"".join(pieces))


class BoundedHttp1Server(Http1Server):
    """The HTTP/1 server side, for a client."""

    is_behind = False
    """True if further requests have arrived, to be read after this one is finished."""

    def read_headers(self, event: events.ConnectionEvent) -> Steps:
        if isinstance(event, events.DataReceived) and not event.data and not self.is_behind:
            # mitmproxy would continue to read here, while it sends the answer's end: inside the
            # upstream's connection, which is still busy, and with ever deeper recursion.
            self.is_behind = True
            return
        self.is_behind = False
        if self.buf._data[:1] in _LINE_ENDS and (blank := _BLANK_LINES.match(self.buf._data)):
            self.buf.maybe_extract_at_most(blank.end())
        steps = super().read_headers(event)
        first = next(steps, None)
        if type(first) is commands.SendData:  # mitmproxy's own page, for a head it cannot read
            first = commands.SendData(self.conn, _UNREADABLE)
            self.send = _say_nothing  # type: ignore[assignment]  # not what a stream answers, too
        if first is not None:
            yield first
            yield from steps
        most = LONGEST_QUEUE if self.is_behind else LONGEST_HEAD
        if self.state == self.read_headers and len(self.buf) > most:
            yield commands.SendData(self.conn, _TOO_LONG)
            yield commands.CloseConnection(self.conn)
            self.state = self.done

    def read_body(self, event: events.Event) -> Steps:
        _drop_trailers(self.body_reader)
        yield from super().read_body(event)
        if self.state == self.read_body and len(self.buf) > LONGEST_HEAD:
            yield from self._hang_up("HTTP/1 protocol error: a chunk without an end")

    def wait(self, event: events.Event) -> Steps:
        yield from super().wait(event)
        if self.state == self.wait and len(self.buf) > LONGEST_QUEUE:
            yield from self._hang_up("more than can wait for an answer")

    def _hang_up(self, why: str) -> Steps:
        self.buf.maybe_extract_at_most(len(self.buf))
        self.state = self.done
        yield commands.CloseConnection(self.conn)
        yield ReceiveHttp(RequestProtocolError(self.stream_id, why, ErrorCode.CLIENT_DISCONNECTED))


class PatientHttp1Client(Http1Client):
    """The HTTP/1 client side, for an upstream."""

    def read_headers(self, event: events.ConnectionEvent) -> Steps:
        while self.request and (interim := _INTERIM.match(self.buf._data)):
            self.buf.maybe_extract_at_most(interim.end())
        yield from super().read_headers(event)
        if self.state == self.read_headers and len(self.buf) > LONGEST_HEAD:
            yield from self._hang_up("HTTP/1 protocol error: a head that is too long")

    def read_body(self, event: events.Event) -> Steps:
        _drop_trailers(self.body_reader)
        yield from super().read_body(event)
        if self.state == self.read_body and len(self.buf) > LONGEST_HEAD:
            yield from self._hang_up("HTTP/1 protocol error: a chunk without an end")

    def _hang_up(self, why: str) -> Steps:
        yield commands.CloseConnection(self.conn)
        self.buf.maybe_extract_at_most(len(self.buf))
        self.state = self.done
        if self.stream_id is not None:
            error = ResponseProtocolError(self.stream_id, why, ErrorCode.GENERIC_SERVER_ERROR)
            yield ReceiveHttp(error)


def _say_nothing(_event: HttpEvent) -> Steps:
    yield from ()


def _drop_trailers(reader: object) -> None:
    if type(reader) is ChunkedReader:
        reader.__class__ = TrailerDropper


def make_patient(server: layer.Layer) -> None:
    """Replace the HTTP/1 layer of an upstream's connection before it is used."""
    last = server.context.layers[-1]
    if type(last) is Http1Client:
        last.__class__ = PatientHttp1Client
        last.state = last.read_headers


def bounded_server(context: Context) -> BoundedHttp1Server:
    return BoundedHttp1Server(context.fork())
