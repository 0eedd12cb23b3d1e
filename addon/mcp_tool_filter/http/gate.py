r"""Decide by the head who may send us a request, before reading any of the body.

A web page can reach a local address in two ways. It may use a host name that resolves to us (DNS
rebinding): Host shows that. Or it may send a cross-site request: Origin shows that, or
Sec-Fetch-Site if the browser sends no Origin (``<img>``, ``<script>``, a link).

>>> problem_in_source(AllowedHosts(), host="localhost:6273", sites=["cross-site"])
'Sec-Fetch-Site'

A name or an address can be written in many ways:

>>> sorted(plain_hosts("0X7F.1"))
['0x7f.1', '127.0.0.1']
>>> sorted(plain_hosts("LOCAL\u00adHOST."))
['localhost']
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator, Sequence
from functools import lru_cache

from mcp_tool_filter.policy.config import LOOPBACK, AllowedHosts
from mcp_tool_filter.protocol.messages import fold

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


_DOTS = re.compile("[\u3002\uff0e\uff61]")
_NUMBER = re.compile(r"0x[0-9a-f]*|[0-9]+")
_LONGEST_HOST = 1024  # characters; no name has more than 253
_LONGEST_NUMBER = 256
_MOST_IPV4 = 0xFFFFFFFF
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")


def plain_hosts(host: str) -> frozenset[str]:
    """Return everything that a host may mean, each in its simplest spelling."""
    name = fold(_DOTS.sub(".", host[:_LONGEST_HOST])).strip("[]").rstrip(".")
    name = _DOTS.sub(".", name)
    return frozenset({name, *_unicode_name(name), *map(str, _addresses(name))})


def _unicode_name(name: str) -> Iterator[str]:
    """Yield a name with its ASCII labels (``xn--…``) decoded."""
    if "xn--" not in name:
        return
    try:
        labels = [_unicode_label(label) for label in name.split(".")]
    except UnicodeError:
        return
    yield ".".join(labels)


def _unicode_label(label: str) -> str:
    return fold(label[4:].encode().decode("punycode")) if label.startswith("xn--") else label


def _addresses(name: str) -> Iterator[str]:
    parts = name.split(".")
    if len(parts) <= 4 and all(map(_NUMBER.fullmatch, parts)) and len(name) <= _LONGEST_NUMBER:
        for is_octal in (True, False):  # some programs read a leading zero as a decimal digit
            if (number := _ipv4_number(parts, is_octal=is_octal)) is not None:
                yield from _meant(ipaddress.IPv4Address(number))
        return
    try:
        address = ipaddress.ip_address(name.partition("%")[0] if ":" in name else name)
    except ValueError:
        return
    yield from _meant(address)


def _ipv4_number(parts: list[str], *, is_octal: bool) -> int | None:
    try:
        *first, last = (_number(part, is_octal=is_octal) for part in parts)
    except ValueError:
        return None
    return (last + sum(one << (24 - 8 * place) for place, one in enumerate(first))) & _MOST_IPV4


def _number(text: str, *, is_octal: bool) -> int:
    if text.startswith("0x"):
        return int(text[2:] or "0", 16)
    return int(text, 8 if is_octal and text.startswith("0") else 10)


def _meant(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> Iterator[str]:
    """Yield an address and the IPv4 address it stands for; for "all addresses", loopback."""
    if address.is_unspecified:
        yield LOOPBACK
        return
    yield str(address)
    if isinstance(address, ipaddress.IPv6Address) and not address.is_loopback:
        number = int(address)
        is_compatible = number <= _MOST_IPV4
        is_translated = number >> 32 == 0xFFFF0000
        if address.ipv4_mapped or is_compatible or is_translated or address in _NAT64:
            yield from _meant(ipaddress.IPv4Address(number & _MOST_IPV4))
