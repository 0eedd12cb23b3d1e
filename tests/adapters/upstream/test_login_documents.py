"""The documents in which an upstream says how to log in."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mcp_tool_filter.adapters.mitmproxy.addon import ToolFilter
from mcp_tool_filter.adapters.upstream.fetch import fetch_login_documents
from mcp_tool_filter.adapters.upstream.target import Target
from tests.attacks.stage import listening
from tests.oauth_upstream import oauth_upstream
from tests.proxy import proxy
from tests.raw_client import post, raw_client


def target(url: str) -> Target:
    return Target(
        url=url,
        endpoint=None,
        headers=(("Authorization", "Bearer secret"),),
        connect_timeout=10,
        list_timeout=10,
        tls=None,
        limit=1_000_000,
    )


async def test_both_documents_are_found() -> None:
    with oauth_upstream() as upstream:
        found = [
            json.loads(one) for one in await fetch_login_documents(target(upstream.origin), "/mcp")
        ]
    assert {"resource", "token_endpoint"} <= {name for document in found for name in document}


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", None])
async def test_an_upstream_without_documents_has_none(url: str | None) -> None:
    async with listening() as upstream:
        assert await fetch_login_documents(target(url or upstream.url), "/mcp") == []
        assert all(request.all("authorization") == [] for request in upstream.requests)


async def test_a_client_that_has_a_token_may_renew_it(tmp_path: Path) -> None:
    """It goes straight to the token endpoint, where other paths are closed."""
    with oauth_upstream() as upstream:
        upstream.metadata = {"token_endpoint": f"{upstream.origin}/oauth/t"}
        hello = ("server/discover", "initialize", "notifications/initialized")
        upstream.open_methods = (*hello, "tools/list")
        given = {"endpoint": ["/mcp"], "paths": ["mcp"]}
        async with (
            proxy(ToolFilter(), to=upstream.origin, home=tmp_path, **given) as it,
            raw_client(it.port) as client,
        ):
            form = b"Host: localhost\r\nContent-Type: application/x-www-form-urlencoded\r\n"
            got = await client.ask(post(b"grant_type=x", path="/oauth/t", headers=form))
            assert b"only the MCP endpoint" not in got.body
            got = await client.ask(post(b"grant_type=x", path="/oauth/other", headers=form))
            assert b"only the MCP endpoint" in got.body
