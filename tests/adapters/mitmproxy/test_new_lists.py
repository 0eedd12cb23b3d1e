"""SIGHUP takes new snapshots and says in one line what has changed."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from pathlib import Path

import pytest

from tests.adapters.mitmproxy.filtered import call, not_found
from tests.mcp_upstream import RESULT, mcp_upstream, saying, tool, tool_list
from tests.proxy import REPOSITORY, SCRIPT, TIMEOUT
from tests.proxy import tool as run_tool
from tests.raw_client import MCP_HEADERS, post, raw_client
from tests.raw_upstream import RawRequest, answer, free_port


async def ask(port: int, name: str) -> bytes:
    async with raw_client(port) as client:
        return (await client.ask(post(call(name), headers=MCP_HEADERS))).body


class Changing:
    """An upstream's tools, which a test changes."""

    def __init__(self) -> None:
        self.names = ["stays", "goes"]

    def __call__(self, request: RawRequest, id: str) -> bytes:
        assert json.loads(request.body)["method"] == "tools/list"
        return answer(tool_list([tool(name) for name in self.names], id=id))


async def test_mitmdump_takes_new_snapshots_on_sighup(tmp_path: Path) -> None:
    lists = Changing()
    async with mcp_upstream(respond=saying(RESULT), lists=lists) as upstream:
        words = ["-s", SCRIPT, "--mode", f"reverse:{upstream.url}", "--set", "deny=^delete_"]
        async with run_tool("mitmdump", *words, "--set", "endpoint=/mcp", home=tmp_path) as it:
            found = await it.says(r"MCP tool filter: http://127.0.0.1:(\d+)")
            port = int(found[1])
            assert await ask(port, "goes") == RESULT
            lists.names = ["stays", "comes", "delete_all"]
            it.interrupt(signal.SIGHUP)
            await it.says("took a new list: new tool comes, new tool delete_all, tool goes is gone")
            assert await ask(port, "comes") == RESULT
            for name in ("goes", "delete_all"):
                assert await ask(port, name) == not_found(name)
            it.interrupt(signal.SIGHUP)
            await it.says("its tools are the same")
            assert it.stderr.count("took a new list") == 2


@pytest.mark.parametrize("more", [(), ("-q",)], ids=["usual", "quiet"])
async def test_the_launcher_takes_new_snapshots_on_sighup(more: tuple[str, ...]) -> None:
    lists, port = Changing(), free_port()
    async with mcp_upstream(respond=saying(RESULT), lists=lists) as upstream:
        words = ["-m", "mcp_tool_filter", *more, "-u", f"{upstream.url}/mcp", "--deny", "^delete_"]
        process = await asyncio.create_subprocess_exec(
            sys.executable, *words, "--port", str(port), stderr=asyncio.subprocess.PIPE
        )
        assert process.stderr
        try:
            async with asyncio.timeout(TIMEOUT):
                while True:
                    try:
                        assert await ask(port, "goes") == RESULT
                        break
                    except ConnectionRefusedError:
                        await asyncio.sleep(0.02)
                lists.names = ["stays", "comes"]
                process.send_signal(signal.SIGHUP)
                while b"took a new list" not in (line := await process.stderr.readline()):
                    assert line, await process.wait()
            assert b"new tool comes, tool goes is gone" in line
            assert await ask(port, "comes") == RESULT
            assert await ask(port, "goes") == not_found("goes")
        finally:
            process.terminate()
            await process.wait()


async def test_a_command_is_asked_again_on_sighup() -> None:
    words = ["-m", "mcp_tool_filter", "--deny", "^x", "--port", "0", "--", sys.executable]
    words += [str(REPOSITORY / "tests" / "stdio_upstream.py")]
    process = await asyncio.create_subprocess_exec(
        sys.executable, *words, stderr=asyncio.subprocess.PIPE
    )
    assert process.stderr
    try:
        async with asyncio.timeout(TIMEOUT):
            while b"Saved" not in (line := await process.stderr.readline()):
                assert line, await process.wait()
            process.send_signal(signal.SIGHUP)
            while b"SIGHUP" not in (line := await process.stderr.readline()):
                assert line, await process.wait()
        assert b"took a new list: its tools are the same" in line
    finally:
        process.terminate()
        await process.wait()


async def test_each_upstream_keeps_its_old_list_if_it_cannot_give_a_new_one(
    tmp_path: Path,
) -> None:
    """Two listeners in one process; the first upstream fails, the second has new tools."""
    lists, ports, is_down = Changing(), (free_port(), free_port()), False

    def failing(_request: RawRequest, id: str) -> bytes:
        if is_down:
            return answer(b"no", status="503 Service Unavailable", kind="text/plain")
        return answer(tool_list([tool("steady")], id=id))

    async with (
        mcp_upstream(respond=saying(RESULT), lists=failing) as one,
        mcp_upstream(respond=saying(RESULT), lists=lists) as two,
    ):
        modes = [f"reverse:{each.url}@{port}" for each, port in zip((one, two), ports, strict=True)]
        words = ["-s", SCRIPT, "--set", "deny=^delete_", "--set", "endpoint=/mcp"]
        words += [word for mode in modes for word in ("--mode", mode)]
        async with run_tool("mitmdump", *words, home=tmp_path) as it:
            await it.says(rf"MCP tool filter: http://127.0.0.1:{ports[1]}")
            assert await ask(ports[0], "steady") == RESULT
            is_down = True
            lists.names = ["stays", "comes"]
            it.interrupt(signal.SIGHUP)
            await it.says(
                rf"SIGHUP: took a new list of {two.url}: new tool comes, tool goes is gone"
            )
            await it.says(rf"Warning: SIGHUP: the old list of {one.url} stays: .*503")
            assert await ask(ports[0], "steady") == RESULT
            assert await ask(ports[1], "comes") == RESULT
            assert await ask(ports[0], "comes") == not_found("comes")
            await one.raw.stop()
            it.interrupt(signal.SIGHUP)
            await it.says(rf"the old list of {one.url} stays: Connection refused")
            assert await ask(ports[1], "stays") == RESULT
