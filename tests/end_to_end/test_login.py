"""Servers of real SDKs behind a login, real clients that know nothing of it, and us between."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import pytest

from mcp_tool_filter.rooms.mitmproxy.addon import ToolFilter
from tests.cli.launched import launched, run
from tests.end_to_end.logins import ALL, PLACES, SERVERS, assert_served, combinations, log_in
from tests.end_to_end.peer import Document, Step, play, upstream
from tests.login_browser import browser_command
from tests.oauth_upstream import oauth_upstream
from tests.proxy import certified, proxy
from tests.rooms.logins.test_logins_in_mitmproxy import log_in_to

PLAYERS = ("mcp1", "mcp2", "ts1", "ts2")
READ = {"call": "read_file", "arguments": {"path": "a"}}
STEPS: list[Step] = [
    {"list": "tools"},
    READ,
    {"call": "delete_file", "arguments": {"path": "a"}},
    {"sleep": 4000},  # longer than a token lives
    {"parallel": [READ] * 8},
    READ,
]


def login(url: str, home: Path) -> None:
    more = {"XDG_CONFIG_HOME": str(home), "BROWSER": browser_command()}
    done = run("login", url, home=home, environment=more)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("client", "server"), combinations(SERVERS, PLAYERS))
async def test_a_client_without_login_support_works(
    tmp_path: Path, client: str, server: str
) -> None:
    with upstream(server, "--lifetime=3") as behind:
        await asyncio.to_thread(login, behind.url, tmp_path)
        flags = ("--upstream", behind.url, "--deny", "^delete_")
        environment = {"XDG_CONFIG_HOME": str(tmp_path)}
        async with launched(*flags, home=tmp_path, environment=environment) as it:
            await it.serving()
            url = f"http://127.0.0.1:{it.port}/mcp"
            document = await asyncio.to_thread(play, client, url, STEPS)
    assert_works(document)


@pytest.mark.parametrize(
    ("client", "server"), combinations(SERVERS[-1:], PLAYERS if ALL else PLAYERS[1::2])
)
async def test_a_client_behind_a_pipe_uses_the_login(
    tmp_path: Path, client: str, server: str
) -> None:
    with upstream(server, "--lifetime=3") as behind:
        await asyncio.to_thread(login, behind.url, tmp_path)
        own = ("env", f"XDG_CONFIG_HOME={tmp_path}")  # clients pass on next to nothing
        program = str(Path(sys.executable).with_name("mcp-tool-filter"))
        words = [*own, program, "--stdio", "--upstream", behind.url, "--deny", "^delete_"]
        flags = ("--transport", "stdio")
        document = await asyncio.to_thread(play, client, json.dumps(words), STEPS, *flags)
    assert_works(document)


def assert_works(document: Document) -> None:
    assert document.error is None
    listed, first, denied, _, many, last = document.outcomes
    assert [tool["name"] for tool in listed["result"]["tools"]] == ["read_file"]
    assert denied["error"]["code"] == -32601
    for outcome in (first, *many["outcomes"], last):
        assert outcome["result"]["content"][0]["text"] == "the text of a", outcome


@pytest.mark.parametrize(("client", "place"), combinations(tuple(PLACES)))
async def test_a_client_with_login_support_need_not_log_in(
    tmp_path: Path, client: str, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever the authorization server is; over https, and after the token has expired."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    with oauth_upstream(tls=certified(tmp_path), lifetime=3, **PLACES[place]) as server:
        theirs = str(tmp_path / "upstream-ca-cert.pem")
        await log_in_to(server, theirs)
        given = {"deny": ["^delete_"], "endpoint": ["/mcp"], "ssl_insecure": False}
        trusted = {"ssl_verify_upstream_trusted_ca": theirs}
        home = tmp_path
        async with proxy(ToolFilter(), to=server.origin, home=home, **given, **trusted) as running:
            ca = tmp_path / "mitmproxy-ca-cert.pem"
            seen = await log_in(client, f"https://localhost:{running.port}/mcp", 3.5, ca)
    assert_served(seen)
    assert seen["visited"] == []
    assert server.renewals > 0
