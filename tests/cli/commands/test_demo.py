"""The demo shows the truth: it runs the real filter before a real server."""

from __future__ import annotations

import json
import signal
from pathlib import Path

from tests.cli.launched import launched, run
from tests.raw_client import post, raw_client


def test_an_agent_sees_half_of_the_tools_and_calls_no_other(tmp_path: Path) -> None:
    ended = run("demo", home=tmp_path)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "The agent saw 20 tools" in ended.stdout
    assert "now it sees 10 tools" in ended.stdout
    assert "Tool not found: shell_execute\n  (the call did not reach the server)" in ended.stdout
    assert "file_read was called with" in ended.stdout


def test_the_demo_accepts_other_patterns(tmp_path: Path) -> None:
    ended = run("demo", "--deny", "^file_", home=tmp_path)
    assert "now it sees 15 tools" in ended.stdout
    assert "Tool not found: file_search" in ended.stdout


def test_the_demo_refuses_unusable_patterns(tmp_path: Path) -> None:
    ended = run("demo", "--deny", "(a+)+", home=tmp_path)
    assert ended.returncode == 1
    assert ended.stderr.startswith('Error: Unsafe regex pattern detected: "(a+)+"\n')


async def test_the_demo_can_stay_open_for_other_clients(tmp_path: Path) -> None:
    async with launched("demo", "--stay", home=tmp_path) as it:
        found = await it.says(r"The filter listens at http://127\.0\.0\.1:(\d+)/mcp")
        async with raw_client(int(found[1])) as client:
            answer = await client.ask(post(b'{"jsonrpc":"2.0","id":1,"method":"tools/list"}'))
        assert len(json.loads(answer.body)["result"]["tools"]) == 10
        it.interrupt(signal.SIGINT)
        assert await it.exit_code() == 0
