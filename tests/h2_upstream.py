r"""An HTTP/2 upstream over TLS; what happens on each stream is a script.

async def script(stream: UpstreamStream) -> None:
    stream.head([(b":status", b"200"), (b"content-type", b"text/event-stream")])
    stream.say(b"data: 1\n\n")
    stream.end()
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import h2.config
import h2.connection
import h2.events
import h2.exceptions
from hyperframe.frame import RstStreamFrame

from tests.raw_upstream import Peer, RawUpstream, Script, hang_up

type H2Script = Callable[[UpstreamStream], Awaitable[None]]


@dataclass
class UpstreamStream:
    """A request that came, and the response to it."""

    number: int
    connection: _Connection
    headers: dict[bytes, bytes]
    over: asyncio.Event = field(default_factory=asyncio.Event)  # ended or reset by the other side
    reset_by_peer: bool = False

    def head(self, headers: Sequence[tuple[bytes, bytes]], *, end: bool = False) -> None:
        self.connection.h2.send_headers(self.number, headers, end_stream=end)
        self.connection.flush()

    def say(self, data: bytes) -> None:
        self.connection.h2.send_data(self.number, data)
        self.connection.flush()

    def end(self) -> None:
        self.connection.h2.end_stream(self.number)
        self.connection.flush()

    def reset(self, code: int = 2) -> None:
        self.connection.h2.reset_stream(self.number, code)
        self.connection.flush()

    def reset_once_more(self) -> None:
        """Reset a stream that has ended: NO_ERROR, as servers do that need not hear us out."""
        self.connection.write(RstStreamFrame(self.number, error_code=0).serialize())

    def go_away(self, code: int = 0) -> None:
        """Say that the connection ends; 0 means that nothing is wrong."""
        self.connection.h2.close_connection(code)
        self.connection.flush()


@dataclass
class H2Upstream:
    """What ``h2_upstream`` hands to a test."""

    port: int = 0
    streams: list[UpstreamStream] = field(default_factory=list)
    writers: list[asyncio.StreamWriter] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"


class _Connection:
    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        upstream: H2Upstream,
        script: H2Script,
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._upstream = upstream
        self._script = script
        self._streams: dict[int, UpstreamStream] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.h2 = h2.connection.H2Connection(
            h2.config.H2Configuration(client_side=False, header_encoding=None)
        )

    def flush(self) -> None:
        self.write(self.h2.data_to_send())

    def write(self, data: bytes) -> None:
        self._writer.write(data)

    async def run(self) -> None:
        self.h2.initiate_connection()
        self.flush()
        with suppress(h2.exceptions.ProtocolError):  # the filter asks for a list over HTTP/1.1
            while data := await self._reader.read(65536):
                for event in self.h2.receive_data(data):
                    self._take(event)
                self.flush()
        for stream in self._streams.values():
            stream.over.set()

    def _take(self, event: h2.events.Event) -> None:
        match event:
            case h2.events.RequestReceived(stream_id=number, headers=headers):
                stream = UpstreamStream(number, self, dict(headers))
                self._streams[number] = stream
                self._upstream.streams.append(stream)
                task = asyncio.create_task(self._run(stream))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            case h2.events.StreamReset(stream_id=number):
                self._streams[number].reset_by_peer = True
                self._streams[number].over.set()
            case _:
                pass

    async def _run(self, stream: UpstreamStream) -> None:
        await self._script(stream)


@asynccontextmanager
async def h2_upstream(
    script: H2Script, *, tls: ssl.SSLContext, http1: Script | None = None
) -> AsyncIterator[H2Upstream]:
    """Listen on a free port of the loopback, and speak HTTP/2; to others, what ``http1`` says."""
    tls.set_alpn_protocols(["h2"])
    upstream = H2Upstream()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream.writers.append(writer)
        speaks_h2 = writer.get_extra_info("ssl_object").selected_alpn_protocol() == "h2"
        try:
            if speaks_h2 or http1 is None:
                await _Connection(reader, writer, upstream, script).run()
            else:
                await http1(Peer(reader, writer, RawUpstream(upstream.port, "https")))
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", 0, ssl=tls)
    upstream.port = server.sockets[0].getsockname()[1]
    try:
        yield upstream
    finally:
        server.close()
        await hang_up(upstream.writers)
