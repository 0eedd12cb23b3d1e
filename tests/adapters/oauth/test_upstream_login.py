"""How to log in to an upstream, as the documents that it publishes say."""

from __future__ import annotations

import json

import pytest

from mcp_tool_filter.adapters.oauth.discovery import UpstreamLogin, find_login
from mcp_tool_filter.adapters.oauth.web import Web
from mcp_tool_filter.conversation.memory import unlisted
from mcp_tool_filter.errors import ProtocolError
from mcp_tool_filter.http.listener import open_listener
from mcp_tool_filter.policy.config import parse_config
from tests.raw_upstream import Peer, answer, raw_upstream

RESOURCE = "/.well-known/oauth-protected-resource"
SERVER = "/.well-known/oauth-authorization-server"


def server(issuer: str) -> dict[str, object]:
    return {
        "issuer": issuer,
        "authorization_endpoint": f"{issuer}/authorize",
        "token_endpoint": f"{issuer}/token",
        "response_types_supported": ["code"],
        "code_challenge_methods_supported": ["S256"],
    }


async def found(
    documents: dict[str, object], *places: str, resource: str = "/mcp"
) -> tuple[UpstreamLogin | None, str]:
    """Return what is found at an upstream with these documents, and its origin.

    In the documents ORIGIN stands for the upstream's origin.
    """

    async def script(peer: Peer) -> None:
        while True:
            request = await peer.request()
            path = request.line.split(" ")[1]
            if path in documents:
                said = documents[path]
                text = said if isinstance(said, str) else json.dumps(said)
                await peer.say(answer(text.replace("ORIGIN", peer.upstream.url).encode()))
            else:
                await peer.say(answer(b"<html>", status="404 Not Found", kind="text/html"))

    async with raw_upstream(script) as upstream:
        listener = open_listener(
            upstream=upstream.url, config=parse_config(), fetched=unlisted(resource)
        )
        web = Web(upstream.url, is_for_clients=True)
        return await find_login(listener, web, places), upstream.url


async def test_an_upstream_without_documents_asks_for_no_login() -> None:
    login, _ = await found({})
    assert login is None


async def test_the_resource_metadata_names_the_authorization_server() -> None:
    resource = {"resource": "ORIGIN/mcp", "authorization_servers": ["ORIGIN"]}
    login, origin = await found({f"{RESOURCE}/mcp": resource, SERVER: server("ORIGIN")})
    assert login
    assert (login.named, login.theirs) == (origin, origin)
    assert login.server.token_endpoint == f"{origin}/token"
    assert login.document
    assert login.document["issuer"] == origin


async def test_an_older_upstream_is_its_own_authorization_server() -> None:
    login, origin = await found({SERVER: server("ORIGIN")})
    assert login
    assert login.server.issuer == origin


async def test_the_metadata_may_be_where_a_challenge_said() -> None:
    resource = {"resource": "ORIGIN/mcp", "authorization_servers": ["ORIGIN/one"]}
    documents = {"/other/place": resource, f"{SERVER}/one": server("ORIGIN/one")}
    assert (await found(documents, "/other/place"))[0]


async def test_the_first_server_that_can_be_used_counts() -> None:
    resource = {
        "resource": "ORIGIN/mcp",
        "authorization_servers": ["ORIGIN/none", "http://evil.example", "ORIGIN/one"],
    }
    documents = {f"{RESOURCE}/mcp": resource, f"{SERVER}/one": server("ORIGIN/one")}
    login, origin = await found(documents)
    assert login
    assert login.named == f"{origin}/one"


async def test_a_resource_of_another_origin_is_not_rewritten() -> None:
    resource = {"resource": "https://elsewhere.example/mcp", "authorization_servers": ["ORIGIN"]}
    login, _ = await found({f"{RESOURCE}/mcp": resource, SERVER: server("ORIGIN")})
    assert login is None


@pytest.mark.parametrize("text", ["{", '{"resource": 5}', "{}", '{"a":' * 5000])
async def test_a_resource_that_cannot_be_read_is_a_protocol_error(text: str) -> None:
    with pytest.raises(ProtocolError):
        await found({f"{RESOURCE}/mcp": text})
