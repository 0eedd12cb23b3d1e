"""A connection to the proxy, with all that a bad client needs: halves, pauses, resets."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

_HEAD = (
    "{method} {target} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    "Accept: application/json, text/event-stream\r\n{more}Content-Length: {length}\r\n\r\n"
)
_PIECE = 16 * 1024
_LINGER_NOT = struct.pack("ii", 1, 0)


class Broken(Exception):
    """The other side has hung up."""


@dataclass(slots=True)
class Answer:
    status: int
    headers: dict[str, str]
    connection: Connection

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the body as it comes."""
        reader = self.connection.reader
        if self.headers.get("transfer-encoding") != "chunked":
            missing = int(self.headers.get("content-length", 0))
            while missing > 0:
                piece = await reader.readexactly(min(missing, _PIECE))
                missing -= len(piece)
                yield piece
            return
        while length := int(await reader.readuntil(b"\r\n"), 16):
            yield await reader.readexactly(length)
            await reader.readexactly(2)
        await reader.readexactly(2)

    async def body(self) -> bytes:
        try:
            return b"".join([chunk async for chunk in self.chunks()])
        except (OSError, EOFError) as error:
            raise Broken from error


@dataclass(slots=True)
class Connection:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def send(self, method: str, target: str, body: bytes = b"", more: str = "") -> None:
        head = _HEAD.format(method=method, target=target, more=more, length=len(body))
        await self.send_raw(head.encode() + body)

    async def send_raw(self, raw: bytes) -> None:
        try:
            self.writer.write(raw)
            await self.writer.drain()
        except OSError as error:
            raise Broken from error

    async def answer(self) -> Answer:
        """Wait for a head."""
        try:
            head = await self.reader.readuntil(b"\r\n\r\n")
        except (OSError, EOFError) as error:
            raise Broken from error
        first, *lines = head.decode("latin-1").split("\r\n")
        fields = (line.partition(":") for line in lines if line)
        headers = {name.lower(): value.strip() for name, _, value in fields}
        return Answer(int(first.split(" ")[1]), headers, self)

    def reset(self) -> None:
        """Leave so that the other side gets an RST."""
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_NOT)
        self.writer.transport.abort()


@asynccontextmanager
async def connected(port: int, *, buffer: int = 0) -> AsyncIterator[Connection]:
    """Connect; a small ``buffer`` makes a slow reader felt at the other end."""
    sock = socket.socket()
    sock.setblocking(False)
    if buffer:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
    try:
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
        reader, writer = await asyncio.open_connection(sock=sock, limit=1 << 16)
    except OSError as error:
        sock.close()
        raise Broken from error
    try:
        yield Connection(reader, writer)
    finally:
        writer.transport.abort()
