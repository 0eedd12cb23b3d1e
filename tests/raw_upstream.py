r"""An upstream that says exactly the bytes a test gives it, and remembers the ones it got.

What happens on each connection is a script, an async function over its ``Peer``:

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.say(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi")

    async with raw_upstream(script) as upstream:
        ...  # upstream.url, upstream.requests, upstream.peers
"""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

type Script = Callable[[Peer], Awaitable[None]]

SSE_HEAD = (
    b"HTTP/1.1 200 OK\r\n"
    b"Content-Type: text/event-stream\r\n"
    b"Cache-Control: no-cache\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n"
)
TIMEOUT = 60.0
"""Seconds; only what hangs waits for it: on a busy machine mitmdump may need 20 to start."""
LAST_CHUNK = b"0\r\n\r\n"


def answer(body: bytes, *, status: str = "200 OK", kind: str = "application/json") -> bytes:
    """A whole HTTP/1.1 response."""
    head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def chunk(data: bytes) -> bytes:
    """One chunk of a body sent with ``Transfer-Encoding: chunked``."""
    return b"%x\r\n%s\r\n" % (len(data), data)


@dataclass(frozen=True)
class RawMessage:
    """A request or an answer as it came over the wire, its body without the chunk framing."""

    head: bytes
    body: bytes

    def all(self, name: str) -> list[str]:
        """Every value of one header, in order."""
        found = re.findall(rb"(?im)^" + re.escape(name.encode()) + rb":[ \t]*(.*?)\r$", self.head)
        return [value.decode("latin-1") for value in found]


class RawRequest(RawMessage):
    """A request as it came over the wire."""

    @property
    def line(self) -> str:
        """Method, target and version."""
        return self.head.split(b"\r\n", 1)[0].decode("latin-1")


@dataclass
class Peer:
    """One connection that was opened to us."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    upstream: RawUpstream
    requests: list[RawRequest] = field(default_factory=list)
    gone: asyncio.Event = field(default_factory=asyncio.Event)  # its script is over

    async def request(self) -> RawRequest:
        """Wait for the next request. Raises IncompleteReadError when the peer leaves instead."""
        head = await self.reader.readuntil(b"\r\n\r\n")
        request = RawRequest(head, await self._body(head))
        self.requests.append(request)
        self.upstream.requests.append(request)
        return request

    async def _body(self, head: bytes) -> bytes:
        if length := re.search(rb"(?im)^content-length:\s*(\d+)", head):
            return await self.reader.readexactly(int(length[1]))
        body = b""
        if re.search(rb"(?im)^transfer-encoding:.*chunked", head):
            while size := int(await self.reader.readline(), 16):
                body += (await self.reader.readexactly(size + 2))[:-2]
            await self.reader.readline()
        return body

    async def say(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def say_event(self, data: bytes) -> None:
        """Send a server-sent event as one chunk."""
        await self.say(chunk(b"data: " + data + b"\n\n"))

    async def left(self) -> None:
        """Wait until the other side has closed the connection, reading what it still sends."""
        with suppress(ConnectionError, ssl.SSLError):
            while await self.reader.read(65536):
                pass

    def close(self) -> None:
        self.writer.close()

    def reset(self) -> None:
        """Break the connection off (TCP RST), as a process that is killed does."""
        reset(self.writer)


@dataclass
class RawUpstream:
    """What ``raw_upstream`` hands to a test."""

    port: int
    scheme: str
    requests: list[RawRequest] = field(default_factory=list)
    peers: list[Peer] = field(default_factory=list)
    _server: asyncio.Server | None = None

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}"

    async def asked(self, count: int) -> None:
        """Wait until as many requests have come."""
        async with asyncio.timeout(TIMEOUT):
            while len(self.requests) < count:
                await asyncio.sleep(0.002)

    async def stop(self) -> None:
        """Listen no longer and break off every connection: later ones are refused."""
        if self._server:
            self._server.close()
        for peer in self.peers:
            peer.reset()
        await asyncio.sleep(0)


def always(response: bytes) -> Script:
    """Answer every request with the same bytes."""

    async def script(peer: Peer) -> None:
        while True:
            await peer.request()
            await peer.say(response)

    return script


def sending(*data: bytes) -> Callable[[RawRequest, Peer], Awaitable[None]]:
    """Answer everything with these bytes."""

    async def respond(_request: RawRequest, peer: Peer) -> None:
        await peer.say(b"".join(data))

    return respond


def streaming(*events: bytes) -> Callable[[RawRequest, Peer], Awaitable[None]]:
    """Answer everything with a stream of these events."""
    return sending(SSE_HEAD, *map(chunk, events), LAST_CHUNK)


@asynccontextmanager
async def raw_upstream(
    script: Script, *, tls: ssl.SSLContext | None = None, port: int = 0
) -> AsyncIterator[RawUpstream]:
    """Listen on a port of the loopback (0: a free one); run ``script`` for each connection."""
    upstream = RawUpstream(port=0, scheme="https" if tls else "http")

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = Peer(reader, writer, upstream)
        upstream.peers.append(peer)
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            await script(peer)
        peer.gone.set()

    server = await asyncio.start_server(connected, "127.0.0.1", port, ssl=tls)
    upstream.port = server.sockets[0].getsockname()[1]
    upstream._server = server
    try:
        yield upstream
    finally:
        server.close()
        await hang_up(peer.writer for peer in upstream.peers)


def reset(writer: asyncio.StreamWriter) -> None:
    """Break a connection off (TCP RST)."""
    sock = writer.get_extra_info("socket")
    with suppress(OSError):  # it is closed already
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def hang_up(writers: Iterable[asyncio.StreamWriter]) -> None:
    """Close connections at once, and wait until asyncio knows: it warns of what is left open."""
    for writer in list(writers):
        writer.transport.abort()
        with suppress(OSError, TimeoutError):
            await asyncio.wait_for(writer.wait_closed(), 1)


def free_port() -> int:
    """A free port of the loopback."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


async def until(is_true: Callable[[], object]) -> None:
    """Wait until something holds."""
    async with asyncio.timeout(TIMEOUT):
        while not is_true():
            await asyncio.sleep(0.005)
