"""A pump of bytes, which reads nothing: python -m tests.bench.pump PORT UPSTREAM

It is the floor of any proxy in Python: asyncio moves each byte, and a connection of a client has
one to the upstream.
"""

from __future__ import annotations

import asyncio
import sys


class Side(asyncio.Protocol):
    """One of two sockets; what it brings goes to the other."""

    other: asyncio.Transport | None = None

    def __init__(self, upstream: int | None = None) -> None:
        """``upstream`` is the port to connect to, if this is a client's."""
        self._upstream = upstream
        self._early: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        if self._upstream is not None:
            self._task = asyncio.get_running_loop().create_task(self._connect(self._upstream))

    async def _connect(self, port: int) -> None:
        loop = asyncio.get_running_loop()
        self.other, side = await loop.create_connection(Side, "127.0.0.1", port)
        side.other = self.transport
        self.other.writelines(self._early)

    def data_received(self, data: bytes) -> None:
        if self.other is not None:
            self.other.write(data)
        else:
            self._early.append(data)

    def connection_lost(self, _error: Exception | None) -> None:
        if self.other is not None:
            self.other.close()


async def serve(port: int, upstream: int) -> None:
    loop = asyncio.get_running_loop()
    await loop.create_server(lambda: Side(upstream), "127.0.0.1", port)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]), int(sys.argv[2])))
