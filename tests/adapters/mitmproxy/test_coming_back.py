"""An upstream that was lost and is back is filtered by its new list; the user reads what is new."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from mcp_tool_filter.adapters.mitmproxy.addon import ToolFilter
from tests.adapters.mitmproxy.filtered import call, not_found
from tests.mcp_upstream import RESULT, mcp_upstream, saying, tool, tool_list
from tests.proxy import TIMEOUT, proxy
from tests.raw_client import MCP_HEADERS, post, raw_client
from tests.raw_upstream import RawRequest, answer


async def test_an_upstream_that_is_back_gets_a_new_snapshot(tmp_path: Path) -> None:
    names = ["stays", "goes"]

    def lists(request: RawRequest, id: str) -> bytes:
        assert json.loads(request.body)["method"] == "tools/list"
        return answer(tool_list([tool(name) for name in names], id=id))

    tool_filter = ToolFilter(report=lambda _text: None)
    options = {"deny": ["^delete_"], "endpoint": ["/mcp"], "fail_fast": ["false"]}
    async with (
        mcp_upstream(tools=[], respond=saying(RESULT), lists=lists) as upstream,
        proxy(tool_filter, to=upstream.url, home=tmp_path, **options) as running,
    ):

        async def ask(name: str) -> bytes:
            async with raw_client(running.port) as client:
                return (await client.ask(post(call(name), headers=MCP_HEADERS))).body

        assert await ask("goes") == RESULT
        names[:] = ["stays", "comes", "delete_all"]
        tool_filter._loss.lose()
        assert await ask("stays") == RESULT
        async with asyncio.timeout(TIMEOUT):
            while not any("is back" in one.getMessage() for one in running.said):
                await asyncio.sleep(0.01)
        assert await ask("comes") == RESULT
        for name in ("goes", "delete_all"):
            assert await ask(name) == not_found(name)
        [gone, back] = [
            one.getMessage() for one in running.said if "upstream" in one.getMessage().lower()
        ][-2:]
        assert "waiting for it to come back" in gone
        assert "new tool comes" in back
        assert "tool goes is gone" in back
