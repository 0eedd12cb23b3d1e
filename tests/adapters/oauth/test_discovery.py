"""How to log in to an upstream, as its documents say; and which of their addresses are asked."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from mcp_tool_filter.adapters.oauth.discovery import (
    Discovered,
    Web,
    WebFailed,
    discover,
    find_login,
)
from mcp_tool_filter.adapters.oauth.login import Wishes, log_in
from mcp_tool_filter.adapters.oauth.store import LoggedOut, LoginFailed, LoginStore
from mcp_tool_filter.adapters.upstream.fetch import fetch
from mcp_tool_filter.adapters.upstream.target import Target
from mcp_tool_filter.conversation.memory import Fetched, unlisted
from mcp_tool_filter.errors import ProtocolError
from mcp_tool_filter.http.listener import open_listener
from mcp_tool_filter.policy.config import parse_config
from tests.login_browser import show
from tests.oauth_server import OAuthUpstream
from tests.oauth_upstream import oauth_upstream
from tests.raw_upstream import TIMEOUT, Peer, RawUpstream, Script, always, answer, raw_upstream

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


@asynccontextmanager
async def publishing(
    documents: Mapping[str, object], *, post: str = "401 Unauthorized", challenge: str = ""
) -> AsyncIterator[RawUpstream]:
    """An upstream with these documents, in which ORIGIN stands for its origin."""

    async def script(peer: Peer) -> None:
        def here(text: str) -> bytes:
            return text.replace("ORIGIN", peer.upstream.url).encode()

        while True:
            request = await peer.request()
            method, at, _ = request.line.split(" ")
            if at in documents:
                said = documents[at]
                await peer.say(answer(here(said if isinstance(said, str) else json.dumps(said))))
            elif ".well-known" in at:
                await peer.say(answer(b"<html>", status="404 Not Found", kind="text/html"))
            else:
                status = f"{post}\r\nWWW-Authenticate: {challenge}"
                refused = status if method == "POST" else "405 Method Not Allowed"
                await peer.say(answer(b"{}", status=here(refused).decode()))

    async with raw_upstream(script) as upstream:
        yield upstream


async def discovered(documents: Mapping[str, object], **given: str) -> tuple[Discovered, str]:
    """Return what the user of such an upstream finds, and its origin."""
    async with publishing(documents, **given) as upstream:
        return await discover(f"{upstream.url}/mcp", Web(upstream.url)), upstream.url


async def test_the_challenge_names_the_metadata() -> None:
    """Where it does, the usual places are not asked."""
    challenge = 'Bearer resource_metadata="ORIGIN/elsewhere", scope="one two"'
    documents = {"/elsewhere": DOCUMENT, f"{RESOURCE}/mcp": "{", SERVER: server()}
    found, origin = await discovered(documents, challenge=challenge)
    assert found.endpoint == found.resource == f"{origin}/mcp"
    assert found.server.token_endpoint == f"{origin}/token"
    assert found.scopes == ("one", "two")


def resource_of(*servers: str) -> dict[str, object]:
    return {f"{RESOURCE}/mcp": {**DOCUMENT, "authorization_servers": servers}}


async def test_the_first_server_that_can_be_used_counts() -> None:
    named = resource_of("ORIGIN/none", "http://evil.example", "ORIGIN/one")
    found, origin = await discovered({**named, f"{SERVER}/one": server("ORIGIN/one")})
    assert found.server.issuer == f"{origin}/one"


GONE = 'Bearer resource_metadata="/gone"'
EVIL = {**DOCUMENT, "resource": "https://evil.example/"}


@pytest.mark.parametrize(
    ("documents", "given", "why"),
    [
        ({}, {"post": "200 OK"}, "It does not ask for a login"),
        ({}, {"challenge": GONE}, "HTTP 405 from .*/gone, which its challenge names"),
        ({}, {"challenge": 'Bearer resource_metadata="http://["'}, "Not a web URL"),
        (resource_of("ORIGIN"), {}, "There is no metadata at"),
        (resource_of("ORIGIN/none", "http://evil.example"), {}, "There is no metadata at"),
        (resource_of("http://evil.example", "ORIGIN/none"), {}, "https"),
        ({f"{RESOURCE}/mcp": EVIL}, {}, "evil.example"),
    ],
)
async def test_an_unusable_upstream_is_an_error_that_says_why(
    documents: dict[str, object], given: dict[str, str], why: str
) -> None:
    """Of several problems, the first."""
    with pytest.raises(LoginFailed) as failed:
        await discovered(documents, **given)
    assert failed.match("Cannot log in to")
    assert re.search(why, failed.value.why)


# The same for clients that log in through us
async def found(documents: dict[str, object], *places: str) -> Discovered | None:
    async with publishing(documents) as upstream:
        listener = open_listener(
            upstream=upstream.url, config=parse_config(), fetched=unlisted("/mcp")
        )
        return await find_login(listener, Web(upstream.url, is_for_clients=True), places)


async def test_the_metadata_may_be_where_a_challenge_said() -> None:
    resource = {"resource": "ORIGIN/mcp", "authorization_servers": ["ORIGIN/one"]}
    documents = {"/other/place": resource, f"{SERVER}/one": server("ORIGIN/one")}
    assert await found(documents, "/other/place")


async def test_a_resource_of_another_origin_is_not_rewritten() -> None:
    resource = {"resource": "https://elsewhere.example/mcp", "authorization_servers": ["ORIGIN"]}
    assert await found({f"{RESOURCE}/mcp": resource, SERVER: server()}) is None


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


def moved(to: str, status: str = "302 Found") -> Script:
    return always(answer(b"", status=f"{status}\r\nLocation: {to}"))


@pytest.mark.parametrize(
    "location", ["http://evil.example/", "file:///etc/passwd", "//evil.example/x", "http://["]
)
async def test_a_redirect_is_checked_like_a_url(location: str) -> None:
    async with raw_upstream(moved(location)) as upstream:
        with pytest.raises(WebFailed, match=r"not https|Not a web URL"):
            await Web(upstream.url).get(upstream.url)


async def test_requests_with_secrets_follow_no_redirect() -> None:
    async with raw_upstream(moved("/other", "307 Moved")) as upstream:
        with pytest.raises(WebFailed, match="redirect"):
            await Web(upstream.url).post_form(f"{upstream.url}/token", [("a", "b")])
        assert len(upstream.requests) == 1


async def test_endless_redirects_are_refused() -> None:
    async with raw_upstream(moved("/again")) as upstream:
        with pytest.raises(WebFailed, match="More than 3 redirects"):
            await Web(upstream.url).get(upstream.url)
        assert len(upstream.requests) == 4


async def test_long_answers_are_not_read() -> None:
    endless = b"HTTP/1.1 200 OK\r\nContent-Length: 99999999\r\n\r\n" + b"x" * 300_000
    async with raw_upstream(always(endless)) as upstream:
        with pytest.raises(WebFailed, match="longer than"):
            await Web(upstream.url).get(upstream.url)


# Fetching tools with a stored login
async def fetch_from(upstream: OAuthUpstream) -> Fetched:
    target = Target(
        url=upstream.origin,
        endpoint="/mcp",
        headers=(),
        connect_timeout=10,
        list_timeout=10,
        tls=None,
        limit=1_000_000,
        uses_login=True,
    )
    return await fetch(target)


@pytest.fixture
def upstream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[OAuthUpstream]:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    with oauth_upstream() as it:
        yield it


async def test_a_token_that_is_rejected_early_is_renewed_once(upstream: OAuthUpstream) -> None:
    await log_in(upstream.url, Wishes(timeout=TIMEOUT), LoginStore(), show)
    upstream.end_access()
    assert (await fetch_from(upstream)).pages
    assert upstream.renewals == 1


async def test_missing_scopes_say_what_to_type(upstream: OAuthUpstream) -> None:
    await log_in(upstream.url, Wishes(timeout=TIMEOUT), LoginStore(), show)
    upstream.scope_to_enter = "admin"
    with pytest.raises(LoggedOut, match="lacks the right to do this"):
        await fetch_from(upstream)
