"""The table of what each action of a rule does, over stdio: before a command, and before a URL."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.adapters.mitmproxy.test_rules_everywhere import (
    Ask,
    Echo,
    Message,
    every_action_does_what_it_says,
    policy,
    read,
)
from tests.mcp_upstream import mcp_upstream, tool
from tests.stdio_client import StdioClient, filtered

TOOLS = [tool("read_file"), tool("delete_file")]
ECHO = """
import json, sys
heard = []
for line in sys.stdin:
    asked = json.loads(line)
    if "id" not in asked:
        continue
    method, result = asked["method"], {}
    if method == "initialize":
        result = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}},
                  "serverInfo": {"name": "echo", "version": "1"}}
    elif method == "tools/list":
        result = {"tools": [{"name": name, "inputSchema": {"type": "object"}}
                            for name in ("read_file", "delete_file")]}
    elif method == "tools/call":
        arguments = asked["params"]["arguments"]
        heard.append(arguments)
        with open(sys.argv[1], "a") as journal:
            journal.write(json.dumps(arguments) + "\\n")
        text = f"secret-{len(heard)} {json.dumps(arguments)}"
        result = {"content": [{"type": "text", "text": text}]}
    print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result}), flush=True)
"""


@dataclass
class Journal:
    """What the command has heard, in a file."""

    path: Path

    @property
    def heard(self) -> Journal:
        return self

    def clear(self) -> None:
        self.path.write_text("")

    def __iter__(self) -> Iterator[Message]:
        return map(json.loads, self.path.read_text().splitlines())


def over(client: StdioClient) -> Ask:
    async def ask(body: bytes) -> Message:
        client.say(body)
        return read(await asyncio.to_thread(client.hears_line))

    return ask


async def test_every_rule_works_before_a_command(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")
    journal.clear()
    command = (sys.executable, "-c", ECHO, str(journal.path))
    words = ("--deny", "^never$", "--rules", policy(tmp_path), "--", *command)
    with filtered(*words, home=tmp_path) as client:
        client.opens()
        await every_action_does_what_it_says(over(client), journal)
        assert client.leaves() == 0


async def test_every_rule_works_before_a_url(tmp_path: Path) -> None:
    echo = Echo()
    async with mcp_upstream(tools=TOOLS, respond=echo.respond) as upstream:
        words = ("--deny", "^never$", "--rules", policy(tmp_path))
        with filtered(*words, "--stdio", "-u", f"{upstream.url}/mcp", home=tmp_path) as client:
            await asyncio.to_thread(client.opens)
            await every_action_does_what_it_says(over(client), echo)
            assert await asyncio.to_thread(client.leaves) == 0
