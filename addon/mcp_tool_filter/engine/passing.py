"""A connection of a forward proxy's client: what is MCP is filtered, everything else passes.

The engine frames all of it, from the first byte to the last, and closes the connection at bytes
that two readers could frame differently. Each request is looked at (``http/recognise``):

    undecided ──► passing ──► over       its bytes, and those of its answer, go on as they come
              └──► judged                an ``Exchange``, as in front of one upstream
    passing ──► judged                   the event stream of a GET turned out to be MCP
            ──► tunnel                   after an upgrade that carries no HTTP

What passes keeps its bytes, with four exceptions. The target that names this proxy becomes a path,
and fields for this proxy are removed. A GET for events asks for an answer without a coding, since
it may be MCP. Chunks of an event stream may be cut elsewhere. No upgrade to a protocol that carries
HTTP is asked for. A WebSocket is judged from the beginning; its messages pass until one is MCP.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable
from typing import Protocol

from mcp_tool_filter.engine.client_h1 import H1Client, Turn
from mcp_tool_filter.engine.exchange import Answer, Exchange
from mcp_tool_filter.engine.service import Address, Host, Service
from mcp_tool_filter.engine.upstream import Upstream
from mcp_tool_filter.engine.wire import (
    AnswerHead,
    End,
    Fault,
    RequestHead,
    render_chunk,
)
from mcp_tool_filter.errors import ProtocolError
from mcp_tool_filter.http.bodies import may_be_event_stream
from mcp_tool_filter.http.head import SAFE_METHODS, Head, is_websocket, text_of, values_of
from mcp_tool_filter.http.recognise import (
    BodyReader,
    EventPeeker,
    Treatment,
    Watch,
    coding_in,
    inflating,
    is_mcp_head,
)

log = logging.getLogger(__name__)

_CARRY_HTTP = ("websocket", "h2", "http", "tls")
_FOR_US = re.compile(rb"(?<=\n)proxy-(?:authorization|connection):[^\r\n]*\r\n", re.IGNORECASE)
_CODINGS = re.compile(rb"((?<=\n)accept-encoding:)[^\r\n]*", re.IGNORECASE)
_UPGRADE = re.compile(rb"(?<=\n)(?:upgrade|http2-settings):[^\r\n]*\r\n", re.IGNORECASE)
_UNREACHABLE = (
    b"HTTP/1.1 502 Bad Gateway\r\nconnection: close\r\ncontent-type: text/plain\r\n"
    b"content-length: %d\r\n\r\n%b"
)
_MOST_UNSENT = 1 << 20
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

    def __init__(self, client: ForwardClient, at: Address, head: RequestHead, raw: bytes) -> None:
        self.down, self.address, self.head = client, at, head
        self.service = client.service
        self.up: Upstream | None = None
        self.flow: object = None
        """No other addon sees it."""
        self.is_over = self.is_tunnel = False
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
        self._answer: AnswerHead | None = None
        self._answer_raw = b""  # not passed yet, since it may be MCP
        self._peeker: EventPeeker | None = None
        self._inflate: Callable[[bytes], Iterable[bytes]] | None = None
        self._said_100 = False

    @property
    def held_bytes(self) -> int:
        """Bytes in memory."""
        held = len(self._raw) + len(self._answer_raw) + (self._reader.size if self._reader else 0)
        return held + (self._peeker.held if self._peeker else 0)

    # The request

    def read_with(self, reader: BodyReader) -> None:
        """Decide by the body."""
        self._reader = reader
        if self.head.expects:
            self._said_100 = True
            self.down.go_ahead()

    def take(self, event: bytes | End | None, raw: bytes) -> Treatment | None:
        """Take a part of the request; return what becomes of it, once that is decided."""
        self._raw += raw
        self.has_all = isinstance(event, End)
        if self._reader is not None:
            way = None
            if isinstance(event, bytes):
                way = self._reader.feed(event)
            elif self.has_all:
                way = self._reader.finish()
            if way is Treatment.REFUSED:
                raise Fault("a request as the body of another")
            if way is None or way is Treatment.MCP:
                return way
            self._watches = self._reader.watches
            self._reader = None
        elif isinstance(event, bytes) and not all(one.may_pass(event) for one in self._watches):
            log.warning("Cut off a long request that turned out to be MCP")
            self.cut()
            return None
        if not self.is_decided:
            self.is_decided = True
            self._connect(fresh=False)
        self._send()
        return Treatment.OTHER

    @property
    def held_body(self) -> bytes:
        """What the reader has got, for an exchange that is judged instead."""
        return self._reader.held if self._reader is not None else b""

    def _send(self) -> None:
        if self.up is not None and self._raw:
            self.up.write(bytes(self._raw))
            self._raw.clear()
        self.down.hold_for(len(self._raw) > _MOST_UNSENT)

    def upstream_is_slow(self, on: bool) -> None:
        self.down.hold_for(on)

    # The upstream

    def _connect(self, *, fresh: bool) -> None:
        self.down.host.connect(self, fresh=fresh)

    def may_use(self, idle: float) -> bool:
        return idle < self.service.limits.young or self._may_be_repeated

    @property
    def _may_be_repeated(self) -> bool:
        return self.head.method in SAFE_METHODS and not self.head.length and self.has_all

    def connected(self, up: Upstream) -> None:
        if self.is_over:
            return up.idle()
        self.up = up
        self._tries += 1
        up.pass_on(self, method=self.head.method)
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
        if was_idle and self._tries < 2 and self._may_be_repeated and not self.has_begun:
            self._raw[:0] = self._sent
            self._connect(fresh=True)
        elif self.is_tunnel:
            self._end()
            self.down.close()
        elif self.has_begun:
            self.cut()
        else:
            self.unreachable("the server closed the connection")

    # The answer

    def on_answer(self, event: AnswerHead | bytes | End | None, raw: bytes) -> None:
        """Take a part of the answer. Raises ProtocolError if it must not pass."""
        if isinstance(event, AnswerHead):
            self._on_head(event, raw)
        elif self._peeker is not None:
            self._peek(self._peeker, event, raw)
        elif raw:
            self.down.host.send(raw)
        if isinstance(event, End) and not self.is_over:
            self.up = None
            keeps = self._answer is not None and self._answer.keeps
            self._end()
            self.down.passed(keeps=keeps and self.has_all)

    def _on_head(self, head: AnswerHead, raw: bytes) -> None:
        if head.status == 101:
            asked = values_of(self.head.fields, b"upgrade")
            if not asked or asked != values_of(head.fields, b"upgrade"):
                raise ProtocolError("an upgrade that was not requested")
            self.is_tunnel = True
        elif head.status == 100 and self._said_100:
            return None
        elif head.status >= 200:
            self._answer = head
            kind = text_of(head.fields, b"content-type")
            if self.head.method == "GET" and may_be_event_stream(kind):
                return self._begin_peeking(head, raw)
        self.has_begun = head.status >= 200 or self.is_tunnel
        self.down.host.send(raw)
        return None

    def _begin_peeking(self, head: AnswerHead, raw: bytes) -> None:
        coding = text_of(head.fields, b"content-encoding").strip()
        self._peeker = EventPeeker(self.service.listener.config.limits)
        if coding.lower() not in ("", "identity"):
            self._inflate = inflating(coding)
        self._answer_raw = raw
        if head.length is None:  # with a length it waits for the first event: it may change
            self._release_answer()

    def _release_answer(self) -> None:
        self.down.host.send(self._answer_raw)
        self._answer_raw, self.has_begun = b"", True

    def _peek(self, peeker: EventPeeker, event: bytes | End | None, raw: bytes) -> None:
        """Look for MCP in an event stream; what cannot be MCP passes."""
        assert self._answer is not None
        if self._inflate is not None:
            return self._peek_compressed(peeker, event, raw)
        if event is None:
            return None
        passed, rest = peeker.finish() if isinstance(event, End) else peeker.feed(event)
        if passed:
            self._answer_raw += render_chunk(passed) if self._answer.is_chunked else passed
        if isinstance(event, End) and rest is None and self._answer.is_chunked:
            self._answer_raw += raw
        if self._answer_raw and (passed or isinstance(event, End)):
            self._release_answer()
        if rest is not None:
            self.down.adopt(self, self._answer, rest, is_complete=isinstance(event, End))
        return None

    def _peek_compressed(self, peeker: EventPeeker, event: bytes | End | None, raw: bytes) -> None:
        """Let a stream pass that we could not filter, as long as it is not MCP."""
        self._answer_raw += raw
        rest = None
        if isinstance(event, End):
            _, rest = peeker.finish()
        elif event is not None:
            assert self._inflate is not None
            for piece in self._inflate(event):
                if rest is None:
                    _, rest = peeker.feed(piece)
        if rest is not None:
            raise ProtocolError("MCP in a coding that was not requested")
        if not peeker.held:
            self._release_answer()

    # A tunnel

    def from_client(self, data: bytes) -> None:
        if self.up is not None:
            self.up.write(data)

    def from_upstream(self, data: bytes) -> None:
        if data:
            self.down.host.send(data)

    # The end

    def client_left(self) -> None:
        """The client is gone."""
        self._end()

    def cut(self) -> None:
        """Close both sides, so that nobody mistakes a part for the whole."""
        self._end()
        self.down.abort()

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
        self._places = places
        self.passing: Passing | None = None
        """The request under way, if it is not judged."""
        self._is_full = False  # the upstream does not take what the client sends

    @property
    def held_bytes(self) -> int:
        """Bytes in memory of what is not judged; the other exchanges tell their own."""
        return self.passing.held_bytes if self.passing is not None else 0

    def give_up(self) -> None:
        """Close the connection because all of them hold too much memory."""
        if self.passing is not None:
            self.passing.cut()
            self.host.wake()

    # Called by the host

    def receive(self, data: bytes) -> None:
        if self.passing is not None and self.passing.is_tunnel:
            self.passing.from_client(data)
        else:
            super().receive(data)

    def gone(self) -> None:
        passing, self.passing = self.passing, None
        super().gone()
        if passing is not None:
            passing.client_left()

    def held(self, on: bool) -> None:
        if self.passing is not None and self.passing.up is not None:
            self.is_slow = on
            self.passing.up.slow_down(on)
        super().held(on)

    def tick(self, now: float) -> None:
        if self.passing is None or not self.passing.is_decided:
            super().tick(now)

    @property
    def _body_size(self) -> int:
        return self.passing.held_bytes if self.passing is not None else super()._body_size

    # Requests

    @property
    def _may_read(self) -> bool:
        return super()._may_read and not self._is_full

    def _read(self, data: bytes) -> None:
        wire = self._wire
        if data:
            wire.receive(data)
        while self._may_read:
            event, raw = wire.next_raw()
            if isinstance(event, RequestHead):
                self._begin_with(event, raw)
            elif self.passing is not None:
                self._pass(self.passing, event, raw)
            elif event is not None:
                self._take(event)
            if event is None:
                return

    def _pass(self, passing: Passing, event: bytes | End | None, raw: bytes) -> None:
        if isinstance(event, End):
            self.turn = Turn.ANSWERING
        if passing.take(event, raw) is Treatment.MCP:
            self.passing = None
            exchange = self._judged(passing.head, passing.address)
            exchange.take(passing.held_body)
            if passing.has_all:
                exchange.end_of_request()

    def _begin_with(self, head: RequestHead, raw: bytes) -> None:
        if head.method == "CONNECT":
            self._places.open_tunnel(head, self._wire.take_rest())
            self.turn = Turn.CLOSED  # what follows is another connection
            return
        at = self._places.address_of(head)
        has_body = head.is_chunked or bool(head.length)
        if has_body and values_of(head.fields, b"upgrade"):  # to some servers the body is not HTTP
            raise Fault("a body in front of another protocol")
        self._note_request(is_whole=False)
        target = path_of(head.target)
        known = Head(head.method, target, head.fields)
        is_endpoint = self._places.is_endpoint(at, head)
        is_socket = is_websocket(known)
        if is_mcp_head(known) or (is_endpoint and not has_body and head.method == "GET"):
            self._judged(head, at)
        elif is_socket:
            self._judged(head, at, looks=True)
        else:
            passing = self.passing = Passing(self, at, head, self._out(head, raw))
            if has_body:
                coding = coding_in(head.fields)
                limits = self.service.listener.config.limits
                passing.read_with(BodyReader(coding, limits, is_endpoint=is_endpoint))
            else:
                passing.take(None, b"")

    def _judged(self, head: RequestHead, at: Address, *, looks: bool = False) -> Exchange:
        """Let an exchange judge a request; with ``looks`` only the messages that are MCP."""
        service = self._places.service_of(at, head)
        exchange = self.exchange = Exchange(service, self, head)
        exchange.address, exchange.looks_for_mcp = at, looks
        if (behind := self._places.for_proxy(head)) is not None:
            exchange.out_target, exchange.proxy_login = behind
        head.expects = head.expects and self.passing is None
        exchange.begin()
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
        wanted = text_of(head.fields, b"upgrade").lower()
        if any(name in wanted for name in _CARRY_HTTP):
            fields = _UPGRADE.sub(b"", fields)
        return line + fields

    def _refuse_bytes(self, fault: Fault) -> None:
        passing, self.passing = self.passing, None
        self._places.note_closed(str(fault))
        if passing is not None:
            self.turn = Turn.DISCARDING if passing.has_begun else self.turn
            passing.client_left()
        super()._refuse_bytes(fault)

    def _fail(self, error: Exception) -> None:
        passing, self.passing = self.passing, None
        super()._fail(error)
        if passing is not None:
            passing.client_left()

    # Called by an exchange

    def respond(self, answer: Answer, *, is_bare: bool) -> None:
        self._note(answer.status)
        super().respond(answer, is_bare=is_bare)

    def begin(self, answer: Answer) -> None:
        self._note(answer.status)
        super().begin(answer)

    def _note(self, status: int) -> None:
        exchange = self.exchange
        if exchange is not None and exchange.address is not None and not exchange.looks_for_mcp:
            self._places.note_answer(exchange.address, exchange.head, status)

    # Called by a passing request

    def hold_for(self, on: bool) -> None:
        """Do not read from the client while its server does not take what it has sent."""
        if on is not self._is_full:
            self._is_full = on
            self.host.hold(on)
            if not on:
                self._run()

    def adopt(self, passing: Passing, head: AnswerHead, rest: bytes, *, is_complete: bool) -> None:
        """Filter an event stream that turned out to be MCP. Raises ProtocolError."""
        up = passing.up
        service = self._places.service_of(passing.address, passing.head)
        passing.head.keeps = passing.head.keeps and (head.is_chunked or not passing.has_begun)
        exchange = Exchange(service, self, passing.head)
        exchange.address = passing.address
        self._is_chunked = head.is_chunked
        self.exchange, self.passing = exchange, None
        passing.is_over = True
        exchange.adopt(up, head, rest, has_begun=passing.has_begun, is_complete=is_complete)

    def passed(self, *, keeps: bool) -> None:
        """An answer is complete."""
        passing, self.passing = self.passing, None
        if keeps and self.turn is Turn.ANSWERING and passing is not None and passing.head.keeps:
            self.turn = Turn.IDLE
            self._wire.next_cycle()
            self._run()
        else:
            self.close()

    def close(self) -> None:
        self.passing = None
        self._close()

    def abort(self) -> None:
        self.passing, self.turn = None, Turn.CLOSED
        self.host.abort()


def path_of(target: str) -> str:
    """Return the path and query of a target that may be a URL."""
    if (url := _ABSOLUTE.match(target)) is None:
        return target
    path = target[url.end() :]
    return path if path.startswith("/") else f"/{path}"
