"""A small HTTP/1.1 client, for what we ask the upstream ourselves.

h11 knows HTTP, asyncio the sockets; here they meet. All that a peer can do to us ends in an
``HttpFailed`` whose words a person can read, or in the caller's time-out. Nothing of mitmproxy is
imported: the launcher can ask the upstream while mitmproxy is still being loaded.

It is one module because client, response and connection share the state of one socket.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from http.client import responses
from typing import Protocol

import h11

from mcp_tool_filter import __version__
from mcp_tool_filter.adapters.fetch.probe import connect
from mcp_tool_filter.errors import InvalidOption, ProtocolError, StartError
from mcp_tool_filter.http.codings import decode_body
from mcp_tool_filter.http.origin import Origin

_MAX_HEAD = 64 * 1024
_READ_SIZE = 64 * 1024
_CLOSED = "Connection closed by upstream"
_GOODBYE_TIMEOUT = 0.5  # seconds for a TLS goodbye; nobody waits for it longer

# What would break the framing of our own requests if a user's header said otherwise.
_OUR_HEADERS = frozenset(
    {b"connection", b"content-length", b"transfer-encoding", b"te", b"upgrade", b"expect"}
)

_AUTHORIZATION = b"authorization"

type Headers = Sequence[tuple[bytes, bytes]]


class HttpFailed(Exception):
    """No (whole) answer came. ``str()`` is a short reason for people."""


class NotConnected(HttpFailed):
    """There was not even a connection."""


class ConnectionLost(HttpFailed):
    """The connection ended before the answer did."""


class LoginNeeded(HttpFailed):
    """There is no token, or the upstream does not accept it. ``str()`` says what to type."""

    def __init__(self, error: StartError) -> None:
        super().__init__(f"{error.what}. {error.why}")
        self.error = error


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
        self._idle: list[_Connection] = []

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
    ) -> tuple[_Connection, h11.Response]:
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

    async def _begin(self, request: h11.Request, body: bytes) -> tuple[_Connection, h11.Response]:
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
        connection = await _Connection.open(self._origin, self._tls)
        return connection, await connection.send(request, body)


class HttpResponse:
    """A response whose head has come; the body is read on demand."""

    def __init__(self, method: bytes, connection: _Connection, head: h11.Response) -> None:
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


class _Connection:
    """One socket and what h11 knows about it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=_MAX_HEAD)
        self.heard = False  # anything of the answer to the request under way

    @classmethod
    async def open(cls, origin: Origin, tls: ssl.SSLContext | None) -> _Connection:
        """Connect. Raises NotConnected."""
        try:
            reader, writer = await connect(origin, tls)
        except ExceptionGroup as group:
            raise NotConnected(_why_none(group.exceptions, origin)) from None
        except (OSError, ssl.CertificateError) as error:
            raise NotConnected(why(error, origin)) from None
        return cls(reader, writer)

    def start_next(self) -> None:
        """Make ready for another request on this connection."""
        self._http.start_next_cycle()
        self.heard = False

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
            # An upstream may refuse before it has heard us out: what it says is worth reading.
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
                self.heard = self.heard or bool(data)
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
        self._writer.close()
        try:
            async with asyncio.timeout(_GOODBYE_TIMEOUT):
                await self._writer.wait_closed()
        except (OSError, TimeoutError):
            pass
        finally:
            self._writer.transport.abort()


def make_tls_context(
    *,
    insecure: bool = False,
    trusted_ca: str | None = None,
    trusted_confdir: str | None = None,
    client_cert: str | None = None,
) -> ssl.SSLContext:
    """Trust whom mitmproxy trusts, so that what we ask ourselves fails where traffic would.

    The arguments are mitmproxy's options ``ssl_insecure``, ``ssl_verify_upstream_trusted_ca`` and
    ``ssl_verify_upstream_trusted_confdir``, and a PEM file with a key and its certificates. Raises
    InvalidOption.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    context.post_handshake_auth = client_cert is not None
    if insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        context.options |= ssl.OP_LEGACY_SERVER_CONNECT
    else:
        _trust(context, trusted_ca, trusted_confdir)
    if client_cert:
        try:
            context.load_cert_chain(os.path.expanduser(client_cert))
        except OSError as error:
            raise InvalidOption("client_certs", client_cert, why=_why_not_pem(error)) from None
    return context


def _why_not_pem(error: OSError) -> str:
    if isinstance(error, ssl.SSLError) and error.reason == "KEY_VALUES_MISMATCH":
        return "Its key does not belong to its certificate"
    if isinstance(error, ssl.SSLError):  # whose own words name OpenSSL's modules
        return "It must be a PEM file with a certificate and its key"
    return why(error)


def refuse_bad_certificate(option: str, file: str) -> None:
    """Raise InvalidOption unless a file has a certificate and its key, as a TLS server needs."""
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(os.path.expanduser(file), password=_refuse_password)
    except _NeedsPassword:
        return  # mitmproxy's option cert_passphrase may have it
    except OSError as error:
        raise InvalidOption(option, file, why=_why_not_pem(error)) from None


class _NeedsPassword(Exception):
    pass


def _refuse_password() -> str:
    raise _NeedsPassword


def _trust(context: ssl.SSLContext, ca: str | None, folder: str | None) -> None:
    if folder and not os.path.isdir(os.path.expanduser(folder)):  # OpenSSL would not mind
        option = "ssl_verify_upstream_trusted_confdir"
        raise InvalidOption(option, folder, why="It must be a directory of certificates")
    if not ca and not folder:
        import certifi  # mitmproxy's own default, and only needed here

        ca = certifi.where()
    try:
        context.load_verify_locations(
            os.path.expanduser(ca) if ca else None, os.path.expanduser(folder) if folder else None
        )
    except OSError as error:
        told = (
            "It has no certificate in PEM form" if isinstance(error, ssl.SSLError) else why(error)
        )
        raise InvalidOption("ssl_verify_upstream_trusted_ca", ca, why=told) from None


def why(error: Exception, origin: Origin | None = None) -> str:
    """Say in a few words why a connection failed, or what was wrong with a file."""
    match error:
        case ssl.SSLCertVerificationError():
            return f"certificate verify failed: {error.verify_message}"
        case ssl.SSLError():
            return f"TLS error: {(error.reason or str(error)).replace('_', ' ').lower()}"
        case socket.gaierror():
            return f"Host not found: {origin.host if origin else error.strerror}"
        case ConnectionRefusedError():
            return "Connection refused"
        case ConnectionResetError() | BrokenPipeError() | ConnectionAbortedError():
            return "Connection reset by upstream"
        case OSError() if error.strerror:
            return error.strerror
        case _:
            return str(error) or type(error).__name__


def _why_none(errors: Sequence[Exception], origin: Origin) -> str:
    """Of several addresses' errors, the one that says most."""
    telling = (ssl.SSLError, ConnectionRefusedError, Exception)
    return why(next(e for kind in telling for e in errors if isinstance(e, kind)), origin)


def _is_usable(name: bytes) -> bool:
    return name.lower() not in _OUR_HEADERS
