"""Find out how to log in to an upstream, as MCP 2025-11-25 requires (basic/authorization).

First we send the upstream a request without credentials: its 401 names its metadata. Otherwise we
look for metadata at the usual places. Without any, the upstream is its own authorization server, as
in MCP 2025-03-26.

``Web`` sends requests to the URLs that metadata documents name, but only to allowed addresses: the
upstream's operator chooses them. So they are https, or on this machine if the upstream itself is; a
redirect must lead to such an address again; an answer is short and comes soon.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import ssl
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import urlencode, urljoin, urlsplit

from mcp_tool_filter.core.errors import InvalidOption, ProtocolError
from mcp_tool_filter.core.http.bodies import EVENT_STREAM
from mcp_tool_filter.core.http.listener import Listener
from mcp_tool_filter.core.http.urls import Origin, parse_origin
from mcp_tool_filter.core.policy.config import is_loopback, parse_address
from mcp_tool_filter.core.sockets.client import HttpClient, HttpResponse
from mcp_tool_filter.core.sockets.connect import HttpFailed, make_tls_context
from mcp_tool_filter.core.upstream.clients import JSON_BODY, JSON_OR_EVENTS
from mcp_tool_filter.core.upstream.replies import INITIALIZE
from mcp_tool_filter.rooms.logins.logins_through import Sides
from mcp_tool_filter.rooms.logins.metadata import (
    Challenge,
    ResourceMetadata,
    ServerMetadata,
    bearer_challenge,
    default_server,
    object_in,
    parse_resource_metadata,
    parse_server_metadata,
    resource_documents,
    scopes_in,
    server_documents,
)
from mcp_tool_filter.rooms.logins.store import LoginFailed

_TIMEOUT = 30.0  # seconds
_LONGEST_ANSWER = 256 * 1024
_MOST_REDIRECTS = 3
_FORM = (b"content-type", b"application/x-www-form-urlencoded")

type FormFields = Sequence[tuple[str, str]]


class WebFailed(Exception):
    """There was no answer. ``str()`` is a short reason for people, without any secret."""


@dataclass(frozen=True, slots=True)
class WebAnswer:
    status: int
    body: bytes
    challenges: tuple[str, ...] = ()
    """The values of the WWW-Authenticate headers."""
    location: str | None = None
    """Where a redirect leads."""


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
            answer = await self._ask(b"GET", url, [JSON_OR_EVENTS], b"")
            if answer.location is None:
                return answer
            there = _joined(url, answer.location)
            if self._own and self.check(there) != self.check(url):
                raise WebFailed("A redirect to another origin")
            url = there
        raise WebFailed(f"More than {_MOST_REDIRECTS} redirects")

    async def post_form(
        self, url: str, fields: FormFields, *, basic: str | None = None
    ) -> WebAnswer:
        """Post a form; ``basic`` are credentials. Never follows a redirect. Raises WebFailed."""
        headers = [JSON_OR_EVENTS, _FORM]
        if basic:
            headers.append((b"authorization", b"Basic " + basic.encode()))
        answer = await self._ask(b"POST", url, headers, urlencode(fields).encode())
        if answer.location is not None:
            raise WebFailed(f"HTTP {answer.status}: a redirect of a request with secrets")
        return answer

    async def post_json(
        self, url: str, body: bytes, headers: Sequence[tuple[bytes, bytes]] = ()
    ) -> WebAnswer:
        """Post JSON. Raises WebFailed."""
        return await self._ask(b"POST", url, [*headers, JSON_BODY], body)

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
    ) -> WebAnswer:
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


def _joined(base: str, url: str) -> str:
    """Return a URL that a server has named. Raises WebFailed."""
    try:
        return urljoin(base, url)
    except ValueError:  # such as half an IPv6 address
        raise WebFailed("Not a web URL") from None


async def _read(response: HttpResponse) -> WebAnswer:
    challenges = tuple(one.decode("latin-1") for one in response.headers(b"www-authenticate"))
    location = response.header(b"location").decode("latin-1")
    if location and response.status in (301, 302, 303, 307, 308):
        return WebAnswer(response.status, b"", challenges, location)
    # Some upstreams answer the first POST with an endless stream.
    is_stream = response.media_type == EVENT_STREAM
    body = b"" if is_stream else await response.read(_LONGEST_ANSWER)
    return WebAnswer(response.status, body, challenges)


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
        # The system could read it as an address although we do not (``0x7f.1``).
        last = name.rpartition(".")[2]
        return last.isdigit() or last.startswith("0x")
    return address.is_unspecified or address.is_link_local or address.is_multicast


_MOST_ISSUERS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Discovered:
    """How to log in to the upstream."""

    endpoint: str
    """The URL of the MCP endpoint: the given one, or the one that the metadata names."""
    resource: str | None
    """The resource that tokens are for; None if the upstream names none (MCP 2025-03-26)."""
    server: ServerMetadata
    scopes: tuple[str, ...] = ()
    """The scopes to request."""

    @property
    def theirs(self) -> str:
        """The upstream's origin, as its metadata names it."""
        parts = urlsplit(self.resource or self.endpoint)
        return f"{parts.scheme}://{parts.netloc}"


async def find_login(
    listener: Listener, web: Web, places: Iterable[str], *, guesses: bool = False
) -> Discovered | None:
    """Return how to log in; None if the upstream wants no login.

    ``places`` are more paths of its metadata; ``guesses`` if it wants one even without metadata.
    Raises WebFailed, ProtocolError.
    """
    origin = listener.upstream
    endpoint = origin + urlsplit(listener.fetched.endpoint).path
    first, *others = resource_documents(endpoint)
    body = await _first_document([first, *(origin + place for place in places), *others], web)
    if body is None:
        # Without any metadata we rewrite nothing, because its usual paths also work through us;
        # but not if they are below a prefix.
        server = await _server_of(origin, web) or (default_server(origin) if guesses else None)
        return Discovered(endpoint=endpoint, resource=None, server=server) if server else None
    resource = _resource_in(body, endpoint)
    if Sides("", listener.names).our_url(resource.resource) is not None:
        with suppress(WebFailed, ProtocolError):
            server = await _first_server(resource, web)
            return Discovered(endpoint=endpoint, resource=resource.resource, server=server)
    return None


def _resource_in(body: bytes, endpoint: str) -> ResourceMetadata:
    """Parse metadata whose resource may use another name of this upstream."""
    try:
        return parse_resource_metadata(body, endpoint)
    except ProtocolError:
        said = (object_in(body) or {}).get("resource")
        if isinstance(said, str):
            return parse_resource_metadata(body, said)
        raise


_HELLO = json.dumps(
    {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": INITIALIZE}
).encode()


async def discover(endpoint: str, web: Web) -> Discovered:
    """Find out how to log in to an upstream. Raises LoginFailed."""
    try:
        status, challenge = await _challenge_of(endpoint, web)
        resource = await _resource_of(endpoint, challenge, web)
        if resource is not None:
            server = await _first_server(resource, web)
        elif challenge is None and 200 <= status < 300:
            raise WebFailed("It does not ask for a login")
        else:
            default = default_server(endpoint)
            server = await _server_of(default.issuer, web) or default
        for url in (server.authorization_endpoint, server.token_endpoint):
            web.check(url)
        if server.revocation_endpoint:
            web.check(server.revocation_endpoint)
    except (WebFailed, ProtocolError) as error:
        raise LoginFailed(endpoint, why=str(error)) from None
    if server.pkce_methods is not None and "S256" not in server.pkce_methods:
        why = "Its authorization server does not support PKCE with S256"
        raise LoginFailed(endpoint, why=why)
    # If only an origin was given, its resource names the endpoint.
    is_origin = urlsplit(endpoint).path in ("", "/")
    named = resource.resource if resource else None
    return Discovered(
        endpoint=named if named and is_origin and urlsplit(named).path else endpoint,
        resource=named,
        server=server,
        # Those of the challenge, else all of the resource (MCP 2025-11-25).
        scopes=(scopes_in(challenge) if challenge else ()) or (resource.scopes if resource else ()),
    )


async def _challenge_of(endpoint: str, web: Web) -> tuple[int, Challenge | None]:
    """Send a request without credentials; return status and challenge. Raises WebFailed.

    Some upstreams challenge only a GET (the older transport), some only later requests.
    """
    answer = await web.post_json(endpoint, _HELLO, [JSON_OR_EVENTS])
    challenge = bearer_challenge(answer.challenges)
    if challenge is None and not 200 <= answer.status < 300:
        opened = await web.get(endpoint)
        challenge = bearer_challenge(opened.challenges)
        if answer.status not in (401, 403):
            answer = opened
    return answer.status, challenge


async def _resource_of(
    endpoint: str, challenge: Challenge | None, web: Web
) -> ResourceMetadata | None:
    body: bytes | None
    if challenge and (named := challenge.params.get("resource_metadata")):
        url = _joined(endpoint, named)
        answer = await web.get(url)
        if answer.status != 200:
            raise WebFailed(f"HTTP {answer.status} from {url[:200]}, which its challenge names")
        body = answer.body
    else:
        body = await _first_document(resource_documents(endpoint), web)
    return None if body is None else parse_resource_metadata(body, endpoint)


async def _first_server(resource: ResourceMetadata, web: Web) -> ServerMetadata:
    """Return the first usable authorization server. Raises the first problem if there is none."""
    problems: list[Exception] = []
    for issuer in resource.issuers[:_MOST_ISSUERS]:
        try:
            if found := await _server_of(issuer, web):
                return found
            problems.append(WebFailed(f"There is no metadata at {issuer[:200]}"))
        except (WebFailed, ProtocolError) as error:
            problems.append(error)
    raise problems[0]


async def _server_of(issuer: str, web: Web) -> ServerMetadata | None:
    """Return an authorization server's metadata; None if there is none."""
    web.check(issuer)
    body = await _first_document(server_documents(issuer), web)
    if body is None:
        return None
    server = parse_server_metadata(body, issuer)
    for url in (server.authorization_endpoint, server.token_endpoint, server.registration_endpoint):
        if url:
            web.check(url)
    return server


async def _first_document(urls: Iterable[str], web: Web) -> bytes | None:
    """Return the first document that exists. Raises WebFailed if there is no answer."""
    for url in urls:
        answer = await web.get(url)
        is_json = answer.body.lstrip()[:1] == b"{"  # some sites answer every path with HTML
        if answer.status == 200 and is_json:
            return answer.body
    return None
