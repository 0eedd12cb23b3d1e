"""An origin: the part of the upstream's URL before the path.

>>> origin = parse_origin("http://localhost:3000")
>>> origin.path_to("http://127.0.0.1:3000/messages?id=1"), origin.path_to("http://elsewhere:3000/")
('/messages?id=1', None)
"""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urljoin, urlsplit

from mcp_tool_filter.errors import InvalidOption

_LONGEST_HOST = 253  # RFC 1035
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1", "0.0.0.0", "::"})


@dataclass(frozen=True, slots=True)
class Origin:
    host: str
    port: int
    tls: bool

    @property
    def url(self) -> str:
        return f"{'https' if self.tls else 'http'}://{self.authority}"

    @property
    def authority(self) -> str:
        """The value of the Host header: with the port unless it is the default."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.tls else 80) else f"{host}:{self.port}"

    def path_to(self, link: str, *, at: str = "/") -> str | None:
        """Return path and query of a link that was found at a path; None if it leads elsewhere."""
        try:
            url = urljoin(self.url + at, link)
            parts, other = urlsplit(url), parse_origin(url)
        except (ValueError, InvalidOption):
            return None
        if not self._is(other):
            return None
        return (parts.path or "/") + (f"?{parts.query}" if parts.query else "")

    def _is(self, other: Origin) -> bool:
        """Compare origins; all loopback names are equal."""
        hosts = {self.host, other.host}
        same_host = len(hosts) == 1 or hosts <= _LOOPBACK
        return same_host and (other.port, other.tls) == (self.port, self.tls)


def parse_origin(url: str) -> Origin:
    """Parse scheme, host and port of a URL. Raises InvalidOption."""
    try:
        parts = urlsplit(url)
        host, port = _ascii(parts.hostname or ""), parts.port
    except ValueError as error:  # includes UnicodeError
        raise InvalidOption("upstream", url, why=f"Not a valid URL: {error}") from None
    if parts.scheme not in ("http", "https") or not host:
        raise InvalidOption("upstream", url, why="It must look like http://host:port")
    tls = parts.scheme == "https"
    return Origin(host, port or (443 if tls else 80), tls)


def _ascii(host: str) -> str:
    if len(host) > _LONGEST_HOST:  # Python's IDNA is quadratic
        raise ValueError(f"the host is longer than {_LONGEST_HOST} characters")
    return host if host.isascii() else host.encode("idna").decode()
