"""A connection from a client through mitmproxy to an upstream, with both ends in memory.

mitmproxy's own ``ConnectionHandler`` reads and writes, but finds queues instead of sockets. So
everything between two sockets is real, but nothing leaves the process.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from mitmproxy.connection import Client, ConnectionState
from mitmproxy.flow import Flow
from mitmproxy.proxy import commands, events
from mitmproxy.proxy.context import Context
from mitmproxy.proxy.layers import modes
from mitmproxy.proxy.mode_specs import ProxyMode
from mitmproxy.proxy.server import ConnectionHandler, ConnectionIO

from mcp_tool_filter.http.head import Head

if TYPE_CHECKING:
    from mitmproxy.master import Master

type HeadFields = tuple[tuple[bytes, bytes], ...]

_OURS_TO_SAY = (b"host", b"content-length", b"transfer-encoding", b"connection", b"keep-alive")
_WITHOUT_BODY = (204, 304)
_CLIENT, _PROXY = ("127.0.0.1", 1), ("127.0.0.1", 2)


@dataclass(frozen=True, slots=True)
class Heard:
    """The answer that the client has received so far."""

    status: int
    content_type: str
    body: bytes


class _Pipe:
    """A buffer that is read in one piece, however long it is."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._is_over = False
        self._news = asyncio.Event()

    def feed_data(self, data: bytes) -> None:
        self._buffer += data
        self._news.set()

    def feed_eof(self) -> None:
        self._is_over = True
        self._news.set()

    async def read(self, _most: int) -> bytes:
        await self._news.wait()
        data = bytes(self._buffer)
        self._buffer.clear()
        if not self._is_over:
            self._news.clear()
        return data


class _Wire:
    """One end of the connection: we put in what mitmproxy reads, and see what it writes."""

    def __init__(self, peername: tuple[str, int]) -> None:
        self.reader = _Pipe()
        self.written = bytearray()
        self._peername = peername
        self._is_closing = False

    def write(self, data: bytes) -> None:
        self.written += data

    async def drain(self) -> None:
        """Do nothing: there is always room."""

    def write_eof(self) -> None:
        """Do nothing: nobody waits for the end."""

    def close(self) -> None:
        self._is_closing = True

    def is_closing(self) -> bool:
        return self._is_closing

    def get_extra_info(self, name: str, default: object = None) -> object:
        return {"peername": self._peername, "sockname": _PROXY}.get(name, default)


class MemoryConnection(ConnectionHandler):
    """One request and its answer."""

    def __init__(self, master: Master, mode: str) -> None:
        self._master = master
        self.client = Client(
            peername=_CLIENT,
            sockname=_PROXY,
            timestamp_start=time.time(),
            proxy_mode=ProxyMode.parse(mode),
            state=ConnectionState.OPEN,
        )
        context = Context(self.client, master.options)
        super().__init__(context)
        self.layer = modes.ReverseProxy(context)  # the addon may have replaced this class
        self._client_wire = _Wire(_CLIENT)
        self._upstream_wire: _Wire | None = None
        self.transports[self.client] = _io(self._client_wire)
        self._method = "GET"
        master.addons.get("proxyserver").connections[self.client.id] = self
        self._task = asyncio.get_running_loop().create_task(self.handle_client())

    # The client

    def ask(self, head: Head, host: str, body: bytes) -> None:
        """Send a request."""
        self._method = head.method
        lines = [f"{head.method} {head.target} HTTP/1.1".encode(), b"host: " + host.encode()]
        lines += [name + b": " + value for name, value in _kept(head.headers)]
        if body or head.may_have_body:
            lines.append(b"content-length: %d" % len(body))
        self._client_wire.reader.feed_data(b"\r\n".join([*lines, b"", body]))

    def heard(self) -> Heard:
        """Return what the client has received so far."""
        raw = bytes(self._client_wire.written)
        head, _, rest = raw.partition(b"\r\n\r\n")
        fields = _fields_in(head)
        if b"chunked" in fields.get(b"transfer-encoding", b""):
            rest = _unchunked(rest)
        status = int(head.split(b" ", 2)[1]) if head else 0
        return Heard(status, fields.get(b"content-type", b"").decode("latin-1"), rest)

    def hang_up(self) -> None:
        self._client_wire.reader.feed_eof()

    async def ended(self) -> None:
        """Wait until all tasks of this connection have ended."""
        await self._task
        self._master.addons.get("proxyserver").connections.pop(self.client.id, None)

    # The upstream

    def asked(self) -> bytes | None:
        """Return the body of the request that reached the upstream, or None."""
        if self._upstream_wire is None or not self._upstream_wire.written:
            return None
        return bytes(self._upstream_wire.written).partition(b"\r\n\r\n")[2]

    def answer(self, status: int, body: bytes, fields: HeadFields = ()) -> None:
        """Send the complete answer."""
        length = b"content-length: %d" % len(body)
        if status in _WITHOUT_BODY or self._method == "HEAD":
            self._send_head(status, fields, *([] if status in _WITHOUT_BODY else [length]))
        else:
            json = [] if fields else [b"content-type: application/json"]
            self._send_head(status, fields, *json, length)
            self._send(body)

    def begin_stream(self, status: int, fields: HeadFields) -> None:
        self._send_head(status, fields, b"transfer-encoding: chunked")

    def say(self, data: bytes) -> None:
        """Send the next part of the answer."""
        if data:
            self._send(b"%x\r\n%s\r\n" % (len(data), data))

    def end_stream(self) -> None:
        self._send(b"0\r\n\r\n")

    def _send_head(self, status: int, fields: HeadFields, *more: bytes) -> None:
        lines = [b"HTTP/1.1 %d Recorded" % status]
        lines += [name + b": " + value for name, value in _kept(fields)]
        self._send(b"\r\n".join([*lines, *more, b"", b""]))

    def _send(self, data: bytes) -> None:
        if self._upstream_wire and not self._upstream_wire.is_closing():
            self._upstream_wire.reader.feed_data(data)

    # The interface of mitmproxy's handler

    async def open_connection(self, command: commands.OpenConnection) -> None:
        connection = command.connection
        wire = self._upstream_wire = _Wire(connection.address or _PROXY)
        connection.state = ConnectionState.OPEN
        connection.timestamp_start = connection.timestamp_tcp_setup = time.time()
        connection.peername, connection.sockname = connection.address, _PROXY
        self.transports[connection] = _io(wire, asyncio.current_task())
        await self.server_event(events.OpenConnectionCompleted(command, None))
        await self.handle_connection(connection)

    async def handle_hook(self, hook: commands.StartHook) -> None:
        with self.timeout_watchdog.disarm():
            (about,) = hook.args()
            await self._master.addons.handle_lifecycle(hook)
            if isinstance(about, Flow):
                await about.wait_for_resume()

    def log(self, message: str, level: int = 0, exc_info: Any = None) -> None:
        """Log only crashes: log lines about connections that do not exist are useless."""
        if exc_info:
            super().log(message, level, exc_info)


def _io(wire: _Wire, task: asyncio.Task[Any] | None = None) -> ConnectionIO:
    # They are not asyncio streams, but have everything that mitmproxy uses of one.
    reader, writer = cast(Any, wire.reader), cast(Any, wire)
    return ConnectionIO(handler=task, reader=reader, writer=writer)


def _kept(fields: HeadFields) -> HeadFields:
    return tuple(
        (name, value)
        for name, value in fields
        if name.lower() not in _OURS_TO_SAY and not name.startswith(b":")
    )


def _fields_in(head: bytes) -> dict[bytes, bytes]:
    pairs = (line.partition(b":") for line in head.split(b"\r\n")[1:])
    return {name.strip().lower(): value.strip() for name, _, value in pairs}


def _unchunked(rest: bytes) -> bytes:
    body = b""
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        length = int(size or b"0", 16)
        body += rest[:length]
        rest = rest[length + 2 :] if length else b""
    return body
