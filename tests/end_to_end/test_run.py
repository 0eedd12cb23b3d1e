"""Real clients as the child of ``run``: each SDK, a login, http and https, and who goes around."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.cli import launched
from tests.end_to_end.logins import command_of
from tests.end_to_end.peer import need, script, upstream
from tests.make import answering, asking, calling
from tests.mcp_upstream import mcp_upstream, tool
from tests.oauth_upstream import oauth_upstream
from tests.proxy import certified
from tests.raw_upstream import Peer, answer, raw_upstream

PONG = answering("{}")
STEPS = (
    '[{"call": "read_file", "arguments": {"path": "a"}}, {"list": "tools"},'
    ' {"call": "write_file", "arguments": {"path": "a", "text": "b"}}]'
)
CLIENTS = ("mcp1", "mcp2", "ts1", "ts2")
LOGINS = ("mcp1", "mcp2", "ts1")


def asked(method: str) -> str:
    return asking(method).decode()


async def run(home: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return await ours(home, "run", *words, **environment)


async def ours(home: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command of ours as a user who has no files yet."""
    none = {"XDG_STATE_HOME": "", "XDG_CONFIG_HOME": ""}
    started = partial(launched.run, home=home, environment=none | environment)
    return await asyncio.to_thread(started, *words)


def document(ran: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert ran.stdout.startswith("{"), ran.stderr
    found: dict[str, Any] = json.loads(ran.stdout)
    return found


def list_servers(home: Path, **servers: dict[str, Any]) -> None:
    """Write Claude Code's file."""
    (home / ".claude.json").write_text(json.dumps({"mcpServers": servers}))


@pytest.mark.parametrize(
    ("client", "transport"),
    [*((one, "streamable") for one in CLIENTS), ("mcp1", "sse"), ("mcp2", "sse")],
)
async def test_an_sdk_client_is_filtered(client: str, transport: str, tmp_path: Path) -> None:
    """Also an agent that knows the tools already, and calls one before it lists them."""
    need(client)
    way = ("--transport", transport)
    with upstream("mcp1", *way) as server:
        list_servers(tmp_path, files={"type": "http", "url": server.url})
        expected = ("--server", server.url) if transport == "sse" else ("--client", "claude-code")
        words = [*script(f"client_{client}"), *way, server.url, STEPS]
        ran = await run(tmp_path, "--deny", "^write_", *expected, "--", *words)
        assert server.calls() == ["read_file"]
    read, listed, called = document(ran)["outcomes"]
    assert not read["result"].get("isError")
    names = [one["name"] for one in listed["result"]["tools"]]
    assert "read_file" in names
    assert "write_file" not in names
    assert called["error"]["message"].endswith("Tool not found: write_file")
    assert "WARNING" not in ran.stderr
    assert "internal error" not in ran.stderr


@pytest.mark.parametrize("is_https", [False, True])
@pytest.mark.parametrize("client", LOGINS)
async def test_a_login_works_and_nothing_is_rewritten(
    client: str, is_https: bool, tmp_path: Path
) -> None:
    need(client)
    tls = certified(tmp_path) if is_https else None
    trust = ("--ca", str(tmp_path / "upstream-ca-cert.pem")) if is_https else ()
    with oauth_upstream(elsewhere=True, sends_issuer=True, tls=tls) as there:
        flags = ("--deny", "^delete_", "--server", there.url, *trust)
        ran = await run(tmp_path, *flags, "--", *command_of(client), there.url)
        seen = document(ran)
        assert seen["tools"] == ["read_file"]
        assert seen["called"] == "done"
        assert seen["iss"] == there.issuer
        registered = [uri for one in there.registrations for uri in one["redirect_uris"]]
        assert set(registered) == {"http://127.0.0.1:49152/callback"}
        for asked in (*there.authorizations, *there.token_requests):
            assert asked.get("resource", there.url) == there.url
        assert not [one for one in there.all_secrets() if one in ran.stderr]
    assert "WARNING" not in ran.stderr


async def test_run_names_servers_that_did_not_come_through(tmp_path: Path) -> None:
    """Node without support for the variables goes around us."""
    need("ts1")
    with upstream("mcp1") as server:
        list_servers(tmp_path, files={"type": "http", "url": server.url + "?key=secret"})
        words = [*script("client_ts1"), server.url, STEPS]
        without = ["env", "-u", "NODE_USE_ENV_PROXY", *words]
        ran = await run(tmp_path, "--deny", "^write_", "--client", "claude-code", "--", *without)
        assert server.calls() == ["read_file", "write_file"]
    assert "WARNING: 1 MCP server did not come through the filter" in ran.stderr
    assert f"files  {server.url}  (claude-code, user)" in ran.stderr
    assert "secret" not in ran.stderr


async def test_an_old_node_version_is_reported(tmp_path: Path) -> None:
    """Node 20 never uses the proxy. (Where the machine's own is newer, it does.)"""
    node = shutil.which("node")
    assert node, "the machine has no Node of its own"
    said = subprocess.run([node, "-p", "process.versions.node"], capture_output=True, check=True)
    major, minor, *_ = map(int, said.stdout.decode().split("."))
    is_new = (major, minor) >= (24, 5) or (22, 21) <= (major, minor) < (23, 0)
    async with mcp_upstream(tools=[tool("a")]) as there:
        url = there.url + "/mcp"
        ask = f"fetch('{url}', {{method: 'POST', body: process.argv[1]}})"
        words = [node, "-e", ask, calling("write_a").decode()]
        ran = await run(tmp_path, "--deny", "^write_", "--server", url, "--", *words)
        assert ran.returncode == 0, ran
        assert bool(there.of("tools/call")) is not is_new
    assert ("WARNING: 1 MCP server" in ran.stderr) is not is_new


async def test_a_client_that_does_not_trust_our_certificate_is_reported(tmp_path: Path) -> None:
    async with mcp_upstream(tools=[tool("a")], tls=certified(tmp_path)) as there:
        url = there.url.replace("127.0.0.1", "localhost") + "/mcp"
        words = ["env", "-u", "SSL_CERT_FILE", "-u", "CURL_CA_BUNDLE", "curl", "-s", url]
        ran = await run(tmp_path, "--server", url, "--", *words)
    assert ran.returncode == 60  # curl's own
    assert "A client does not trust our certificate for localhost" in ran.stderr
    assert f"{url}  (named by --server): the client does not trust our certificate" in ran.stderr


async def test_a_server_with_an_untrusted_certificate_is_named(tmp_path: Path) -> None:
    async with mcp_upstream(tools=[tool("a")], tls=certified(tmp_path)) as there:
        words = ("--host", "127.0.0.1", "--", "curl", "-sS", there.url + "/mcp")
        ran = await run(tmp_path, *words)
    assert "Warning: No connection to 127.0.0.1: " in ran.stderr
    assert "--ca FILE" in ran.stderr


async def test_a_server_started_as_a_command_is_named(tmp_path: Path) -> None:
    list_servers(
        tmp_path,
        files={"command": "npx", "args": ["a-server"]},
        safe={"command": "mcp-tool-filter", "args": ["--deny", "a", "--", "npx"]},
        remote={"command": "npx", "args": ["-y", "mcp-remote", "https://mcp.example/mcp"]},
    )
    ran = await run(tmp_path, "--client", "claude-code", "--", "true")
    assert "Warning: files is not filtered: the client starts it as a command" in ran.stderr
    assert "mcp-tool-filter wrap claude-code files" in ran.stderr
    assert "safe" not in ran.stderr
    assert "mcp-remote uses the filter only with --enable-proxy" in ran.stderr


async def test_the_doctor_names_servers_that_were_not_seen(tmp_path: Path) -> None:
    async with mcp_upstream(tools=[tool("a")]) as there:
        list_servers(
            tmp_path,
            used={"url": there.url + "/mcp"},
            unused={"url": there.url + "/other"},
            local={"command": "npx", "args": ["a-server"]},
        )
        words = ("curl", "-s", "-d", asked("tools/list"), there.url + "/mcp")
        doctor = ("doctor", "--client", "claude-code", "--json")
        before = document(await ours(tmp_path, *doctor))
        await run(tmp_path, "--client", "claude-code", "--", *words)
        after = document(await ours(tmp_path, *doctor))
    assert [one["ok"] for one in before["checks"][-3:]] == [True, True, False]
    used, unused, local = after["checks"][-3:]
    assert used["ok"]
    assert "came through the filter in the run of" in used["text"]
    assert not unused["ok"]
    assert "did not come through the filter in the run of" in unused["text"]
    assert local["advice"] == "mcp-tool-filter wrap claude-code local --deny PATTERN"


async def test_the_proxy_of_the_environment_is_used(tmp_path: Path) -> None:
    """With its login; but not for this machine, which it could not reach."""
    call = asked("tools/list")
    async with mcp_upstream(tools=[tool("a")]) as behind, mcp_upstream() as here:
        asks = [
            f"curl -sS -d '{call}' http://mcp.example/mcp",
            f"curl -sS -d '{call}' {here.url}/mcp",
            "curl -sS http://mcp.example/page",
            f"curl -sS {here.url}/page",
        ]
        proxy = behind.url.replace("://", "://me:secret@")
        words = ("--host", "mcp.example", "--", "sh", "-c", "; ".join(asks))
        ran = await run(tmp_path, *words, http_proxy=proxy, NO_PROXY="other.example")
        assert "secret" not in ran.stderr
    basic = ["Basic bWU6c2VjcmV0"]
    listed, page = behind.asked
    assert listed.line == "POST http://mcp.example/mcp HTTP/1.1"
    assert page.line == "GET http://mcp.example/page HTTP/1.1"
    assert listed.all("proxy-authorization") == page.all("proxy-authorization") == basic
    assert [one.line for one in here.asked] == ["POST /mcp HTTP/1.1", "GET /page HTTP/1.1"]
    assert not [one for one in here.asked if one.all("proxy-authorization")]
    assert "Not filtered, because they are not named: 127.0.0.1 (--host NAME" in ran.stderr


@pytest.mark.parametrize("named", [(), ("--host", "mcp.example")], ids=["unread", "filtered"])
async def test_a_tunnel_goes_through_the_proxy_of_the_environment(
    named: tuple[str, ...], tmp_path: Path
) -> None:
    async def script(peer: Peer) -> None:
        for said in (b"HTTP/1.1 200 OK\r\n\r\n", answer(PONG)):
            await peer.request()
            await peer.say(said)

    async with raw_upstream(script) as behind:
        proxy = behind.url.replace("://", "://me:secret@")
        words = ("curl", "-sS", "--proxytunnel", "-d", asked("ping"), "http://mcp.example/mcp")
        ran = await run(tmp_path, *named, "--", *words, HTTPS_PROXY=proxy)
    assert ran.stdout == PONG.decode(), ran
    lines = [one.line for one in behind.requests]
    assert lines == ["CONNECT mcp.example:80 HTTP/1.1", "POST /mcp HTTP/1.1"]
    assert not behind.requests[1].all("proxy-authorization")


async def test_certificates_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    (tmp_path / ".mitmproxy").mkdir()
    (tmp_path / ".mitmproxy" / "mitmproxy-ca.pem").write_text("no certificate")
    ran = await run(tmp_path, "--deny", "x", "--", "true")
    assert ran.returncode == 1
    assert "Error: Cannot use mitmproxy's certificates in " in ran.stderr
    assert "Traceback" not in ran.stderr


async def test_the_terminal_and_the_audit_log_name_the_upstream(tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with mcp_upstream(tools=[tool("a"), tool("rm")]) as there:
        words = ("curl", "-s", "-d", calling("rm").decode(), there.url + "/mcp?key=secret")
        flags = ("--host", "127.0.0.1", "--deny", "^rm$", "--audit-log", str(log))
        ran = await run(tmp_path, *flags, "--", *words)
        [line] = map(json.loads, log.read_text().splitlines())
    assert line["upstream"] == there.url + "/mcp"
    assert f" {there.url}/mcp tools/call rm: refused (denied by ^rm$)" in ran.stderr
    assert "secret" not in ran.stderr + log.read_text()


async def test_in_a_terminal_the_dashboard_is_named_and_a_summary_is_the_end(
    tmp_path: Path,
) -> None:
    """Between them the screen belongs to the client."""
    async with mcp_upstream(tools=[tool("a")]) as there:
        asks = ("curl", "-s", "-d", calling("rm").decode(), there.url)
        words = ("run", "--server", there.url, "--deny", "^rm$", "--dashboard", "0", "--", *asks)
        ours, theirs = pty.openpty()
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "mcp_tool_filter", *words, env=launched.surroundings(tmp_path),
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=theirs,
        )  # fmt: skip
        async with asyncio.timeout(90):
            await process.wait()
        os.close(theirs)
        said = os.read(ours, 1 << 16).decode()
        os.close(ours)
    assert "Dashboard: http://127.0.0.1:" in said
    assert "1 refused" in said
    assert "tools/call rm: refused" not in said
