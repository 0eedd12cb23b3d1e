"""A client of either Python SDK that logs in with a scripted browser. Prints what it saw as JSON.

login_python.py URL [SECONDS]: after so many seconds, when its token has expired, it asks once more.
"""

import asyncio
from urllib.parse import parse_qs, urlsplit

from login_visit import arguments, tell, visit
from mcp import ClientSession
from mcp.client.auth import OAuthClientProvider
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.auth import OAuthClientMetadata

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


class Browser:
    """Follows redirects until one leads back to the client."""

    back: dict[str, list[str]]
    visited: list[str]

    def __init__(self) -> None:
        self.back, self.visited = {}, []

    async def open(self, url: str) -> None:
        self.visited = []
        async with httpx.AsyncClient() as http:
            while not url.startswith(CALLBACK):
                self.visited.append(url)
                answer = await http.get(url)
                url = answer.headers["location"]
        self.back = parse_qs(urlsplit(url).query)

    def said(self, name: str) -> str | None:
        return self.back.get(name, [None])[0]


async def main() -> None:
    url, seconds = arguments()
    browser = Browser()

    async def come_back():
        said = browser.said
        return AuthorizationCodeResult(code=said("code"), state=said("state"), iss=said("iss"))

    provider = OAuthClientProvider(
        url,
        OAuthClientMetadata(
            client_name="login", redirect_uris=[CALLBACK], token_endpoint_auth_method="none"
        ),
        Memory(),
        browser.open,
        come_back,
    )
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
