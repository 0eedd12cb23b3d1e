"""SIGHUP asks for new lists, in front of a URL and of a command."""

from __future__ import annotations

import asyncio
import signal
import sys

import pytest

from tests.adapters.mitmproxy.filtered import not_found
from tests.adapters.mitmproxy.relisting import Changing, ask
from tests.mcp_upstream import RESULT, mcp_upstream, saying
from tests.proxy import REPOSITORY, TIMEOUT
from tests.raw_upstream import free_port


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
