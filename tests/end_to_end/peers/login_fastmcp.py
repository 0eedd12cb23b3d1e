"""FastMCP's client, which logs in by itself. See login_python.py."""

import asyncio
import json
import sys
import threading
import warnings
import webbrowser

from fastmcp import Client
from fastmcp.client.auth import OAuth
from scripted_browser import ScriptedBrowser


async def main() -> None:
    warnings.simplefilter("ignore")
    url, seconds = sys.argv[1], float((*sys.argv[2:], "0")[0])
    browser = ScriptedBrowser()

    def visit(page: str) -> bool:
        threading.Thread(target=browser.open, args=(page,), daemon=True).start()
        return True

    webbrowser.open = visit
    seen = {}
    async with Client(url, auth=OAuth(url, callback_timeout=40)) as client:
        seen["tools"] = [tool.name for tool in await client.list_tools()]
        seen["called"] = await call(client)
        await asyncio.sleep(seconds)
        seen["called_later"] = await call(client)
    seen["visited"] = browser.visited
    seen["iss"] = browser.said("iss")
    print(json.dumps(seen))


async def call(client):
    return (await client.call_tool_mcp("read_file", {"path": "a"})).content[0].text


if __name__ == "__main__":
    asyncio.run(main())
