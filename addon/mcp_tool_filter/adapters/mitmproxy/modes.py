"""What mitmproxy's modes and options say about an upstream."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from pathlib import Path

from mitmproxy.addons.proxyserver import Proxyserver
from mitmproxy.options import Options
from mitmproxy.proxy.mode_specs import (
    LocalMode,
    ProxyMode,
    RegularMode,
    ReverseMode,
    TransparentMode,
    UpstreamMode,
)

from mcp_tool_filter.adapters.sockets.connect import make_tls_context
from mcp_tool_filter.adapters.upstream.target import Target, target_for
from mcp_tool_filter.errors import InvalidOption
from mcp_tool_filter.policy.config import Config

FORWARD_MODES = (RegularMode, UpstreamMode, LocalMode, TransparentMode)
"""Modes in which all traffic of clients goes through us."""


def parse_modes(texts: Sequence[str]) -> list[ReverseMode]:
    """Return the reverse proxy modes. Raises InvalidOption for modes that cannot carry MCP."""
    modes = [ProxyMode.parse(text) for text in texts]
    for text, mode in zip(texts, modes, strict=True):
        is_ours = isinstance(mode, ReverseMode) and mode.scheme in ("http", "https")
        if not is_ours and not isinstance(mode, FORWARD_MODES):
            why = (
                "The tool filter sits in front of an MCP server: --mode reverse:http://host:port;"
                " or of a client: --mode regular, upstream:URL, or local:PROGRAM"
            )
            raise InvalidOption("--mode", text, why=why)
    return [mode for mode in modes if isinstance(mode, ReverseMode)]


def is_forward(texts: Sequence[str]) -> bool:
    """Tell whether one of the modes is a forward proxy."""
    return any(isinstance(ProxyMode.parse(text), FORWARD_MODES) for text in texts)


def target_of(mode: ReverseMode, config: Config, options: Options) -> Target:
    """Return how to reach the upstream of a reverse proxy."""
    host, port = mode.address
    certificate = options.client_certs
    if certificate and Path(certificate).expanduser().is_dir():  # mitmproxy also accepts a folder
        own = Path(certificate).expanduser() / f"{host}.pem"
        certificate = str(own) if own.exists() else None
    tls = tls_of(options, client_cert=certificate) if mode.scheme == "https" else None
    url = f"{mode.scheme}://{f'[{host}]' if ':' in host else host}:{port}"
    return target_for(config, url, tls)


def tls_of(options: Options, *, client_cert: str | None = None) -> ssl.SSLContext:
    """Return the TLS settings towards servers."""
    return make_tls_context(
        insecure=options.ssl_insecure,
        trusted_ca=options.ssl_verify_upstream_trusted_ca,
        trusted_confdir=options.ssl_verify_upstream_trusted_confdir,
        client_cert=client_cert,
    )


def address_of(mode: ReverseMode, server: Proxyserver | None, options: Options) -> str:
    """Return the URL where clients reach us, or will once mitmproxy listens there.

    >>> from mitmproxy.options import Options
    >>> mode = ReverseMode.parse("reverse:http://localhost:3000@[::1]:9001")
    >>> address_of(mode, None, Options())
    'http://[::1]:9001'
    """
    host = mode.listen_host(options.listen_host).strip("[]")
    port = mode.listen_port(options.listen_port)
    for instance in server.servers if server else ():
        if instance.mode == mode and instance.listen_addrs:
            host, port, *_ = instance.listen_addrs[0]
    return f"http://{f'[{host}]' if ':' in host else host or 'localhost'}:{port}"
