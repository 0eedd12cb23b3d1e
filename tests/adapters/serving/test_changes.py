"""SIGHUP asks for new lists, in front of a URL and of a command."""

from __future__ import annotations

import asyncio
import os
import pty
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from tests.adapters.mitmproxy.filtered import not_found
from tests.adapters.mitmproxy.relisting import Changing, ask
from tests.make import asking
from tests.mcp_upstream import RESULT, mcp_upstream, saying
from tests.proxy import REPOSITORY
from tests.raw_upstream import TIMEOUT, free_port


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


def test_a_terminal_that_closes_ends_the_command_too(tmp_path: Path) -> None:
    """The command was not ended: one that ignores closed pipes ran for ever."""
    server = shlex.join([sys.executable, str(REPOSITORY / "tests" / "stdio_upstream.py")])
    stubborn = f"echo $$ >> {shlex.quote(str(tmp_path / 'pids'))}; {server}; sleep 3600"
    words = ["-m", "mcp_tool_filter", "--deny", "^x", "--port", "0", "--", "sh", "-c", stubborn]
    child, terminal = pty.fork()
    if child == 0:
        os.execv(sys.executable, [sys.executable, *words])
    said = b""
    while b"Saved" not in said:
        said += os.read(terminal, 1000)
    [url] = re.findall(r"http://[^ ]+", said.decode())[:1]
    headers = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
    body = asking("initialize", params='{"protocolVersion":"2025-11-25"}')
    urlopen(Request(url, body, headers), timeout=TIMEOUT).close()
    os.close(terminal)
    assert os.waitpid(child, 0)[0] == child
    pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    assert pids
    assert [pid for pid in pids if _is_alive(pid)] == []


def _is_alive(pid: int) -> bool:
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True)
    return bool(state.stdout.strip()) and not state.stdout.startswith("Z")
