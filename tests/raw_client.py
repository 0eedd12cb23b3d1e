r"""Clients that send exactly the bytes a test gives them: HTTP/1 over a socket, HTTP/2 over TLS."""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

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
