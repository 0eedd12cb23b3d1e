"""Render ``--help`` for the filter itself and for each command."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator

from mcp_tool_filter.cli.settings.commands import COMMANDS, FILTER, Command
from mcp_tool_filter.cli.settings.flags import GROUPS, Flag

TOP = """\
mcp-tool-filter sits in front of an MCP server and removes the tools you do not want:
your model does not see them, cannot call them, and spends no tokens on them.
"""
EXAMPLES = """\
Examples:
  mcp-tool-filter --deny '^delete_' -- npx -y @modelcontextprotocol/server-filesystem ~/project
  mcp-tool-filter --deny '^delete_' --port 8080 -- npx -y @modelcontextprotocol/server-memory
  mcp-tool-filter --upstream http://localhost:3000/mcp --deny '^file_.*$,.*_database$'
  mcp-tool-filter -u https://example.com/mcp -H 'Authorization: Bearer $TOKEN' --allow '^read_'
  mcp-tool-filter -u http://localhost:3000/mcp --list-tools      show what would be hidden
  mcp-tool-filter -u http://localhost:3000/mcp --inspect         the same under mitmweb
  mcp-tool-filter config claude-code -u http://localhost:3000/mcp -d '^file_'
  mcp-tool-filter run --deny '^delete_' -- claude               all servers that it reaches by URL
"""
BOTTOM = """\
Patterns are JavaScript regexes. They match anywhere in a name; use ^ and $ for its start and end.
A comma separates patterns, except inside {}, [] or () or after a backslash.

You can also set each flag in the environment, as MCP_TOOL_FILTER_DENY (one value per line), or
in a file given with --config, as deny = ["^file_"]. A flag overrides the environment, and the
environment overrides the file. Only deny adds up: the patterns of all three apply.

Exit status: 0 after Ctrl+C or SIGTERM, or when the work is done; 1 if the start failed, the
upstream was lost, or a check failed; 2 if the command line is wrong.
"""
_COLUMN = 34
_WIDTH = 96


def render_help() -> str:
    """Render the help of the filter itself."""
    flags = (line for title, group in GROUPS.items() for line in _flag_lines(title, group))
    return "\n".join([TOP, *_usage(FILTER), EXAMPLES, *_command_lines(), "", *flags, BOTTOM])


def render_command_help(command: Command) -> str:
    """Render the help of one command."""
    about = [line for part in command.about.split("\n") for line in textwrap.wrap(part, _WIDTH)]
    flags = _flag_lines("Flags", (*command.flags, command.all_flags[-1]))
    lines = [*_usage(command), *about, "", *flags]
    if command.has_settings:
        lines += [
            "The flags of the filter itself work here too: mcp-tool-filter --help",
            "",
        ]
    return "\n".join([*lines, *([command.notes, ""] if command.notes else [])])


def show_help(command: Command) -> int:
    """Print the help of one command; return the exit status."""
    print(render_command_help(command), end="")
    return 0


def _usage(command: Command) -> Iterator[str]:
    for number, usage in enumerate(command.usage):
        yield f"{'       ' if number else 'usage: '}mcp-tool-filter {usage}"
    yield ""


def _command_lines() -> Iterator[str]:
    yield "Commands (each one has its own --help):"
    for command in COMMANDS.values():
        yield f"  {command.name:<15}{command.summary}"


def _flag_lines(title: str, flags: Iterable[Flag]) -> Iterator[str]:
    yield f"{title}:"
    for flag in flags:
        yield _flag_line(flag)
    yield ""


def _flag_line(flag: Flag) -> str:
    short = f"-{flag.short}, " if flag.short else "    "
    left = f"  {short}--{flag.name} {flag.value}".rstrip()
    if len(left) + 2 > _COLUMN:
        left += "\n" + " " * _COLUMN
    right = textwrap.wrap(flag.help, _WIDTH - _COLUMN)
    return left.ljust(_COLUMN) + ("\n" + " " * _COLUMN).join(right)
