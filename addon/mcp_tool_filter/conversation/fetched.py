"""What an upstream said of itself and of its tools, as it came."""

from __future__ import annotations

from dataclasses import dataclass

from mcp_tool_filter.protocol.revisions import Transport


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    transport: Transport
    revision: str
    endpoint: str
    """Path and query that worked."""
    server_name: str
    server_version: str
    sessions: bool
    """Whether we were given an ``Mcp-Session-Id``."""
    pages: tuple[bytes, ...]
    """Each answer to tools/list, as it came."""
