"""A certificate for clients that use TLS although the user has named none.

mitmproxy makes it with its own authority, which the user may have installed, and keeps that in
``~/.mitmproxy``. It is imported only when the first such client comes.
"""

from __future__ import annotations

import os
import ssl
import tempfile
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from mitmproxy.certs import CertStore
from mitmproxy.options import CONF_BASENAME, CONF_DIR, KEY_SIZE

from mcp_tool_filter.adapters.sockets.tls import server_context


def own_context(host: str) -> ssl.SSLContext:
    """Return the TLS settings of a listener at this address."""
    store = CertStore.from_store(Path(CONF_DIR).expanduser(), CONF_BASENAME, KEY_SIZE)
    names = dict.fromkeys(("localhost", "127.0.0.1", "::1", host))
    entry = store.get_cert("localhost", [_name_of(name) for name in names if name])
    key = entry.privatekey.private_bytes(
        Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption()
    )
    file, path = tempfile.mkstemp(suffix=".pem")  # only we can read it
    try:
        with os.fdopen(file, "wb") as pem:
            pem.write(key + entry.cert.to_pem())
        return server_context(path)
    finally:
        os.unlink(path)


def _name_of(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(name))
    except ValueError:
        return x509.DNSName(name)
