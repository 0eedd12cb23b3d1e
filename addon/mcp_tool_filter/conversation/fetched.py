"""What an upstream told our fetch about itself and its tools, unchanged."""

from __future__ import annotations

from dataclasses import dataclass

from mcp_tool_filter.protocol.limits import R2025_11_25, Transport


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    transport: Transport
    revision: str
    endpoint: str
    """The path and query that worked."""
    server_name: str
    server_version: str
    sessions: bool
    """Whether the upstream gave us an ``Mcp-Session-Id``."""
    pages: tuple[bytes, ...]
    """Each answer to tools/list, unchanged."""
    is_for_all: bool = False
    """True if every kind of asker gets the same list, as in a recording."""
    is_listed: bool = True
    """False if the upstream lists its tools only to users who log in."""


def unlisted(path: str) -> Fetched:
    """Return what we know of an upstream that lists its tools only to logged-in users."""
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
    """Return what a fetch from an upstream with these tools gives; for doctests and examples."""
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
