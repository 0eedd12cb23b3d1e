"""Both ends of a WebSocket, on asyncio streams; the protocol is wsproto's."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

import wsproto
from wsproto.events import AcceptConnection, BytesMessage, CloseConnection, Event, TextMessage
from wsproto.events import Request as UpgradeRequest

from tests.raw_upstream import TIMEOUT


@dataclass
class WebSocketEnd:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    connection: wsproto.WSConnection
    _unread: list[Event] = field(default_factory=list)

    async def say(self, text: bytes) -> None:
        await self._send(TextMessage(text.decode()))

    async def hear(self) -> bytes | None:
        """Return the next message; None when the other side has closed."""
        parts: list[bytes] = []
        while True:
            event = await self._event()
            if event is None or isinstance(event, CloseConnection):
                return None
            if isinstance(event, TextMessage | BytesMessage):
                data = event.data
                parts.append(data.encode() if isinstance(data, str) else bytes(data))
                if event.message_finished:
                    return b"".join(parts)

    async def leave(self) -> None:
        """Say that nothing more will be said."""
        await self._send(CloseConnection(1000))

    async def _send(self, event: Event) -> None:
        self.writer.write(self.connection.send(event))
        await self.writer.drain()

    async def _event(self) -> Event | None:
        async with asyncio.timeout(TIMEOUT):
            while not self._unread:
                data = await self.reader.read(65536)
                if not data:
                    return None
                self.connection.receive_data(data)
                self._unread += list(self.connection.events())
        return self._unread.pop(0)


async def accept(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes
) -> WebSocketEnd:
    """Accept the upgrade whose request has been read already."""
    connection = wsproto.WSConnection(wsproto.ConnectionType.SERVER)
    connection.receive_data(request)
    list(connection.events())
    end = WebSocketEnd(reader, writer, connection)
    await end._send(AcceptConnection())
    return end


async def connect(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, target: str = "/mcp",
    subprotocols: Sequence[str] = (), headers: Sequence[tuple[bytes, bytes]] = (),
) -> WebSocketEnd:  # fmt: skip
    """Ask for the upgrade. Raises AssertionError if it is refused."""
    connection = wsproto.WSConnection(wsproto.ConnectionType.CLIENT)
    end = WebSocketEnd(reader, writer, connection)
    own, protocols = list(headers), list(subprotocols)
    asked = UpgradeRequest("localhost", target, extra_headers=own, subprotocols=protocols)
    await end._send(asked)
    first = await end._event()
    assert isinstance(first, AcceptConnection), first
    return end
