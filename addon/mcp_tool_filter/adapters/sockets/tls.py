"""TLS towards clients, in memory: what a socket brings goes in, what the engine reads comes out.

asyncio's own cannot take over a connection whose first bytes were read already, and we must read
them to know that it is TLS.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable
from contextlib import suppress

_READ_SIZE = 256 * 1024


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
        """True once the client has said that it sends no more."""

    @property
    def alpn(self) -> str | None:
        return self._tls.selected_alpn_protocol()

    def receive(self, data: bytes) -> bytes:
        """Take bytes of the socket; return what they say. Raises SSLError."""
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
        """Say that nothing follows."""
        with suppress(ssl.SSLError):  # it waits for the client's goodbye, and we do not
            self._tls.unwrap()
        self._flush()

    def _flush(self) -> None:
        if self._out.pending:
            self._write(self._out.read())
