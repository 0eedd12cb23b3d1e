"""What people use today: FastMCP's proxy, without the tools whose names begin with ``danger_``.

    proxy_fastmcp.py URL PORT

As its documentation shows it, and quiet.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from fastmcp.server import create_proxy
from fastmcp.server.middleware import Middleware


class WithoutDanger(Middleware):
    """Hides them from lists, and lets none of them be called."""

    async def on_list_tools(self, context: Any, call_next: Any) -> Sequence[Any]:
        return [tool for tool in await call_next(context) if not tool.name.startswith("danger_")]

    async def on_call_tool(self, context: Any, call_next: Any) -> Any:
        if context.message.name.startswith("danger_"):
            raise ValueError(f"Unknown tool: {context.message.name}")
        return await call_next(context)


if __name__ == "__main__":
    url, port = sys.argv[1:]
    proxy = create_proxy(url, name="bench")
    proxy.add_middleware(WithoutDanger())
    where = {"host": "127.0.0.1", "port": int(port), "path": "/mcp"}
    quiet = {"timeout_keep_alive": 3600, "access_log": False}
    proxy.run(transport="http", **where, show_banner=False, log_level="error", uvicorn_config=quiet)
