r"""Keep URLs from leading clients past us, and read the upstream's own.

A URL that names the upstream itself would let a client bypass us, so it is made relative, also in
the headers of an answer:

>>> names = UpstreamNames("http://localhost:3000")
>>> kept_with_us("http://127.0.0.1:3000/sse?a=1", names)
'/sse?a=1'
>>> keep_links([(b"location", b"http://127.0.0.1:3000/a"), (b"alt-svc", b"h3")], names)
[(b'location', b'/a')]

Clients read URLs in many ways (WHATWG, RFC 3986, curl, IDNA of 2003 or UTS 46). A URL that any of
them could read as the upstream's does not pass unchanged. A name or an address can be written in
many ways:

>>> sorted(plain_hosts("0X7F.1"))
['0x7f.1', '127.0.0.1']
>>> sorted(plain_hosts("LOCAL\u00adHOST."))
['localhost']

An ``Origin`` is the part of a URL before the path:

>>> origin = parse_origin("http://localhost:3000")
>>> origin.path_to("http://127.0.0.1:3000/messages?id=1"), origin.path_to("http://elsewhere:3000/")
('/messages?id=1', None)
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from urllib.parse import SplitResult, unquote, urljoin, urlsplit

from mcp_tool_filter.core.errors import InvalidOption
from mcp_tool_filter.core.messages.messages import fold
from mcp_tool_filter.core.messages.sizes import NAME
from mcp_tool_filter.core.policy.config import LOOPBACK, is_loopback

_CARDS = frozenset({"server-card", "server_card", "servercard"})


def is_server_card(target: str) -> bool:
    """Tell whether a request asks for a document that says where the server is (SEP-2127): a Server
    Card, or a catalog of servers.

    >>> [is_server_card(it) for it in ("/.well-known/mcp.json", "/mcp/server-card?x", "/mcp")]
    [True, True, False]
    """
    path = unquote(target.partition("?")[0]).lower()
    if "card" not in path and ".well-known" not in path:
        return False  # nearly all
    parts = [part.partition(";")[0] for part in path.split("/") if part]
    if any(one == ".well-known" and two.startswith("mcp") for one, two in pairwise(parts)):
        return True
    return bool(parts) and parts[-1].removesuffix(".json") in _CARDS


_DOTS = re.compile("[\u3002\uff0e\uff61]")
_NUMBER = re.compile(r"0x[0-9a-f]*|[0-9]+")
_LONGEST_HOST = 1024  # characters; no name has more than 253
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
        yield ".".join(
            fold(label[4:].encode().decode("punycode")) if label.startswith("xn--") else label
            for label in name.split(".")
        )
    except UnicodeError:
        return


def _addresses(name: str) -> Iterator[str]:
    parts = name.split(".")
    if len(parts) <= 4 and all(map(_NUMBER.fullmatch, parts)) and len(name) <= NAME:
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
    if isinstance(address, ipaddress.IPv6Address) and (number := int(address)) > 1:  # 1: loopback
        is_compatible = number <= _MOST_IPV4
        is_translated = number >> 32 == 0xFFFF0000
        if address.ipv4_mapped or is_compatible or is_translated or address in _NAT64:
            yield from _meant(ipaddress.IPv4Address(number & _MOST_IPV4))


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


type HeaderField = tuple[bytes, bytes]

_ONE_URL = frozenset({
    b"location", b"content-location", b"content-base", b"uri",
    b"sourcemap", b"x-sourcemap", b"x-accel-redirect",
})  # fmt: skip
WITH_URLS = frozenset({*_ONE_URL, b"alt-svc", b"refresh", b"link"})
"""The names of these headers, in lower case."""
_REFRESH = re.compile(
    r"(?P<time>[\s0-9.]*+[;,]?+\s*+(?:url\s*+=\s*+)?+)(?P<url>.*)", re.IGNORECASE | re.DOTALL
)
_QUOTED_OR_PLAIN = re.compile(r"""[^\s"',;=]++""")


def keep_links(fields: Iterable[HeaderField], upstream: UpstreamNames) -> list[HeaderField]:
    """Return the fields with URLs that lead to us or elsewhere, but not to the upstream past us."""
    kept = []
    for name, value in fields:
        key = name.lower()
        if key not in WITH_URLS:
            kept.append((name, value))
        elif (text := _kept_value(key, value, upstream)) is not None:
            kept.append((name, text))
    return kept


def leads_away(fields: Iterable[HeaderField]) -> bool:
    """Tell whether a redirect with these fields leads away from us."""
    return any(name.lower() == b"location" and has_host(_text(value)) for name, value in fields)


def _kept_value(name: bytes, value: bytes, upstream: UpstreamNames) -> bytes | None:
    """Return the value that may pass; None to remove the header."""
    if name == b"alt-svc":
        return None
    text = _text(value)
    if name in _ONE_URL:
        kept = kept_url(text, upstream)
    elif name == b"refresh":
        kept = _kept_refresh(text, upstream)
    else:
        kept = _kept_link(text, upstream)
    return value if kept == text else None if kept is None else kept.encode()


def kept_url(url: str, upstream: UpstreamNames) -> str | None:
    """Return a URL that leads to us or elsewhere; None if it may lead past us.

    >>> upstream = UpstreamNames("http://localhost:3000")
    >>> kept_url("http://[::1]:3000", upstream), kept_url("http://local\\u00adhost:3000", upstream)
    ('/', None)
    """
    if not has_host(url):
        return url
    kept = kept_with_us(url, upstream)
    if kept is not None and not has_host(kept):
        return kept
    return None if may_lead_round(url, upstream) else url


def _kept_refresh(value: str, upstream: UpstreamNames) -> str | None:
    """Judge ``5; url=…``, whose URL may be quoted."""
    if (match := _REFRESH.match(value)) is None:
        return None
    time, url = match["time"], match["url"]
    quote = url[:1] if url[:1] in ("'", '"') else ""
    bare = url[1:].partition(quote)[0] if quote else url
    kept = kept_url(bare, upstream)
    if kept is None or (kept == bare and _may_hold_url(value, upstream)):
        return None
    return value if kept == bare else time + kept


def _kept_link(value: str, upstream: UpstreamNames) -> str | None:
    """Judge ``<…>; rel=…, <…>``: each URL, and anything else that could be taken for one."""
    written = []
    for number, piece in enumerate(value.split("<")):
        url, closing, parameters = piece.partition(">") if number else ("", "", piece)
        if number and not closing:
            return None
        kept = kept_url(url, upstream) if number else ""
        if kept is None or _may_hold_url(parameters, upstream):
            return None
        written.append(f"<{kept}>{parameters}" if number else parameters)
    return "".join(written)


def _may_hold_url(parameters: str, upstream: UpstreamNames) -> bool:
    if ":" not in parameters and "/" not in parameters and "\\" not in parameters:
        return False
    return any(may_lead_round(word, upstream) for word in _QUOTED_OR_PLAIN.findall(parameters))


def _text(value: bytes) -> str:
    """Decode a header: as UTF-8, or as Latin-1 if it is not UTF-8."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")


_LONGEST_NAME = 253  # RFC 1035
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1", "0.0.0.0", "::"})


@dataclass(frozen=True, slots=True)
class Origin:
    host: str
    port: int
    tls: bool
    address: str = ""
    """Where it is, if not where its name leads."""

    @property
    def place(self) -> Origin:
        """Where to connect: the origin that has the address as its name."""
        return replace(self, host=self.address, address="") if self.address else self

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
        hosts = {self.host, other.host}
        is_same_host = len(hosts) == 1 or hosts <= _LOOPBACK
        if not is_same_host or (other.port, other.tls) != (self.port, self.tls):
            return None
        return (parts.path or "/") + (f"?{parts.query}" if parts.query else "")


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
    if len(host) > _LONGEST_NAME:  # Python's IDNA is quadratic
        raise ValueError(f"the host is longer than {_LONGEST_NAME} characters")
    return host if host.isascii() else host.encode("idna").decode()
