"""Requests to the addresses in metadata: which are sent, and which answers are taken."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from mcp_tool_filter.adapters.oauth.discovery import Web, WebFailed
from mcp_tool_filter.adapters.oauth.login import Wishes, log_in
from mcp_tool_filter.adapters.oauth.store import LoggedOut, LoginStore
from mcp_tool_filter.adapters.upstream.fetch import fetch
from mcp_tool_filter.adapters.upstream.target import Target
from mcp_tool_filter.errors import FetchFailed
from tests.login_browser import browse
from tests.oauth_server import OAuthUpstream
from tests.oauth_upstream import oauth_upstream
from tests.raw_upstream import Peer, raw_upstream

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

    await log_in(upstream.url, Wishes(timeout=10), LoginStore(), show)


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
