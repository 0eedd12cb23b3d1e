"""A small HTTP/1.1 client for our own requests to the upstream.

h11 does HTTP, asyncio the sockets; ``connection`` joins them. Any misbehaviour of a peer ends in an
``HttpFailed`` with a readable text, or in the caller's time-out. We do not import mitmproxy, so
that the launcher can fetch the tools while mitmproxy is still being loaded.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Protocol

import h11

from mcp_tool_filter import __version__
from mcp_tool_filter.adapters.fetch.connection import Connection
from mcp_tool_filter.adapters.fetch.http_failures import ConnectionLost, HttpFailed, LoginNeeded
from mcp_tool_filter.adapters.fetch.tls import make_tls_context
from mcp_tool_filter.errors import ProtocolError, StartError
from mcp_tool_filter.http.codings import decode_body
from mcp_tool_filter.http.origin import Origin

# A user must not set these: they would break the framing of our requests.
_OUR_HEADERS = frozenset(
    {b"connection", b"content-length", b"transfer-encoding", b"te", b"upgrade", b"expect"}
)

_AUTHORIZATION = b"authorization"
_PHRASES = {status.value: status.phrase for status in HTTPStatus}

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


class HttpClient:
    """Sends requests to one origin; keeps connections open if the upstream allows it."""

    def __init__(
        self,
        origin: Origin,
        *,
        headers: Headers = (),
        tls: ssl.SSLContext | None = None,
        resends: bool = True,
        login: Login | None = None,
    ) -> None:
        """``resends`` allows sending a request again if an idle connection ends without an answer.

        Do not use it for tool calls, which may have run. A ``login`` sets
        Authorization; a request whose token the upstream refuses is sent once more.
        """
        self._origin = origin
        self._headers = [(name, value) for name, value in headers if _is_usable(name)]
        self._tls = (tls or make_tls_context()) if origin.tls else None
        self._resends = resends
        self._login = login
        self._idle: list[Connection] = []

    @asynccontextmanager
    async def exchange(
        self, method: bytes, target: str, headers: Headers = (), body: bytes = b""
    ) -> AsyncIterator[HttpResponse]:
        """Send a request; yield the response once its head has arrived. Raises HttpFailed.

        If the response is not read to its end, its connection is closed.
        """
        if self._login and not self._says_authorization(headers):
            connection, head = await self._begin_with_login(
                self._login, method, target, headers, body
            )
        else:
            request = self._request(method, target, headers, body)
            connection, head = await self._begin(request, body)
        try:
            yield HttpResponse(method, connection, head)
        finally:
            if connection.is_reusable():
                self._idle.append(connection)
            else:
                await connection.close()

    async def close(self) -> None:
        """Close the idle connections."""
        while self._idle:
            await self._idle.pop().close()

    def _says_authorization(self, headers: Headers) -> bool:
        return any(name.lower() == _AUTHORIZATION for name, _ in (*headers, *self._headers))

    async def _begin_with_login(
        self, login: Login, method: bytes, target: str, headers: Headers, body: bytes
    ) -> tuple[Connection, h11.Response]:
        try:
            value = login.value() or await login.renewed()
            for was_repeated in (False, True):
                named = [*headers, (_AUTHORIZATION, value.encode())]
                request = self._request(method, target, named, body)
                connection, head = await self._begin(request, body)
                if head.status_code not in (401, 403):
                    break
                response = HttpResponse(method, connection, head)
                said = [one.decode("latin-1") for one in response.headers(b"www-authenticate")]
                await connection.close()
                value = await login.after_refusal(
                    head.status_code, said, value, was_repeated=was_repeated
                )
        except StartError as error:
            raise LoginNeeded(error) from None
        return connection, head

    def _request(self, method: bytes, target: str, headers: Headers, body: bytes) -> h11.Request:
        said = {name.lower() for name, _ in headers}
        theirs = [(name, value) for name, value in self._headers if name.lower() not in said]
        given = {name.lower() for name, _ in theirs}
        usual = [
            (b"host", self._origin.authority.encode()),
            (b"accept-encoding", b"identity"),
            (b"user-agent", b"mcp-tool-filter/" + __version__.encode()),
        ]
        length = [(b"content-length", b"%d" % len(body))] if method == b"POST" else []
        ours = [(name, value) for name, value in usual if name not in given]
        try:
            return h11.Request(
                method=method, target=target.encode(), headers=[*ours, *length, *headers, *theirs]
            )
        except h11.LocalProtocolError as error:
            raise HttpFailed(f"The request cannot be written as HTTP: {error}") from None

    async def _begin(self, request: h11.Request, body: bytes) -> tuple[Connection, h11.Response]:
        while self._idle:
            connection = self._idle.pop()
            if connection.was_closed_by_peer():
                await connection.close()
                continue
            connection.start_next()
            try:
                return connection, await connection.send(request, body)
            except ConnectionLost:
                # The upstream has closed an idle connection. Without any answer it has done
                # nothing.
                if connection.has_answered or not self._resends:
                    raise
        connection = await Connection.open(self._origin, self._tls)
        return connection, await connection.send(request, body)


class HttpResponse:
    """A response whose head has arrived; the body is read on demand."""

    def __init__(self, method: bytes, connection: Connection, head: h11.Response) -> None:
        self.method = method
        self._connection = connection
        self._head = head
        self._ended = False

    @property
    def status(self) -> int:
        return self._head.status_code

    @property
    def status_line(self) -> str:
        """The status as a text, such as ``HTTP 404 Not Found``."""
        said = bytes(self._head.reason).decode("latin-1")
        return f"HTTP {self.status} {said or _PHRASES.get(self.status, '')}".strip()

    def header(self, name: bytes) -> bytes:
        """Return the first value of a header, or an empty one; the name is in lower case."""
        return next((value for key, value in self._head.headers if key == name), b"")

    def headers(self, name: bytes) -> list[bytes]:
        """Return every value of a header; the name is in lower case."""
        return [value for key, value in self._head.headers if key == name]

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
        while not self._ended:
            event = await self._connection.next_event()
            if isinstance(event, h11.Data) and event.data:
                return bytes(event.data)
            self._ended = isinstance(event, h11.EndOfMessage)
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


def _is_usable(name: bytes) -> bool:
    return name.lower() not in _OUR_HEADERS
