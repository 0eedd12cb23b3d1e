"""A client's connection through a forward proxy: named hosts are filtered, others pass unread.

The engine frames the requests that are not in a tunnel, and those in a tunnel to a named host or to
an address. So one connection can carry requests to many hosts, and none of them past the filter:

    a request ──► Exchange      to a named host: as in front of one upstream
              ──► Unread        to another host: its bytes go on, and nothing looks at them
              ──► a tunnel      CONNECT: what follows is another connection

What is unread keeps its target, its fields and its body, but fields for this proxy and about the
connection are removed. Its connection to the server carries one request only.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from mcp_tool_filter.core.engine.client_h1 import H1Client, Turn
from mcp_tool_filter.core.engine.service import Address, Host, Service
from mcp_tool_filter.core.engine.steps import Answer
from mcp_tool_filter.core.engine.upstream import Upstream
from mcp_tool_filter.core.engine.wire import LAST_CHUNK, AnswerHead, Fault, RequestHead
from mcp_tool_filter.core.engine.writing import render_chunk, render_request
from mcp_tool_filter.core.errors import ProtocolError
from mcp_tool_filter.core.http.head import Fields
from mcp_tool_filter.rooms.mitmproxy.shown import ShownExchange

_CONNECTION = b"connection"
_CLOSE = (_CONNECTION, b"close")
_OF_CONNECTIONS = frozenset({
    _CONNECTION, b"keep-alive", b"proxy-connection", b"proxy-authorization", b"te", b"trailer",
    b"upgrade", b"http2-settings",
})  # fmt: skip
_FRAMING = frozenset({b"content-length", b"transfer-encoding"})
_TEXT = ((b"content-type", b"text/plain"),)
_BAD_GATEWAY = 502
_MOST_UNSENT = 1 << 20


class Route(NamedTuple):
    """Where a request goes."""

    at: Address
    """The server."""
    service: Service | None
    """What judges it; None if the host is not named."""
    proxy: Address | None = None
    """The proxy behind us, if that one gets the request instead of the server."""
    login: Fields = ()
    """Our own login to that proxy."""

    @property
    def next(self) -> Address:
        """Where to connect."""
        return self.proxy or self.at


class Routes(Protocol):
    """Where the requests of one connection go."""

    others: Service
    """Limits and seats for what is not filtered."""

    def find(self, head: RequestHead) -> Route:
        """Return where a request goes. Raises Fault."""

    def open_tunnel(self, head: RequestHead, ahead: bytes) -> None:
        """Open the tunnel that a CONNECT asks for; ``ahead`` came behind it. Raises Fault."""


class Forwarded(ShownExchange):
    """A request to a named host, perhaps over a proxy behind us."""

    route: Route

    def rendered_head(self) -> bytes:
        route = self.route
        if route.proxy is None:
            return super().rendered_head()
        url = self.service.listener.upstream + self.head.target
        return render_request(self.head.method, url, (*self.out_fields, *route.login))


class Unread:
    """One request to a host that is not named, and its answer."""

    stream = None
    flow: object = None
    """No other addon sees it."""
    may_use_any = False
    most_idle = 0.0
    """Its connection is new, and is closed behind its answer."""

    def __init__(self, client: ForwardClient, head: RequestHead, route: Route) -> None:
        self.down, self.head, self.route = client, head, route
        self.address: Address | None = None
        self.service = client.service
        self.up: Upstream | None = None
        self.size = 0
        """Bytes of the body that have come."""
        self.is_over = False
        self._has_begun = False
        self._unsent = bytearray()

    @property
    def held_bytes(self) -> int:
        """Bytes in memory."""
        return len(self._unsent)

    # The request

    def begin(self, body: bytes | None) -> None:
        """Send the request; its body may be here."""
        self._unsent += self._head() + b"\r\n" + (body or b"")
        if self.head.expects and body is None:
            self.down.go_ahead()
        if (idle := self.down.host.connect(self)) is not None:
            self.connected(idle)

    def _head(self) -> bytes:
        """Return the head as the server gets it, or the proxy behind us."""
        head, route = self.head, self.route
        fields = _without_those_of_connections(head.fields, b"expect")
        host = route.at.authority
        if head.authority is not None:  # the URL decides, whatever Host says
            fields = ((b"host", host), *[field for field in fields if field[0].lower() != b"host"])
        # A proxy might read the client's spelling of the URL as that of another host.
        before = f"http://{host.decode()}" if route.proxy is not None else ""
        return render_request(head.method, before + head.target, (*fields, *route.login, _CLOSE))

    def take(self, data: bytes) -> None:
        """Take bytes of the body."""
        self.size += len(data)
        self._send(render_chunk(data) if self.head.is_chunked else data)

    def end_of_request(self) -> None:
        if self.head.is_chunked:
            self._send(LAST_CHUNK)

    def _send(self, data: bytes) -> None:
        self._unsent += data
        if self.up is not None and self._unsent:
            self.up.write(bytes(self._unsent))
            self._unsent.clear()
        self.upstream_is_slow(len(self._unsent) > _MOST_UNSENT)

    # The upstream

    def connected(self, up: Upstream) -> None:
        if self.is_over:
            return up.drop()
        self.up = up
        up.carry(self, self.head.method)
        if self.down.is_slow:
            up.slow_down(True)
        return self._send(b"")

    def upstream_is_slow(self, on: bool) -> None:
        self.down.hold_for(on)

    def unreachable(self, why: str) -> None:
        if not self.is_over:
            self._refuse(f"Cannot connect: {why}\n")

    def upstream_lost(self, *, was_idle: bool) -> None:
        self.up = None
        if self.is_over:
            return
        if self._has_begun:
            self.cut("the server closed the connection")
        else:
            self._refuse("The server closed the connection\n")

    # The answer

    def on_answer(self, head: AnswerHead, body: bytes) -> None:
        """Take a whole answer."""
        answer = _answer_of(head)
        answer.body = body
        self._end()
        self.down.respond(answer, is_bare=self.head.method == "HEAD")

    def on_head(self, head: AnswerHead) -> None:
        """Take the head of an answer. Raises ProtocolError if it must not pass."""
        if head.status == 101:
            raise ProtocolError("an upgrade that was not requested")
        self._has_begun = True
        self.down.stream(b"", head=_answer_of(head))

    def on_data(self, data: bytes) -> None:
        self.down.stream(data)

    def on_end(self) -> None:
        """The answer is complete."""
        self._end()
        self.down.stream(b"", is_last=True)

    # The end

    def client_left(self) -> None:
        """The client is gone."""
        self._end()

    def cut(self, why: str) -> None:
        """Close both sides, so that nobody mistakes a part for the whole."""
        self._end()
        self.down.cut(self)

    def fail(self, error: Exception) -> None:
        """The answer cannot be read, or our own code has failed."""
        if not self.is_over:
            self.service.note_failure(error)
            if self._has_begun:
                self.cut("the server closed the connection")
            else:
                self._refuse("The server's answer cannot be read\n")

    def _refuse(self, why: str) -> None:
        self._end()
        answer = Answer(_BAD_GATEWAY, None, _TEXT, why.encode())
        self.down.respond(answer, is_bare=self.head.method == "HEAD")

    def _end(self) -> None:
        self.is_over = True
        self._unsent.clear()
        self.down.hold_for(False)
        up, self.up = self.up, None
        if up is not None:
            up.drop()


def _without_those_of_connections(fields: Fields, *more: bytes) -> Fields:
    """Return the fields that are for the next peer, too."""
    named = b",".join([value for name, value in fields if name.lower() == _CONNECTION])
    gone = {*_OF_CONNECTIONS, *(one.strip() for one in named.lower().split(b","))} - _FRAMING
    return tuple([field for field in fields if field[0].lower() not in gone.union(more)])


def _answer_of(head: AnswerHead) -> Answer:
    fields = _without_those_of_connections(head.fields, *_FRAMING)
    return Answer(head.status, head.reason, fields, length=head.length)


class ForwardClient(H1Client):
    """A client's connection to a forward proxy, or in a tunnel through it."""

    def __init__(self, routes: Routes, host: Host) -> None:
        super().__init__(routes.others, host)
        self._routes = routes
        self._is_full = False  # the upstream does not take what the client sends

    @property
    def unread(self) -> Unread | None:
        """The request under way, if it is unread."""
        return self.exchange if isinstance(self.exchange, Unread) else None

    @property
    def held_bytes(self) -> int:
        """Bytes in memory of what is unread; the exchanges tell their own."""
        return self.unread.held_bytes if self.unread is not None else 0

    def give_up(self) -> None:
        """Close the connection because all of them hold too much memory."""
        if self.unread is not None:
            self.unread.cut("too much memory")
            self.host.wake()

    def tick(self, now: float) -> None:
        if self.unread is None:
            super().tick(now)

    @property
    def _may_read(self) -> bool:
        return super()._may_read and not self._is_full

    def _begin(self, head: RequestHead) -> None:
        if head.method == "CONNECT":
            self._routes.open_tunnel(head, self.wire.take_rest())
            self.turn = Turn.CLOSED  # what follows is another connection
            return
        route = self._routes.find(head)
        body, head.body = head.body, None
        self._note_request(is_whole=body is not None)
        if route.service is None:
            if self.lacks_seat:
                raise Fault("too many clients", 503)
            unread = self.exchange = Unread(self, head, route)
            unread.begin(body)
        else:
            exchange = self.exchange = Forwarded(route.service, self, head, body)
            exchange.route = route
            exchange.begin()

    def hold_for(self, on: bool) -> None:
        """Do not read from the client while its server does not take what it has sent."""
        if on is not self._is_full:
            self._is_full = on
            self.host.hold(on)
            if not on:
                self._run()
