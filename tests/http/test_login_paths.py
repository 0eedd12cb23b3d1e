"""Paths at which clients log in."""

from __future__ import annotations

import json

import pytest

from mcp_tool_filter.http.login_metadata import LoginPaths

UPSTREAM = "http://127.0.0.1:3000"


def paths_after(**document: object) -> LoginPaths:
    paths = LoginPaths(UPSTREAM)
    paths.learn_document(json.dumps(document).encode())
    return paths


@pytest.mark.parametrize(
    "target",
    [
        "/.well-known/oauth-protected-resource",
        "/.well-known/oauth-protected-resource/mcp",
        "/.well-known/oauth-authorization-server/tenant/1?x=y",
        "/.well-known/openid-configuration",
        "/mcp/.well-known/openid-configuration",
        "/.well-known/jwks.json",
        "/authorize?client_id=x",
    ],
)
def test_metadata_and_the_usual_paths_are_known(target: str) -> None:
    assert LoginPaths(UPSTREAM).has("GET", target)


@pytest.mark.parametrize("path", ["/token", "/register"])
def test_forms_are_accepted_at_the_usual_paths(path: str) -> None:
    assert LoginPaths(UPSTREAM).has("POST", path)


@pytest.mark.parametrize(
    "target",
    [
        "/", "/admin", "/oauth/token", "/tokens", "/token/x", "/.well-known/security.txt",
        "/.well-known/oauth-protected-resource/../../admin", "/x?/.well-known/jwks",
        "/.well-known/oauth-protected-resource/%2e%2e/admin", "/.WELL-KNOWN/jwks",
        "/admin;/.well-known/jwks", "//.well-known/jwks",
    ],
)  # fmt: skip
def test_other_paths_are_no_login_paths(target: str) -> None:
    assert not LoginPaths(UPSTREAM).has("GET", target)


def test_documents_are_only_for_reading_requests() -> None:
    assert not LoginPaths(UPSTREAM).has("POST", "/.well-known/jwks.json")


def test_documents_name_paths_of_the_upstream() -> None:
    paths = paths_after(
        issuer="http://localhost:3000",
        authorization_endpoint="http://localhost:3000/oauth/authorize?audience=x",
        token_endpoint="http://127.0.0.1:3000/oauth/token/",
        jwks_uri="/keys",
        registration_endpoint="https://elsewhere.example/register2",
        service_documentation="http://localhost:3000/docs",
        scopes_supported=["x"],
    )
    assert paths.has("GET", "/oauth/authorize?x=y")
    assert paths.has("POST", "/oauth/token")
    assert paths.has("GET", "/keys")
    for other in ("/docs", "/register2", "/oauth", "/"):
        assert not paths.has("GET", other)


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{", b'{"token_endpoint":1}', b"\xff", b"[" * 50_000, b"1" * 5000]
)
def test_other_bodies_name_no_paths(body: bytes) -> None:
    paths = LoginPaths(UPSTREAM)
    paths.learn_document(body)
    assert not paths.has("GET", "/any")


@pytest.mark.parametrize(
    "url", ["//evil/x", "http://127.0.0.1:3000/a/../admin", "/a%2fb", "x", "javascript:1", ""]
)
def test_a_misleading_url_is_not_learned(url: str) -> None:
    paths = paths_after(token_endpoint=url)
    assert not paths.has("GET", "/admin")
    assert not paths.has("GET", url or "/")


def test_redirects_extend_the_login_paths() -> None:
    paths = LoginPaths(UPSTREAM)
    paths.learn_head("/authorize?x=y", ["/login?state=1"], [])
    paths.learn_head("/login", ["http://127.0.0.1:3000/consent"], [])
    paths.learn_head("/other", ["/admin"], [])
    assert paths.has("POST", "/login")
    assert paths.has("POST", "/consent")
    assert not paths.has("GET", "/admin")


@pytest.mark.parametrize(
    "challenge",
    [
        'Bearer resource_metadata="http://127.0.0.1:3000/meta"',
        "Bearer realm=x, resource_metadata=/meta",
        'Basic realm="x", Bearer error="invalid_token", RESOURCE_METADATA = "/meta", scope="a"',
    ],
)
def test_a_challenge_names_its_metadata(challenge: str) -> None:
    paths = LoginPaths(UPSTREAM)
    paths.learn_head("/mcp", [], [challenge])
    assert paths.has("GET", "/meta")


def test_the_memory_is_bounded() -> None:
    paths = paths_after(**{f"a{number}_endpoint": f"/p{number}" for number in range(200)})
    assert sum(paths.has("GET", f"/p{number}") for number in range(200)) == 64
