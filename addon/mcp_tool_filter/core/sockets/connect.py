"""Open connections: which certificates we trust and present, and why one could not be opened."""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import os
import re
import socket
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from stat import S_ISREG

from mcp_tool_filter.core.engine.writing import render_request
from mcp_tool_filter.core.errors import InvalidOption, StartError
from mcp_tool_filter.core.http.urls import Origin
from mcp_tool_filter.core.process.background import look_at

# Errors of this machine, which say nothing about the upstream.
_OURS = frozenset(
    {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL, errno.EAGAIN}
)
# Temporary errors: the network changes, or the upstream is starting.
_PASSING = frozenset(
    {errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETDOWN, errno.ECONNRESET, errno.ECONNABORTED}
)
_OPENS_TUNNEL = re.compile(rb"HTTP/1\.[01] 2[0-9][0-9]\b")


class Reach(StrEnum):
    """Whether the upstream can still be reached."""

    REACHED = "reached"
    LOST = "lost"
    DOUBTFUL = "doubtful"
    """No route, no DNS name or no TLS yet; if this lasts, the upstream is lost."""
    UNKNOWN = "unknown"
    """This machine could not even try: no descriptors or no memory."""


class HttpFailed(Exception):
    """No complete answer came. ``str()`` is a short reason for people."""


class NotConnected(HttpFailed):
    """No connection could be made."""

    def __init__(self, why: str, reach: Reach = Reach.LOST) -> None:
        super().__init__(why)
        self.reach = reach


class ConnectionLost(HttpFailed):
    """The connection ended before the answer did."""


class LoginNeeded(HttpFailed):
    """There is no token, or the upstream does not accept it. ``str()`` says what to type."""

    def __init__(self, error: StartError) -> None:
        super().__init__(error.one_line)
        self.error = error


def why(error: Exception, origin: Origin | None = None) -> str:
    """Return in a few words why a connection failed, or what is wrong with a file."""
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


def why_none(errors: Sequence[Exception], origin: Origin) -> str:
    """Return the most informative reason of the errors of several addresses."""
    telling = (ssl.SSLError, ConnectionRefusedError, Exception)
    return why(next(e for kind in telling for e in errors if isinstance(e, kind)), origin)


async def connect[P: asyncio.BaseProtocol](
    origin: Origin, tls: ssl.SSLContext | None, make: Callable[[], P]
) -> tuple[asyncio.Transport, P]:
    """Open a connection. Raises NotConnected, or HttpFailed if that says nothing about the
    upstream."""
    errors: list[Exception] = []
    try:
        for address in await addresses_of(origin.place.host):
            try:
                return await asyncio.get_running_loop().create_connection(
                    make,
                    address,
                    origin.port,
                    ssl=tls,
                    server_hostname=origin.host if tls else None,
                )
            except OSError as error:
                if isinstance(error, ssl.SSLError):
                    raise
                errors.append(error)
    except (OSError, ssl.CertificateError) as error:
        errors = [error]
    reason, reach = why_none(errors, origin), reach_in(errors)
    raise HttpFailed(reason) if reach is Reach.UNKNOWN else NotConnected(reason, reach)


_lookups: dict[object, asyncio.Task[list[str]]] = {}


async def addresses_of(host: str) -> list[str]:
    """Return the addresses of a host. Raises OSError, UnicodeError.

    Callers that ask during a lookup wait for the same answer: all lookups share a few threads, and
    a slow name must not take them all.
    """
    try:
        ipaddress.ip_address(host)
        return [host]
    except ValueError:
        pass
    key = loop, _ = asyncio.get_running_loop(), host
    if (lookup := _lookups.get(key)) is None:
        lookup = _lookups[key] = loop.create_task(_look_up(host))
        lookup.add_done_callback(lambda _: _lookups.pop(key))
        lookup.add_done_callback(look_at)  # all callers may be gone
    return await asyncio.shield(lookup)


async def _look_up(host: str) -> list[str]:
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


@dataclass(frozen=True, slots=True)
class ProxyHop:
    """A proxy between us and an upstream."""

    origin: Origin
    tls: ssl.SSLContext | None
    login: bytes | None

    @property
    def login_field(self) -> tuple[tuple[bytes, bytes], ...]:
        return ((b"proxy-authorization", self.login),) if self.login else ()


async def open_streams(
    origin: Origin, tls: ssl.SSLContext | None, via: ProxyHop | None = None
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """The same, with asyncio's streams. ``via`` is a proxy; it gets requests to plain HTTP."""
    if via is not None:
        reader, writer = await open_streams(via.origin, via.tls)
        if tls is not None:
            await _begin_tunnel(reader, writer, origin, tls, via)
        return reader, writer
    reader = asyncio.StreamReader()
    transport, protocol = await connect(origin, tls, lambda: asyncio.StreamReaderProtocol(reader))
    return reader, asyncio.StreamWriter(transport, protocol, reader, asyncio.get_running_loop())


async def _begin_tunnel(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    origin: Origin,
    tls: ssl.SSLContext,
    via: ProxyHop,
) -> None:
    """Ask a proxy for a tunnel, and speak TLS in it. Raises NotConnected."""
    host = origin.place.host
    at = f"[{host}]:{origin.port}" if ":" in host else f"{host}:{origin.port}"
    try:
        fields = ((b"host", at.encode()), *via.login_field)
        writer.write(render_request("CONNECT", at, fields) + b"\r\n")
        line, *_ = (await reader.readuntil(b"\r\n\r\n")).split(b"\r\n")
        if not _OPENS_TUNNEL.match(line):
            raise NotConnected(f"the proxy opens no tunnel: {line[:100].decode('latin-1')}")
        await writer.start_tls(tls, server_hostname=origin.host)
    except (OSError, EOFError, asyncio.LimitOverrunError) as error:
        writer.transport.abort()
        is_ours = isinstance(error, OSError)
        raise NotConnected(why(error, origin) if is_ours else "the proxy opens no tunnel") from None
    except BaseException:
        writer.transport.abort()
        raise


async def probe(origin: Origin, tls: ssl.SSLContext | None, timeout: float) -> Reach:
    """Open a connection to the upstream and close it."""
    try:
        async with asyncio.timeout(timeout):
            transport, _ = await connect(origin, tls, asyncio.Protocol)
    except TimeoutError:
        return Reach.LOST
    except NotConnected as error:
        return error.reach
    except HttpFailed:
        return Reach.UNKNOWN
    transport.abort()
    return Reach.REACHED


def reach_in(errors: Sequence[Exception]) -> Reach:
    """Return what failed connections mean, given one error per address."""
    kinds = {_reach_in(error) for error in errors}
    for kind in (Reach.LOST, Reach.UNKNOWN):
        if kind in kinds:
            return kind
    return Reach.DOUBTFUL


def _reach_in(error: Exception) -> Reach:
    if isinstance(error, socket.gaierror):
        return Reach.DOUBTFUL
    number = error.errno if isinstance(error, OSError) else None
    if number in _OURS:
        return Reach.UNKNOWN
    return Reach.DOUBTFUL if number in _PASSING else Reach.LOST


def make_tls_context(
    *,
    insecure: bool = False,
    trusted_ca: str | None = None,
    trusted_confdir: str | None = None,
    client_cert: str | None = None,
) -> ssl.SSLContext:
    """Return a context that trusts what mitmproxy trusts, so that our fetch fails if traffic would.

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
            context.load_cert_chain(pem_file(client_cert))
        except OSError as error:
            raise InvalidOption("client_certs", client_cert, why=why_not_pem(error)) from None
    return context


def pem_file(name: str) -> str:
    """Return the path of a file of certificates. Raises OSError for what may never end, such as a
    named pipe: OpenSSL would wait for it. (A shell's ``<(…)`` ends.)"""
    path = os.path.expanduser(name)
    kind = os.stat(path).st_mode
    if not S_ISREG(kind) and not path.startswith("/dev/fd/"):
        raise OSError(0, "It is not a regular file")
    return path


def why_not_pem(error: OSError) -> str:
    if isinstance(error, ssl.SSLError) and error.reason == "KEY_VALUES_MISMATCH":
        return "The key does not belong to the certificate"
    if isinstance(error, ssl.SSLError):  # its own text names OpenSSL's modules
        return "It must be a PEM file with a certificate and its key"
    return why(error)


def _trust(context: ssl.SSLContext, ca: str | None, folder: str | None) -> None:
    if folder and not os.path.isdir(os.path.expanduser(folder)):  # OpenSSL would ignore it
        option = "ssl_verify_upstream_trusted_confdir"
        raise InvalidOption(option, folder, why="It must be a directory of certificates")
    if not ca and not folder:
        import certifi  # mitmproxy's own default, and only needed here

        ca = certifi.where()
    try:
        context.load_verify_locations(
            pem_file(ca) if ca else None, os.path.expanduser(folder) if folder else None
        )
    except OSError as error:
        told = (
            "It has no certificate in PEM form" if isinstance(error, ssl.SSLError) else why(error)
        )
        raise InvalidOption("ssl_verify_upstream_trusted_ca", ca, why=told) from None
