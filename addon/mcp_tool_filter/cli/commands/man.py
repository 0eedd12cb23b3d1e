"""``mcp-tool-filter man``: print the manual page, even if it was not installed."""

from __future__ import annotations

from mcp_tool_filter.cli.settings.flags import Given
from mcp_tool_filter.cli.settings.manual import render_manual


def run(_typed: Given) -> int:
    """Print the page."""
    print(render_manual(), end="")
    return 0
