"""Render the manual page, from the same source as ``--help``.

>>> print(_escaped(".a -b …"))
\\&.a \\-b \\[u2026]
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from mcp_tool_filter import __version__
from mcp_tool_filter.cli.settings.commands import COMMANDS, FILTER, TOPICS, Command
from mcp_tool_filter.cli.settings.flags import GROUPS, Flag
from mcp_tool_filter.cli.settings.help import BOTTOM, EXAMPLES, TOP

_NAME = "mcp-tool-filter"
_SUMMARY = "hides tools of an MCP server"


def render_manual() -> str:
    """Render the page in the macros of man(7)."""
    return "\n".join([*_head(), *_options(), *_commands(), *_tail()]) + "\n"


def _head() -> Iterator[str]:
    yield f'.TH {_NAME.upper()} 1 "" "{_NAME} {__version__}" "User Commands"'
    yield ".SH NAME"
    yield f"{_escaped(_NAME)} \\- {_SUMMARY}"
    yield ".SH SYNOPSIS"
    yield from _usage(FILTER)
    yield ".SH DESCRIPTION"
    yield from _paragraph(TOP)


def _options() -> Iterator[str]:
    yield ".SH OPTIONS"
    for title, flags in GROUPS.items():
        yield f'.SS "{_escaped(title)}"'
        yield from _flags(flags)


def _commands() -> Iterator[str]:
    yield ".SH COMMANDS"
    for command in COMMANDS.values():
        yield f'.SS "{_escaped(command.name)}"'
        yield from _usage(command)
        for part in command.about.split("\n"):
            yield ".PP"
            yield _escaped(part)
        yield from _flags(command.flags)
        if command.has_settings:
            yield ".PP"
            yield "The options of the filter itself work here too."
        if command.notes:
            yield from _paragraph(command.notes)


def _tail() -> Iterator[str]:
    yield ".SH EXAMPLES"
    yield ".nf"
    yield from map(_escaped, EXAMPLES.splitlines()[1:])
    yield ".fi"
    yield ".SH NOTES"
    yield from _paragraph(BOTTOM)
    yield ".SH SEE ALSO"
    yield from _paragraph(f"Longer pages: {_NAME} help TOPIC. The topics are {', '.join(TOPICS)}.")


def _usage(command: Command) -> Iterator[str]:
    yield ".nf"
    yield from (_escaped(f"{_NAME} {usage}") for usage in command.usage)
    yield ".fi"


def _flags(flags: Iterable[Flag]) -> Iterator[str]:
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
