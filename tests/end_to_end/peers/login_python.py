"""A client of either Python SDK that logs in with a scripted browser. Prints what it saw as JSON.

login_python.py URL [SECONDS]: after so many seconds, when its token has expired, it asks once more.
"""

import asyncio

from login_visit import arguments, tell, visit
from mcp import ClientSession
from mcp.client.auth import OAuthClientProvider
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.auth import OAuthClientMetadata
from scripted_browser import ScriptedBrowser

try:
    import httpx2 as httpx  # of the SDK 2.3
    from mcp.client.auth import AuthorizationCodeResult
except ImportError:
    import httpx

    def AuthorizationCodeResult(code, state, iss):
        return code, state


CALLBACK = "http://127.0.0.1:49152/callback"


class Memory:
    """A token storage that forgets everything at the end."""

    tokens = None
    client = None

    async def get_tokens(self):
        return self.tokens

    async def set_tokens(self, tokens):
        self.tokens = tokens

    async def get_client_info(self):
        return self.client

    async def set_client_info(self, client):
        self.client = client


async def main() -> None:
    url, seconds = arguments()
    browser = ScriptedBrowser()

    async def show(page):
        await asyncio.to_thread(browser.follow, page)

    async def come_back():
        said = browser.said
        return AuthorizationCodeResult(code=said("code"), state=said("state"), iss=said("iss"))

    about = OAuthClientMetadata(
        client_name="login", redirect_uris=[CALLBACK], token_endpoint_auth_method="none"
    )
    provider = OAuthClientProvider(url, about, Memory(), show, come_back)
    async with (
        httpx.AsyncClient(auth=provider, timeout=20) as http,
        streamable_http_client(url, http_client=http) as streams,
        ClientSession(streams[0], streams[1]) as session,
    ):
        await session.initialize()
        seen = await visit((await session.list_tools()).tools, session.call_tool, seconds)
    tell(seen, browser)


if __name__ == "__main__":
    asyncio.run(main())
