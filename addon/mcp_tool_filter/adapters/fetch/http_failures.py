"""The failures of our own requests, and their texts for people."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Sequence

from mcp_tool_filter.errors import StartError
from mcp_tool_filter.http.origin import Origin


class HttpFailed(Exception):
    """No complete answer came. ``str()`` is a short reason for people."""


class NotConnected(HttpFailed):
    """No connection could be made."""


class ConnectionLost(HttpFailed):
    """The connection ended before the answer did."""


class LoginNeeded(HttpFailed):
    """There is no token, or the upstream does not accept it. ``str()`` says what to type."""

    def __init__(self, error: StartError) -> None:
        super().__init__(f"{error.what}. {error.why}")
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
