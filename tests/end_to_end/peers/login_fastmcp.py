"""FastMCP's client, which logs in by itself. See login_python.py."""

import asyncio
import threading
import warnings
import webbrowser

from fastmcp import Client
from fastmcp.client.auth import OAuth
from login_visit import arguments, tell, visit
from scripted_browser import ScriptedBrowser


async def main() -> None:
    warnings.simplefilter("ignore")
    url, seconds = arguments()
    browser = ScriptedBrowser()

    def open_page(page: str) -> bool:
        threading.Thread(target=browser.open, args=(page,), daemon=True).start()
        return True

    webbrowser.open = open_page
    async with Client(url, auth=OAuth(url, callback_timeout=40)) as client:
        seen = await visit(await client.list_tools(), client.call_tool_mcp, seconds)
    tell(seen, browser)


if __name__ == "__main__":
    asyncio.run(main())
