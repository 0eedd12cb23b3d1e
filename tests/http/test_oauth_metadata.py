"""The documents that say how to log in."""

from __future__ import annotations

import json

import pytest

from mcp_tool_filter.errors import ProtocolError
from mcp_tool_filter.http.login_metadata import (
    parse_resource_metadata,
    parse_server_metadata,
    resource_documents,
    server_documents,
)

HOST = "https://example.com"


def resource(name: str, **more: object) -> bytes:
    return json.dumps({"resource": name, "authorization_servers": [HOST], **more}).encode()


@pytest.mark.parametrize(
    ("endpoint", "documents"),
    [
        (HOST, ["/.well-known/oauth-protected-resource"]),
        (f"{HOST}/", ["/.well-known/oauth-protected-resource"]),
        (
            f"{HOST}/mcp/?x=y",
            [
                "/.well-known/oauth-protected-resource/mcp",
                "/.well-known/oauth-protected-resource",
            ],
        ),
    ],
)
def test_resource_metadata_is_looked_up_in_both_places(endpoint: str, documents: list[str]) -> None:
    assert resource_documents(endpoint) == [HOST + one for one in documents]


def test_server_metadata_is_looked_up_in_all_places() -> None:
    assert server_documents(f"{HOST}/") == [
        f"{HOST}/.well-known/oauth-authorization-server",
        f"{HOST}/.well-known/openid-configuration",
    ]
    assert server_documents(f"{HOST}/tenant/") == [
        f"{HOST}/.well-known/oauth-authorization-server/tenant",
        f"{HOST}/.well-known/openid-configuration/tenant",
        f"{HOST}/tenant/.well-known/openid-configuration",
    ]


@pytest.mark.parametrize(
    "name", [f"{HOST}/mcp", f"{HOST}/mcp/", HOST, f"{HOST}/", "https://EXAMPLE.com:443/mcp"]
)
def test_a_resource_may_be_the_endpoint_or_lie_above_it(name: str) -> None:
    assert parse_resource_metadata(resource(name), f"{HOST}/mcp").resource == name


@pytest.mark.parametrize(
    "name",
    [
        "https://evil.example/mcp", f"{HOST}/mc", f"{HOST}/mcp/x", f"{HOST}/other", "", "mcp",
        "http://example.com/mcp", f"{HOST}:8443/mcp", "https://example.com:x/mcp", "https://[/mcp",
        f"{HOST}.evil.example/mcp", "https://example.com@evil.example/mcp",
    ],
)  # fmt: skip
def test_a_resource_of_another_origin_is_refused(name: str) -> None:
    """A token for it would be sent to us by mistake, and by us to whom it is for."""
    with pytest.raises(ProtocolError):
        parse_resource_metadata(resource(name), f"{HOST}/mcp")


@pytest.mark.parametrize("document", [b"", b"[]", b"{", b'{"resource":1}', b"[" * 99_999])
def test_an_invalid_document_is_refused(document: bytes) -> None:
    with pytest.raises(ProtocolError):
        parse_resource_metadata(document, HOST)
    with pytest.raises(ProtocolError):
        parse_server_metadata(document, HOST)


@pytest.mark.parametrize("servers", [None, [], [1], "https://example.com"])
def test_a_resource_names_an_authorization_server(servers: object) -> None:
    with pytest.raises(ProtocolError, match="names no authorization server"):
        parse_resource_metadata(resource(HOST, authorization_servers=servers), HOST)


@pytest.mark.parametrize(
    ("said", "is_right"),
    [(HOST, True), (f"{HOST}/", True), (f"{HOST}//", False), ("https://example.org", False)],
)
def test_an_issuer_must_match_except_for_a_trailing_slash(said: str, is_right: bool) -> None:
    ends = {"authorization_endpoint": f"{HOST}/a", "token_endpoint": f"{HOST}/t"}
    document = json.dumps({"issuer": said, **ends}).encode()
    if is_right:
        assert parse_server_metadata(document, HOST).issuer == said
    else:
        with pytest.raises(ProtocolError, match="has the issuer"):
            parse_server_metadata(document, HOST)
