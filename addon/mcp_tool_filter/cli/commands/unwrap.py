"""``mcp-tool-filter unwrap``: undo what ``wrap`` did."""

from mcp_tool_filter.cli.commands.wrap import run_unwrap as run

__all__ = ["run"]
