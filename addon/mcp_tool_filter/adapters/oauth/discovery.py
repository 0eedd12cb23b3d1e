"""Find out how to log in to an upstream, as MCP 2025-11-25 requires (basic/authorization).

First we send the upstream a request without credentials: its 401 names its metadata. Otherwise we
look for metadata at the usual places. Without any, the upstream is its own authorization server, as
in MCP 2025-03-26.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from urllib.parse import urljoin, urlsplit

from mcp_tool_filter.adapters.oauth.store import LoginFailed
from mcp_tool_filter.adapters.oauth.web import Web, WebAnswer, WebFailed
from mcp_tool_filter.adapters.upstream.replies import INITIALIZE
from mcp_tool_filter.errors import ProtocolError
from mcp_tool_filter.http.listener import Listener
from mcp_tool_filter.http.login_metadata import (
    Challenge,
    ResourceMetadata,
    ServerMetadata,
    bearer_challenge,
    default_server,
    parse_resource_metadata,
    parse_server_metadata,
    resource_documents,
    scopes_in,
    server_documents,
)
from mcp_tool_filter.http.logins_through import our_url


@dataclass(frozen=True, slots=True)
class UpstreamLogin:
    """How to log in to the upstream."""

    server: ServerMetadata
    document: Mapping[str, object] | None
    """The unchanged metadata; None if there is none (MCP 2025-03-26)."""
    named: str
    """The issuer, as the upstream names it."""
    theirs: str
    """The upstream's origin, as its metadata names it."""


async def find_login(listener: Listener, web: Web, places: Iterable[str]) -> UpstreamLogin | None:
    """Return how to log in; None if the upstream wants no login.

    ``places`` are more paths of its metadata. Raises WebFailed, ProtocolError.
    """
    origin = listener.upstream
    resource = await _resource(listener, web, places)
    if resource is None:
        # Without any metadata we rewrite nothing, because its usual paths also work through us.
        return await _server(web, origin, origin)
    parts = urlsplit(resource.resource)
    theirs = f"{parts.scheme}://{parts.netloc}"
    if our_url(resource.resource, "", listener.names) is None:
        return None
    for issuer in resource.issuers[:3]:
        try:
            if found := await _server(web, issuer, theirs):
                return found
        except (WebFailed, ProtocolError):
            continue
    return None


async def _resource(listener: Listener, web: Web, places: Iterable[str]) -> ResourceMetadata | None:
    origin = listener.upstream
    endpoint = origin + urlsplit(listener.fetched.endpoint).path
    first, *others = resource_documents(endpoint)
    for url in (first, *(origin + place for place in places), *others):
        got = await web.get(url)
        if got.status == 200 and got.body.lstrip()[:1] == b"{":
            return _resource_in(got.body, endpoint)
    return None


async def _server(web: Web, issuer: str, theirs: str) -> UpstreamLogin | None:
    for url in server_documents(issuer):
        got = await web.get(url)
        if got.status == 200 and got.body.lstrip()[:1] == b"{":
            server = parse_server_metadata(got.body, issuer)
            for named in (server.authorization_endpoint, server.token_endpoint):
                web.check(named)
            if server.registration_endpoint:
                web.check(server.registration_endpoint)
            return UpstreamLogin(server, json.loads(got.body), issuer, theirs)
    return None


def _resource_in(body: bytes, endpoint: str) -> ResourceMetadata:
    """Parse metadata whose resource may use another name of this upstream."""
    try:
        return parse_resource_metadata(body, endpoint)
    except ProtocolError:
        with suppress(ValueError, RecursionError):
            said = json.loads(body).get("resource")
            if isinstance(said, str):
                return parse_resource_metadata(body, said)
        raise


_ACCEPT = (b"accept", b"application/json, text/event-stream")
_HELLO = json.dumps(
    {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": INITIALIZE}
).encode()


@dataclass(frozen=True, slots=True, kw_only=True)
class Discovered:
    endpoint: str
    """The URL of the MCP endpoint: the given one, or the one that the metadata names."""
    resource: str | None
    """The resource that tokens are for; None if the upstream names none."""
    server: ServerMetadata
    scopes: tuple[str, ...]
    """The scopes to request."""


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
            server = await _server_or_default(endpoint, web)
        for url in (server.authorization_endpoint, server.token_endpoint):
            web.check(url)
    except (WebFailed, ProtocolError) as error:
        raise LoginFailed(endpoint, why=str(error)) from None
    if server.pkce_methods is not None and "S256" not in server.pkce_methods:
        why = "Its authorization server does not support PKCE with S256"
        raise LoginFailed(endpoint, why=why)
    return Discovered(
        endpoint=_endpoint_of(endpoint, resource),
        resource=resource.resource if resource else None,
        server=server,
        scopes=_scopes(challenge, resource),
    )


async def _challenge_of(endpoint: str, web: Web) -> tuple[int, Challenge | None]:
    """Send a request without credentials; return status and challenge. Raises WebFailed.

    Some upstreams challenge only a GET (the older transport), some only later requests.
    """
    answer = await web.post_json(endpoint, _HELLO, [_ACCEPT])
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
    named = challenge.params.get("resource_metadata") if challenge else None
    if named:
        url = urljoin(endpoint, named)
        answer = await web.get(url)
        if answer.status != 200:
            raise WebFailed(f"HTTP {answer.status} from {url[:200]}, which its challenge names")
        return parse_resource_metadata(answer.body, endpoint)
    for url in resource_documents(endpoint):
        if (found := await _document(url, web)) is not None:
            return parse_resource_metadata(found.body, endpoint)
    return None


async def _first_server(resource: ResourceMetadata, web: Web) -> ServerMetadata:
    """Return the first usable authorization server. Raises the first problem if there is none."""
    problem: Exception | None = None
    for issuer in resource.issuers[:3]:
        try:
            if server := await _server_of(issuer, web):
                return server
            problem = problem or WebFailed(f"There is no metadata at {issuer[:200]}")
        except (WebFailed, ProtocolError) as error:
            problem = problem or error
    assert problem
    raise problem


async def _server_or_default(endpoint: str, web: Web) -> ServerMetadata:
    default = default_server(endpoint)
    return await _server_of(default.issuer, web) or default


async def _server_of(issuer: str, web: Web) -> ServerMetadata | None:
    web.check(issuer)
    for url in server_documents(issuer):
        if (answer := await _document(url, web)) is not None:
            server = parse_server_metadata(answer.body, issuer)
            return replace(
                server,
                registration_endpoint=_usable(server.registration_endpoint, web),
                revocation_endpoint=_usable(server.revocation_endpoint, web),
            )
    return None


async def _document(url: str, web: Web) -> WebAnswer | None:
    """Fetch a document that may not exist. Raises WebFailed if there is no answer."""
    answer = await web.get(url)
    is_json = answer.body.lstrip()[:1] == b"{"  # some sites answer every path with an HTML page
    return answer if answer.status == 200 and is_json else None


def _usable(url: str | None, web: Web) -> str | None:
    if url is None:
        return None
    web.check(url)
    return url


def _endpoint_of(endpoint: str, resource: ResourceMetadata | None) -> str:
    """Return the endpoint; if only an origin was given, with the resource's path."""
    if resource and urlsplit(endpoint).path in ("", "/") and urlsplit(resource.resource).path:
        return resource.resource
    return endpoint


def _scopes(challenge: Challenge | None, resource: ResourceMetadata | None) -> tuple[str, ...]:
    """Return the scopes of the challenge, else all scopes of the resource (MCP 2025-11-25)."""
    if challenge and (said := scopes_in(challenge)):
        return said
    return resource.scopes if resource else ()
