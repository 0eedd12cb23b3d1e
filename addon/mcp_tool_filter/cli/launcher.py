"""Reads the command line, and imports only what it asks for."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module

from mcp_tool_filter import __version__
from mcp_tool_filter.errors import StartError

_COMMANDS = {"check-pattern": "check_pattern"}  # to the module that runs it

_HELP = """\
usage: mcp-tool-filter check-pattern [PATTERN ...]

  check-pattern    say whether patterns may be used to deny or allow tools
  --help           show this
  --version        show the version
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run what the command line asks for; return the exit status."""
    args = sys.argv[1:] if argv is None else list(argv)
    if "--version" in args[:1]:
        print(f"mcp-tool-filter {__version__}")
        return 0
    if not args or args[0] in {"-h", "--help"}:
        print(_HELP, end="")
        return 0
    if args[0] not in _COMMANDS:
        print(
            f"Error: There is no command {args[0]!r}\nSee mcp-tool-filter --help", file=sys.stderr
        )
        return 2
    command = import_module(f"mcp_tool_filter.cli.{_COMMANDS[args[0]]}")
    try:
        return int(command.run(args[1:]))
    except StartError as error:
        print(error, file=sys.stderr)
        return 1
