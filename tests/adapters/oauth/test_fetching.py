"""Fetching tools with a stored login."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from mcp_tool_filter.adapters.oauth.login import Wishes, log_in
from mcp_tool_filter.adapters.oauth.store import LoggedOut, LoginStore
from mcp_tool_filter.adapters.upstream.fetch import fetch
from mcp_tool_filter.adapters.upstream.target import Target
from mcp_tool_filter.errors import FetchFailed
from tests.login_browser import browse
from tests.oauth_server import OAuthUpstream
from tests.oauth_upstream import oauth_upstream


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
