"""What upstreams say about logins: documents, paths and challenges."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_tool_filter.core.errors import ProtocolError
from mcp_tool_filter.rooms.logins import metadata
from mcp_tool_filter.rooms.logins.metadata import LoginPaths, parse_resource_metadata
from tests.rows import each_row

HOST = "https://example.com"


def resource(name: str, **more: object) -> bytes:
    return json.dumps({"resource": name, "authorization_servers": [HOST], **more}).encode()


RESOURCE, SERVER, OPENID = (
    f"{HOST}/.well-known/{name}"
    for name in ("oauth-protected-resource", "oauth-authorization-server", "openid-configuration")
)


def test_metadata_is_looked_up_in_all_places() -> None:
    for root in (HOST, f"{HOST}/"):
        assert metadata.resource_documents(root) == [RESOURCE]
    assert metadata.resource_documents(f"{HOST}/mcp/?x=y") == [f"{RESOURCE}/mcp", RESOURCE]
    assert metadata.server_documents(f"{HOST}/") == [SERVER, OPENID]
    tenants = [f"{SERVER}/t", f"{OPENID}/t", f"{HOST}/t/.well-known/openid-configuration"]
    assert metadata.server_documents(f"{HOST}/t/") == tenants


@pytest.mark.parametrize(
    "name", [f"{HOST}/mcp", f"{HOST}/mcp/", HOST, f"{HOST}/", "https://EXAMPLE.com:443/mcp"]
)
def test_a_resource_may_be_the_endpoint_or_lie_above_it(name: str) -> None:
    assert parse_resource_metadata(resource(name), f"{HOST}/mcp").resource == name


@each_row("name", [
    "https://evil.example/mcp", f"{HOST}/mc", f"{HOST}/mcp/x", f"{HOST}/other", "", "mcp",
    "http://example.com/mcp", f"{HOST}:8443/mcp", "https://example.com:x/mcp", "https://[/mcp",
    f"{HOST}.evil.example/mcp", "https://example.com@evil.example/mcp",
])  # fmt: skip
def test_a_resource_of_another_origin_is_refused(name: str) -> None:
    """A token for it would be sent to us by mistake, and by us to whom it is for."""
    with pytest.raises(ProtocolError):
        parse_resource_metadata(resource(name), f"{HOST}/mcp")


@pytest.mark.parametrize("document", [b"", b"[]", b"{", b'{"resource":1}', b"[" * 99_999])
def test_an_invalid_document_is_refused(document: bytes) -> None:
    with pytest.raises(ProtocolError):
        parse_resource_metadata(document, HOST)
    with pytest.raises(ProtocolError):
        metadata.parse_server_metadata(document, HOST)


@pytest.mark.parametrize("servers", [None, [], [1], "https://example.com"])
def test_a_resource_names_an_authorization_server(servers: object) -> None:
    with pytest.raises(ProtocolError, match="names no authorization server"):
        parse_resource_metadata(resource(HOST, authorization_servers=servers), HOST)


@pytest.mark.parametrize(("said", "is_right"), [
    (HOST, True), (f"{HOST}/", True), (f"{HOST}//", False), ("https://example.org", False),
])  # fmt: skip
def test_an_issuer_must_match_except_for_a_trailing_slash(said: str, is_right: bool) -> None:
    ends = {"authorization_endpoint": f"{HOST}/a", "token_endpoint": f"{HOST}/t"}
    document = json.dumps({"issuer": said, **ends}).encode()
    if is_right:
        assert metadata.parse_server_metadata(document, HOST).issuer == said
    else:
        with pytest.raises(ProtocolError, match="has the issuer"):
            metadata.parse_server_metadata(document, HOST)


# Paths at which clients log in


UPSTREAM = "http://127.0.0.1:3000"


def paths_after(**document: object) -> LoginPaths:
    paths = LoginPaths(UPSTREAM)
    paths.learn_document(json.dumps(document).encode())
    return paths


@each_row("target", [
    "/.well-known/oauth-protected-resource",
    "/.well-known/oauth-protected-resource/mcp",
    "/.well-known/oauth-authorization-server/tenant/1?x=y",
    "/.well-known/openid-configuration", "/mcp/.well-known/openid-configuration",
    "/.well-known/jwks.json", "/authorize?client_id=x",
])  # fmt: skip
def test_metadata_and_the_usual_paths_are_known(target: str) -> None:
    assert LoginPaths(UPSTREAM).has("GET", target)


@each_row("target", [
    "/", "/admin", "/oauth/token", "/tokens", "/token/x", "/.well-known/security.txt",
    "/.well-known/oauth-protected-resource/../../admin",
    "/x?/.well-known/jwks",
    "/.well-known/oauth-protected-resource/%2e%2e/admin",
    "/.WELL-KNOWN/jwks", "/admin;/.well-known/jwks", "//.well-known/jwks",
])  # fmt: skip
def test_other_paths_are_no_login_paths(target: str) -> None:
    assert not LoginPaths(UPSTREAM).has("GET", target)
    assert not LoginPaths(UPSTREAM).has("POST", "/.well-known/jwks.json")  # it is for reading


def test_documents_name_paths_of_the_upstream() -> None:
    paths = paths_after(
        issuer="http://localhost:3000", jwks_uri="/keys", scopes_supported=["x"],
        authorization_endpoint="http://localhost:3000/oauth/authorize?audience=x",
        token_endpoint="http://127.0.0.1:3000/oauth/token/",
        registration_endpoint="https://elsewhere.example/register2",
        service_documentation="http://localhost:3000/docs",
    )  # fmt: skip
    for target in ("/oauth/authorize?x=y", "/oauth/token", "/keys"):
        assert paths.has("POST", target)
    for other in ("/docs", "/register2", "/oauth", "/"):
        assert not paths.has("GET", other)


@each_row("body", [b"", b"[]", b"{", b'{"token_endpoint":1}', b"\xff", b"[" * 50_000, b"1" * 5000])
def test_other_bodies_name_no_paths(body: bytes) -> None:
    paths = LoginPaths(UPSTREAM)
    paths.learn_document(body)
    assert not paths.has("GET", "/any")


@each_row(
    "url", ["//evil/x", "http://127.0.0.1:3000/a/../admin", "/a%2fb", "x", "javascript:1", ""]
)
def test_a_misleading_url_is_not_learned(url: str) -> None:
    paths = paths_after(token_endpoint=url)
    assert not paths.has("GET", "/admin")
    assert not paths.has("GET", url or "/")


def test_redirects_extend_the_login_paths() -> None:
    paths = LoginPaths(UPSTREAM)
    paths.learn_head("GET", "/authorize?x=y", ["/login?state=1"], [])
    paths.learn_head("GET", "/login", ["http://127.0.0.1:3000/consent"], [])
    paths.learn_head("GET", "/other", ["/admin"], [])
    assert paths.has("GET", "/login")
    assert paths.has("GET", "/consent")
    assert not paths.has("GET", "/admin")


def test_redirects_open_a_path_for_browsers_only() -> None:
    """Who chooses where a redirect leads must not choose where clients may post."""
    paths = paths_after(authorization_endpoint="/oauth/authorize", token_endpoint="/token2")
    paths.learn_head("GET", "/authorize", ["/login", "/token2"], ['Bearer resource_metadata="/m"'])
    paths.learn_head("POST", "/authorize", ["/posted"], [])
    for path in ("/login", "/m", "/posted"):
        assert not paths.has("POST", path)
    assert not paths.has("GET", "/posted")
    assert paths.has("POST", "/token2")
    paths.learn_document(b'{"token_endpoint":"/login"}')
    assert paths.has("POST", "/login")


def test_the_path_of_another_server_is_no_login_path() -> None:
    paths = paths_after(token_endpoint="/two/mcp", authorization_endpoint="/one/authorize")
    paths.learn_head("GET", "/authorize", ["/two/mcp/"], [])
    paths.is_of_other = lambda path: path.startswith(("/two/", "/register"))
    assert paths.has("POST", "/one/authorize")
    for path in ("/two/mcp", "/two/mcp/", "/register"):
        assert not paths.has("GET", path)
        assert not paths.has("POST", path)


@pytest.mark.parametrize("challenge", [
    'Bearer resource_metadata="http://127.0.0.1:3000/meta"',
    "Bearer realm=x, resource_metadata=/meta",
    'Basic realm="x", Bearer error="invalid_token", RESOURCE_METADATA = "/meta", scope="a"',
])  # fmt: skip
def test_a_challenge_names_its_metadata(challenge: str) -> None:
    paths = LoginPaths(UPSTREAM)
    paths.learn_head("POST", "/mcp", [], [challenge])
    assert paths.has("GET", "/meta")


def test_the_memory_is_bounded() -> None:
    paths = paths_after(**{f"a{number}_endpoint": f"/p{number}" for number in range(200)})
    assert sum(paths.has("GET", f"/p{number}") for number in range(200)) == 64


# The header WWW-Authenticate


@each_row(("header", "params"), [
    ("Bearer", {}), ("bearer a=b", {"a": "b"}),
    ('BEARER A = "b, c=d" , e=f', {"a": "b, c=d", "e": "f"}),
    ('Bearer a="\\"x\\\\"', {"a": '"x\\'}),
    ('Basic realm="x", Bearer a=b', {"a": "b"}),
    ('Basic realm="Bearer a=c", Bearer a=b', {"a": "b"}),
    ("Negotiate abc==, Bearer a=b", {"a": "b"}),
    ("Digest x=y, Bearer a=b, Basic c=d", {"a": "b"}),
    ('Bearer resource_metadata=https://h/x?y=z, scope="a b"',
     {"resource_metadata": "https://h/x?y=z", "scope": "a b"}),
    ('Bearer a="unfinished', {}), ("Bearer a=1, a=2", {"a": "1"}), (",, Bearer ,a=b,", {"a": "b"}),
])  # fmt: skip
def test_a_bearer_challenge_is_found(header: str, params: dict[str, str]) -> None:
    found = metadata.bearer_challenge([header])
    assert found
    assert found.params == params


@pytest.mark.parametrize("headers", [[], [""], ["Basic realm=x"], ["=x"], ['"Bearer"']])
def test_headers_without_a_bearer_challenge_give_none(headers: list[str]) -> None:
    assert metadata.bearer_challenge(headers) is None


def test_each_header_may_hold_challenges_and_a_long_one_is_cut() -> None:
    assert len(metadata.parse_challenges(["Bearer a=b, " * 100_000])) < 1000
    found = metadata.parse_challenges(["Basic realm=x", "Bearer a=b, DPoP algs=c"])
    assert [one.scheme for one in found] == ["basic", "bearer", "dpop"]


@given(st.lists(st.text(max_size=50), max_size=3))
def test_no_header_raises(headers: list[str]) -> None:
    metadata.parse_challenges(headers)


@each_row(("status", "challenge", "scopes"), [
    (403, 'Bearer error="insufficient_scope", scope="a b"', ("a", "b")),
    (403, "Bearer error=insufficient_scope, scope=a", ("a",)),
    (403, 'Bearer error="insufficient_scope"', ()),
    (403, 'Bearer error="insufficient_scope", scope="a \x1b[31m \xe9"', ("a",)),
    (403, 'Bearer scope="a"', ()),
    (401, 'Bearer error="insufficient_scope", scope="a"', ()),
])  # fmt: skip
def test_a_403_names_missing_scopes(status: int, challenge: str, scopes: tuple[str, ...]) -> None:
    assert metadata.missing_scopes(status, [challenge]) == scopes
