"""The logins that this user has stored, and the documents that say how to log in."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mcp_tool_filter.cli.parsing import parse_config
from mcp_tool_filter.core.errors import ListsAfterLogin
from mcp_tool_filter.core.upstream.fetch import fetch
from mcp_tool_filter.core.upstream.target import Target, login_to, target_for
from mcp_tool_filter.rooms.logins.stored import STORED, fetch_login_documents
from mcp_tool_filter.rooms.mitmproxy.addon import ToolFilter
from tests.attacks.stage import listening
from tests.core.upstream.mcp_script import dialogue, target
from tests.oauth_upstream import oauth_upstream
from tests.proxy import proxy
from tests.raw_client import post, raw_client
from tests.raw_upstream import SSE_HEAD, Peer, RawRequest, answer, chunk, raw_upstream

URL = "http://127.0.0.1:3000"
METHODS = ("initialize", "notifications/initialized", "tools/list")
WELL_KNOWN = "/.well-known"


def target_of(**options: Any) -> Target:
    return replace(target_for(parse_config(**options), URL, None), logins=STORED)


def test_given_credentials_replace_a_login(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "mcp-tool-filter" / "logins"
    folder.mkdir(parents=True)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    asked: list[str] = []
    monkeypatch.setattr("mcp_tool_filter.rooms.logins.tokens.credentials_for", asked.append)
    for headers, login in (([], "off"), (["Authorization: Bearer x"], "auto"), ([], "auto")):
        given = {"endpoint": "/mcp", "upstream_headers": headers, "login": login}
        login_to(target_of(**given))
    assert asked == [f"{URL}/mcp"]
    folder.rmdir()
    login_to(target_of(endpoint="/mcp"))
    assert asked == [f"{URL}/mcp"]


@pytest.mark.parametrize("document", [
    f"{WELL_KNOWN}/oauth-protected-resource/mcp",
    f"{WELL_KNOWN}/oauth-protected-resource",
    f"{WELL_KNOWN}/oauth-authorization-server",
    f"{WELL_KNOWN}/openid-configuration",
])  # fmt: skip
async def test_a_refusal_lists_after_a_login_if_a_document_says_how(
    document: str,
) -> None:
    def say(request: RawRequest) -> bytes:
        if request.line.startswith(f"GET {document} "):
            return answer(b"{}", kind="application/json")
        return answer(b"", status="401 Unauthorized", kind="text/plain")

    async with raw_upstream(dialogue(say)) as upstream:
        with pytest.raises(ListsAfterLogin):
            await fetch(replace(target(upstream.url, "/mcp"), logins=STORED))


# The documents in which an upstream says how to log in


SECRET = (("Authorization", "Bearer secret"),)


async def test_both_documents_are_found() -> None:
    with oauth_upstream() as upstream:
        asked = target(upstream.origin, headers=SECRET)
        found = await fetch_login_documents(asked, "/mcp")
    assert {"resource", "token_endpoint"} <= {name for one in found for name in json.loads(one)}


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", None])
async def test_an_upstream_without_documents_has_none(url: str | None) -> None:
    async with listening() as upstream:
        asked = target(url or upstream.url, headers=SECRET)
        assert await fetch_login_documents(asked, "/mcp") == []
        assert all(request.all("authorization") == [] for request in upstream.requests)


async def test_an_endless_stream_is_no_document() -> None:
    """Some upstreams answer each path so: each is looked at, and none is waited for."""

    async def stream(peer: Peer) -> None:
        await peer.request()
        await peer.say(SSE_HEAD + chunk(b"data: {}\n\n"))
        await asyncio.sleep(60)

    async with raw_upstream(stream) as upstream:
        assert await fetch_login_documents(target(upstream.url), "/mcp") == []
        asked = [request.line.split()[1] for request in upstream.requests]
    assert len(asked) == len(set(asked)) == 4


async def test_a_client_that_has_a_token_may_renew_it(tmp_path: Path) -> None:
    """It goes straight to the token endpoint, where other paths are closed."""
    form = b"Host: localhost\r\nContent-Type: application/x-www-form-urlencoded\r\n"
    with oauth_upstream() as upstream:
        upstream.metadata = {"token_endpoint": f"{upstream.origin}/oauth/t"}
        upstream.open_methods = ("server/discover", *METHODS)
        given: Any = {"home": tmp_path, "endpoint": ["/mcp"], "paths": ["mcp"]}
        running = proxy(ToolFilter(), to=upstream.origin, **given)
        async with running as it, raw_client(it.port) as client:
            for path, is_closed in (("/oauth/t", False), ("/oauth/other", True)):
                got = await client.ask(post(b"grant_type=x", path=path, headers=form))
                assert (b"only the MCP endpoint" in got.body) is is_closed
