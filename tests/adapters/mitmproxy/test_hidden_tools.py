"""A tool that is hidden for another reason than a pattern is named once for each kind of asker."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from tests.adapters.mitmproxy.filtered import LIST, call
from tests.mcp_upstream import RESULT, mcp_upstream, saying, tool, tool_list
from tests.proxy import SCRIPT, TIMEOUT
from tests.proxy import tool as run_tool
from tests.raw_client import MCP_HEADERS, post, raw_client
from tests.raw_upstream import RawRequest, answer, free_port

LONG = "x" * 257
FAULTY = [tool("read"), tool("read"), tool(LONG), b'{"name":7,"inputSchema":{}}', tool("delete_x")]
OPTIONS = {"deny": "^delete_", "endpoint": "/mcp", "tools_list": "upstream"}
REASONS = (
    "lists read twice",
    "x… is longer than 256 characters: not exposed; to get the tool",
    "a tool without a name: not exposed",
)
NEW = "new tool later: hidden until you restart the filter; with --new-tools judge"


def lists(request: RawRequest, id: str) -> bytes:
    """List more to clients than to the filter's own fetch at start."""
    is_ours = b"mcp-tool-filter" in request.head.lower()
    is_at_start = is_ours and b"authorization" not in request.head.lower()
    return answer(tool_list([tool("read")] if is_at_start else [*FAULTY, tool("later")], id=id))


async def ask(port: int, body: bytes, revision: str, user: str = "") -> bytes:
    headers = MCP_HEADERS + f"MCP-Protocol-Version: {revision}\r\n".encode()
    headers += f"Authorization: Bearer {user}\r\n".encode() if user else b""
    async with raw_client(port) as client:
        return (await client.ask(post(body, headers=headers))).body


async def check(port: int, stderr: Callable[[], str]) -> None:
    """Ask as several kinds of asker, twice; read what the user reads."""
    for _ in range(2):
        assert b"later" not in await ask(port, LIST, "2025-06-18")
        assert b"later" in await ask(port, LIST, "2025-11-25")
        assert await ask(port, call("read"), "2025-11-25", "ann") == RESULT  # asks for the list
    async with asyncio.timeout(TIMEOUT):
        while "credentials)" not in stderr():
            await asyncio.sleep(0.01)
    said = stderr()
    [new] = [line for line in said.splitlines() if NEW in line]
    assert "2025-06-18" in new
    for reason in REASONS:
        lines = [line for line in said.splitlines() if reason in line]
        assert all(line.startswith("Warning: ") for line in lines)
        assert [line for line in lines if "2025-06-18" in line] == lines[:1]
        assert len([line for line in lines if line.endswith("credentials)")]) == 1
        assert len(lines) == 3
    assert "delete_x" not in said  # a pattern hides it
    assert "ann" not in said


@pytest.mark.parametrize("more", [(), ("-q",)], ids=["usual", "quiet"])
async def test_mitmdump_names_hidden_tools(more: tuple[str, ...], tmp_path: Path) -> None:
    options = [part for name, value in OPTIONS.items() for part in ("--set", f"{name}={value}")]
    async with mcp_upstream(respond=saying(RESULT), lists=lists) as upstream:
        words = [*more, "-s", SCRIPT, "--mode", f"reverse:{upstream.url}", *options]
        async with run_tool("mitmdump", *words, home=tmp_path) as running:
            found = await running.says(r"MCP tool filter: http://127.0.0.1:(\d+)")
            await check(int(found[1]), lambda: running.stderr)


@pytest.mark.parametrize("more", [(), ("-q",), ("-v",)], ids=["usual", "quiet", "verbose"])
async def test_the_launcher_names_hidden_tools(more: tuple[str, ...], tmp_path: Path) -> None:
    port = free_port()
    flags = [*more, "--deny", "^delete_", "--tools-list", "upstream", "--port", str(port)]

    async with mcp_upstream(respond=saying(RESULT), lists=lists) as upstream:
        words = ["-m", "mcp_tool_filter", "-u", f"{upstream.url}/mcp", *flags]
        with (tmp_path / "stderr").open("wb") as stderr:
            process = await asyncio.create_subprocess_exec(
                sys.executable, *words, stderr=stderr, stdin=asyncio.subprocess.DEVNULL
            )
        try:
            async with asyncio.timeout(TIMEOUT):
                await accepting(port)
            await check(port, (tmp_path / "stderr").read_text)
        finally:
            process.terminate()
            await process.wait()


async def accepting(port: int) -> None:
    while True:
        with suppress(ConnectionRefusedError):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.close()
            return
        await asyncio.sleep(0.02)
