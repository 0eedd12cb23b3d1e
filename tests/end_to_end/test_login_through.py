"""Real clients log in through us, with a scripted browser, wherever the authorization server is."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest

from mcp_tool_filter.rooms.mitmproxy.addon import ToolFilter
from tests.browser import browser
from tests.end_to_end.logins import (
    ALL,
    CLIENTS,
    PLACES,
    SERVERS,
    assert_served,
    combinations,
    log_in,
)
from tests.end_to_end.peer import upstream
from tests.oauth_upstream import oauth_upstream
from tests.proxy import RunningProxy, certified, proxy
from tests.raw_client import MCP_HEADERS, post, raw_client
from tests.raw_upstream import always, answer, raw_upstream


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Registrations are kept in the user's folder."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


@asynccontextmanager
async def through(home: Path, origin: str, **options: Any) -> AsyncIterator[RunningProxy]:
    given = {"deny": ["^delete_"], "endpoint": ["/mcp"], **options}
    async with proxy(ToolFilter(), to=origin, home=home, **given) as it:
        yield it


@pytest.mark.parametrize(("client", "place"), combinations(tuple(PLACES)))
async def test_a_client_logs_in_through_us(
    client: str, place: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """And again with the refresh token, for an access token lives three seconds."""
    caplog.set_level(logging.DEBUG)
    with oauth_upstream(lifetime=3, **PLACES[place]) as server:
        async with through(tmp_path, server.origin) as running:
            ours = f"http://127.0.0.1:{running.port}"
            seen = await log_in(client, ours + "/mcp", 3.5)
        assert_served(seen)
        assert seen["visited"][0].startswith(ours)
        assert server.renewals > 0
        if server.sends_issuer:
            assert seen["iss"] == ours
            registered = server.registrations[0]["redirect_uris"]
            assert [urlsplit(uri).netloc for uri in registered] == [urlsplit(ours).netloc]
        for asked in (*server.authorizations, *server.token_requests):
            assert asked.get("resource", server.url) == server.url
        said = "\n".join(record.getMessage() for record in running.said) + caplog.text
        assert not [secret for secret in server.all_secrets() if secret in said]


@pytest.mark.parametrize(
    ("client", "kind"), combinations(SERVERS, CLIENTS if ALL else ("ts2", "remote", "fastmcp"))
)
async def test_a_client_logs_in_to_an_sdk_server_through_us(
    client: str, kind: str, tmp_path: Path
) -> None:
    """With that SDK's own authorization server and its check of each token."""
    with upstream(kind, "--lifetime=3") as behind:
        async with through(tmp_path, behind.origin) as running:
            ours = f"http://127.0.0.1:{running.port}"
            seen = await log_in(client, ours + "/mcp", 3.5)
    assert_served(seen, "the text of a")
    assert seen["visited"][0].startswith(ours)


@pytest.mark.parametrize(
    ("client", "place"),
    combinations(("same origin", "other origin, sends iss"), CLIENTS if ALL else ("mcp2", "ts2")),
)
async def test_https_on_both_sides(client: str, place: str, tmp_path: Path) -> None:
    """Each side with a certificate of a CA of its own."""
    with oauth_upstream(tls=certified(tmp_path), lifetime=3, **PLACES[place]) as server:
        theirs = tmp_path / "upstream-ca-cert.pem"
        options = {"ssl_insecure": False, "ssl_verify_upstream_trusted_ca": str(theirs)}
        async with through(tmp_path, server.origin, **options) as running:
            both = tmp_path / "both.pem"
            own = tmp_path / "mitmproxy-ca-cert.pem"
            both.write_bytes(own.read_bytes() + theirs.read_bytes())
            ours = f"https://localhost:{running.port}"
            seen = await log_in(client, ours + "/mcp", 3.5, both)
    assert_served(seen)
    assert seen["visited"][0].startswith(ours)


@pytest.mark.parametrize("one", CLIENTS if ALL else ("mcp1", "ts1"))
async def test_each_user_has_their_own_list_and_rights(one: str, tmp_path: Path) -> None:
    """At once, through one proxy, and also after their tokens were renewed."""
    has = (("read_file", "delete_file"), ("read_file", "write_file", "delete_file"))
    with oauth_upstream(lifetime=3, elsewhere=True, tools_of=has) as server:
        async with through(tmp_path, server.origin) as running:
            url = f"http://127.0.0.1:{running.port}/mcp"
            both = await asyncio.gather(log_in(one, url, 3.5), log_in("ts2", url, 3.5))
        lists = sorted((seen["tools"] for seen in both), key=len)
        assert lists == [["read_file"], ["read_file", "write_file"]]
        assert {seen["called_later"] for seen in both} == {"done"}
        tokens = {token for method, token in server.calls if method == "tools/call"}
        assert len(tokens - {None}) == 4


async def test_a_real_browser_logs_in(tmp_path: Path) -> None:
    """From the authorization endpoint to the client's page, across four origins."""
    page = answer(b"<p>You are logged in</p>", kind="text/html")
    async with raw_upstream(always(page)) as landing:
        with oauth_upstream(elsewhere=True, sends_issuer=True) as server:
            async with through(tmp_path, server.origin) as running:
                ours = f"http://localhost:{running.port}"
                back = f"{landing.url}/callback"
                ping = b'{"jsonrpc":"2.0","id":1,"method":"ping"}'
                client = json.dumps({"redirect_uris": [back]}).encode()
                headers = MCP_HEADERS.replace(b"localhost", ours.partition("//")[2].encode())
                async with raw_client(running.port) as asking:
                    await asking.ask(post(ping, headers=headers))
                    await asking.ask(post(client, path="/register", headers=headers))
                await asyncio.to_thread(visit_in_browser, tmp_path, ours, back)
        [said] = [one.line.split()[1] for one in landing.requests if "code=" in one.line]
        query = parse_qs(urlsplit(said).query)
        assert query["state"] == ["mine"]
        assert query["iss"] == [ours]


def visit_in_browser(home: Path, ours: str, back: str) -> None:
    query = {
        "client_id": "client-1", "redirect_uri": back, "state": "mine",
        "code_challenge": "c" * 43, "code_challenge_method": "S256", "resource": f"{ours}/mcp",
    }  # fmt: skip
    with browser(home) as page:
        page.go(f"{ours}/authorize?{urlencode(query)}")
        page.wait_for("You are logged in")
