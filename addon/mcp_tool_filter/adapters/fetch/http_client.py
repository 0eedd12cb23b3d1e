"""A small HTTP/1.1 client, for what we ask the upstream ourselves.

h11 knows HTTP, asyncio the sockets; they meet in ``connection``. All that a peer can do to us ends
in an ``HttpFailed`` whose words a person can read, or in the caller's time-out. Nothing of
mitmproxy is imported: the launcher can ask the upstream while mitmproxy is still being loaded.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from http.client import responses
from typing import Protocol

import h11

from mcp_tool_filter import __version__
from mcp_tool_filter.adapters.fetch.connection import Connection
from mcp_tool_filter.adapters.fetch.http_failures import ConnectionLost, HttpFailed, LoginNeeded
from mcp_tool_filter.adapters.fetch.tls import make_tls_context
from mcp_tool_filter.errors import ProtocolError, StartError
from mcp_tool_filter.http.codings import decode_body
from mcp_tool_filter.http.origin import Origin

# What would break the framing of our own requests if a user's header said otherwise.
_OUR_HEADERS = frozenset(
    {b"connection", b"content-length", b"transfer-encoding", b"te", b"upgrade", b"expect"}
)

_AUTHORIZATION = b"authorization"

type Headers = Sequence[tuple[bytes, bytes]]


class Login(Protocol):
    """Gives the value of Authorization. Its methods raise StartError if there is none."""

    def value(self) -> str | None:
        """Return it if that takes no time."""

    async def renewed(self, rejected: str | None = None) -> str: ...

    async def after_refusal(
        self, status: int, challenges: Sequence[str], rejected: str, *, was_repeated: bool
    ) -> str:
        """Return another one to try once more."""


class HttpClient:
    """Asks one origin; keeps a connection for the next request where the upstream lets it."""

    def __init__(
        self,
        origin: Origin,
        *,
        headers: Headers = (),
        tls: ssl.SSLContext | None = None,
        resends: bool = True,
        login: Login | None = None,
    ) -> None:
        """``resends`` lets a request go out again if a kept connection ends without an answer.

        Nobody should do that to a call of a tool, which may have run. A ``login`` fills in
        Authorization; a request that the upstream refuses for it goes out once more.
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
        """Send a request; yield the response once its head is here. Raises HttpFailed.

        A response that is not read to its end costs its connection.
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
        """Close the connections that wait for another request."""
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
                # The upstream has closed what we kept. Where it said nothing it did nothing.
                if connection.heard or not self._resends:
                    raise
        connection = await Connection.open(self._origin, self._tls)
        return connection, await connection.send(request, body)


class HttpResponse:
    """A response whose head has come; the body is read on demand."""

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
        """Such as ``HTTP 404 Not Found``."""
        said = bytes(self._head.reason).decode("latin-1")
        return f"HTTP {self.status} {said or responses.get(self.status, '')}".strip()

    def header(self, name: bytes) -> bytes:
        """The first value of a header, or nothing; the name in lower case."""
        return next((value for key, value in self._head.headers if key == name), b"")

    def headers(self, name: bytes) -> list[bytes]:
        """Every value of a header; the name in lower case."""
        return [value for key, value in self._head.headers if key == name]

    @property
    def coding(self) -> str:
        """A compression, although we ask for none; empty where there is none."""
        said = self.header(b"content-encoding").strip().lower().decode("latin-1")
        return "" if said == "identity" else said

    @property
    def media_type(self) -> str:
        kind = self.header(b"content-type").partition(b";")[0]
        return kind.strip().lower().decode("latin-1")

    async def next_chunk(self) -> bytes:
        """The next part of the body as it is sent; nothing once it has ended. Raises HttpFailed."""
        while not self._ended:
            event = await self._connection.next_event()
            if isinstance(event, h11.Data) and event.data:
                return bytes(event.data)
            self._ended = isinstance(event, h11.EndOfMessage)
        return b""

    async def read(self, limit: int) -> bytes:
        """The whole body, decoded. Raises HttpFailed, also where it is longer than the limit."""
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
