"""The path of the addon's script."""

from __future__ import annotations

import sys
from pathlib import Path

from mcp_tool_filter.cli.flags import Given
from mcp_tool_filter.errors import StartError

_PACKAGE = Path(__file__).resolve().parents[2]


def print_addon_path(_typed: Given) -> int:
    """Print the path of the script for ``mitmdump -s``."""
    from mcp_tool_filter.cli.terminal import is_terminal, say

    path = addon_script()
    print(path)
    if is_terminal(sys.stdout):
        mitmdump = Path(sys.executable).parent / "mitmdump"
        say(f"\n{mitmdump} -s {path} --mode reverse:http://localhost:3000 --set deny='^file_'")
    return 0


def addon_script() -> Path:
    """Return the script's path: in the installed package, or beside it in a checkout."""
    for candidate in (_PACKAGE / "tool_filter.py", _PACKAGE.parent / "tool_filter.py"):
        if candidate.is_file():
            return candidate
    raise StartError("The addon script is missing", why="Install mcp-tool-filter again")
