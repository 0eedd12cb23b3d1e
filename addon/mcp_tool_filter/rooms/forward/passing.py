"""A connection of a forward proxy's client: what is MCP is filtered, everything else passes.

The engine frames all of it, from the first byte to the last, and closes the connection at bytes
that two readers could frame differently. Each request is looked at (``rooms/forward/recognise``):

    undecided ──► passing ──► over       its bytes, and those of its answer, go on as they come
              └──► judged                an ``Exchange``, as in front of one upstream
    passing ──► judged                   the event stream of a GET turned out to be MCP

What passes keeps its bytes, with four exceptions. The target that names this proxy becomes a path,
and fields for this proxy are removed. A GET for events asks for an answer without a coding, since
it may be MCP. Chunks of an event stream may be cut elsewhere. An upgrade is refused, as everywhere.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable
from typing import Protocol

from mcp_tool_filter.core.engine.client_h1 import H1Client, Turn
from mcp_tool_filter.core.engine.exchange import Answer, Exchange
from mcp_tool_filter.core.engine.service import Address, Host, Service
from mcp_tool_filter.core.engine.upstream import Upstream
from mcp_tool_filter.core.engine.wire import (
    AnswerHead,
    AnswerWire,
    Fault,
    RequestHead,
    render_chunk,
)
from mcp_tool_filter.core.errors import ProtocolError
from mcp_tool_filter.core.http.bodies import may_be_event_stream
from mcp_tool_filter.core.http.head import SAFE_METHODS, Head, text_of
from mcp_tool_filter.rooms.forward.recognise import (
    BodyReader,
    EventPeeker,
    Treatment,
    Watch,
    coding_in,
    inflating,
    is_mcp_head,
)

log = logging.getLogger(__name__)

_FOR_US = re.compile(rb"(?<=\n)proxy-(?:authorization|connection):[^\r\n]*\r\n", re.IGNORECASE)
_CODINGS = re.compile(rb"((?<=\n)accept-encoding:)[^\r\n]*", re.IGNORECASE)
_UNREACHABLE = (
    b"HTTP/1.1 502 Bad Gateway\r\nconnection: close\r\ncontent-type: text/plain\r\n"
    b"content-length: %d\r\n\r\n%b"
)
_MOST_UNSENT = 1 << 20
_CODED = "MCP in a coding that was not requested"
_ABSOLUTE = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^/?#]*")


class Places(Protocol):
    """Where the requests of one connection go, and which of them go to MCP endpoints."""

    others: Service
    """Limits and seats for what is not MCP."""

    def address_of(self, head: RequestHead) -> Address:
        """Return where a request goes: by its target, or by the tunnel it is in. Raises Fault."""

    def for_proxy(self, head: RequestHead) -> tuple[str, bytes | None] | None:
        """Return the target that a proxy behind us gets, and our login to it; None to send a
        path."""

    def open_tunnel(self, head: RequestHead, ahead: bytes) -> None:
        """Open the tunnel that a CONNECT asks for; ``ahead`` came behind it. Raises Fault."""

    def is_endpoint(self, at: Address, head: RequestHead) -> bool:
        """Tell whether a request goes to an MCP endpoint, as far as answers have shown."""

    def service_of(self, at: Address, head: RequestHead) -> Service:
        """Return the service for a request of MCP; open one if the endpoint is new."""

    def note_answer(self, at: Address, head: RequestHead, status: int) -> None:
        """Note the answer to a request of MCP: if it succeeded, there is an endpoint."""

    def note_closed(self, why: str) -> None:
        """Tell people that a connection was closed whose bytes cannot be read."""


class Passing:
    """One request that is not MCP, as far as we know, and its answer."""

    keeps_raw = True
    stream = None
    flow: object = None
    """No other addon sees it."""
    may_use_any = False

    def __init__(self, client: ForwardClient, at: Address, head: RequestHead, raw: bytes) -> None:
        self.down, self.address, self.head = client, at, head
        self.service = client.service
        self.most_idle = client.service.limits.young
        self.up: Upstream | None = None
        self.is_over = False
        self.has_begun = False
        """True once the client has got a part of the answer."""
        self.has_all = False
        """True once the whole request is here."""
        self.is_decided = False
        """True once we know that it is not MCP."""
        self._raw = bytearray(raw)  # not sent yet
        self._reader: BodyReader | None = None
        self._watches: list[Watch] = []
        self._sent = b""  # the first that was sent: all, if there is no body
        self._tries = 0
        self._wire: AnswerWire | None = None
        self._answer: AnswerHead | None = None
        self._answer_raw = b""  # not passed yet, since it may be MCP
        self._peeker: EventPeeker | None = None
        self._inflate: Callable[[bytes], Iterable[bytes]] | None = None
        self._said_100 = False

    @property
    def size(self) -> int:
        """Bytes in memory."""
        held = len(self._raw) + len(self._answer_raw) + (self._reader.size if self._reader else 0)
        return held + (self._peeker.held if self._peeker else 0)

    # The request

    def begin(self, reader: BodyReader | None) -> None:
        """Send the request, or let the reader decide by its body."""
        self._reader = reader
        if reader is None:
            self._decide(Treatment.OTHER)
        elif self.head.expects:
            self._said_100 = True
            self.down.go_ahead()

    def take(self, data: bytes) -> None:
        """Take bytes of the body; the client may have sent others for them, or only others."""
        self._raw += self.down.wire.raw
        if self._reader is not None:
            self._decide(self._reader.feed(data) if data else None)
        elif not all(one.may_pass(data) for one in self._watches):
            log.warning("Cut off a long request that turned out to be MCP")
            self.cut()
        else:
            self._send()

    def end_of_request(self) -> None:
        self._raw += self.down.wire.raw
        self.has_all = True
        if self._reader is not None:
            self._decide(self._reader.finish())
        else:
            self._send()

    def _decide(self, way: Treatment | None) -> None:
        if way is Treatment.REFUSED:
            raise Fault("a request as the body of another")
        if way is Treatment.MCP:
            assert self._reader is not None
            self.down.judge(self, self._reader.held)
        elif way is not None:
            if self._reader is not None:
                self._watches, self._reader = self._reader.watches, None
            self.is_decided = True
            self._connect()
            self._send()

    def _send(self) -> None:
        if self.up is not None and self._raw:
            self.up.write(bytes(self._raw))
            self._raw.clear()
        self.upstream_is_slow(len(self._raw) > _MOST_UNSENT)

    # The upstream

    def _connect(self) -> None:
        if (idle := self.down.host.connect(self)) is not None:
            self.connected(idle)

    def upstream_is_slow(self, on: bool) -> None:
        self.down.hold_for(on)

    def connected(self, up: Upstream) -> None:
        if self.is_over:
            return up.idle()
        self.up, self._wire = up, up.wire
        self._tries += 1
        up.carry(self, self.head.method)
        self._sent = bytes(self._raw)
        if self.down.is_slow:
            up.slow_down(True)
        return self._send()

    def unreachable(self, why: str) -> None:
        if not self.is_over:
            text = f"Cannot connect: {why}\n".encode()
            self.down.host.send(_UNREACHABLE % (len(text), text))
            self._end()
            self.down.close()

    def upstream_lost(self, *, was_idle: bool) -> None:
        self.up = None
        if self.is_over:
            return
        may_be_repeated = self.head.method in SAFE_METHODS and not self.head.length and self.has_all
        if was_idle and self._tries < 2 and may_be_repeated and not self.has_begun:
            self._raw[:0] = self._sent
            self.most_idle = 0.0
            self._connect()
        elif self.has_begun:
            self.cut()
        else:
            self.unreachable("the server closed the connection")

    # The answer

    def on_answer(self, head: AnswerHead, body: bytes) -> None:
        raise RuntimeError("an answer that keeps its bytes comes in pieces")

    def on_head(self, head: AnswerHead) -> None:
        """Take the head of an answer. Raises ProtocolError if it must not pass."""
        assert self._wire is not None
        raw = self._wire.raw
        if head.status == 101:
            raise ProtocolError("an upgrade that was not requested")
        if head.status == 100 and self._said_100:
            return
        if head.status >= 200:
            self._answer = head
            kind = text_of(head.fields, b"content-type")
            if self.head.method == "GET" and may_be_event_stream(kind):
                self._begin_peeking(head, raw)
                return
        self.has_begun = head.status >= 200
        self.down.host.send(raw)

    def _begin_peeking(self, head: AnswerHead, raw: bytes) -> None:
        coding = text_of(head.fields, b"content-encoding").strip()
        self._peeker = EventPeeker(self.service.listener.config.limits)
        if coding.lower() not in ("", "identity"):
            self._inflate = inflating(coding)
        self._answer_raw = raw
        if head.length is None:  # with a length it waits for the first event: it may change
            self._release_answer()

    def on_data(self, data: bytes) -> None:
        """Take bytes of the answer, as ``take`` does. Raises ProtocolError."""
        assert self._wire is not None
        raw = self._wire.raw
        if self._peeker is None:
            self.down.host.send(raw)
        elif self._inflate is not None:
            self._answer_raw += raw
            self._peek_compressed(self._peeker, self._inflate(data) if data else ())
        elif data:
            self._peek(self._peeker.feed(data))

    def on_end(self) -> None:
        """The answer is complete. Raises ProtocolError if it must not pass."""
        assert self._answer is not None
        assert self._wire is not None
        peeker, raw = self._peeker, self._wire.raw
        if peeker is None:
            self.down.host.send(raw)
        elif self._inflate is not None:
            self._answer_raw += raw
            if peeker.finish()[1] is not None:
                raise ProtocolError(_CODED)
            self._release_answer()
        else:
            self._peek(peeker.finish(), raw)
        if not self.is_over:
            self._end()
            if self._answer.keeps and self.has_all:
                self.down.passed()
            else:
                self.down.close()

    def _peek(self, seen: tuple[bytes, bytes | None], end: bytes | None = None) -> None:
        """Pass on what cannot be MCP; give up the rest once it is MCP. ``end`` frames the end."""
        assert self._answer is not None
        passed, rest = seen
        is_chunked = self._answer.is_chunked
        if passed:
            self._answer_raw += render_chunk(passed) if is_chunked else passed
        if end is not None and rest is None and is_chunked:
            self._answer_raw += end
        if passed or end is not None:
            self._release_answer()
        if rest is not None:
            self.down.adopt(self, self._answer, rest, is_complete=end is not None)

    def _peek_compressed(self, peeker: EventPeeker, pieces: Iterable[bytes]) -> None:
        """Let a stream pass that we could not filter, as long as it is not MCP."""
        for piece in pieces:
            if peeker.feed(piece)[1] is not None:
                raise ProtocolError(_CODED)
        if not peeker.held:
            self._release_answer()

    def _release_answer(self) -> None:
        if self._answer_raw:
            self.down.host.send(self._answer_raw)
            self._answer_raw, self.has_begun = b"", True

    # The end

    def client_left(self) -> None:
        """The client is gone."""
        self._end()

    def cut(self, _why: str = "") -> None:
        """Close both sides, so that nobody mistakes a part for the whole."""
        self._end()
        self.down.cut(self)

    def fail(self, error: Exception) -> None:
        """The answer must not pass, or our own code has failed."""
        if isinstance(error, ProtocolError | Fault):
            log.warning("Refused an answer of %s: %s", self.address.host, error)
        else:
            self.service.note_failure(error)
        if self.is_over:
            return
        if self.has_begun:
            self.cut()
        else:
            self.unreachable("the server's answer cannot be read")

    def _end(self) -> None:
        self.is_over = True
        self._raw.clear()
        self._reader = None
        up, self.up = self.up, None
        if up is not None:
            up.drop()


class ForwardClient(H1Client):
    """A client's connection through a forward proxy, or in a tunnel through it."""

    def __init__(self, places: Places, host: Host) -> None:
        super().__init__(places.others, host)
        self.wire.keeps_raw = True
        self._places = places
        self._is_full = False  # the upstream does not take what the client sends

    @property
    def passing(self) -> Passing | None:
        """The request under way, if it is not judged."""
        return self.exchange if isinstance(self.exchange, Passing) else None

    @property
    def held_bytes(self) -> int:
        """Bytes in memory of what is not judged; the other exchanges tell their own."""
        return self.passing.size if self.passing is not None else 0

    def give_up(self) -> None:
        """Close the connection because all of them hold too much memory."""
        if self.passing is not None:
            self.passing.cut()
            self.host.wake()

    def tick(self, now: float) -> None:
        if self.passing is None or not self.passing.is_decided:
            super().tick(now)

    # Requests

    @property
    def _may_read(self) -> bool:
        return super()._may_read and not self._is_full

    def _begin(self, head: RequestHead) -> None:
        if head.method == "CONNECT":
            self._places.open_tunnel(head, self.wire.take_rest())
            self.turn = Turn.CLOSED  # what follows is another connection
            return
        at = self._places.address_of(head)
        has_body = head.is_chunked or bool(head.length)
        self._note_request(is_whole=False)
        known = Head(head.method, path_of(head.target), head.fields)
        is_endpoint = self._places.is_endpoint(at, head)
        if is_mcp_head(known) or (is_endpoint and not has_body and head.method == "GET"):
            self._judged(head, at).begin()
        else:
            passing = self.exchange = Passing(self, at, head, self._out(head, self.wire.raw))
            limits = self.service.listener.config.limits
            reader = BodyReader(coding_in(head.fields), limits, is_endpoint=is_endpoint)
            passing.begin(reader if has_body else None)

    def _judged(self, head: RequestHead, at: Address) -> Exchange:
        """Let an exchange judge a request."""
        service = self._places.service_of(at, head)
        exchange = self.exchange = Exchange(service, self, head)
        exchange.address = at
        if (behind := self._places.for_proxy(head)) is not None:
            exchange.out_target, exchange.proxy_login = behind
        return exchange

    def _out(self, head: RequestHead, raw: bytes) -> bytes:
        """Return a head as the server gets it."""
        raw = raw.lstrip(b"\r\n")  # blank lines may come before a request
        end = raw.index(b"\r\n")
        line, fields = raw[:end], raw[end:]
        if _ABSOLUTE.match(head.target):
            target, login = self._places.for_proxy(head) or (path_of(head.target), None)
            method, _, version = line.split(b" ")
            line = b" ".join([method, target.encode("latin-1"), version])
            fields = _FOR_US.sub(b"", fields)
            if login is not None:
                fields = b"\r\nProxy-Authorization: " + login + fields
        if head.method == "GET" and "event-stream" in text_of(head.fields, b"accept").lower():
            fields = _CODINGS.sub(rb"\1identity", fields)  # we must be able to filter it
        return line + fields

    def _refuse_bytes(self, fault: Fault) -> None:
        self._places.note_closed(str(fault))
        if self.passing is not None and self.passing.has_begun:
            self.turn = Turn.DISCARDING
        super()._refuse_bytes(fault)

    # Called by an exchange

    def respond(self, answer: Answer, *, is_bare: bool) -> None:
        self._note(answer.status)
        super().respond(answer, is_bare=is_bare)

    def stream(self, data: bytes, *, head: Answer | None = None, is_last: bool = False) -> None:
        if head is not None:
            self._note(head.status)
        super().stream(data, head=head, is_last=is_last)

    def _note(self, status: int) -> None:
        exchange = self.exchange
        if isinstance(exchange, Exchange) and exchange.address:
            self._places.note_answer(exchange.address, exchange.head, status)

    # Called by a passing request

    def hold_for(self, on: bool) -> None:
        """Do not read from the client while its server does not take what it has sent."""
        if on is not self._is_full:
            self._is_full = on
            self.host.hold(on)
            if not on:
                self._run()

    def judge(self, passing: Passing, body: bytes) -> None:
        """Judge a request whose body turned out to be MCP; this much of it is here."""
        exchange = self._judged(passing.head, passing.address)
        exchange.head.expects = False  # it was told to go ahead
        exchange.begin()
        exchange.take(body)
        if passing.has_all:
            exchange.end_of_request()

    def adopt(self, passing: Passing, head: AnswerHead, rest: bytes, *, is_complete: bool) -> None:
        """Filter an event stream that turned out to be MCP."""
        service, has_begun = (
            self._places.service_of(passing.address, passing.head),
            passing.has_begun,
        )
        passing.head.keeps = passing.head.keeps and (head.is_chunked or not has_begun)
        exchange = self.exchange = Exchange(service, self, passing.head)
        exchange.address = passing.address
        self._is_chunked = head.is_chunked
        passing.is_over = True
        try:
            exchange.adopt(passing.up, head, rest, has_begun=has_begun, is_complete=is_complete)
        except Exception as error:
            exchange.fail(error)

    def passed(self) -> None:
        """An answer is complete, and the connection may be used again."""
        if self.turn is Turn.ANSWERING and self.exchange is not None and self.exchange.head.keeps:
            self._end_turn()
        else:
            self.close()

    def close(self) -> None:
        self._close()


def path_of(target: str) -> str:
    """Return the path and query of a target that may be a URL."""
    if (url := _ABSOLUTE.match(target)) is None:
        return target
    path = target[url.end() :]
    return path if path.startswith("/") else f"/{path}"
