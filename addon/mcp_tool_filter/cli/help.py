"""What the program says of itself: ``--help``, the manual page, longer pages, and its own path.

>>> print(_escaped(".a -b …"))
\\&.a \\-b \\[u2026]
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator
from importlib import import_module

from mcp_tool_filter import __version__
from mcp_tool_filter.cli.flags import Given
from mcp_tool_filter.cli.options import GROUPS, OUR_FILE, Option
from mcp_tool_filter.cli.table import COMMANDS, FILTER, TOPICS, Command
from mcp_tool_filter.core.errors import StartError

TOP = """\
mcp-tool-filter sits in front of an MCP server and removes the tools you do not
want: your model does not see them, cannot call them, and spends no tokens on
them.
"""
_FIRST_STEPS = """
  mcp-tool-filter demo                               see what it does
  mcp-tool-filter --deny '^delete_' -- COMMAND ARGS  filter a command
  mcp-tool-filter --upstream URL --deny '^delete_'   filter a URL
  mcp-tool-filter clients                            list your clients' servers
  mcp-tool-filter wrap CLIENT SERVER --pick          filter one of them
  mcp-tool-filter run --deny '^delete_' -- CLIENT    a client's URLs

mcp-tool-filter --help lists all flags and commands.
mcp-tool-filter help lists the longer pages.
"""
EXAMPLES = """\
Examples:
  mcp-tool-filter -d '^delete_' -- npx -y @modelcontextprotocol/server-memory
  mcp-tool-filter -d '^git_reset' --port 8080 -- uvx mcp-server-git
  mcp-tool-filter -u http://localhost:3000/mcp --deny '^file_.*$,.*_database$'
  mcp-tool-filter -u https://mcp.example/ -H 'X-Key: $KEY' --allow '^read_'
  mcp-tool-filter -u http://localhost:3000/mcp --list-tools
  mcp-tool-filter -u http://localhost:3000/mcp --inspect
  mcp-tool-filter config claude-code -u http://localhost:3000/mcp -d '^file_'
  mcp-tool-filter run --deny '^delete_' -- claude
"""
BOTTOM = f"""\
Patterns are JavaScript regexes. They match anywhere in a name; use ^ and $ for
its start and end. A comma separates patterns, except inside {{}}, [] or () or
after a backslash.

You can also set each flag in the environment, as MCP_TOOL_FILTER_DENY (one
value per line), or in {OUR_FILE} (or --config FILE),
as deny = ["^file_"]. A flag overrides the environment, and the environment
overrides the file. Only what is denied adds up: patterns and hints of all three
apply.

Exit status: 0 after Ctrl+C or SIGTERM, or when the work is done; 1 if the
start failed, the upstream was lost, or a check failed; 2 if the command line is
wrong; in front of a command over stdio, that of the command (130 or 143 if the
signal has ended it).
"""
_COLUMN = 30
_WIDTH = 80


def render_first_steps() -> str:
    """Render what somebody reads who has typed only our name."""
    return TOP + _FIRST_STEPS


_OFTEN = ("deny", "allow", "read-only", "shadow", "port", "list-tools", "inspect")
_GLANCE = f"\n  {'mcp-tool-filter':<51}your servers at a glance"
_SCREEN = 23  # lines; the shell writes one more


def render_short_help() -> str:
    """Render what fits one screen."""
    flags = [flag for group in GROUPS.values() for flag in group if flag.name in _OFTEN]
    often = "\n".join(["Flags that are used most:", *map(_short, flags)])
    steps, more = _FIRST_STEPS.split("\n\n")
    return f"{TOP}{_GLANCE}{steps}\n\n{often}\n\n{more}"


def render_short_command_help(command: Command) -> str:
    """Render what fits one screen."""
    whole = render_command_help(command)
    if whole.count("\n") <= _SCREEN:
        return whole
    lines = [*_usage(command), *_wrapped(command.about)][: _SCREEN - 8]
    flags = list(map(_short, command.flags))
    room = _SCREEN - len(lines) - 4
    if len(flags) > room:
        names = ", ".join(f"--{flag.name}" for flag in command.flags)
        flags = textwrap.wrap(names, _WIDTH - 2, break_on_hyphens=False)
        flags = [f"  {line}" for line in flags[:room]]
    more = f"mcp-tool-filter {command.name} --help says more."
    return "\n".join([*lines, "", "Flags:", *flags, "", more, ""])


def _short(flag: Option) -> str:
    return f"{_left_of(flag):<{_COLUMN}}" + textwrap.shorten(
        flag.help, _WIDTH - _COLUMN, placeholder=" …"
    )


def render_help() -> str:
    """Render the help of the filter itself."""
    flags = (line for title, group in GROUPS.items() for line in _flag_lines(title, group))
    commands = [f"  {command.name:<15}{command.summary}" for command in COMMANDS.values()]
    commands = ["Commands (each one has its own --help):", *commands, ""]
    return "\n".join([TOP, *_usage(FILTER), EXAMPLES, *commands, *flags, BOTTOM])


def render_command_help(command: Command) -> str:
    """Render the help of one command."""
    flags = _flag_lines("Flags", (*command.flags, command.all_flags[-1]))
    lines = [*_usage(command), *_wrapped(command.about), "", *flags]
    if command.has_settings:
        lines += [
            "The flags of the filter itself work here too: mcp-tool-filter --help",
            "",
        ]
    if command.notes:
        lines += [*_wrapped(command.notes), ""]
    if command.more:
        module, _, function = command.more.rpartition(".")
        lines.append(getattr(import_module(f"mcp_tool_filter.{module}"), function)())
    return "\n".join(lines)


def _wrapped(text: str) -> Iterator[str]:
    for part in text.split("\n"):
        yield from textwrap.wrap(part, _WIDTH, break_on_hyphens=False) or [""]


def show_help(command: Command, *, is_short: bool = False) -> int:
    """Print the help of one command; return the exit status."""
    print((render_short_command_help if is_short else render_command_help)(command), end="")
    return 0


def _usage(command: Command) -> Iterator[str]:
    for number, usage in enumerate(command.usage):
        yield f"{'       ' if number else 'usage: '}mcp-tool-filter {usage}"
    yield ""


def _flag_lines(title: str, flags: Iterable[Option]) -> Iterator[str]:
    yield f"{title}:"
    for flag in flags:
        left = _left_of(flag)
        if len(left) + 2 > _COLUMN:
            yield left
            left = ""
        for line in textwrap.wrap(flag.help, _WIDTH - _COLUMN, break_on_hyphens=False):
            yield left.ljust(_COLUMN) + line
            left = ""
    yield ""


def _left_of(flag: Option) -> str:
    short = f"-{flag.short}, " if flag.short else "    "
    return f"  {short}--{flag.name} {flag.value}".rstrip()


_NAME = "mcp-tool-filter"
_SUMMARY = "hides tools of an MCP server"


def render_manual() -> str:
    """Render the page in the macros of man(7)."""
    return "\n".join(_manual()) + "\n"


def _manual() -> Iterator[str]:
    yield f'.TH {_NAME.upper()} 1 "" "{_NAME} {__version__}" "User Commands"'
    yield ".SH NAME"
    yield f"{_escaped(_NAME)} \\- {_SUMMARY}"
    yield ".SH SYNOPSIS"
    yield from _synopsis(FILTER)
    yield ".SH DESCRIPTION"
    yield from _paragraph(TOP)
    yield ".SH OPTIONS"
    for title, flags in GROUPS.items():
        yield f'.SS "{_escaped(title)}"'
        yield from _flags(flags)
    yield ".SH COMMANDS"
    for command in COMMANDS.values():
        yield f'.SS "{_escaped(command.name)}"'
        yield from _synopsis(command)
        for part in command.about.split("\n"):
            yield ".PP"
            yield _escaped(part)
        yield from _flags(command.flags)
        if command.has_settings:
            yield ".PP"
            yield "The options of the filter itself work here too."
        if command.notes:
            yield from _paragraph(command.notes)
    yield ".SH EXAMPLES"
    yield ".nf"
    yield from map(_escaped, EXAMPLES.splitlines()[1:])
    yield ".fi"
    yield ".SH NOTES"
    yield from _paragraph(BOTTOM)
    yield ".SH SEE ALSO"
    yield from _paragraph(f"Longer pages: {_NAME} help TOPIC. The topics are {', '.join(TOPICS)}.")


def _synopsis(command: Command) -> Iterator[str]:
    yield ".nf"
    yield from (_escaped(f"{_NAME} {usage}") for usage in command.usage)
    yield ".fi"


def _flags(flags: Iterable[Option]) -> Iterator[str]:
    for flag in flags:
        spelt = ", ".join(rf"\fB{_escaped(one)}\fR" for one in flag.spellings)
        yield ".TP"
        yield spelt + (rf" \fI{_escaped(flag.value)}\fR" if flag.value else "")
        yield _escaped(flag.help)


def _paragraph(text: str) -> Iterator[str]:
    for line in text.strip().split("\n"):
        yield _escaped(line) if line else ".PP"


def _escaped(text: str) -> str:
    plain = text.replace("\\", r"\e").replace("-", r"\-").replace('"', r"\(dq")
    plain = "".join(one if one.isascii() else rf"\[u{ord(one):04X}]" for one in plain)
    return rf"\&{plain}" if plain.startswith((".", "'")) else plain


def print_manual(_typed: Given) -> int:
    """Print the manual page, even if it was not installed."""
    print(render_manual(), end="")
    return 0


def print_addon_path(_typed: Given) -> int:
    """Print the path of the script for ``mitmdump -s``."""
    import sys
    from pathlib import Path

    from mcp_tool_filter.cli.terminal import is_terminal, say

    package = Path(__file__).resolve().parents[1]
    scripts = [folder / "tool_filter.py" for folder in (package, package.parent)]  # a checkout's
    path = next(filter(Path.is_file, scripts), None)
    if path is None:
        raise StartError("The addon script is missing", why="Install mcp-tool-filter again")
    print(path)
    if is_terminal(sys.stdout):
        mitmdump = Path(sys.executable).parent / "mitmdump"
        say(f"\n{mitmdump} -s {path} --mode reverse:http://localhost:3000 --set deny='^file_'")
    return 0
