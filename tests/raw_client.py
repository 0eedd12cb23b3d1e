r"""Clients that send exactly the bytes a test gives them: HTTP/1 over a socket, HTTP/2 over TLS."""

from __future__ import annotations

import asyncio
import re
import ssl
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import h2.config
import h2.connection
import h2.events

from tests.raw_upstream import TIMEOUT, RawMessage, hang_up

MCP_HEADERS = (
    b"Host: localhost\r\nContent-Type: application/json\r\n"
    b"Accept: application/json, text/event-stream\r\n"
)


def post(body: bytes, *, path: str = "/mcp", headers: bytes = MCP_HEADERS) -> bytes:
    """A whole HTTP/1.1 POST."""
    return b"POST %s HTTP/1.1\r\n%sContent-Length: %d\r\n\r\n%s" % (
        path.encode(),
        headers,
        len(body),
        body,
    )


def get(*, path: str = "/mcp", headers: bytes = MCP_HEADERS) -> bytes:
    """A whole HTTP/1.1 GET."""
    return b"GET %s HTTP/1.1\r\n%s\r\n" % (path.encode(), headers)


def trusting() -> ssl.SSLContext:
    """TLS that takes any certificate: ours is signed by a CA that a test made."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


class Answer(RawMessage):
    """A response as it came over the wire, its body without the chunk framing."""

    @property
    def status(self) -> int:
        return int(self.head.split(b" ", 2)[1])


@dataclass
class RawClient:
    """An HTTP/1 client. Reading fails when the proxy hangs up or says nothing."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def say(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def ask(self, request: bytes) -> Answer:
        """Send a request; wait for the whole answer to it."""
        await self.say(request)
        return await self.answer(no_body=request.startswith(b"HEAD "))

    async def head(self) -> bytes:
        """Wait for the head of a response."""
        return await self.until(b"\r\n\r\n")

    async def answer(self, *, no_body: bool = False) -> Answer:
        """Wait for a whole response."""
        head = await self.head()
        if no_body or re.match(rb"HTTP/1.1 (1|204|304)", head):
            return Answer(head, b"")
        if re.search(rb"(?im)^transfer-encoding:.*chunked", head):
            return Answer(head, await self.chunks())
        if length := re.search(rb"(?im)^content-length:\s*(\d+)", head):
            async with asyncio.timeout(TIMEOUT):
                return Answer(head, await self.reader.readexactly(int(length[1])))
        return Answer(head, await self.rest())

    async def chunk(self) -> bytes:
        """Wait for one chunk of a chunked body; b"" is the last one."""
        async with asyncio.timeout(TIMEOUT):
            size = int((await self.reader.readuntil(b"\r\n")).strip(), 16)
            return (await self.reader.readexactly(size + 2))[:-2]

    async def chunks(self) -> bytes:
        """Wait for the whole of a chunked body."""
        body, clean = await self.rest_of_chunks()
        assert clean, body
        return body

    async def rest_of_chunks(self) -> tuple[bytes, bool]:
        """Wait for the end of a chunked body; what still came, and whether the end was clean."""
        body = b""
        try:
            while data := await self.chunk():
                body += data
        except (asyncio.IncompleteReadError, ConnectionError):
            return body, False
        return body, True

    async def until(self, mark: bytes) -> bytes:
        """Wait until ``mark`` has come; everything up to it."""
        async with asyncio.timeout(TIMEOUT):
            return await self.reader.readuntil(mark)

    async def rest(self) -> bytes:
        """Wait until the proxy hangs up; everything that still came."""
        async with asyncio.timeout(TIMEOUT):
            return await self.reader.read(-1)

    def close(self) -> None:
        self.writer.close()

    def abort(self) -> None:
        self.writer.transport.abort()


@asynccontextmanager
async def raw_client(
    port: int, *, tls: ssl.SSLContext | None = None, host: str = "127.0.0.1"
) -> AsyncIterator[RawClient]:
    """Connect to the proxy."""
    name = "localhost" if tls else None
    reader, writer = await asyncio.open_connection(host, port, ssl=tls, server_hostname=name)
    try:
        yield RawClient(reader, writer)
    finally:
        await hang_up([writer])


@dataclass
class H2Stream:
    """What has come on one stream so far."""

    headers: dict[bytes, bytes] = field(default_factory=dict)
    trailers: dict[bytes, bytes] = field(default_factory=dict)
    data: bytes = b""
    ended: bool = False
    reset: int | None = None


class H2Client:
    """An HTTP/2 client; ``streams`` shows what has come, ``until`` waits for it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self.h2 = h2.connection.H2Connection(
            h2.config.H2Configuration(
                header_encoding=None,
                validate_outbound_headers=False,
                normalize_outbound_headers=False,
            )
        )
        self.streams: defaultdict[int, H2Stream] = defaultdict(H2Stream)
        self.closed = False

    def start(self) -> None:
        self.h2.initiate_connection()
        self.flush()

    def flush(self) -> None:
        self._writer.write(self.h2.data_to_send())

    def ask(
        self,
        method: str = "POST",
        body: bytes = b"",
        *,
        path: str = "/mcp",
        authority: str | None = "localhost",
        headers: Sequence[tuple[bytes, bytes]] = (),
        content_length: bool = True,
        end: bool = True,
    ) -> int:
        """Send a request; the number of its stream."""
        number = self.h2.get_next_available_stream_id()
        all_headers = [
            (b":method", method.encode()),
            (b":scheme", b"https"),
            (b":path", path.encode()),
        ]
        if authority is not None:
            all_headers.append((b":authority", authority.encode()))
        if body and content_length:
            headers = [*headers, (b"content-length", b"%d" % len(body))]
        ends = end and not body
        self.h2.send_headers(number, [*all_headers, *headers], end_stream=ends)
        if body:
            self.h2.send_data(number, body, end_stream=True)
        self.flush()
        return number

    def window(self, number: int) -> int:
        """How many bytes may be sent on a stream now."""
        return self.h2.local_flow_control_window(number)

    async def flushed(self) -> None:
        self.flush()
        await self._writer.drain()

    def reset(self, number: int) -> None:
        self.h2.reset_stream(number, error_code=8)
        self.flush()

    async def until(self, number: int, ready: Callable[[H2Stream], bool]) -> H2Stream:
        """Read until ``ready`` is content with the stream."""
        stream = self.streams[number]
        async with asyncio.timeout(TIMEOUT):
            while not ready(stream):
                if self.closed:
                    raise AssertionError(f"the connection was closed: {stream}")
                await self.read()
        return stream

    async def over(self, number: int) -> H2Stream:
        """Read until the stream has ended, well or badly."""
        return await self.until(number, lambda stream: stream.ended or stream.reset is not None)

    async def read(self) -> None:
        """Take what comes next, on whatever stream."""
        data = await self._reader.read(65536)
        if not data:
            self.closed = True
            return
        for event in self.h2.receive_data(data):
            self._take(event)
        self.flush()

    def _take(self, event: h2.events.Event) -> None:
        match event:
            case h2.events.ResponseReceived(stream_id=number, headers=headers):
                self.streams[number].headers = dict(headers)
            case h2.events.DataReceived(stream_id=number, data=data):
                self.streams[number].data += data
                self.h2.acknowledge_received_data(event.flow_controlled_length, number)
            case h2.events.TrailersReceived(stream_id=number, headers=headers):
                self.streams[number].trailers = dict(headers)
            case h2.events.StreamEnded(stream_id=number):
                self.streams[number].ended = True
            case h2.events.StreamReset(stream_id=number, error_code=code):
                self.streams[number].reset = int(code)
            case h2.events.ConnectionTerminated():
                self.closed = True
            case _:
                pass


@asynccontextmanager
async def h2_client(port: int) -> AsyncIterator[H2Client]:
    """Connect to the proxy by TLS, agreeing on HTTP/2."""
    tls = trusting()
    tls.set_alpn_protocols(["h2"])
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", port, ssl=tls, server_hostname="localhost"
    )
    client = H2Client(reader, writer)
    client.start()
    try:
        yield client
    finally:
        await hang_up([writer])
