"""Explain to people why a fetch failed, and what they can do about it."""

from __future__ import annotations

import asyncio
from urllib.parse import urlsplit

from mcp_tool_filter.adapters.fetch.mcp_replies import Refused, plain
from mcp_tool_filter.adapters.fetch.target import Target, has_authorization
from mcp_tool_filter.adapters.sockets.client import HttpClient
from mcp_tool_filter.adapters.sockets.connect import HttpFailed
from mcp_tool_filter.errors import FetchFailed, ListsAfterLogin
from mcp_tool_filter.http.oauth_metadata import resource_documents, server_documents
from mcp_tool_filter.http.origin import parse_origin

_HINTS = {  # part of a reason: what to do about it
    "certificate verify failed": "--ca FILE trusts its certificate (in mitmproxy: --set"
    " ssl_verify_upstream_trusted_ca=FILE)",
    "TLS error": "If the upstream speaks plain http on this port, write http://",
}
_NO_CREDENTIALS = "the upstream wants credentials: give them with upstream_headers"
_WRONG_CREDENTIALS = "the upstream does not accept the credentials in upstream_headers"


async def fetch_problem(error: Exception, target: Target) -> FetchFailed:
    """Return the error for people; distinguish an upstream that wants a login from one that
    failed."""
    why = _why(error, target)
    if isinstance(error, Refused) and await _wants_login(error, target):
        path = error.path or target.endpoint or "/mcp"
        hint = (
            f"Log in with your browser: mcp-tool-filter login {target.url}{path.partition('?')[0]}"
        )
        return ListsAfterLogin(why=why, path=path, hint=hint)
    return FetchFailed(why=why)


async def _wants_login(refused: Refused, target: Target) -> bool:
    if refused.status not in (401, 403) or has_authorization(target):
        return False
    return refused.says_how_to_log_in or await _has_login_metadata(target, refused.path)


async def _has_login_metadata(target: Target, path: str) -> bool:
    """Tell whether the upstream has a metadata document about logins."""
    http = HttpClient(parse_origin(target.url), headers=[], tls=target.tls)
    try:
        async with asyncio.timeout(target.list_timeout):
            for place in _metadata_places(target.url, path):
                async with http.exchange(b"GET", place, []) as response:
                    if response.status == 200 and response.media_type == "application/json":
                        return True
    except (TimeoutError, HttpFailed, OSError):
        return False
    finally:
        await http.close()
    return False


def _metadata_places(origin: str, path: str) -> list[str]:
    """Return the possible paths of such documents; MCP 2025-03-26 has only the server's."""
    documents = [*resource_documents(origin + path), *server_documents(origin)]
    return [urlsplit(url).path for url in documents]


def _why(error: Exception, target: Target) -> str:
    """Return the reason, with a hint what to do about it."""
    if isinstance(error, Refused) and error.status in (401, 403):
        known = has_authorization(target)
        return f"{error}: {_WRONG_CREDENTIALS if known else _NO_CREDENTIALS}"
    return plain(str(error)) if isinstance(error, HttpFailed) else str(error)


def hint_for(why: str) -> str | None:
    return next((hint for part, hint in _HINTS.items() if part in why), None)
