"""Find the origin of a forward proxy's request, by the name that its client uses."""

from __future__ import annotations

from collections.abc import Container
from ipaddress import ip_address
from urllib.parse import urlsplit

from mitmproxy.http import Request
from mitmproxy.proxy.context import Context
from mitmproxy.proxy.layers.http import HTTPMode

from mcp_tool_filter.http.origin import Origin


def name_for(origin: Origin, target: str, taken: Container[str]) -> str:
    """Name a listener by its URL, without the query, which may hold a secret."""
    plain = origin.url + path_of(target)
    name, number = plain, 1
    while name in taken:
        number += 1
        name = f"{plain} ({number})"
    return name


def path_of(target: str) -> str:
    return target.partition("?")[0]


def origin_of(
    request: Request, context: Context | None = None, mode: HTTPMode | None = None
) -> Origin:
    """Return the origin of a request, by the name that the client uses."""
    host, port, tls = request.host, request.port, request.scheme == "https"
    if context and mode is HTTPMode.transparent and context.server.address:
        host, port, *_ = context.server.address
        tls = context.server.tls
    if _is_address(host) and (named := _named_host(request)):
        host = named
    return Origin(host.lower(), port, tls)


def _named_host(request: Request) -> str | None:
    """Return the host that a client names, if its connection has only an address."""
    written = request.authority or request.headers.get("host", "")
    try:
        return urlsplit(f"//{written}").hostname
    except ValueError:
        return None


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
