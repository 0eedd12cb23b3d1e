"""The HTTP/1.1 client for all our own requests: fetches, logins, webhooks, and the pipe's messages.

It reads answers with the engine's wire, so that a fetch fails if the client's own traffic would.
Any misbehaviour of a peer ends in an ``HttpFailed`` with a readable text, or in the caller's
time-out.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Protocol

from mcp_tool_filter import __version__
from mcp_tool_filter.core.engine.wire import END, FIELD, AnswerHead, AnswerWire, End, Fault
from mcp_tool_filter.core.engine.writing import render_request
from mcp_tool_filter.core.errors import ProtocolError, StartError
from mcp_tool_filter.core.http.bodies import decode_body
from mcp_tool_filter.core.http.head import Fields
from mcp_tool_filter.core.http.urls import Origin
from mcp_tool_filter.core.sockets.connect import (
    ConnectionLost,
    HttpFailed,
    LoginNeeded,
    ProxyHop,
    make_tls_context,
    open_streams,
    why,
)

if TYPE_CHECKING:
    from mcp_tool_filter.core.sockets.served import AnswerRequest

# A user must not set these: they would break the framing of our requests.
_OUR_HEADERS = frozenset(
    {b"connection", b"content-length", b"transfer-encoding", b"te", b"upgrade", b"expect"}
)
_TARGET = re.compile(r"[!-~]+")
_AUTHORIZATION = b"authorization"
_READ_SIZE = 64 * 1024
_CLOSED = "Connection closed by upstream"
_GOODBYE_TIMEOUT = 0.5  # seconds for the TLS shutdown

type Headers = Sequence[tuple[bytes, bytes]]


class Login(Protocol):
    """Provides the value of Authorization. Its methods raise StartError if there is none."""

    def value(self) -> str | None:
        """Return it if it is known without waiting, else None."""

    async def renewed(self, rejected: str | None = None) -> str: ...

    async def after_refusal(
        self, status: int, challenges: Sequence[str], rejected: str, *, was_repeated: bool
    ) -> str:
        """Return another value for a second try."""


class Room(Protocol):
    """Limits how many connections are open."""

    def take(self) -> bool:
        """Count one more connection; False if there are too many."""

    def give_back(self) -> None: ...


class HttpClient:
    """Sends requests to one origin; keeps connections open if the upstream allows it."""

    resends = True
    """Whether a request is sent again if an idle connection ends without an answer. Not for tool
    calls, which may have run."""

    def __init__(
        self,
        origin: Origin,
        *,
        headers: Headers = (),
        tls: ssl.SSLContext | None = None,
        login: Login | None = None,
        room: Room | None = None,
        answer: AnswerRequest | None = None,
        via: ProxyHop | None = None,
    ) -> None:
        """A ``login`` sets Authorization; a request whose token the upstream refuses is sent once
        more. ``room`` counts our connections together with others. If there is an ``answer``, it
        answers all requests, and no connection is opened. ``via`` is a proxy that leads to the
        origin.
        """
        self.origin = origin
        self._headers = [header for header in headers if header[0].lower() not in _OUR_HEADERS]
        self._tls = (tls or make_tls_context()) if origin.tls else None
        self._login = login
        self._room, self._answer, self._via = room, answer, via
        self._idle: list[_Connection] = []

    @asynccontextmanager
    async def exchange(
        self, method: bytes, target: str, headers: Headers = (), body: bytes = b""
    ) -> AsyncIterator[HttpResponse]:
        """Send a request; yield the response once its head has arrived. Raises HttpFailed.

        If the response is not read to its end, its connection is closed.
        """
        said = {name.lower() for name, _ in (*headers, *self._headers)}
        if self._login and _AUTHORIZATION not in said:
            response = await self._begin_with_login(self._login, method, target, headers, body)
        else:
            response = await self._begin(method, target, headers, body)
        connection = response.connection
        try:
            yield response
        finally:
            if isinstance(connection, _Connection) and connection.is_reusable:
                self._idle.append(connection)
            else:
                await connection.close()

    async def close(self) -> None:
        """Close the idle connections."""
        while self._idle:
            await self._idle.pop().close()

    async def _begin_with_login(
        self, login: Login, method: bytes, target: str, headers: Headers, body: bytes
    ) -> HttpResponse:
        try:
            value = login.value() or await login.renewed()
            for was_repeated in (False, True):
                named = [*headers, (_AUTHORIZATION, value.encode())]
                response = await self._begin(method, target, named, body)
                if response.status not in (401, 403):
                    break
                said = [one.decode("latin-1") for one in response.headers(b"www-authenticate")]
                await response.connection.close()
                value = await login.after_refusal(
                    response.status, said, value, was_repeated=was_repeated
                )
        except StartError as error:
            raise LoginNeeded(error) from None
        return response

    def _fields(self, method: bytes, target: str, headers: Headers, body: bytes) -> Fields:
        """Return all fields of a request. Raises HttpFailed."""
        said = {name.lower() for name, _ in headers}
        theirs = [(name, value) for name, value in self._headers if name.lower() not in said]
        given = {name.lower() for name, _ in theirs}
        usual = [
            (b"host", self.origin.authority.encode()),
            (b"accept-encoding", b"identity"),
            (b"user-agent", b"mcp-tool-filter/" + __version__.encode()),
        ]
        length = [(b"content-length", b"%d" % len(body))] if method == b"POST" else []
        ours = [(name, value) for name, value in usual if name not in given]
        fields = [*ours, *length, *headers, *theirs]
        if not _TARGET.fullmatch(target):
            raise HttpFailed("The request cannot be written as HTTP: illegal target")
        if not all(FIELD.fullmatch(b"%b:%b" % field) for field in fields):
            raise HttpFailed("The request cannot be written as HTTP: illegal header")
        if sum(name.lower() == b"host" for name, _ in fields) > 1:
            raise HttpFailed("The request cannot be written as HTTP: more than one Host")
        return tuple(sorted(fields, key=lambda one: one[0].lower() != b"host"))

    async def _begin(
        self, method: bytes, target: str, headers: Headers, body: bytes
    ) -> HttpResponse:
        fields = self._fields(method, target, headers, body)
        if self._answer is not None:
            return await _Answering(self._answer).send(method, target, fields, body)
        if self._via is not None and not self.origin.tls:  # a proxy needs the URL
            target, fields = self.origin.place.url + target, (*fields, *self._via.login_field)
        request = b"%b\r\n%b" % (render_request(method.decode(), target, fields), body)
        while self._idle:
            connection = self._idle.pop()
            if connection.was_closed_by_peer:
                await connection.close()
                continue
            try:
                return await connection.send(method, request)
            except ConnectionLost:
                # The upstream has closed an idle connection. Without any answer it has done
                # nothing.
                if connection.has_answered or not self.resends:
                    raise
        connection = await _Connection.open(self.origin, self._tls, self._room, self._via)
        return await connection.send(method, request)


class HttpResponse:
    """A response whose head has arrived; the body is read on demand."""

    def __init__(
        self, method: bytes, connection: _Connection | _Answering, head: AnswerHead
    ) -> None:
        self.method = method
        self.connection = connection
        self.status = head.status
        self._reason = head.reason.decode("latin-1")
        self._fields = [(name.lower(), value) for name, value in head.fields]
        self._ended = False

    @property
    def status_line(self) -> str:
        """The status as a text, such as ``HTTP 404 Not Found``."""
        return f"HTTP {self.status} {self._reason or _phrase(self.status)}".strip()

    def header(self, name: bytes) -> bytes:
        """Return the first value of a header, or an empty one; the name is in lower case."""
        return next((value for key, value in self._fields if key == name), b"")

    def headers(self, name: bytes) -> list[bytes]:
        """Return every value of a header; the name is in lower case."""
        return [value for key, value in self._fields if key == name]

    @property
    def coding(self) -> str:
        """The content coding, although we ask for none; empty if there is none."""
        said = self.header(b"content-encoding").strip().lower().decode("latin-1")
        return "" if said == "identity" else said

    @property
    def media_type(self) -> str:
        kind = self.header(b"content-type").partition(b";")[0]
        return kind.strip().lower().decode("latin-1")

    async def next_chunk(self) -> bytes:
        """Return the next raw part of the body; empty at its end. Raises HttpFailed."""
        if not self._ended:
            event = await self.connection.next_event()
            if isinstance(event, bytes):
                return event
            self._ended = True
        return b""

    async def read(self, limit: int) -> bytes:
        """Return the complete decoded body. Raises HttpFailed, also if it is too long."""
        body = bytearray()
        while chunk := await self.next_chunk():
            body += chunk
            if len(body) > limit:
                raise HttpFailed(f"The answer is longer than {limit} bytes")
        try:
            return decode_body(bytes(body), self.coding, limit=limit)
        except ProtocolError as error:
            raise HttpFailed(f"The compressed answer cannot be read: {error}") from None


class _Connection:
    """One socket: requests go out, answers come in."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, room: Room | None
    ) -> None:
        self._reader, self._writer, self._room = reader, writer, room
        self._wire = AnswerWire()
        self._keeps = self._has_ended = False
        self.has_answered = False
        """True if any part of the current answer has arrived."""

    @classmethod
    async def open(
        cls, origin: Origin, tls: ssl.SSLContext | None, room: Room | None, via: ProxyHop | None
    ) -> _Connection:
        """Connect. Raises NotConnected if the upstream cannot be reached, else HttpFailed."""
        if room and not room.take():
            raise HttpFailed("too many connections to the upstream")
        try:
            return cls(*await open_streams(origin, tls, via), room)
        except BaseException:
            if room:
                room.give_back()
            raise

    @property
    def was_closed_by_peer(self) -> bool:
        return self._reader.at_eof() or self._writer.is_closing()

    @property
    def is_reusable(self) -> bool:
        """Tell whether the answer is complete, and another request may follow."""
        is_done = self._wire.state == "done" and not self._wire.ahead
        return is_done and self._keeps and not self._writer.is_closing()

    async def send(self, method: bytes, request: bytes) -> HttpResponse:
        """Send a request and wait for the head of its answer. Raises HttpFailed."""
        self._wire.state = "head"
        self._wire.asked = method.decode()
        self.has_answered = False
        try:
            # An upstream may refuse before it has read everything; its answer is worth reading.
            with suppress(OSError):
                self._writer.write(request)
                await self._writer.drain()
            while True:
                head = await self.next_event()
                assert isinstance(head, AnswerHead)  # it comes first
                if head.status == 101:
                    raise HttpFailed("Not a valid HTTP answer: an upgrade that nobody asked for")
                if head.status >= 200:
                    self._keeps = head.keeps
                    return HttpResponse(method, self, head)
        except BaseException:
            await self.close()
            raise

    async def next_event(self) -> AnswerHead | bytes | End:
        """Return the next head, part of a body, or END. Raises HttpFailed."""
        try:
            while (event := self._wire.next()) is None:
                if self._has_ended:
                    raise ConnectionLost(_CLOSED)
                if data := await self._reader.read(_READ_SIZE):
                    self.has_answered = True
                    self._wire.receive(data)
                else:
                    self._has_ended = True
                    self._wire.eof()
        except Fault as error:
            raise HttpFailed(f"Not a valid HTTP answer: {error}") from None
        except OSError as error:
            raise ConnectionLost(why(error)) from None
        return event

    async def close(self) -> None:
        if self._room:
            self._room.give_back()
            self._room = None
        self._writer.close()
        try:
            async with asyncio.timeout(_GOODBYE_TIMEOUT):
                await self._writer.wait_closed()
        except (OSError, TimeoutError):
            pass
        finally:
            self._writer.transport.abort()


class _Answering:
    """An upstream in this process, which gets one request as values."""

    def __init__(self, answer: AnswerRequest) -> None:
        self._answer = answer
        self._parts: AsyncIterator[bytes] | None = None

    async def send(self, method: bytes, target: str, fields: Fields, body: bytes) -> HttpResponse:
        """Ask, and wait for the head of the answer."""
        from mcp_tool_filter.core.sockets.served import ServedRequest  # only commands need it

        headers = tuple((name.lower(), value) for name, value in fields)
        said = await self._answer(ServedRequest(method.decode(), target, headers, body))
        self._parts = _only(said.body) if isinstance(said.body, bytes) else said.body
        return HttpResponse(method, self, AnswerHead(said.status, b"", tuple(said.headers)))

    async def next_event(self) -> bytes | End:
        """Return the next part of the body, or END."""
        assert self._parts is not None
        return await anext(self._parts, END)

    async def close(self) -> None:
        if isinstance(self._parts, AsyncGenerator):
            await self._parts.aclose()


async def _only(body: bytes) -> AsyncIterator[bytes]:
    if body:
        yield body


def _phrase(status: int) -> str:
    from http import HTTPStatus  # needed only for upstreams that send no reason

    with suppress(ValueError):
        return HTTPStatus(status).phrase
    return ""
