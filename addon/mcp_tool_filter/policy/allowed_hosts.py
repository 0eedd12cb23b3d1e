"""Decide which hosts and origins may reach us.

A reverse proxy rewrites Host, so the upstream cannot detect DNS rebinding any more (a web page
whose name resolves to a local address). We check instead.

>>> hosts = AllowedHosts(frozenset({"tools.example"}))
>>> [hosts.has_host(host) for host in ("localhost:80", "[::1]:80", "Tools.Example", "a.example")]
[True, True, True, False]
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from functools import lru_cache

LOOPBACK = "127.0.0.1"
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\[\]:/?#@\s\\]+)(?::([0-9]{1,5}))?")


@dataclass(frozen=True, slots=True)
class AllowedHosts:
    """Loopback names always pass; ``extra`` holds hosts, host:port, whole origins, or ``*``."""

    extra: frozenset[str] = frozenset()

    @property
    def has_all(self) -> bool:
        """Tell whether the user has switched these checks off with ``*``."""
        return "*" in self.extra

    def has_host(self, host: str, own: str = "") -> bool:
        """Judge a Host header; ``own`` is our address to which the client has connected."""
        if self.has_all:
            return True
        if not (match := _HOST.fullmatch(host)):
            return False
        name = match[1].strip("[]").lower().rstrip(".")
        return (
            is_loopback(name)
            or _is_same_address(name, own)
            or not self.extra.isdisjoint({name, match[1].lower(), host.lower()})
        )

    def has_origin(self, origin: str, own: str = "") -> bool:
        """Judge an Origin header: a page may reach us if its host may."""
        if self.has_all or origin.lower() in self.extra:
            return True
        scheme, separator, host = origin.partition("://")
        return bool(separator) and scheme.lower() in ("http", "https") and self.has_host(host, own)


@lru_cache(64)
def is_loopback(name: str) -> bool:
    """Tell whether a host name certainly means this machine."""
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return parse_address(name).is_loopback
    except ValueError:
        return False


def parse_address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """Parse an IP address; an IPv4-mapped IPv6 address counts as IPv4."""
    address = ipaddress.ip_address(text)
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped:
        return address.ipv4_mapped
    return address


def _is_same_address(name: str, own: str) -> bool:
    """Compare IP addresses only: a host name that resolves to ours could be an attack."""
    try:
        return parse_address(name) == parse_address(own)
    except ValueError:
        return False
