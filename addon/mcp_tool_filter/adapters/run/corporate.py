"""Find the proxy in the user's environment, and use it as the client would have done.

>>> found = find_proxy({"https_proxy": "http://me:secret@proxy.example:3128", "NO_PROXY": ".local"})
>>> found.mode, found.login, found.is_direct("a.local"), found.is_direct("a.example")
('upstream:http://proxy.example:3128', 'me:secret', True, False)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address, ip_network
from urllib.parse import unquote, urlsplit

from mcp_tool_filter.errors import StartError
from mcp_tool_filter.policy.config import is_loopback

_NAMES = ("https_proxy", "all_proxy", "http_proxy")


@dataclass(frozen=True, slots=True)
class NoProxy:
    """The hosts that are reached without the proxy."""

    entries: tuple[str, ...] = ()

    def has(self, host: str) -> bool:
        return is_loopback(host) or any(_fits(host.lower(), one) for one in self.entries)


@dataclass(frozen=True, slots=True)
class Proxy:
    mode: str
    """In mitmproxy's spelling."""
    login: str | None = field(repr=False)
    no_proxy: NoProxy

    def is_direct(self, host: str) -> bool:
        return self.no_proxy.has(host)


def find_proxy(environment: Mapping[str, str]) -> Proxy | None:
    """Return the proxy of an environment, if there is one. Raises StartError."""
    lower = {name.lower(): value for name, value in environment.items() if value}
    for name in _NAMES:
        if url := lower.get(name):
            entries = (one.strip().lower() for one in lower.get("no_proxy", "").split(","))
            return _parse(name, url, NoProxy(tuple(filter(None, entries))))
    return None


def _parse(name: str, url: str, no_proxy: NoProxy) -> Proxy:
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if host is None or parts.scheme not in ("http", "https"):
        why = "It must be an http or https proxy; unset it to connect directly"
        raise StartError(f"The proxy in {name.upper()} cannot be used", why=why)
    where = f"[{host}]" if ":" in host else host
    usual = 443 if parts.scheme == "https" else 80
    login = None
    if parts.username is not None:
        login = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    return Proxy(f"upstream:{parts.scheme}://{where}:{port or usual}", login, no_proxy)


def _fits(host: str, entry: str) -> bool:
    if entry == "*":
        return True
    try:
        return ip_address(host) in ip_network(entry, strict=False)
    except ValueError:
        name = entry.rpartition(":")[0] if entry.rpartition(":")[2].isdigit() else entry
        name = name.removeprefix("*").removeprefix(".")
        return host == name or host.endswith(f".{name}")
