"""An upstream whose tools a test changes, and a call of one of them."""

from __future__ import annotations

import json

from tests.adapters.mitmproxy.filtered import call
from tests.mcp_upstream import tool, tool_list
from tests.raw_client import MCP_HEADERS, post, raw_client
from tests.raw_upstream import RawRequest, answer


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
