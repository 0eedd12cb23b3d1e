"""Serve the page ``/mcp`` without mitmweb: ``--dashboard PORT``.

Anyone with the token in the address that is printed at start may view and edit; a cookie keeps the
token. The page is served only on loopback, only under that host name, and only to its own pages.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Callable
from hmac import compare_digest
from urllib.parse import parse_qs, urlsplit

from mcp_tool_filter.adapters.sockets.server import (
    PAGE_LIMITS,
    ServedRequest,
    ServedResponse,
    comes_from_here,
    http_server,
)
from mcp_tool_filter.adapters.watch.dashboard import CHANGES, FILES, TYPES, Dashboard, not_let_in
from mcp_tool_filter.errors import StartError, reason_of
from mcp_tool_filter.http.head import OUR_COOKIE
from mcp_tool_filter.policy.config import AllowedHosts

_HOSTS = AllowedHosts()
_JSON = "application/json; charset=UTF-8"
_NO_TOKEN = not_let_in(
    "This page needs a token",
    "The filter printed the address of this page when it started, on a line that begins with"
    " <code>Dashboard:</code>. The token is in that address: open it in this browser.",
    style="/mcp/page.css",
).encode()
_SAFE = [
    (b"content-security-policy", b"default-src 'self'; frame-ancestors 'none'"),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
]


class DashboardServer:
    """Answers the requests of the page; ``http_server`` serves it."""

    def __init__(self, dashboard: Dashboard) -> None:
        self._dashboard = dashboard
        self.token = secrets.token_urlsafe(24)

    def address(self, port: int) -> str:
        """Return the address for the user to open."""
        return f"http://127.0.0.1:{port}/mcp?token={self.token}"

    def judge_head(self, request: ServedRequest) -> ServedResponse | None:
        """Refuse, or let in, by the head alone: strangers cannot make us read a body."""
        if not comes_from_here(request, _HOSTS):
            return _plain(403, b"Forbidden: unknown Host or Origin")
        try:
            given = parse_qs(urlsplit(request.target).query).get("token", [""])[0]
        except ValueError:  # for example //[
            return _plain(400, b"Bad request")
        cookie = _cookie_name(request)
        if given and self._is_token(given):
            return self._let_in(cookie)
        if request.method == "GET" and request.path == "/mcp/page.css":
            return _file("page.css")  # also for the page about the missing token
        if not self._is_token(_cookie_in(request, cookie)):
            return _response(403, TYPES["page.html"], _NO_TOKEN)
        if request.method not in ("GET", "HEAD", "POST"):
            return _plain(405, b"Method not allowed")
        return None

    async def answer(self, request: ServedRequest) -> ServedResponse:
        """Answer a request whose head has passed."""
        return self._page(request)

    def _is_token(self, text: str) -> bool:
        return compare_digest(text.encode(), self.token.encode())

    def _let_in(self, name: str) -> ServedResponse:
        """Store the token in a cookie, and remove it from the address."""
        cookie = f"{name}={self.token}; Path=/; HttpOnly; SameSite=Strict"
        headers = [(b"location", b"/mcp"), (b"set-cookie", cookie.encode()), *_SAFE]
        return ServedResponse(303, headers)

    def _page(self, request: ServedRequest) -> ServedResponse:
        path = request.path.rstrip("/")
        if request.method == "POST":
            return self._change(path.removeprefix("/mcp/"), request.body)
        match path:
            case "" | "/mcp":
                return _file("page.html")
            case "/mcp/page.js" | "/mcp/page.css":
                return _file(path.rpartition("/")[2])
            case "/favicon.ico":
                return ServedResponse(204, _SAFE)
            case "/mcp/state":
                return _response(200, _JSON, json.dumps(self._dashboard.state()).encode())
        return _plain(404, b"Not found")

    def _change(self, name: str, body: bytes) -> ServedResponse:
        try:
            answer = CHANGES[name](self._dashboard, json.loads(body or b"{}"))
        except (ValueError, KeyError, TypeError, RecursionError):
            return _plain(400, b"Bad request")
        return _response(200, _JSON, json.dumps(answer).encode())


def _cookie_name(request: ServedRequest) -> str:
    """Return the cookie's name, with the port: browsers share cookies between ports."""
    port = (request.header(b"host") or "").rpartition(":")[2]
    return f"{OUR_COOKIE}_{port}" if port.isdecimal() and port.isascii() else OUR_COOKIE


def _cookie_in(request: ServedRequest, cookie: str) -> str:
    for part in (request.header(b"cookie") or "").split(";"):
        name, _, value = part.strip().partition("=")
        if name == cookie:
            return value
    return ""


def _file(name: str) -> ServedResponse:
    return _response(200, TYPES[name], (FILES / name).read_bytes())


def _plain(status: int, text: bytes) -> ServedResponse:
    return _response(status, "text/plain; charset=UTF-8", text)


def _response(status: int, kind: str, body: bytes) -> ServedResponse:
    return ServedResponse(status, [(b"content-type", kind.encode()), *_SAFE], body)


async def serve_dashboard(dashboard: Dashboard, port: int, say: Callable[[str], None]) -> None:
    """Serve the page until cancelled; ``say`` gets its address. Raises StartError."""
    page = DashboardServer(dashboard)
    try:
        running = http_server(
            page.answer, port=port, judge_head=page.judge_head, limits=PAGE_LIMITS
        )
        async with running as server:
            say(f"Dashboard: {page.address(server.port)}")
            await asyncio.Event().wait()
    except OSError as error:
        what = f"Cannot serve the dashboard on 127.0.0.1:{port}"
        raise StartError(what, why=reason_of(error)) from error
