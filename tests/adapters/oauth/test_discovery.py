"""How to log in to an upstream, as its documents say; and which of their addresses are asked."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from mcp_tool_filter.adapters.oauth.discovery import (
    Discovered,
    UpstreamLogin,
    Web,
    WebFailed,
    discover,
    find_login,
)
from mcp_tool_filter.adapters.oauth.login import Wishes, log_in
from mcp_tool_filter.adapters.oauth.store import LoggedOut, LoginFailed, LoginStore
from mcp_tool_filter.adapters.upstream.fetch import fetch
from mcp_tool_filter.adapters.upstream.target import Target
from mcp_tool_filter.conversation.memory import unlisted
from mcp_tool_filter.errors import FetchFailed, ProtocolError
from mcp_tool_filter.http.listener import open_listener
from mcp_tool_filter.policy.config import parse_config
from tests.login_browser import browse
from tests.oauth_server import OAuthUpstream
from tests.oauth_upstream import oauth_upstream
from tests.raw_upstream import TIMEOUT, Peer, answer, raw_upstream

# How to log in to an upstream, as its answers to requests without credentials say
RESOURCE = "/.well-known/oauth-protected-resource"
SERVER = "/.well-known/oauth-authorization-server"
DOCUMENT = {"resource": "ORIGIN/mcp", "authorization_servers": ["ORIGIN"]}


def server(issuer: str = "ORIGIN", **more: object) -> dict[str, object]:
    return {
        "issuer": issuer,
        "authorization_endpoint": f"{issuer}/authorize",
        "token_endpoint": f"{issuer}/token",
        "response_types_supported": ["code"],
        "code_challenge_methods_supported": ["S256"],
        **more,
    }


PLAIN = server(code_challenge_methods_supported=["plain"])


async def discovered(
    documents: Mapping[str, object],
    *,
    path: str = "/mcp",
    post: str = "401 Unauthorized",
    get: str = "405 Method Not Allowed",
    challenges: Mapping[str, str] | None = None,
) -> tuple[Discovered, str, list[str]]:
    """Discover an upstream that answers POST and GET like this and has these documents.

    ``challenges`` are by method. In all of it ORIGIN stands for the upstream's origin.
    """

    async def script(peer: Peer) -> None:
        def here(text: str) -> bytes:
            return text.replace("ORIGIN", peer.upstream.url).encode()

        while True:
            request = await peer.request()
            method, at, _ = request.line.split(" ")
            if at in documents:
                said = documents[at]
                text = said if isinstance(said, str) else json.dumps(said)
                await peer.say(answer(here(text)))
            elif ".well-known" in at:
                await peer.say(answer(b"<html>", status="404 Not Found", kind="text/html"))
            else:
                whole = answer(b"{}", status=post if method == "POST" else get)
                if challenge := (challenges or {}).get(method):
                    extra = b"\r\nWWW-Authenticate: " + here(challenge)
                    whole = whole.replace(b"\r\n", extra + b"\r\n", 1)
                await peer.say(whole)

    async with raw_upstream(script) as upstream:
        web = Web(upstream.url)
        found = await discover(upstream.url + path, web)
        lines = [request.line.split(" ")[1] for request in upstream.requests]
        return found, upstream.url, lines


async def test_the_challenge_names_the_metadata() -> None:
    """Where it does, the usual places are not asked."""
    challenge = 'Bearer resource_metadata="ORIGIN/elsewhere", scope="one two"'
    found, origin, asked = await discovered(
        {"/elsewhere": DOCUMENT, SERVER: server()}, challenges={"POST": challenge}
    )
    assert found.endpoint == found.resource == f"{origin}/mcp"
    assert found.server.token_endpoint == f"{origin}/token"
    assert found.scopes == ("one", "two")
    assert not any(RESOURCE in path for path in asked)


async def test_without_a_challenge_the_usual_places_are_asked() -> None:
    documents = {f"{RESOURCE}/mcp": {**DOCUMENT, "scopes_supported": ["all"]}, SERVER: server()}
    found, _, _ = await discovered(documents)
    assert found.scopes == ("all",)


async def test_some_upstreams_challenge_only_a_get() -> None:
    challenge = 'Bearer resource_metadata="/elsewhere"'
    found, origin, _ = await discovered(
        {"/elsewhere": DOCUMENT, SERVER: server()},
        post="404 Not Found",
        get="401 Unauthorized",
        challenges={"GET": challenge},
    )
    assert found.resource == f"{origin}/mcp"


async def test_an_upstream_without_metadata_is_its_own_server() -> None:
    """MCP 2025-03-26: the endpoints have fixed paths."""
    found, origin, _ = await discovered({})
    assert found.resource is None
    assert found.server.authorization_endpoint == f"{origin}/authorize"
    assert found.server.token_endpoint == f"{origin}/token"


async def test_an_origin_is_completed_by_the_path_of_its_resource() -> None:
    found, origin, _ = await discovered({RESOURCE: DOCUMENT, SERVER: server()}, path="/")
    assert found.endpoint == f"{origin}/mcp"


async def test_the_first_server_with_metadata_counts() -> None:
    documents = {
        f"{RESOURCE}/mcp": {**DOCUMENT, "authorization_servers": ["ORIGIN/none", "ORIGIN/one"]},
        f"{SERVER}/one": server("ORIGIN/one"),
    }
    found, origin, _ = await discovered(documents)
    assert found.server.issuer == f"{origin}/one"


@pytest.mark.parametrize(
    ("documents", "given", "why"),
    [
        ({}, {"post": "200 OK"}, "It does not ask for a login"),
        (
            {},
            {"challenges": {"POST": 'Bearer resource_metadata="/gone"'}},
            "HTTP 405 from .*/gone, which its challenge names",
        ),
        ({f"{RESOURCE}/mcp": DOCUMENT}, {}, "There is no metadata at"),
        (
            {
                f"{RESOURCE}/mcp": DOCUMENT,
                SERVER: server(code_challenge_methods_supported=["plain"]),
            },
            {},
            "does not support PKCE with S256",
        ),
        (
            {f"{RESOURCE}/mcp": DOCUMENT, SERVER: server(token_endpoint="http://evil.example/")},
            {},
            "https",
        ),
        (
            {
                f"{RESOURCE}/mcp": DOCUMENT,
                SERVER: server(registration_endpoint="http://evil.example/"),
            },
            {},
            "https",
        ),
        (
            {f"{RESOURCE}/mcp": {**DOCUMENT, "resource": "https://evil.example/"}},
            {},
            "evil.example",
        ),
    ],
    ids=["no login", "nothing there", "no server", "no PKCE", "token", "registration", "resource"],
)
async def test_an_unusable_upstream_is_an_error_that_says_why(
    documents: dict[str, object], given: dict[str, object], why: str
) -> None:
    with pytest.raises(LoginFailed) as failed:
        await discovered(documents, **given)  # type: ignore[arg-type]  # by name
    assert failed.match("Cannot log in to")
    assert re.search(why, failed.value.why)


@pytest.mark.parametrize(
    ("servers", "why"),
    [
        (["ORIGIN/none", "http://evil.example"], "There is no metadata at"),
        (["http://evil.example", "ORIGIN/none"], "https"),
    ],
)
async def test_the_first_problem_of_several_unusable_servers_is_reported(
    servers: list[str], why: str
) -> None:
    with pytest.raises(LoginFailed) as failed:
        await discovered({f"{RESOURCE}/mcp": {**DOCUMENT, "authorization_servers": servers}})
    assert why in failed.value.why


# How to log in to an upstream, as the documents that it publishes say
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
    login, origin = await found(
        {
            f"{RESOURCE}/mcp": resource,
            SERVER: server("ORIGIN"),
        }
    )
    assert login
    assert (login.server.named, login.theirs) == (origin, origin)
    assert login.server.token_endpoint == f"{origin}/token"
    assert login.server.document["issuer"] == origin


async def test_an_older_upstream_is_its_own_authorization_server() -> None:
    login, origin = await found({SERVER: server("ORIGIN")})
    assert login
    assert login.server.issuer == origin


async def test_the_metadata_may_be_where_a_challenge_said() -> None:
    resource = {"resource": "ORIGIN/mcp", "authorization_servers": ["ORIGIN/one"]}
    documents = {
        "/other/place": resource,
        f"{SERVER}/one": server("ORIGIN/one"),
    }
    assert (await found(documents, "/other/place"))[0]


async def test_the_first_server_that_can_be_used_counts() -> None:
    resource = {
        "resource": "ORIGIN/mcp",
        "authorization_servers": ["ORIGIN/none", "http://evil.example", "ORIGIN/one"],
    }
    documents = {
        f"{RESOURCE}/mcp": resource,
        f"{SERVER}/one": server("ORIGIN/one"),
    }
    login, origin = await found(documents)
    assert login
    assert login.server.named == f"{origin}/one"


async def test_a_resource_of_another_origin_is_not_rewritten() -> None:
    resource = {"resource": "https://elsewhere.example/mcp", "authorization_servers": ["ORIGIN"]}
    login, _ = await found(
        {
            f"{RESOURCE}/mcp": resource,
            SERVER: server("ORIGIN"),
        }
    )
    assert login is None


@pytest.mark.parametrize("text", ["{", '{"resource": 5}', "{}", '{"a":' * 5000])
async def test_a_resource_that_cannot_be_read_is_a_protocol_error(text: str) -> None:
    with pytest.raises(ProtocolError):
        await found({f"{RESOURCE}/mcp": text})


# Which addresses are asked
FAR, NEAR = "https://mcp.example/mcp", "http://localhost:3000/mcp"


@pytest.mark.parametrize(
    "url",
    [
        "http://mcp.example/x", "http://10.0.0.1/", "ftp://mcp.example/", "file:///etc/passwd", "",
        "https://user@mcp.example/", "https://mcp.example\\@evil.example/", "https://mcp.ex\tample/",
        "https://localhost/", "https://127.0.0.1/", "https://127.1/", "https://0x7f000001/",
        "https://2130706433/", "https://[::1]/", "https://[::ffff:127.0.0.1]/", "https://0.0.0.0/",
        "https://169.254.169.254/latest", "https://x.localhost/", "https://localhost./",
        "http://localhost:3000/", "https://[fe80::1]/", "javascript:alert(1)",
    ],
)  # fmt: skip
def test_a_remote_upstream_cannot_name_addresses_on_this_machine(url: str) -> None:
    with pytest.raises(WebFailed):
        Web(FAR).check(url)


@pytest.mark.parametrize("url", ["https://login.example/x", "https://10.0.0.1:8443/token"])
def test_https_addresses_are_accepted(url: str) -> None:
    Web(FAR).check(url)


def test_a_local_upstream_may_name_local_addresses() -> None:
    Web(NEAR).check("http://127.0.0.1:9000/token")
    Web(NEAR).check("https://login.example/token")
    with pytest.raises(WebFailed, match="not https"):
        Web(NEAR).check("http://login.example/token")


@pytest.mark.parametrize(
    "location", ["http://evil.example/", "file:///etc/passwd", "//evil.example/x"]
)
async def test_a_redirect_is_checked_like_a_url(location: str) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.say(f"HTTP/1.1 302 Found\r\nLocation: {location}\r\n\r\n".encode())

    async with raw_upstream(script) as upstream:
        with pytest.raises(WebFailed, match=r"not https|Not a web URL"):
            await Web(upstream.url).get(upstream.url)


async def test_requests_with_secrets_follow_no_redirect() -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        moved = f"Location: {peer.upstream.url}/other\r\nContent-Length: 0\r\n\r\n"
        await peer.say(b"HTTP/1.1 307 Moved\r\n" + moved.encode())

    async with raw_upstream(script) as upstream:
        with pytest.raises(WebFailed, match="redirect"):
            await Web(upstream.url).post_form(f"{upstream.url}/token", [("a", "b")])
        assert len(upstream.requests) == 1


async def test_endless_redirects_are_refused() -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.say(b"HTTP/1.1 302 Found\r\nLocation: /again\r\nContent-Length: 0\r\n\r\n")

    async with raw_upstream(script) as upstream:
        with pytest.raises(WebFailed, match="More than 3 redirects"):
            await Web(upstream.url).get(upstream.url)
        assert len(upstream.requests) == 4


async def test_long_answers_are_not_read() -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.say(b"HTTP/1.1 200 OK\r\nContent-Length: 99999999\r\n\r\n" + b"x" * 300_000)
        await peer.left()

    async with raw_upstream(script) as upstream:
        with pytest.raises(WebFailed, match="longer than"):
            await Web(upstream.url).get(upstream.url)


# Fetching tools with a stored login
@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))


async def log_in_to(upstream: OAuthUpstream) -> None:
    async def show(url: str) -> None:
        await asyncio.to_thread(browse, url)

    await log_in(upstream.url, Wishes(timeout=TIMEOUT), LoginStore(), show)


def target(
    upstream: OAuthUpstream,
    *,
    endpoint: str | None = "/mcp",
    uses_login: bool = True,
    headers: tuple[tuple[str, str], ...] = (),
) -> Target:
    return Target(
        url=upstream.origin,
        endpoint=endpoint,
        headers=headers,
        connect_timeout=10,
        list_timeout=10,
        tls=None,
        limit=1_000_000,
        uses_login=uses_login,
    )


@pytest.mark.parametrize("endpoint", ["/mcp", None])
async def test_a_login_is_used(endpoint: str | None) -> None:
    with oauth_upstream() as upstream:
        await log_in_to(upstream)
        fetched = await fetch(target(upstream, endpoint=endpoint))
        assert b"read_file" in fetched.pages[0]


async def test_a_token_that_is_rejected_early_is_renewed_once() -> None:
    with oauth_upstream() as upstream:
        await log_in_to(upstream)
        upstream.end_access()
        assert (await fetch(target(upstream))).pages
        assert upstream.renewals == 1


async def test_a_token_that_cannot_be_renewed_says_what_to_type() -> None:
    with oauth_upstream() as upstream:
        await log_in_to(upstream)
        upstream.refuses_renewal = "invalid_grant"
        upstream.end_access()
        with pytest.raises(LoggedOut, match="mcp-tool-filter login"):
            await fetch(target(upstream))


async def test_missing_scopes_say_what_to_type() -> None:
    with oauth_upstream() as upstream:
        await log_in_to(upstream)
        upstream.scope_to_enter = "admin"
        with pytest.raises(LoggedOut, match="lacks the right to do this"):
            await fetch(target(upstream))


@pytest.mark.parametrize("how", ["off", "header", "other"])
async def test_no_login_is_used_where_the_user_wants_none(how: str) -> None:
    with oauth_upstream() as upstream, oauth_upstream() as other:
        await log_in_to(other if how == "other" else upstream)
        asked = {
            "off": target(upstream, uses_login=False),
            "header": target(upstream, headers=(("authorization", "Bearer mine"),)),
            "other": target(upstream),
        }[how]
        with pytest.raises(FetchFailed) as failed:
            await fetch(asked)
        assert "HTTP 401" in failed.value.why
        sent = {authorization for _, authorization in upstream.calls}
        assert not any(one and "access-" in one for one in sent)
