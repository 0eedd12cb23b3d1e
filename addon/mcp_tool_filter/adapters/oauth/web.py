"""Send requests to the URLs that metadata documents name, but only to allowed addresses.

The upstream's operator chooses these addresses. So they are https, or on this machine if the
upstream itself is; a redirect must lead to such an address again; an answer is short and comes
soon.
"""

from __future__ import annotations

import asyncio
import ipaddress
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlencode, urljoin, urlsplit

from mcp_tool_filter.adapters.sockets.client import HttpClient, HttpResponse
from mcp_tool_filter.adapters.sockets.connect import HttpFailed, make_tls_context
from mcp_tool_filter.errors import InvalidOption, ProtocolError
from mcp_tool_filter.http.urls import Origin, parse_origin
from mcp_tool_filter.policy.config import is_loopback, parse_address

_TIMEOUT = 30.0  # seconds
_LONGEST_ANSWER = 256 * 1024
_MOST_REDIRECTS = 3
_FORM = (b"content-type", b"application/x-www-form-urlencoded")
_JSON = (b"content-type", b"application/json")
_ACCEPT = (b"accept", b"application/json")

type FormFields = Sequence[tuple[str, str]]


class WebFailed(Exception):
    """There was no answer. ``str()`` is a short reason for people, without any secret."""


@dataclass(frozen=True, slots=True)
class WebAnswer:
    status: int
    body: bytes
    challenges: tuple[str, ...] = ()
    """The values of the WWW-Authenticate headers."""


class Web:
    """Sends requests on behalf of one upstream."""

    def __init__(
        self, upstream: str, *, tls: ssl.SSLContext | None = None, is_for_clients: bool = False
    ) -> None:
        """``is_for_clients`` means that we send requests for clients, which do not know the
        upstream.

        So requests to the upstream itself are always allowed, but no redirect to an origin that no
        metadata names.
        """
        self._is_local = is_local(upstream)
        self._tls = tls
        self._own = parse_origin(upstream) if is_for_clients else None

    async def get(self, url: str) -> WebAnswer:
        """Fetch a document. Raises WebFailed."""
        for _ in range(_MOST_REDIRECTS + 1):
            answer, location = await self._ask(b"GET", url, [_ACCEPT], b"")
            if location is None:
                return answer
            there = urljoin(url, location)
            if self._own and self.check(there) != self.check(url):
                raise WebFailed("A redirect to another origin")
            url = there
        raise WebFailed(f"More than {_MOST_REDIRECTS} redirects")

    async def post_form(
        self, url: str, fields: FormFields, *, basic: str | None = None
    ) -> WebAnswer:
        """Post a form; ``basic`` are credentials. Never follows a redirect. Raises WebFailed."""
        headers = [_ACCEPT, _FORM]
        if basic:
            headers.append((b"authorization", b"Basic " + basic.encode()))
        answer, location = await self._ask(b"POST", url, headers, urlencode(fields).encode())
        if location is not None:
            raise WebFailed(f"HTTP {answer.status}: a redirect of a request with secrets")
        return answer

    async def post_json(
        self, url: str, body: bytes, headers: Sequence[tuple[bytes, bytes]] = ()
    ) -> WebAnswer:
        """Post JSON. Raises WebFailed."""
        answer, _ = await self._ask(b"POST", url, [*headers, _JSON], body)
        return answer

    def check(self, url: str) -> Origin:
        """Return the origin of a URL if it is allowed. Raises WebFailed."""
        try:
            origin = parse_origin(url)
        except InvalidOption:
            raise WebFailed("Not a web URL") from None
        if "@" in urlsplit(url).netloc or not url.isascii() or not url.isprintable():
            raise WebFailed("A URL that could be read in two ways")
        if origin == self._own:
            return origin
        if _is_on_this_machine(origin.host):
            if not self._is_local:
                raise WebFailed("A URL on this machine, sent by a remote upstream")
        elif not origin.tls:
            raise WebFailed("A URL that is not https")
        return origin

    async def _ask(
        self, method: bytes, url: str, headers: Sequence[tuple[bytes, bytes]], body: bytes
    ) -> tuple[WebAnswer, str | None]:
        origin = self.check(url)
        parts = urlsplit(url)
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        http = HttpClient(origin, tls=(self._tls or make_tls_context()) if origin.tls else None)
        try:
            async with asyncio.timeout(_TIMEOUT):
                async with http.exchange(method, target, headers, body) as response:
                    return await _read(response)
        except TimeoutError:
            raise WebFailed(f"No answer within {_TIMEOUT:.0f} s") from None
        except (HttpFailed, ProtocolError) as error:
            raise WebFailed(str(error)) from None
        finally:
            await http.close()


async def _read(response: HttpResponse) -> tuple[WebAnswer, str | None]:
    challenges = tuple(one.decode("latin-1") for one in response.headers(b"www-authenticate"))
    location = response.header(b"location").decode("latin-1")
    if location and response.status in (301, 302, 303, 307, 308):
        return WebAnswer(response.status, b"", challenges), location
    # Some upstreams answer the first POST with an endless stream.
    is_stream = response.media_type == "text/event-stream"
    body = b"" if is_stream else await response.read(_LONGEST_ANSWER)
    return WebAnswer(response.status, body, challenges), None


def is_local(url: str) -> bool:
    """Tell whether a URL is on this machine."""
    return _is_on_this_machine(urlsplit(url).hostname or "")


def _is_on_this_machine(host: str) -> bool:
    """Tell whether a host is a loopback name or an address of this machine only."""
    name = host.lower().rstrip(".")
    if is_loopback(name):
        return True
    try:
        address: ipaddress.IPv4Address | ipaddress.IPv6Address = parse_address(name)
    except ValueError:
        return _is_odd_number(name)
    return address.is_unspecified or address.is_link_local or address.is_multicast


def _is_odd_number(name: str) -> bool:
    """Tell whether the system could read a name as an address although we do not (``0x7f.1``)."""
    last = name.rpartition(".")[2]
    return last.isdigit() or last.startswith("0x")
