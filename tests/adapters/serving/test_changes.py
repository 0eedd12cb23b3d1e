"""SIGHUP asks for new lists, in front of a URL and of a command."""

from __future__ import annotations

import os
import pty
import re
import shlex
import signal
import sys
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from tests.adapters.mitmproxy.filtered import not_found
from tests.adapters.mitmproxy.relisting import Changing, ask
from tests.cli.launched import launched
from tests.make import asking
from tests.mcp_upstream import RESULT, mcp_upstream, saying
from tests.raw_upstream import TIMEOUT, free_port
from tests.stdio_client import is_alive, upstream


@pytest.mark.parametrize("more", [(), ("-q",)], ids=["usual", "quiet"])
async def test_the_launcher_takes_new_snapshots_on_sighup(
    more: tuple[str, ...], tmp_path: Path
) -> None:
    lists, port = Changing(), free_port()
    async with mcp_upstream(respond=saying(RESULT), lists=lists) as upstream:
        words = (*more, "-u", f"{upstream.url}/mcp", "--deny", "^delete_", "--port", str(port))
        async with launched(*words, home=tmp_path) as it:
            it.port = port
            await it.listening()
            assert await ask(port, "goes") == RESULT
            lists.names = ["stays", "comes"]
            it.interrupt(signal.SIGHUP)
            await it.says("took a new list.*new tool comes, tool goes is gone")
            assert await ask(port, "comes") == RESULT
            assert await ask(port, "goes") == not_found("goes")


async def test_a_command_is_asked_again_on_sighup(tmp_path: Path) -> None:
    async with launched("--deny", "^x", "--port", "0", "--", *upstream(), home=tmp_path) as it:
        await it.says("Saved")
        it.interrupt(signal.SIGHUP)
        await it.says("SIGHUP.*took a new list: its tools are the same")


def test_a_terminal_that_closes_ends_the_command_too(tmp_path: Path) -> None:
    """The command was not ended: one that ignores closed pipes ran for ever."""
    server = shlex.join(upstream())
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
    assert [pid for pid in pids if is_alive(pid)] == []
