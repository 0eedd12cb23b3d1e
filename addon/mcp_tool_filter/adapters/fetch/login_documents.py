"""Fetch the documents in which an upstream says how to log in.

A client that already has a token may use the token endpoint at once, which only these name.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from urllib.parse import urlsplit

from mcp_tool_filter.adapters.fetch.target import Target
from mcp_tool_filter.adapters.sockets.client import HttpClient
from mcp_tool_filter.adapters.sockets.connect import HttpFailed
from mcp_tool_filter.errors import ProtocolError
from mcp_tool_filter.http.oauth_metadata import (
    parse_resource_metadata,
    resource_documents,
    server_documents,
)
from mcp_tool_filter.http.origin import parse_origin

_TIMEOUT = 5.0  # seconds for all of them
_LONGEST = 64 * 1024


async def fetch_login_documents(target: Target, endpoint: str) -> list[bytes]:
    """Return the existing documents; an upstream without a login has none."""
    origin = parse_origin(target.url)
    http = HttpClient(origin, tls=target.tls)
    found: list[bytes] = []
    places = [*resource_documents(origin.url + endpoint), *server_documents(origin.url)]
    try:
        async with asyncio.timeout(_TIMEOUT):
            for url in places:  # the list grows in the loop
                if (document := await _get(http, url)) is None:
                    continue
                found.append(document)
                with suppress(ProtocolError):
                    issuers = parse_resource_metadata(document, origin.url + endpoint).issuers
                    ours = [one for one in issuers if origin.path_to(one) is not None]
                    named = [place for one in ours for place in server_documents(one)]
                    places += [place for place in named if place not in places]
    except (TimeoutError, HttpFailed):
        pass
    finally:
        await http.close()
    return found


async def _get(http: HttpClient, url: str) -> bytes | None:
    async with http.exchange(b"GET", urlsplit(url).path) as response:
        body = await response.read(_LONGEST)
        return body if response.status == 200 else None
