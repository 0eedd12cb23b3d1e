"""Decide by the head who may send us a request, before reading any of the body.

A web page can reach a local address in two ways. It may use a host name that resolves to us (DNS
rebinding): Host shows that. Or it may send a cross-site request: Origin shows that, or
Sec-Fetch-Site if the browser sends no Origin (``<img>``, ``<script>``, a link).

>>> problem_in_source(AllowedHosts(), host="localhost:6273", sites=["cross-site"])
'Sec-Fetch-Site'
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from mcp_tool_filter.policy.config import AllowedHosts

# "none": the user typed the URL. Other programs than browsers do not send the header.
_OWN_SITES = frozenset({"same-origin", "none"})


def problem_in_source(
    hosts: AllowedHosts,
    *,
    host: str | None,
    origins: Sequence[str] = (),
    sites: Sequence[str] = (),
    own: str = "",
) -> str | None:
    """Return the name of the header that makes us refuse a request, or None.

    ``host`` is None if the request names no host, or several. ``origins`` and ``sites`` are the
    values of Origin and Sec-Fetch-Site. ``own`` is our address to which the client connected.
    """
    if host is None or not _has_host(hosts, host, own):
        return "Host"
    if origins:  # an allowed origin is allowed from any site, also in its preflights
        return None if all(hosts.has_origin(origin, own) for origin in origins) else "Origin"
    if sites and not hosts.has_all and not _OWN_SITES.issuperset(map(_plain, sites)):
        return "Sec-Fetch-Site"
    return None


@lru_cache(maxsize=64)  # clients send the same few hosts again and again
def _has_host(hosts: AllowedHosts, host: str, own: str) -> bool:
    return hosts.has_host(host, own)


def _plain(site: str) -> str:
    return site.strip(" \t").lower()
