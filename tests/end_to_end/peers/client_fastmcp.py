"""A client of FastMCP: connects to a command (JSON) or a URL, lists the tools and calls two."""

import asyncio
import json
import sys

from fastmcp import Client
from fastmcp.client.transports import StdioTransport


async def main(target: str) -> None:
    if target.startswith("["):
        command, *words = json.loads(target)
        transport = StdioTransport(command=command, args=words)
    else:
        transport = target
    async with Client(transport) as client:
        found: dict[str, object] = {"tools": [tool.name for tool in await client.list_tools()]}
        for name in ("read_file", "delete_file"):
            try:
                result = await client.call_tool(name, {"path": "a"})
                found[name] = result.content[0].text
            except Exception as error:
                found[name] = f"error: {error}"
        print(json.dumps(found))


asyncio.run(main(sys.argv[1]))
