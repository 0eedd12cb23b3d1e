"""Normalise hosts: a name or an address can be written in many ways.

>>> sorted(plain_hosts("0X7F.1"))
['0x7f.1', '127.0.0.1']
>>> sorted(plain_hosts("LOCAL\\u00adHOST."))
['localhost']
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator

from mcp_tool_filter.policy.config import LOOPBACK
from mcp_tool_filter.protocol.messages import fold

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
