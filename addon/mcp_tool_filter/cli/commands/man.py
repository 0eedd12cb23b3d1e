"""``mcp-tool-filter man``: the manual page, also where no installer has put it."""

from __future__ import annotations

from collections.abc import Sequence

from mcp_tool_filter.cli.settings.commands import COMMANDS
from mcp_tool_filter.cli.settings.help import show_help
from mcp_tool_filter.cli.settings.manual import render_manual


def run(argv: Sequence[str]) -> int:
    """Print the page."""
    command = COMMANDS["man"]
    if "help" in command.parse(argv):
        return show_help(command)
    print(render_manual(), end="")
    return 0
