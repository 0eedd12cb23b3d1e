"""The filter without its rooms: it filters tools over HTTP, and refuses what it cannot do."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.cli.commands.proxying import CALL, LIST, NOT_FOUND, TOOLS, ask, names_in
from tests.cli.launched import ADDON, RunningLauncher, surroundings
from tests.hidden import ROOMS
from tests.mcp_upstream import RESULT, McpUpstream, mcp_upstream
from tests.proxy import REPOSITORY
from tests.raw_client import post, raw_client
from tests.raw_upstream import SSE_HEAD, Peer, RawRequest, answer, chunk

EVENT = b"data: " + RESULT.replace(b'"id":1', b'"id":"2"') + b"\n\n"


def words(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "tests.hidden", ROOMS, "--", *arguments]


def environment(home: Path) -> dict[str, str]:
    return surroundings(home, {"PYTHONPATH": f"{ADDON}:{REPOSITORY}"})


async def respond(request: RawRequest, peer: Peer) -> None:
    """Answer the second call in an event stream, all others at once."""
    if json.loads(request.body)["id"] == "2":
        await peer.say(SSE_HEAD + chunk(EVENT) + chunk(b""))
    else:
        await peer.say(answer(RESULT.replace(b'"id":1', b'"id":"1"')))


@asynccontextmanager
async def alone(home: Path) -> AsyncIterator[tuple[RunningLauncher, McpUpstream]]:
    """Run the launcher without rooms, in front of an upstream."""
    async with mcp_upstream(tools=TOOLS, respond=respond) as upstream:
        process = await asyncio.create_subprocess_exec(
            *words("--upstream", f"{upstream.url}/mcp", "--deny", "^rm_", "--port", "0"),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            cwd=REPOSITORY,
            env=environment(home),
        )
        running = RunningLauncher(process)
        running.read()
        try:
            await running.serving()
            yield running, upstream
        finally:
            await running.end()


async def test_the_filter_serves_without_its_rooms(tmp_path: Path) -> None:
    async with alone(tmp_path) as (it, upstream):
        assert names_in(await ask(it.port, LIST)) == ["read_file"]
        denied = await ask(it.port, CALL % (1, b"rm_rf"))
        assert (denied.status, denied.body) == (200, NOT_FOUND)
        allowed = await ask(it.port, CALL % (1, b"read_file"))
        assert json.loads(allowed.body)["result"] == {"content": []}
        async with raw_client(it.port) as client:
            streamed = await client.ask(post(CALL % (2, b"read_file")))
        assert EVENT in streamed.body
        assert [json.loads(one.body)["id"] for one in upstream.of("tools/call")] == ["1", "2"]
        assert "Traceback" not in it.stderr


@pytest.mark.parametrize("flags", [
    ("--rules", "rules.yaml"), ("--lock", "tools.lock"), ("--audit-log", "audit.jsonl"),
    ("--metrics-port", "0"), ("--otel",), ("--dashboard", "0"), ("--deny-prompts", "^a"),
    ("--inspect",), ("--record", "a.flow"),
])  # fmt: skip
def test_an_option_whose_room_is_missing_stops_the_start(
    flags: tuple[str, ...], tmp_path: Path
) -> None:
    """Whoever writes rules, or wants a log, must not get a filter without them."""
    usual = ("--upstream", "http://127.0.0.1:9/mcp", "--deny", "^rm_", "--port", "0")
    ended = run(*usual, *flags, home=tmp_path)
    assert ended.returncode == 1
    assert flags[0] in ended.stderr or "not installed" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert "Failed to connect" not in ended.stderr


@pytest.mark.parametrize("command", [
    ("status",), ("lock", "a.lock"), ("rules", "check", "a.yaml"), ("serve",), ("login", "x"),
    ("--", "cat"),
])  # fmt: skip
def test_a_command_whose_room_is_missing_says_so(command: tuple[str, ...], tmp_path: Path) -> None:
    ended = run(*command, home=tmp_path)
    assert ended.returncode == 1
    assert "not installed" in ended.stderr
    assert "Traceback" not in ended.stderr


def run(*arguments: str, home: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        words(*arguments), capture_output=True, text=True, timeout=60, check=False,
        stdin=subprocess.DEVNULL, cwd=REPOSITORY, env=environment(home),
    )  # fmt: skip
