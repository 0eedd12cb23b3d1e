"""What an upstream said of itself and of its tools, as it came."""

from __future__ import annotations

from dataclasses import dataclass

from mcp_tool_filter.protocol.revisions import R2025_11_25, Transport


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
    is_for_all: bool = False
    """It is what every kind of asker gets, as in a recording."""
    is_listed: bool = True
    """False where the upstream lists its tools only to who logs in."""


def unlisted(path: str) -> Fetched:
    """Say what is known of an upstream that lists its tools only to users."""
    return Fetched(
        transport=Transport.STREAMABLE,
        revision=R2025_11_25,
        endpoint=path,
        server_name="",
        server_version="",
        sessions=True,
        pages=(),
        is_listed=False,
    )


def example(*names: str) -> Fetched:
    """Make what an upstream with these tools would have said; for doctests and examples."""
    tools = ",".join(f'{{"name":"{name}","inputSchema":{{}}}}' for name in names)
    return Fetched(
        transport=Transport.STREAMABLE,
        revision=R2025_11_25,
        endpoint="/mcp",
        server_name="example",
        server_version="1",
        sessions=True,
        pages=(f'{{"jsonrpc":"2.0","id":1,"result":{{"tools":[{tools}]}}}}'.encode(),),
    )
