"""New snapshots while we run: each upstream's by itself, and one line says what has changed."""

from __future__ import annotations

import signal
from pathlib import Path

from tests.adapters.mitmproxy.filtered import not_found
from tests.adapters.mitmproxy.relisting import Changing, ask
from tests.mcp_upstream import RESULT, mcp_upstream, saying, tool, tool_list
from tests.proxy import SCRIPT
from tests.proxy import tool as run_tool
from tests.raw_upstream import RawRequest, answer, free_port


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
