"""Challenges and documents of a login that must name us."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mcp_tool_filter.core.errors import ProtocolError
from mcp_tool_filter.core.http.urls import UpstreamNames
from mcp_tool_filter.rooms.logins import logins_through
from mcp_tool_filter.rooms.logins.logins_through import Sides, our_issuer, passes_through
from mcp_tool_filter.rooms.logins.metadata import metadata_urls_in, parse_server_metadata
from tests.rows import each_row

OURS = "http://localhost:6273"
SIDES = Sides(OURS, UpstreamNames("http://127.0.0.1:3000"))
PLACE = "/.well-known/oauth-protected-resource/mcp"
THEIR_PLACE, OUR_PLACE = f"http://127.0.0.1:3000{PLACE}", OURS + PLACE


def rewritten(challenge: str) -> str:
    return SIDES.challenge(challenge, OURS + "/usual")


@each_row("challenge", [
    'Bearer resource_metadata="{}"', "Bearer resource_metadata={}",
    "Bearer realm=x, resource_metadata={}, error=y",
    'Bearer Resource_Metadata = "{}"',
    'Basic realm="a, b", Bearer resource_metadata="{}", scope="a b"',
    'Bearer resource_metadata="{0}", DPoP resource_metadata={0}',
    'Bearer realm="say \\"hi\\"", resource_metadata="{}"',
])  # fmt: skip
def test_a_challenge_names_our_metadata(challenge: str) -> None:
    assert rewritten(challenge.format(THEIR_PLACE)) == challenge.format(OUR_PLACE)
    assert set(metadata_urls_in(challenge.format(THEIR_PLACE))) == {THEIR_PLACE}


@each_row("challenge", [
    'Bearer realm="http://127.0.0.1:3000/mcp"',
    f'Bearer realm="resource_metadata={THEIR_PLACE}"',
    f'Bearer realm="a \\" resource_metadata={THEIR_PLACE}"',
    'Bearer resource_metadata="https://elsewhere.example/metadata"',
    'Bearer error="invalid_token"', "Negotiate abc==", 'Bearer realm="never ends', "",
])  # fmt: skip
def test_the_rest_of_a_challenge_stays(challenge: str) -> None:
    assert rewritten(challenge) == challenge


@pytest.mark.parametrize(
    "url", ["http:/\\127.0.0.1:3000/x", "http://a@127.0.0.1:3000/x", "http://0x7f.1:3000/x"]
)
def test_no_spelling_of_the_upstreams_url_bypasses_us(url: str) -> None:
    assert "3000" not in rewritten(f'Bearer resource_metadata="{url}"')


def test_a_long_challenge_takes_no_longer_per_character() -> None:
    assert rewritten('resource_metadata="' * 20000) == 'resource_metadata="' * 20000


def resource_metadata(resource: str, **more: Any) -> dict[str, Any] | None:
    document = {"resource": resource, "authorization_servers": ["https://as.example/"], **more}
    issuer = our_issuer("https://as.example/", OURS)
    found = SIDES.resource_metadata(json.dumps(document).encode(), issuer)
    return None if found is None else json.loads(found)


@pytest.mark.parametrize("path", ["/mcp", "/mcp/", "/", "", "/mcp?a=b"])
def test_the_resource_is_ours_in_the_form_that_it_had(path: str) -> None:
    theirs = f"http://127.0.0.1:3000{path}"
    found = resource_metadata(theirs, scopes_supported=["a"], signed_metadata="x.y.z")
    servers = {"authorization_servers": [OURS + "/"]}
    assert found == {"resource": OURS + path, "scopes_supported": ["a"], **servers}


@pytest.mark.parametrize(
    "resource", ["https://elsewhere.example/mcp", "http://127.0.0.1:3001/mcp", "/mcp", "urn:x", ""]
)
def test_members_about_other_servers_stay(resource: str) -> None:
    assert resource_metadata(resource) is None


@pytest.mark.parametrize("document", [b"", b"[]", b"nonsense", b"{}", b'{"resource":1}'])
def test_other_documents_stay(document: bytes) -> None:
    assert SIDES.resource_metadata(document, OURS) is None


def test_the_authorization_servers_stay_if_we_do_not_stand_in() -> None:
    document = b'{"resource":"http://127.0.0.1:3000/mcp","authorization_servers":["https://a/"]}'
    found = SIDES.resource_metadata(document, None)
    assert found
    assert json.loads(found)["authorization_servers"] == ["https://a/"]


def server(issuer: str = "https://as.example", **more: Any) -> dict[str, Any]:
    names = ("authorization", "token", "registration")
    return {"issuer": issuer, **{f"{n}_endpoint": f"https://as.example/{n}" for n in names}, **more}


@pytest.mark.parametrize("path", ["", "/", "/tenant", "/tenant/"])
def test_the_server_is_ours_in_the_form_that_it_had(path: str) -> None:
    document = server(f"https://as.example{path}", jwks_uri="https://as.example/keys")
    ours = {"authorization": "authorize", "token": "token", "registration": "register"}
    endpoints = {f"{name}_endpoint": f"{OURS}/{place}" for name, place in ours.items()}
    expected = {"issuer": OURS + path, "jwks_uri": "https://as.example/keys", **endpoints}
    assert json.loads(SIDES.server_metadata(document)) == expected


def test_members_that_would_bypass_us_are_removed() -> None:
    document = server(
        revocation_endpoint="http://localhost:3000/revoke",
        client_id_metadata_document_supported=True,
        pushed_authorization_request_endpoint="https://as.example/par",
        mtls_endpoint_aliases={"token_endpoint": "https://as.example/mtls"},
        signed_metadata="x",
        token_endpoint_auth_methods_supported=["private_key_jwt", "none"],
    )
    found = json.loads(SIDES.server_metadata(document))
    assert found["revocation_endpoint"] == OURS + "/revoke"
    assert found["token_endpoint_auth_methods_supported"] == ["none"]
    assert not {name for name in found if "mtls" in name or "pushed" in name or "signed" in name}
    assert "client_id_metadata_document_supported" not in found


@pytest.mark.parametrize(("more", "can"), [
    ({}, True),
    ({"registration_endpoint": None}, False),
    ({"token_endpoint_auth_methods_supported": ["private_key_jwt"]}, False),
    ({"token_endpoint_auth_methods_supported": ["client_secret_post"]}, True),
])  # fmt: skip
def test_we_stand_in_for_servers_that_register_clients(more: dict[str, Any], can: bool) -> None:
    metadata = parse_server_metadata(json.dumps(server(**more)).encode(), "https://as.example")
    assert passes_through(metadata) is can


@pytest.mark.parametrize(("challenge", "kept"), [
    ('Bearer a=1,resource_metadata="http://x/,y", b="2"', 'Bearer a=1, b="2"'),
    ("Bearer resource_metadata=x", "Bearer"),
    ('Bearer a="resource_metadata=x"', 'Bearer a="resource_metadata=x"'),
    ("Basic realm=r, Bearer Resource_Metadata = x, b=2", "Basic realm=r, Bearer b=2"),
])  # fmt: skip
def test_metadata_urls_can_be_removed_from_a_challenge(challenge: str, kept: str) -> None:
    assert logins_through.without_metadata_urls(challenge) == kept


@pytest.mark.parametrize("host", ["u@127.0.0.1:3000", "127\u30020.0.1:3000"])
def test_a_resource_that_some_clients_take_for_the_upstream_is_refused(host: str) -> None:
    document = json.dumps({"resource": f"http://{host}/mcp"}).encode()
    with pytest.raises(ProtocolError):
        SIDES.resource_metadata(document, None)


def test_a_long_document_about_the_upstream_is_refused() -> None:
    """Reading and writing one of 9 MB kept all other clients waiting for half a second."""
    document = json.dumps({"resource": "http://127.0.0.1:3000/mcp", "x": "a" * 70_000}).encode()
    with pytest.raises(ProtocolError, match="too long"):
        SIDES.resource_metadata(document, None)
