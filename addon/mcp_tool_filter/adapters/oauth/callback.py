"""Wait for the browser's redirect after a login, which brings a code (RFC 8252).

A tiny server on loopback for one path. Other programs and pages can send it requests too: it
accepts only one that knows our ``state``.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from urllib.parse import parse_qs, urlsplit

from mcp_tool_filter.http.oauth_metadata import ServerMetadata, is_same_issuer

_HOST = "127.0.0.1"
_PATH = "/callback"
_LONGEST_HEAD = 16 * 1024
_HEAD_TIMEOUT = 10.0
_PAGE = (
    "<!doctype html><meta charset=utf-8><title>mcp-tool-filter</title>"
    "<style>body{font:18px system-ui;margin:20vh auto;max-width:30em;text-align:center}</style>"
    "<p>%s"
)
_DONE = "You are logged in. You can close this window."
_REFUSED = "The login has failed. The terminal says why."


class CallbackRefused(Exception):
    """The redirect says that the login failed. ``str()`` says why."""


@dataclass(slots=True)
class Callback:
    """The server for the redirect."""

    port: int
    state: str
    server: ServerMetadata
    _code: asyncio.Future[str]

    @property
    def redirect_uri(self) -> str:
        return redirect_uri_for(self.port)

    async def code(self) -> str:
        """Wait for the code. Raises CallbackRefused."""
        return await asyncio.shield(self._code)

    def take(self, url: str) -> bool:
        """Read the URL of the redirect; return whether it belongs to our login."""
        query = parse_qs(urlsplit(url).query)
        if not hmac.compare_digest(_one(query, "state").encode(), self.state.encode()):
            return False
        if self._code.done():
            return True
        issuer = query.get("iss")
        code = _one(query, "code")
        if issuer is None and self.server.sends_issuer:
            self._refuse("The redirect names no issuer")
        elif issuer is not None and not is_same_issuer(_one(query, "iss"), self.server.issuer):
            self._refuse("The redirect is from another issuer")
        elif error := _one(query, "error"):
            described = _one(query, "error_description")
            self._refuse(f"{error}: {described}" if described else error)
        elif not code:
            self._refuse("The redirect has no code")
        else:
            self._code.set_result(code)
        return True

    @property
    def is_refused(self) -> bool:
        return self._code.done() and self._code.exception() is not None

    def _refuse(self, why: str) -> None:
        plain = "".join(one if one.isprintable() else "?" for one in why[:300])
        self._code.set_exception(CallbackRefused(plain))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, TimeoutError, asyncio.IncompleteReadError, ValueError):
            async with asyncio.timeout(_HEAD_TIMEOUT):
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                writer.write(self._answer(head).encode())
                await writer.drain()
        writer.close()

    def _answer(self, head: str) -> str:
        lines = head.split("\r\n")
        method, _, rest = lines[0].partition(" ")
        target = rest.rpartition(" ")[0]
        hosts = [line[5:].strip().lower() for line in lines[1:] if line.lower().startswith("host:")]
        ours = hosts in ([f"{_HOST}:{self.port}"], [f"localhost:{self.port}"])
        if method != "GET" or not ours or urlsplit(target).path != _PATH:
            return _response("404 Not Found", "There is nothing here.")
        if not self.take(target):
            return _response("400 Bad Request", "This is not the login that you started.")
        return _response("200 OK", _REFUSED if self.is_refused else _DONE)


@asynccontextmanager
async def callback(port: int, state: str, server: ServerMetadata) -> AsyncIterator[Callback]:
    """Listen until the end of the block; port 0 picks a free port. Raises OSError."""
    code: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    code.add_done_callback(lambda done: done.cancelled() or done.exception())
    waiting = Callback(port, state, server, code)
    listening = await asyncio.start_server(waiting._serve, _HOST, port, limit=_LONGEST_HEAD)
    waiting.port = listening.sockets[0].getsockname()[1]
    try:
        yield waiting
    finally:
        listening.close()
        code.cancel()


def redirect_uri_for(port: int) -> str:
    """Return the redirect URI.

    >>> redirect_uri_for(8080)
    'http://127.0.0.1:8080/callback'
    """
    return f"http://{_HOST}:{port}{_PATH}"


def _one(query: dict[str, list[str]], name: str) -> str:
    """Return a value that occurs exactly once, else an empty text."""
    values = query.get(name, [])
    return values[0] if len(values) == 1 else ""


def _response(status: str, text: str) -> str:
    page = _PAGE % text
    return (
        f"HTTP/1.1 {status}\r\nContent-Type: text/html; charset=utf-8\r\n"
        f"Content-Length: {len(page.encode())}\r\nCache-Control: no-store\r\n"
        "Content-Security-Policy: default-src 'none'; style-src 'unsafe-inline'\r\n"
        f"Referrer-Policy: no-referrer\r\nConnection: close\r\n\r\n{page}"
    )
