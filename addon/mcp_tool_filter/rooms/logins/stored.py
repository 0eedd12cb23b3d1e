"""The logins that this user has stored, and the documents in which an upstream says how to log in.

It knows where logins are stored; what reads them is imported only if there are some.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from mcp_tool_filter.core.errors import ProtocolError
from mcp_tool_filter.core.http.bodies import EVENT_STREAM
from mcp_tool_filter.core.http.urls import parse_origin
from mcp_tool_filter.core.messages.sizes import HEAD
from mcp_tool_filter.core.sockets.client import HttpClient, Login
from mcp_tool_filter.core.sockets.connect import HttpFailed
from mcp_tool_filter.core.upstream.target import Target
from mcp_tool_filter.rooms.logins.metadata import (
    parse_resource_metadata,
    resource_documents,
    server_documents,
)

_DOCUMENTS_TIMEOUT = 5.0  # seconds for all documents about logins


class StoredLogins:
    """The logins of this user."""

    def find(self, target: Target) -> Login | None:
        """Return the login for a target. Raises StartError if logins cannot be read."""
        if not has_logins():
            return None
        from mcp_tool_filter.rooms.logins.tokens import credentials_for  # few have a login

        return credentials_for(target.url + (target.endpoint or ""))

    async def are_offered(self, target: Target, endpoint: str) -> bool:
        """Tell whether documents of the upstream say how to log in."""
        return bool(await fetch_login_documents(target, endpoint))


STORED: Final = StoredLogins()


def default_folder(environment: Mapping[str, str]) -> Path:
    """Return the folder of logins, in the user's configuration folder."""
    if sys.platform == "win32":
        base = environment.get("APPDATA") or str(Path.home() / "AppData" / "Roaming")
    else:
        base = environment.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return Path(base) / "mcp-tool-filter" / "logins"


def registrations_folder(environment: Mapping[str, str]) -> Path:
    """Return the folder of the clients' registrations."""
    return default_folder(environment).with_name("registrations")


def has_logins() -> bool:
    """Tell whether the user has ever logged in anywhere."""
    try:
        return default_folder(os.environ).is_dir()
    except (OSError, RuntimeError):  # the user has no home folder
        return False


async def fetch_login_documents(target: Target, endpoint: str) -> list[bytes]:
    """Return the existing documents; an upstream without a login has none. (MCP 2025-03-26 has only
    that of the server.)"""
    origin = parse_origin(target.url)
    http = HttpClient(origin, tls=target.tls)
    found: list[bytes] = []
    places = [*resource_documents(origin.url + endpoint), *server_documents(origin.url)]
    try:
        async with asyncio.timeout(_DOCUMENTS_TIMEOUT):
            for url in places:  # the list grows in the loop
                if (document := await _get(http, url)) is None:
                    continue
                found.append(document)
                with suppress(ProtocolError):
                    issuers = parse_resource_metadata(document, origin.url + endpoint).issuers
                    ours = [issuer for issuer in issuers if origin.path_to(issuer) is not None]
                    named = [place for one in ours for place in server_documents(one)]
                    places += [place for place in named if place not in places]
    except (TimeoutError, HttpFailed):
        pass
    finally:
        await http.close()
    return found


async def _get(http: HttpClient, url: str) -> bytes | None:
    async with http.exchange(b"GET", urlsplit(url).path) as response:
        if response.status != 200 or response.media_type == EVENT_STREAM:
            return None  # some upstreams answer each path with an endless stream
        body = await response.read(HEAD)
        return body if body.lstrip().startswith(b"{") else None
