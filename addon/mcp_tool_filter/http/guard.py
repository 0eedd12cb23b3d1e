"""Keep URLs from leading clients past us.

A URL that names the upstream itself would let a client bypass us, so it is made relative:

>>> kept_with_us("http://127.0.0.1:3000/sse?a=1", UpstreamNames("http://localhost:3000"))
'/sse?a=1'

Clients read URLs in many ways (WHATWG, RFC 3986, curl, IDNA of 2003 or UTS 46). A URL that any of
them could read as the upstream's does not pass unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from urllib.parse import SplitResult, unquote, urlsplit

from mcp_tool_filter.http.gate import plain_hosts
from mcp_tool_filter.policy.config import is_loopback
from mcp_tool_filter.protocol.messages import fold

_DEFAULT_PORTS = {"http": 80, "https": 443, "ws": 80, "wss": 443}
_BLANK = "".join(map(chr, range(0x21)))
_FORGOTTEN = re.compile(r"[\t\r\n]")
_SLASHES = re.compile(r"^([a-z][a-z0-9+.-]*:)?/{2,}", re.IGNORECASE)
_PATH = re.compile(r"[^?#]*")
_START = re.compile(r"(?:(?P<scheme>[a-z][a-z0-9+.-]*):[/\\]*|[/\\]{2,})", re.IGNORECASE)
_PORT = re.compile(r":([0-9]+)")
_MOST_USERS = 20
_HOST = re.compile(r"(?P<host>\[[^\]/@]*\]|[^/\\?#:@\[\]]+)(?::(?P<port>[0-9]*))?")


@dataclass(frozen=True)
class UpstreamNames:
    """All names and addresses under which a client could reach the upstream without us."""

    url: str
    others: frozenset[str] = frozenset()
    """Hosts besides the URL's own, as ``plain_hosts`` writes them."""
    is_here: bool | None = None
    """Whether it runs on this machine; None if only its URL can tell."""

    @cached_property
    def hosts(self) -> frozenset[str]:
        return plain_hosts(self._parts.hostname or "") | self.others

    @cached_property
    def scheme(self) -> str:
        return self._parts.scheme

    @cached_property
    def port(self) -> int | None:
        return self._parts.port or _DEFAULT_PORTS.get(self.scheme)

    @cached_property
    def is_local(self) -> bool:
        return any(map(is_loopback, self.hosts)) if self.is_here is None else self.is_here

    def has(self, host: str) -> bool:
        """Tell whether a host is the upstream's, in any spelling."""
        plain = plain_hosts(host)
        return not plain.isdisjoint(self.hosts) or (self.is_local and any(map(is_loopback, plain)))

    def may_have(self, host: str, port: int | None) -> bool:
        """Tell whether the upstream could be reached there."""
        if port != self.port:
            return False
        # Public names can lead to any machine (127.0.0.1.nip.io), and no one else uses this port.
        return self.has(host) or (self.is_local and port not in _DEFAULT_PORTS.values())

    @cached_property
    def _parts(self) -> SplitResult:
        return urlsplit(self.url)


def kept_with_us(url: str, upstream: UpstreamNames) -> str | None:
    """Return the URL made relative, so that it leads to us; None if it leads elsewhere.

    Like browsers, we read backslashes as slashes and any number of them as two, and ignore tabs,
    line ends and blanks around a URL (WHATWG URL, basic parser).
    """
    plain = _SLASHES.sub(r"\1//", _without_blanks(url).replace("\\", "/"))
    try:
        parts = urlsplit(plain)
        port = parts.port
    except ValueError:
        return None
    if not parts.netloc:
        return None if parts.scheme or plain.startswith("//") else plain
    if "@" in parts.netloc or not parts.netloc.isascii():
        return None
    scheme = parts.scheme.lower() or upstream.scheme
    same_port = (port or _DEFAULT_PORTS.get(scheme)) == upstream.port
    if not same_port or not upstream.has(parts.hostname or ""):
        return None
    path = re.sub(r"^/{2,}", "/", parts.path) or "/"
    query = f"?{parts.query}" if parts.query else ""
    return path + query + (f"#{parts.fragment}" if parts.fragment else "")


def may_lead_round(url: str, upstream: UpstreamNames) -> bool:
    """Tell whether some client could still read a URL as the upstream's that ``kept_with_us`` does
    not.

    >>> may_lead_round("http://a@0x7f.1:3000/", UpstreamNames("http://localhost:3000"))
    True
    """
    for reading in _readings(url):
        if (start := _START.match(reading)) is None:
            continue
        if reading.count("@") > _MOST_USERS:
            return True
        port = _DEFAULT_PORTS.get((start["scheme"] or upstream.scheme).lower())
        found = (*_hosts_in(reading, start.end()), *_hosts_in(reading, 0))  # "localhost:3000/"
        if any(upstream.may_have(host, said or port) for host, said in found):
            return True
    return False


def has_host(url: str) -> bool:
    """Tell whether some client could find a host in a URL, so that it is not relative for all."""
    return any(map(_START.match, _readings(url)))


def _without_blanks(url: str) -> str:
    return _FORGOTTEN.sub("", url.strip(_BLANK))


def _readings(url: str) -> Iterator[str]:
    """Yield a URL as clients may read it: with escapes decoded, without invisible characters."""
    text = _without_blanks(url)
    seen: set[str] = set()
    for _ in range(4):
        for reading in (text, fold(text)):
            if reading not in seen:
                seen.add(reading)
                yield reading
        text = unquote(text)


def _hosts_in(reading: str, at: int) -> Iterator[tuple[str, int | None]]:
    """Yield each possible host and port: the part before an @ may be a user."""
    path = _PATH.match(reading, at)
    for part in path[0].split("@") if path else ():
        if match := _HOST.match(part):
            yield match["host"], _port_in(match["port"] or "")
        _, _, bracketed = part.partition("[")
        host, _, rest = bracketed.partition("]")
        if host and (port := _PORT.search(rest)):  # Python accepts any brackets
            yield host, _port_in(port[1])


def _port_in(digits: str) -> int | None:
    digits = digits.lstrip("0")
    return int(digits) if 0 < len(digits) < 6 else None
