"""A small HTTP/1.1 server: one coroutine answers each request, with bytes or with a stream.

    async def answer(request: ServedRequest) -> ServedResponse:
        return ServedResponse(200, [(b"content-type", b"text/plain")], b"hello")

    async with http_server(answer) as server:
        ...  # clients may connect to server.origin

The page, the metrics, a login's redirect, the demo and recorded upstreams share it. It reads
requests with the engine's wire. Connections are kept alive. A body that is an async iterator is
sent chunk by chunk, such as events; it is closed when its client leaves. Everything that a client
can make us hold is limited. At the end, requests in progress get some time, and then are cut off.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from errno import EADDRINUSE
from ssl import SSLContext
from typing import Any

from mcp_tool_filter.core.engine.wire import (
    CONTINUE,
    FIELD,
    LAST_CHUNK,
    Fault,
    HttpLimits,
    RequestHead,
    RequestWire,
)
from mcp_tool_filter.core.engine.writing import PHRASES, render_chunk, render_fields
from mcp_tool_filter.core.messages.sizes import HEAD
from mcp_tool_filter.core.policy.config import AllowedHosts
from mcp_tool_filter.core.sockets.served import AnswerRequest, ServedRequest, ServedResponse

log = logging.getLogger(__name__)

_READ_SIZE = 65536
_LINGER = 2.0  # seconds in which a client may still send bytes that we discard
_WITHOUT_BODY = (204, 304)
_BETWEEN_TRIES = 0.1  # seconds


def comes_from_here(request: ServedRequest, hosts: AllowedHosts) -> bool:
    """Tell whether a request to a page of ours cannot come from a page of another site."""
    host, origin = request.header(b"host"), request.header(b"origin")
    if host is None or not hosts.has_host(host, request.own):
        return False
    if hosts.has_all:
        return True
    if request.header(b"sec-fetch-site") not in (None, "same-origin", "none"):
        return False
    return origin is None or origin == f"http://{host}"


type JudgeHead = Callable[[ServedRequest], ServedResponse | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLimits:
    head: int = 64 * 1024
    """Bytes of a request's line and headers."""
    body: int = 20 * 1024 * 1024
    connections: int = 1000
    """At the limit, a new one takes the place of the one that has waited longest for a request."""
    silence: float = 10.0
    """Seconds between two pieces of a request that has begun."""
    request: float = 30.0
    """Seconds until a request must be there whole, counted from the end of the one before."""
    sending: float = 30.0
    """Seconds in which a client must read some of an answer that does not fit in its socket."""
    grace: float = 2.0
    """Seconds for requests in progress at the end."""


PAGE_LIMITS = ServerLimits(body=256 * 1024, connections=100, grace=0.0)
"""For the page and the metrics: no client can fill our memory or lock others out."""


@dataclass(slots=True)
class HttpServer:
    """A running server; ``http_server`` starts it."""

    answer: AnswerRequest
    judge_head: JudgeHead | None
    limits: ServerLimits
    host: str = ""
    port: int = 0
    is_closing: bool = False
    _open: dict[asyncio.Task[None], _ServedConnection] = field(default_factory=dict)

    @property
    def origin(self) -> str:
        return f"http://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection, until its client leaves."""
        task = asyncio.current_task()
        assert task
        connection = _ServedConnection(self, reader, writer)
        try:
            if len(self._open) >= self.limits.connections and not self._make_room():
                self._open[task] = connection
                await connection.refuse(503)
                return
            self._open[task] = connection
            await connection.run()
        except (ConnectionError, TimeoutError, asyncio.CancelledError):
            pass  # the client has left, or we are closing
        except Exception:
            log.exception("internal error; connection closed")
        finally:
            self._open.pop(task, None)
            writer.close()

    def _make_room(self) -> bool:
        """Close the oldest connection that has no request in progress; say if there is one."""
        waiting = (task for task, one in self._open.items() if one.is_waiting)
        if (oldest := next(waiting, None)) is None:
            return False
        del self._open[oldest]
        oldest.cancel()
        return True

    async def close(self) -> None:
        """Let requests in progress finish, within the grace time."""
        self.is_closing = True
        for connection in self._open.values():
            connection.close_if_idle()
        if tasks := list(self._open):
            _, late = await asyncio.wait(tasks, timeout=self.limits.grace)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)


@asynccontextmanager
async def http_server(
    answer: AnswerRequest,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    tls: SSLContext | None = None,
    judge_head: JudgeHead | None = None,
    limits: ServerLimits | None = None,
    patience: float = 0.0,
) -> AsyncIterator[HttpServer]:
    """Run a server. ``judge_head`` may answer a request before its body is read.

    ``patience`` is how many seconds it waits for a port that another process still has.
    """
    server = HttpServer(answer, judge_head, limits or ServerLimits())
    listening = await _listen(server, host, port, tls, patience)
    server.host, server.port = listening.sockets[0].getsockname()[:2]
    try:
        yield server
    finally:
        listening.close()
        await server.close()
        with suppress(TimeoutError):  # a client may ignore the TLS shutdown
            await asyncio.wait_for(listening.wait_closed(), server.limits.grace)


async def _listen(
    server: HttpServer, host: str, port: int, tls: SSLContext | None, patience: float
) -> asyncio.Server:
    end = asyncio.get_running_loop().time() + patience
    while True:
        try:
            return await asyncio.start_server(server.serve, host, port, ssl=tls)
        except OSError as error:
            if error.errno != EADDRINUSE or asyncio.get_running_loop().time() >= end:
                raise
        await asyncio.sleep(_BETWEEN_TRIES)


class _ServedConnection:
    """HTTP/1.1 with one client."""

    def __init__(
        self, server: HttpServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._server = server
        self._reader = reader
        self._writer = writer
        self._own = str(writer.get_extra_info("sockname")[0])
        self._wire = RequestWire(HttpLimits(head=server.limits.head))
        self._is_idle = True
        self._has_ended = False  # True if the client has closed its side
        self._has_begun = False  # True if an answer has begun
        self._closes = True  # True if the answer is the last one
        self.is_waiting = True
        """True if nobody loses an answer when this connection is closed."""

    async def run(self) -> None:
        try:
            while (answer := await self._next_answer()) is not None:
                await self._send(*answer)
                if self._closes:
                    return await self._linger()
        except Fault as error:
            await self.refuse(error.status)
        except TimeoutError:
            if not self._is_idle:
                await self.refuse(408)

    def close_if_idle(self) -> None:
        if self._is_idle:
            self._writer.close()

    async def refuse(self, status: int) -> None:
        """Send an error without reading a request, then close the connection."""
        if not self._has_begun:
            await self._send(ServedResponse(status), None)
            await self._linger()

    async def _next_answer(self) -> tuple[ServedResponse, RequestHead] | None:
        """Read a request; return its answer and its head, or None if the client has left."""
        self.is_waiting = True
        self._has_begun = False
        async with asyncio.timeout(self._server.limits.request):
            if (head := await self._next_head()) is None:
                return None
            fields = tuple((name.lower(), value) for name, value in head.fields)
            request = ServedRequest(head.method, head.target, fields, own=self._own)
            judge = self._server.judge_head
            response = judge(request) if judge else None
            if response is None and (head.length or 0) > self._server.limits.body:
                response = ServedResponse(413)
            body = None if response else await self._read_body(head)
        self.is_waiting = False
        if response is None and body is not None:
            response = await self._answered(replace(request, body=body))
        return response or ServedResponse(413), head

    async def _answered(self, request: ServedRequest) -> ServedResponse:
        try:
            return await self._server.answer(request)
        except ConnectionResetError:
            raise
        except Exception:
            log.exception("internal error; the client gets 500")
            return ServedResponse(500)

    # Reading

    async def _next_head(self) -> RequestHead | None:
        """Return the head of the next request; None if the client has left."""
        self._wire.state = "head"
        self._is_idle = not self._wire.ahead
        while (event := self._wire.next()) is None:
            if self._server.is_closing and self._is_idle:
                return None
            if self._has_ended:
                if self._wire.ahead:
                    raise Fault("half a head")
                return None
            await self._receive(None if self._is_idle else self._server.limits.silence)
            self._is_idle = False
        self._is_idle = False
        assert isinstance(event, RequestHead)  # it comes first
        if sum(name.lower() == b"host" for name, _ in event.fields) != 1 and event.is_11:
            raise Fault("not one Host")
        return event

    async def _read_body(self, head: RequestHead) -> bytes | None:
        """Return the body; None if it is too long."""
        if head.expects and not self._wire.ahead:
            await self._write(CONTINUE)
        pieces: list[bytes] = []
        size = 0
        while True:
            event = self._wire.next()
            if isinstance(event, bytes):
                pieces.append(event)
                size += len(event)
                if size > self._server.limits.body:
                    return None
            elif event is not None:
                return b"".join(pieces)
            elif self._has_ended:
                raise Fault("half a body")
            else:
                await self._receive(self._server.limits.silence)

    async def _receive(self, seconds: float | None) -> None:
        async with asyncio.timeout(seconds):
            data = await self._reader.read(_READ_SIZE)
        self._has_ended = not data
        self._wire.receive(data)

    async def _unless_gone(self, work: asyncio.Future[Any]) -> None:
        """Wait for work; cancel it if the client leaves before. Raises ConnectionResetError."""
        gone = asyncio.ensure_future(self._until_gone())
        try:
            await asyncio.wait([work, gone], return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                raise ConnectionResetError
        finally:
            for task in (work, gone):
                task.cancel()
            await asyncio.gather(work, gone, return_exceptions=True)

    async def _until_gone(self) -> None:
        """Wait until the client leaves; keep what it sends meanwhile."""
        ahead = 0
        while not self._has_ended:
            if ahead > HEAD:
                await asyncio.Event().wait()  # stop reading; sending will fail if it leaves
            data = await self._reader.read(_READ_SIZE)
            ahead += len(data)
            self._has_ended = not data
            self._wire.receive(data)

    # Sending

    async def _send(self, response: ServedResponse, head: RequestHead | None) -> None:
        """Send an answer; without a head, refuse what was not read."""
        fields = list(response.headers)
        names = {name.lower() for name, _ in fields}
        has_body = response.status not in _WITHOUT_BODY
        is_framed = b"content-length" in names or not has_body
        is_chunked = False
        if isinstance(response.body, bytes):
            if not is_framed:
                fields.append((b"content-length", b"%d" % len(response.body)))
        elif not is_framed and head and head.is_11:
            fields.append((b"transfer-encoding", b"chunked"))
            is_chunked = True
        says_close = b"connection" in names
        self._closes = says_close or not head or not head.keeps or self._wire.state != "done"
        if self._server.is_closing or self._closes:
            self._closes = True
            if not says_close:
                fields.append((b"connection", b"close"))
        if not all(FIELD.fullmatch(b"%b:%b" % one) for one in fields):
            raise ValueError("an answer with a header that cannot be written")
        self._has_begun = True
        reason = PHRASES.get(response.status, b"")
        begin = b"HTTP/1.1 %d %b\r\n%b\r\n" % (response.status, reason, render_fields(fields))
        has_body = has_body and (head is None or head.method != "HEAD")
        if isinstance(response.body, bytes):
            await self._write(begin + response.body if has_body else begin)
            return
        await self._write(begin)
        pump = self._pump(response.body, is_chunked=is_chunked, is_sent=has_body)
        sending = asyncio.ensure_future(pump)
        await self._unless_gone(sending)
        sending.result()  # an error cuts the stream: its client sees that
        if is_chunked and has_body:
            await self._write(LAST_CHUNK)

    async def _pump(self, body: AsyncIterator[bytes], *, is_chunked: bool, is_sent: bool) -> None:
        try:
            async for chunk in body:
                if chunk and is_sent:
                    await self._write(render_chunk(chunk) if is_chunked else chunk)
        finally:
            if close := getattr(body, "aclose", None):
                await close()

    async def _write(self, data: bytes) -> None:
        self._writer.write(data)
        try:
            async with asyncio.timeout(self._server.limits.sending):
                await self._writer.drain()
        except TimeoutError:
            self._writer.transport.abort()
            raise ConnectionResetError from None

    async def _linger(self) -> None:
        """Close gently, so that the client can read our answer, which a reset could destroy."""
        self.is_waiting = True
        if not self._writer.can_write_eof():
            return  # TLS
        with suppress(OSError, TimeoutError):
            self._writer.write_eof()
            async with asyncio.timeout(_LINGER):
                while await self._reader.read(_READ_SIZE):
                    pass
