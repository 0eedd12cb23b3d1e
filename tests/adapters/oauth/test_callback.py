"""The browser returns from a login; other requests are refused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from mcp_tool_filter.adapters.oauth.login import Callback, CallbackRefused, callback
from mcp_tool_filter.http.login_metadata import default_server

SERVER = default_server("https://login.example/mcp")
ISSUER = "https%3A%2F%2Flogin.example"


@asynccontextmanager
async def waiting() -> AsyncIterator[Callback]:
    async with callback(0, "our-state", SERVER) as found:
        yield found


async def asks(found: Callback, target: str, *, method: str = "GET", host: str = "") -> str:
    """Send a request as a browser does; return the status line."""
    reader, writer = await asyncio.open_connection("127.0.0.1", found.port)
    host = host or f"127.0.0.1:{found.port}"
    writer.write(f"{method} {target} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
    said = (await reader.read()).decode()
    writer.close()
    await writer.wait_closed()
    return said


async def test_a_code_is_taken_once() -> None:
    async with waiting() as found:
        said = await asks(found, f"/callback?state=our-state&code=c1&iss={ISSUER}")
        assert said.startswith("HTTP/1.1 200 OK")
        assert "You are logged in" in said
        assert "You are" in await asks(found, "/callback?state=our-state&code=c2")
        assert await found.code() == "c1"


@pytest.mark.parametrize(
    ("query", "why"),
    [
        ("error=access_denied&error_description=no%1Bway", "access_denied: no?way"),
        ("error=access_denied", "access_denied"),
        ("", "The redirect has no code"),
        ("code=a&code=b", "The redirect has no code"),
        ("code=a&iss=https%3A%2F%2Fevil.example", "The redirect is from another issuer"),
    ],
)
async def test_a_callback_without_a_login_says_why(query: str, why: str) -> None:
    async with waiting() as found:
        said = await asks(found, f"/callback?state=our-state&{query}")
        assert "The login has failed" in said
        with pytest.raises(CallbackRefused) as caught:
            await found.code()
        assert str(caught.value) == why


@pytest.mark.parametrize(
    ("target", "changes", "status"),
    [
        ("/callback?state=other&code=c", {}, "400"),
        ("/callback?code=c", {}, "400"),
        ("/callback?state=our-state&state=our-state&code=c", {}, "400"),
        ("/other?state=our-state&code=c", {}, "404"),
        ("/callback?state=our-state&code=c", {"method": "POST"}, "404"),
        ("/callback?state=our-state&code=c", {"host": "evil.example"}, "404"),
    ],
)
async def test_other_callbacks_are_ignored(
    target: str, changes: dict[str, str], status: str
) -> None:
    async with waiting() as found:
        said = await asks(found, target, **changes)
        assert said.startswith(f"HTTP/1.1 {status} ")
        await asks(found, "/callback?state=our-state&code=real")
        assert await found.code() == "real"
