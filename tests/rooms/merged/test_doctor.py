"""What ``doctor`` says of a file of servers: each of them, and what they show together."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from tests.cli.launched import run
from tests.mcp_upstream import tool
from tests.raw_upstream import raw_upstream
from tests.shapes import Server

LONG, TOO_LONG = "n" * 60, "n" * 250
TASKS = ', "execution":{"taskSupport":"required"}'
RESOURCES = {"resources/list": {"resources": [{"uri": "a://1"}, {"uri": "a://2"}]}}


async def examined(home: Path, text: str, *servers: Server) -> tuple[int, dict[str, Any]]:
    """Return what doctor finds, each finding with its advice; ``{0}`` is the first server's URL."""
    async with raw_upstream(servers[0].serve) as one, raw_upstream(servers[1].serve) as other:
        file = home / "f.toml"
        file.write_text(text.replace("{0}", one.url).replace("{1}", other.url))
        done = await asyncio.to_thread(run, "doctor", "--json", f"--config={file}", home=home)
    said = json.loads(done.stdout)
    assert said["ok"] is (done.returncode == 0)
    return done.returncode, {one["text"]: one["advice"] for one in said["checks"]}


FILE = '[servers.a]\nurl = "{0}/mcp"\n[servers.b]\nurl = "{1}/mcp"\n'


async def test_two_servers_that_go_together(tmp_path: Path) -> None:
    first, second = Server([tool("read")]), Server([tool("read"), tool("write")])
    status, found = await examined(tmp_path, FILE + '[profiles.p]\ndeny = "w"\n', first, second)
    assert status == 0
    assert "b: 2 tools: 2 exposed, 0 denied, 0 tokens saved" in found
    assert {"/mcp: 3 tools, 0 hidden", "/p/mcp: 2 tools, 1 hidden"} <= found.keys()


async def test_what_does_not_go_together_is_named_once(tmp_path: Path) -> None:
    first = Server([tool("read"), tool(LONG), tool("slow", TASKS), tool("gone")], RESOURCES)
    second = Server([tool("read"), tool(TOO_LONG)], RESOURCES)
    text = 'deny = ["^gone$", "^none$"]\n' + FILE.replace("mcp", 'mcp"\nprefix = "longer_')
    text += '[profiles.all]\n[profiles.none]\ndeny = "."\n'
    status, found = await examined(tmp_path, text, first, second)
    assert status == 1
    prefix = 'prefix = "…" in its table'
    wrong = {
        "/mcp: a and b both have the tool longer_read": prefix,
        "/mcp: a and b both have the resource a://1": "merge = false",
        "/mcp: a and b both have the resource a://2": "merge = false",
        "/mcp: a: longer_nnn": prefix,
        "/mcp: b: longer_nnn": prefix,
        "/mcp: a: slow needs tasks": "own path",
        "/none/mcp leaves no tool": "Deny less",
    }
    for start, advice in wrong.items():
        [text] = [one for one in found if one.startswith(start)]
        assert advice in found[text], text
    dead = [text for text in found if "matches no tool" in text]
    assert dead == ['The pattern "^none$" matches no tool of any server']
    assert sum(advice is not None for advice in found.values()) == len(wrong) + len(dead)


async def test_a_server_that_cannot_be_asked_is_one_finding(tmp_path: Path) -> None:
    text = FILE + '[servers.c]\ncommand = ["/no/such/program"]\n[servers.d]\nurl = "$NOT_SET/mcp"\n'
    status, found = await examined(tmp_path, text, Server([tool("x")]), Server([tool("y")]))
    assert status == 1
    assert any(text.startswith("c: ") and "/no/such/program" in text for text in found)
    assert any("servers.d" in text for text in found)
    assert "/mcp: 2 tools, 0 hidden" in found
