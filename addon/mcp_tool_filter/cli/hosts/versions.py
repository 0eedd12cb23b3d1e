"""The addon's script: its path, and the mitmproxy versions that it accepts."""

from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location
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


def refuse_other_mitmproxy() -> None:
    """Raise StartError if we do not know the internals of this mitmproxy version.

    The script has the list, because every mitmproxy can load it.
    """
    from mitmproxy import version

    spec = spec_from_file_location("mcp_tool_filter_script", addon_script())
    assert spec
    assert spec.loader
    script = module_from_spec(spec)
    spec.loader.exec_module(script)
    if problem := script.problem_in_version(version.VERSION):
        raise StartError("The tool filter cannot start", why=problem)
