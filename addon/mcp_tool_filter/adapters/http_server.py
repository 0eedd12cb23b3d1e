"""A small HTTP/1.1 server: one coroutine answers each request, with bytes or with a stream.

    async def answer(request: ServedRequest) -> ServedResponse:
        return ServedResponse(200, [(b"content-type", b"text/plain")], b"hello")

    async with http_server(answer) as server:
        ...  # clients may connect to server.origin

The demo, recorded upstreams and the bridges in front of commands share it. Connections are kept
alive. A body that is an async iterator is sent chunk by chunk, such as events; it is closed when
its client leaves. Everything that a client can make us hold is limited. At the end, requests in
progress get some time, and then are cut off.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from ssl import SSLContext

import h11

from mcp_tool_filter.policy.config import AllowedHosts

log = logging.getLogger(__name__)

_READ_SIZE = 65536
_MOST_AHEAD = 65536  # bytes that a client may send while we answer it
_LINGER = 2.0  # seconds in which a client may still send bytes that we discard
_SOON_KNOWN = (0.0, 0.01, 0.05, 0.2, 0.5)  # seconds
_WITHOUT_BODY = (204, 304)

type ServedFields = Sequence[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class ServedRequest:
    """A request; its header names are in lower case."""

    method: str
    target: str
    headers: ServedFields
    body: bytes = b""
    peer: tuple[str, int] | None = None
    """Address and port of the client."""

    @property
    def path(self) -> str:
        return self.target.partition("?")[0]

    def header(self, name: bytes) -> str | None:
        """Return the first header of this name (in lower case)."""
        return next((value.decode("latin-1") for key, value in self.headers if key == name), None)


@dataclass(frozen=True, slots=True)
class ServedResponse:
    status: int
    headers: ServedFields = ()
    body: bytes | AsyncIterator[bytes] = b""


def comes_from_here(request: ServedRequest, hosts: AllowedHosts) -> bool:
    """Tell whether a request to a page of ours cannot come from a page of another site."""
    host, origin = request.header(b"host"), request.header(b"origin")
    if host is None or not hosts.has_host(host):
        return False
    if hosts.has_all:
        return True
    if request.header(b"sec-fetch-site") not in (None, "same-origin", "none"):
        return False
    return origin is None or origin == f"http://{host}"


type AnswerRequest = Callable[[ServedRequest], Awaitable[ServedResponse]]
type ServesPeer = Callable[[tuple[str, int] | None], bool]
type JudgeHead = Callable[[ServedRequest], ServedResponse | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLimits:
    head: int = 64 * 1024
    """Bytes of a request's line and headers."""
    body: int = 20 * 1024 * 1024
    connections: int = 1000
    silence: float = 60.0
    """Seconds between two pieces of a request that has begun."""
    request: float | None = None
    """Seconds until a request must be there whole, counted from the end of the one before."""
    makes_room: bool = False
    """At the limit, close the connection that has waited longest, instead of the new one."""
    grace: float = 2.0
    """Seconds for requests in progress at the end."""


PAGE_LIMITS = ServerLimits(
    body=256 * 1024, connections=100, silence=10, request=30, makes_room=True
)
"""For the page and the metrics: strangers can neither fill our memory nor shut others out."""


@dataclass(slots=True)
class HttpServer:
    """A running server; ``http_server`` starts it."""

    answer: AnswerRequest
    judge_head: JudgeHead | None
    serves: ServesPeer | None
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
            if self.serves and not await self._comes_to_serve(self.serves, connection.peer):
                await connection.refuse(403)  # it has held no seat
                return
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
        if not self.limits.makes_room:
            return False
        waiting = (task for task, one in self._open.items() if one.is_waiting)
        if (oldest := next(waiting, None)) is None:
            return False
        del self._open[oldest]
        oldest.cancel()
        return True

    async def _comes_to_serve(self, serves: ServesPeer, peer: tuple[str, int] | None) -> bool:
        """Tell whether a peer is served; it may become known only after it has connected."""
        for seconds in _SOON_KNOWN:
            if serves(peer):
                return True
            await asyncio.sleep(seconds)
        return serves(peer)

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
    serves: ServesPeer | None = None,
    limits: ServerLimits | None = None,
) -> AsyncIterator[HttpServer]:
    """Run a server. ``judge_head`` may answer a request before its body is read; peers that it
    does not serve are refused before anything is read."""
    server = HttpServer(answer, judge_head, serves, limits or ServerLimits())
    listening = await asyncio.start_server(server.serve, host, port, ssl=tls)
    server.host, server.port = listening.sockets[0].getsockname()[:2]
    try:
        yield server
    finally:
        listening.close()
        await server.close()
        with suppress(TimeoutError):  # a client may ignore the TLS shutdown
            await asyncio.wait_for(listening.wait_closed(), server.limits.grace)


class _ServedConnection:
    """HTTP/1.1 with one client."""

    def __init__(
        self, server: HttpServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._server = server
        self._reader = reader
        self._writer = writer
        self._h11 = h11.Connection(h11.SERVER, server.limits.head)
        self._is_idle = True
        self._has_ended = False  # True if the client has closed its side
        self.is_waiting = True
        """True if nobody loses an answer when this connection is closed."""
        peer = writer.get_extra_info("peername")
        self.peer = (peer[0], peer[1]) if peer else None

    async def run(self) -> None:
        try:
            while (answer := await self._next_answer()) is not None:
                response, method = answer
                await self._send(response, method)
                if not (self._h11.our_state is h11.DONE and self._h11.their_state is h11.DONE):
                    return await self._linger()
                self._h11.start_next_cycle()
        except h11.RemoteProtocolError as error:
            await self.refuse(error.error_status_hint)
        except TimeoutError:
            if not self._is_idle:
                await self.refuse(408)

    def close_if_idle(self) -> None:
        if self._is_idle:
            self._writer.close()

    async def refuse(self, status: int) -> None:
        """Send an error without reading a request, then close the connection."""
        if self._h11.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            await self._send_whole(ServedResponse(status), "")
            await self._linger()

    async def _next_answer(self) -> tuple[ServedResponse, str] | None:
        """Read a request; return its answer and its method, or None if the client has left."""
        self.is_waiting = True
        async with asyncio.timeout(self._server.limits.request):
            if (request := await self._next_head()) is None:
                return None
            judge = self._server.judge_head
            response = (judge(request) if judge else None) or self._problem_in_length(request)
            body = None if response else await self._read_body()
        self.is_waiting = False
        if response is None and body is not None:
            response = await self._answered(replace(request, body=body))
        return response or ServedResponse(413), request.method

    async def _answered(self, request: ServedRequest) -> ServedResponse:
        try:
            if self._server.serves:
                return await self._answered_unless_gone(request)
            return await self._server.answer(request)
        except ConnectionResetError:
            raise
        except Exception:
            log.exception("internal error; the client gets 500")
            return ServedResponse(500)

    async def _answered_unless_gone(self, request: ServedRequest) -> ServedResponse:
        """Cancel the answer if the client leaves before it is there."""
        answering = asyncio.ensure_future(self._server.answer(request))
        gone = asyncio.ensure_future(self._until_gone())
        try:
            await asyncio.wait([answering, gone], return_when=asyncio.FIRST_COMPLETED)
            if not answering.done():
                raise ConnectionResetError
            return answering.result()
        finally:
            for task in (answering, gone):
                task.cancel()
            await asyncio.gather(answering, gone, return_exceptions=True)

    # Reading

    async def _next_head(self) -> ServedRequest | None:
        """Return the next request without its body; None if the client has left."""
        self._is_idle = not self._h11.trailing_data[0]
        while (event := self._h11.next_event()) is h11.NEED_DATA:
            if self._server.is_closing and self._is_idle:
                return None
            await self._receive(None if self._is_idle else self._server.limits.silence)
            self._is_idle = False
        self._is_idle = False
        if not isinstance(event, h11.Request):
            return None  # closed between two requests
        headers = tuple((bytes(name), bytes(value)) for name, value in event.headers)
        names = [name for name, _ in headers]
        if b"transfer-encoding" in names and b"content-length" in names:
            raise h11.RemoteProtocolError("a length and a transfer coding")
        method, target = event.method.decode(), event.target.decode("latin-1")
        return ServedRequest(method, target, headers, peer=self.peer)

    def _problem_in_length(self, request: ServedRequest) -> ServedResponse | None:
        length = (request.header(b"content-length") or "0").lstrip("0")
        most = self._server.limits.body
        is_long = len(length) > len(str(most)) or int(length or 0) > most
        return ServedResponse(413) if is_long else None

    async def _read_body(self) -> bytes | None:
        """Return the body; None if it is too long."""
        if self._h11.they_are_waiting_for_100_continue:
            await self._say(h11.InformationalResponse(status_code=100, headers=[]))
        body = bytearray()
        while True:
            event = self._h11.next_event()
            if event is h11.NEED_DATA:
                await self._receive(self._server.limits.silence)
            elif isinstance(event, h11.Data):
                body += event.data
                if len(body) > self._server.limits.body:
                    return None
            else:
                return bytes(body)

    async def _receive(self, seconds: float | None) -> None:
        async with asyncio.timeout(seconds):
            data = await self._reader.read(_READ_SIZE)
        self._has_ended = not data
        self._h11.receive_data(data)

    async def _until_gone(self) -> None:
        """Wait until the client leaves; keep what it sends meanwhile."""
        ahead = 0
        while not self._has_ended:
            if ahead > _MOST_AHEAD:
                await asyncio.Event().wait()  # stop reading; sending will fail if it leaves
            data = await self._reader.read(_READ_SIZE)
            ahead += len(data)
            self._has_ended = not data
            self._h11.receive_data(data)

    # Sending

    async def _send(self, response: ServedResponse, method: str) -> None:
        if isinstance(response.body, bytes):
            await self._send_whole(response, method)
        else:
            await self._send_stream(response, response.body, method)

    async def _send_whole(self, response: ServedResponse, method: str) -> None:
        assert isinstance(response.body, bytes)
        headers = list(response.headers)
        if response.status not in _WITHOUT_BODY:
            names = [name.lower() for name, _ in headers]
            if b"content-length" not in names:
                headers.append((b"content-length", b"%d" % len(response.body)))
        await self._begin(response.status, headers)
        if response.body and method != "HEAD" and response.status not in _WITHOUT_BODY:
            await self._say(h11.Data(data=response.body))
        await self._say(h11.EndOfMessage())

    async def _send_stream(
        self, response: ServedResponse, body: AsyncIterator[bytes], method: str
    ) -> None:
        await self._begin(response.status, list(response.headers))
        sending = asyncio.ensure_future(self._pump(body, method))
        gone = asyncio.ensure_future(self._until_gone())
        try:
            await asyncio.wait([sending, gone], return_when=asyncio.FIRST_COMPLETED)
            if not sending.done():
                raise ConnectionResetError
            sending.result()  # an error cuts the stream: its client sees that
        finally:
            for task in (sending, gone):
                task.cancel()
            await asyncio.gather(sending, gone, return_exceptions=True)
        await self._say(h11.EndOfMessage())

    async def _pump(self, body: AsyncIterator[bytes], method: str) -> None:
        try:
            async for chunk in body:
                if chunk and method != "HEAD":
                    await self._say(h11.Data(data=chunk))
        finally:
            if close := getattr(body, "aclose", None):
                await close()

    async def _begin(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        if self._server.is_closing or self._h11.their_state is not h11.DONE:
            headers = [*headers, (b"connection", b"close")]
        await self._say(h11.Response(status_code=status, headers=headers))

    async def _say(self, event: h11.Event) -> None:
        self._writer.write(self._h11.send(event) or b"")
        await self._writer.drain()

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
