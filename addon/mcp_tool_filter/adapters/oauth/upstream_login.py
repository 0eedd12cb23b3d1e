"""Find out how to log in to the upstream, from its metadata and that of its servers."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import urlsplit

from mcp_tool_filter.adapters.oauth.web import Web, WebFailed
from mcp_tool_filter.errors import ProtocolError
from mcp_tool_filter.http.listener import Listener
from mcp_tool_filter.http.login_through.documents import our_url
from mcp_tool_filter.http.oauth_metadata import (
    ResourceMetadata,
    ServerMetadata,
    parse_resource_metadata,
    parse_server_metadata,
    resource_documents,
    server_documents,
)


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
