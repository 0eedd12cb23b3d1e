"""One socket with its h11 state: requests go out, events come in."""

from __future__ import annotations

import asyncio
import ssl
from contextlib import suppress

import h11

from mcp_tool_filter.adapters.fetch.http_failures import (
    ConnectionLost,
    HttpFailed,
    NotConnected,
    why,
    why_none,
)
from mcp_tool_filter.adapters.fetch.probe import connect
from mcp_tool_filter.http.origin import Origin

_MAX_HEAD = 64 * 1024
_READ_SIZE = 64 * 1024
_CLOSED = "Connection closed by upstream"
_GOODBYE_TIMEOUT = 0.5  # seconds for the TLS shutdown

our_ends: set[tuple[str, int]] = set()
"""Our ends of all open connections: a server in this process may serve nobody else."""


class Connection:
    """One socket with its h11 state."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=_MAX_HEAD)
        self.has_answered = False  # whether any part of the current answer has arrived
        self._our_end: tuple[str, int] = (writer.get_extra_info("sockname") or ("", 0))[:2]
        our_ends.add(self._our_end)

    @classmethod
    async def open(cls, origin: Origin, tls: ssl.SSLContext | None) -> Connection:
        """Connect. Raises NotConnected."""
        try:
            reader, writer = await connect(origin, tls)
        except ExceptionGroup as group:
            raise NotConnected(why_none(group.exceptions, origin)) from None
        except (OSError, ssl.CertificateError) as error:
            raise NotConnected(why(error, origin)) from None
        return cls(reader, writer)

    def start_next(self) -> None:
        """Prepare for another request on this connection."""
        self._http.start_next_cycle()
        self.has_answered = False

    def was_closed_by_peer(self) -> bool:
        return self._reader.at_eof() or self._writer.is_closing()

    def is_reusable(self) -> bool:
        return (
            self._http.our_state is h11.DONE
            and self._http.their_state is h11.DONE
            and not self._writer.is_closing()
        )

    async def send(self, request: h11.Request, body: bytes) -> h11.Response:
        """Send a request and wait for the head of its answer."""
        try:
            parts = [self._http.send(request)]
            if body:
                parts.append(self._http.send(h11.Data(data=body)))
            parts.append(self._http.send(h11.EndOfMessage()))
            # An upstream may refuse before it has read everything; its answer is worth reading.
            with suppress(OSError):
                self._writer.write(b"".join(part for part in parts if part))
                await self._writer.drain()
            while not isinstance(event := await self.next_event(), h11.Response):
                if not isinstance(event, h11.InformationalResponse):
                    raise ConnectionLost(_CLOSED)
        except BaseException:
            await self.close()
            raise
        return event

    async def next_event(self) -> h11.Event:
        try:
            while (event := self._http.next_event()) is h11.NEED_DATA:
                data = await self._reader.read(_READ_SIZE)
                self.has_answered = self.has_answered or bool(data)
                self._http.receive_data(data)
        except h11.RemoteProtocolError as error:
            if self._reader.at_eof():
                raise ConnectionLost(_CLOSED) from None
            what = str(error).partition(": bytearray(")[0]
            raise HttpFailed(f"Not a valid HTTP answer: {what}") from None
        except OSError as error:
            raise ConnectionLost(why(error)) from None
        if isinstance(event, h11.ConnectionClosed) or not isinstance(event, h11.Event):
            raise ConnectionLost(_CLOSED)
        return event

    async def close(self) -> None:
        our_ends.discard(self._our_end)
        self._writer.close()
        try:
            async with asyncio.timeout(_GOODBYE_TIMEOUT):
                await self._writer.wait_closed()
        except (OSError, TimeoutError):
            pass
        finally:
            self._writer.transport.abort()
