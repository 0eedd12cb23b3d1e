"""TLS like mitmproxy's: which certificates we trust, and which we present."""

from __future__ import annotations

import os
import ssl

from mcp_tool_filter.adapters.fetch.http_failures import why
from mcp_tool_filter.errors import InvalidOption


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
