"""TLS: which certificates we trust and present, and the connections of clients.

Clients' TLS is done in memory: what a socket brings goes in, what the engine reads comes out.
asyncio's own cannot take over a connection whose first bytes were read already, and we must read
them to know that it is TLS.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable
from contextlib import suppress

from mcp_tool_filter.adapters.sockets.connect import why
from mcp_tool_filter.errors import InvalidOption

_READ_SIZE = 256 * 1024


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
            context.load_cert_chain(os.path.expanduser(client_cert))
        except OSError as error:
            raise InvalidOption("client_certs", client_cert, why=_why_not_pem(error)) from None
    return context


def _why_not_pem(error: OSError) -> str:
    if isinstance(error, ssl.SSLError) and error.reason == "KEY_VALUES_MISMATCH":
        return "The key does not belong to the certificate"
    if isinstance(error, ssl.SSLError):  # its own text names OpenSSL's modules
        return "It must be a PEM file with a certificate and its key"
    return why(error)


def refuse_bad_certificate(option: str, file: str) -> None:
    """Raise InvalidOption unless a file has a certificate and its key."""
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
    if folder and not os.path.isdir(os.path.expanduser(folder)):  # OpenSSL would ignore it
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


def server_context(pem: str) -> ssl.SSLContext:
    """Return the TLS settings of a listener with this certificate and its key."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(os.path.expanduser(pem))
    context.set_alpn_protocols(["h2", "http/1.1"])
    return context


class ServerTls:
    """One client's TLS. ``write`` sends bytes on the socket."""

    def __init__(self, context: ssl.SSLContext, write: Callable[[bytes], object]) -> None:
        self._write = write
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._in, self._out, server_side=True)
        self.is_ready = False
        """True once the handshake is done."""
        self.has_ended = False
        """True once the client has announced that it sends no more."""

    @property
    def alpn(self) -> str | None:
        return self._tls.selected_alpn_protocol()

    def receive(self, data: bytes) -> bytes:
        """Take bytes from the socket; return them decrypted. Raises SSLError."""
        self._in.write(data)
        plain = []
        try:
            if not self.is_ready:
                self._tls.do_handshake()
                self.is_ready = True
            while piece := self._tls.read(_READ_SIZE):
                plain.append(piece)
            self.has_ended = True
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            self.has_ended = True
        finally:
            self._flush()
        return plain[0] if len(plain) == 1 else b"".join(plain)

    def send(self, data: bytes) -> None:
        if data:
            self._tls.write(data)
            self._flush()

    def close(self) -> None:
        """Tell the client that nothing follows."""
        with suppress(ssl.SSLError):  # it waits for the client's goodbye, and we do not
            self._tls.unwrap()
        self._flush()

    def _flush(self) -> None:
        if self._out.pending:
            self._write(self._out.read())
