"""No URL that bypasses us.

A URL that names the upstream itself would let a client bypass us, so it is made relative:

>>> kept_with_us("http://127.0.0.1:3000/sse?a=1", "http://localhost:3000")
'/sse?a=1'
"""

from __future__ import annotations

import ipaddress
import re
import unicodedata
from urllib.parse import unquote, urlsplit

from mcp_tool_filter.policy.allowed_hosts import LOOPBACK, is_loopback, parse_address

_DEFAULT_PORTS = {"http": 80, "https": 443, "ws": 80, "wss": 443}
_BLANK = "".join(map(chr, range(0x21)))
_SLASHES = re.compile(r"^([a-z][a-z0-9+.-]*:)?/{2,}", re.IGNORECASE)
_AUTHORITY = re.compile(
    r"(?:(?P<scheme>[a-z][a-z0-9+.-]*):/*|/{2,})(?:[^/?#]*@)?"
    r"(?P<host>\[[^\]/]*\]|[^/?#:\[\]]+)(?::(?P<port>[0-9]{0,9}))?"
)
_NUMBER = re.compile(r"0x[0-9a-f]{1,8}|0[0-7]{1,12}|0|[1-9][0-9]{0,9}")


def kept_with_us(url: str, upstream: str) -> str | None:
    """Return the URL so that it leads to us, or None if it leads elsewhere.

    Browsers read backslashes as slashes, any number of them as two, and forget tabs, line ends,
    and whatever is blank around a URL (WHATWG URL, basic parser); so do we.
    """
    plain = re.sub(r"[\t\r\n]", "", url.strip(_BLANK)).replace("\\", "/")
    plain = _SLASHES.sub(r"\1//", plain)
    try:
        parts = urlsplit(plain)
        port = parts.port
    except ValueError:
        return None
    if not parts.netloc:
        return None if parts.scheme or plain.startswith("//") else plain
    if "@" in parts.netloc:
        return None
    home = urlsplit(upstream)
    scheme = parts.scheme.lower() or home.scheme
    same_port = (port or _DEFAULT_PORTS.get(scheme)) == _port(upstream)
    if not same_port or not _same_host(parts.hostname or "", home.hostname or ""):
        return None
    path = re.sub(r"^/{2,}", "/", parts.path) or "/"
    query = f"?{parts.query}" if parts.query else ""
    return path + query + (f"#{parts.fragment}" if parts.fragment else "")


def may_lead_round(url: str, upstream: str) -> bool:
    """Tell whether some client could read a URL that is not kept as the upstream's all the same.

    >>> may_lead_round("http://a@0x7f.1:3000/", "http://localhost:3000")
    True
    """
    plain = re.sub(r"[\t\r\n]", "", url.strip(_BLANK)).replace("\\", "/")
    match = _AUTHORITY.match(unicodedata.normalize("NFKC", unquote(plain)).lower())
    if match is None:
        return False
    home = urlsplit(upstream)
    port = int(match["port"] or 0) or _DEFAULT_PORTS.get(match["scheme"] or home.scheme)
    host = _plain_host(match["host"].strip("[]").rstrip("."))
    return port == _port(upstream) and _same_host(host, home.hostname or "")


def _plain_host(host: str) -> str:
    """Return an address, of which there are many spellings, as one; where it means all, ours."""
    numbers = host.split(".")
    if len(numbers) <= 4 and all(map(_NUMBER.fullmatch, numbers)):
        *first, last = (int(one, 8 if re.match("0[0-7]", one) else 0) for one in numbers)
        value = last + sum(one << (24 - 8 * place) for place, one in enumerate(first))
        host = str(ipaddress.IPv4Address(value & 0xFFFFFFFF))
    try:
        return LOOPBACK if parse_address(host).is_unspecified else host
    except ValueError:
        return host


def _same_host(one: str, other: str) -> bool:
    one, other = one.lower().rstrip("."), other.lower().rstrip(".")
    return one == other or (is_loopback(one) and is_loopback(other))


def _port(url: str) -> int | None:
    parts = urlsplit(url)
    return parts.port or _DEFAULT_PORTS.get(parts.scheme)
