"""How an authorization server comes to know us."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from mcp_tool_filter.adapters.oauth.login import OwnClient, as_given, register
from mcp_tool_filter.adapters.oauth.store import LoginFailed, Registration
from mcp_tool_filter.adapters.oauth.web import Web
from mcp_tool_filter.http.login_metadata import default_server
from tests.raw_upstream import Peer, answer, raw_upstream

BACK = "http://127.0.0.1:1/callback"
SERVER = default_server("https://login.example/mcp")
ENDPOINT = "https://mcp.example/mcp"


async def registered(
    said: object, *, status: str = "201 Created", methods: tuple[str, ...] | None = None
) -> tuple[Registration, dict[str, object]]:
    """Return what we are known by, and what we have said of us."""

    async def script(peer: Peer) -> None:
        await peer.request()
        text = said if isinstance(said, str) else json.dumps(said)
        await peer.say(answer(text.encode(), status=status))

    async with raw_upstream(script) as upstream:
        server = replace(
            SERVER, registration_endpoint=f"{upstream.url}/register", auth_methods=methods
        )
        made = await register(Web(upstream.url), server, BACK, ("tools",), ENDPOINT)
    return made, json.loads(upstream.requests[0].body)


async def test_a_registration_sends_our_name_and_keeps_the_client_id() -> None:
    made, said = await registered({"client_id": "c1"})
    assert (made.client_id, made.client_secret, made.auth_method) == ("c1", None, "none")
    assert (made.redirect_uri, made.scopes) == (BACK, ("tools",))
    assert said["client_name"] == "mcp-tool-filter"
    assert said["redirect_uris"] == [BACK]
    assert said["token_endpoint_auth_method"] == "none"


@pytest.mark.parametrize(
    ("given", "method"),
    [("client_secret_post", "client_secret_post"), ("private_key_jwt", "client_secret_basic")],
)
async def test_a_client_secret_is_sent_in_a_supported_way(given: str, method: str) -> None:
    answered = {"client_id": "c", "client_secret": "s", "token_endpoint_auth_method": given}
    made, said = await registered(answered, methods=("client_secret_post",))
    assert said["token_endpoint_auth_method"] == "client_secret_post"
    assert (made.client_secret, made.auth_method) == ("s", method)


@pytest.mark.parametrize(
    ("said", "status"), [({"error": "no"}, "400 Bad Request"), ({}, "201 Created"), ("x", "200 OK")]
)
async def test_a_refused_registration_says_what_to_do_instead(said: object, status: str) -> None:
    with pytest.raises(LoginFailed, match=r"does not register us .*: give --client-id"):
        await registered(said, status=status)


async def test_a_server_without_registration_says_what_to_do_instead() -> None:
    server = replace(SERVER, registration_endpoint=None)
    with pytest.raises(LoginFailed, match="registers no clients: give --client-id"):
        await register(Web(ENDPOINT), server, BACK, (), ENDPOINT)


@pytest.mark.parametrize(
    ("methods", "secret", "method"),
    [
        (None, None, "none"),
        (None, "s", "client_secret_basic"),
        (("client_secret_post",), "s", "client_secret_post"),
    ],
)
def test_a_client_of_the_users_own_is_used_as_it_is(
    methods: tuple[str, ...] | None, secret: str | None, method: str
) -> None:
    server = replace(SERVER, auth_methods=methods)
    made = as_given(OwnClient("mine", secret), server, BACK, ENDPOINT)
    assert (made.client_id, made.client_secret, made.auth_method) == ("mine", secret, method)


def test_a_client_metadata_url_needs_a_server_that_supports_it() -> None:
    client = OwnClient("https://me.example/client.json")
    with pytest.raises(LoginFailed, match="does not support client id metadata documents"):
        as_given(client, SERVER, BACK, ENDPOINT)
    server = replace(SERVER, takes_client_documents=True)
    assert as_given(client, server, BACK, ENDPOINT).client_id == client.client_id
