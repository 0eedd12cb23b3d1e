"""Parse the command line; a mistake in it gets one helpful line.

>>> parse_flags(["--deny", "^a", "--deny=^b", "-vv"])
{'deny': ['^a', '^b'], 'verbose': ['true', 'true']}
>>> print(no_such("flag", "--dney", ["--deny", "--port"]))
Error: There is no flag --dney: did you mean --deny?
See mcp-tool-filter --help
"""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Final, NoReturn

from mcp_tool_filter.cli.options import KEYS, OPTIONS, Option, instead_of
from mcp_tool_filter.core.errors import EmptyList, Mistake

# What people who know another tool may type.
_OTHER_NAMES = {
    "--url": "--upstream", "--target": "--upstream",
    "--mode": "--upstream", "--listen-port": "--port", "--listen-host": "--host",
    "--block": "--deny", "--exclude": "--deny", "--glob": "--deny-glob", "--icase": "--ignore-case",
    "--include": "--allow", "--headers": "--header",
    "--output": "--record", "--timeout": "--connection-timeout", "--ssl-insecure": "--insecure",
    "--path": "--endpoint", "--debug": "--verbose",
}  # fmt: skip

_SECRETIVE = re.compile("-H|--header|--env")
_RUNNERS = re.compile(
    r"(?:npx|uvx|uv|pipx|bunx|bun|deno|node|python[\d.]*|docker|podman)(?:\.exe)?"
)
_TWO_UPSTREAMS = (
    "For two upstreams start two filters, each with its own --port; or one mitmdump -s"
    ' "$(mcp-tool-filter addon-path)" --mode reverse:URL1@PORT1 --mode reverse:URL2@PORT2'
)

COMMAND: Final = "command"
"""The key in ``Given`` for the words after ``--``."""

EDITS: Final = "tools"
"""A key of the config file that is no flag: tables with edits of tools, as JSON."""
WORDS: Final = "words"
"""The key in ``Given`` for the words that belong to no flag."""

type Given = dict[str, list[str]]
"""A flag's name to its values, as text; a switch has "true"."""


# argparse creates one per flag; without a width each imports shutil and queries the terminal.
_FORMATTER = partial(argparse.HelpFormatter, width=80)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        what = message.removeprefix("argument ")
        if "expected one argument" in what:
            name = what.partition(":")[0].rpartition("/")[2]
            why = f"Write it after the flag; if it begins with a dash, as {name}=-…"
            raise UsageError(f"{name} needs a value", why=why)
        raise UsageError(what)


def parse_flags(
    argv: Sequence[str],
    flags: Sequence[Option] = tuple(OPTIONS.values()),
    *,
    most_words: int = 0,
    takes_command: bool = True,
    help: str = "mcp-tool-filter --help",
) -> Given:
    """Parse a command line. Raises UsageError for the first mistake in it.

    ``most_words`` other words may be among the flags; ``help`` says where to read more. After
    ``--`` comes a command, or else more words.

    >>> parse_flags(["--deny", "^a", "--", "npx", "-y", "a-server"])
    {'deny': ['^a'], 'command': ['npx', '-y', 'a-server']}
    """
    cut = list(argv).index("--") if "--" in argv else len(argv)
    typed, command = argv[:cut], [*argv[cut + 1 :]]
    if cut < len(argv) and not command and takes_command:
        raise UsageError("There is no command after --")
    parser = _Parser(
        add_help=False,
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
        formatter_class=_FORMATTER,
    )
    for flag in flags:
        how = {"action": "append"} if flag.value else {"action": "append_const", "const": "true"}
        # mypy does not see which arguments belong together in a mapping.
        parser.add_argument(*flag.spellings, dest=flag.name, **how)  # type: ignore[arg-type]
    found, rest = parser.parse_known_args(typed)
    if takes_command and (forgotten := _forgotten_dashes(typed, rest[most_words:])):
        raise forgotten
    if wrong := [word for word in rest if is_flag(word)]:
        raise _unknown_flag(wrong[0], flags, help)
    words = rest if takes_command else [*rest, *command]
    if len(words) > most_words:
        raise _unknown_word(words[most_words], most_words, help)
    given: Given = {WORDS: words} if words else {}
    given |= {name: values for name, values in vars(found).items() if values}
    for flag in flags:
        # A second value would silently override the first.
        if flag.value and not flag.many and len(set(given.get(flag.name, ()))) > 1:
            why = _TWO_UPSTREAMS if flag.name == "upstream" else "Give it only once"
            raise UsageError(f"--{flag.name} is given twice", why=why)
    return given | ({COMMAND: command} if command and takes_command else {})


def _forgotten_dashes(typed: Sequence[str], rest: Sequence[str]) -> UsageError | None:
    """Return an error for a server's command that was typed without ``--``, or None."""
    word = rest[0] if rest else ""
    if is_flag(word) or not _is_program(word):
        return None
    if "://" in word:  # it may hold a password
        return UsageError("A URL comes after --upstream", why="mcp-tool-filter --upstream URL")
    try:
        from mcp_tool_filter.rooms.secrets.shown import shown_command
    except ModuleNotFoundError:  # the command may hold a secret, and nothing here could mask it
        why = "mcp-tool-filter [FLAGS] -- COMMAND ARGS"
        return UsageError("A server's command comes after --", why=why)
    at = list(typed).index(word)
    before = ["[FLAGS]"] if any(map(_SECRETIVE.match, typed[:at])) else map(shlex.quote, typed[:at])
    line = " ".join(["mcp-tool-filter", *before, "--", shown_command(typed[at:])])
    return UsageError(f"A server's command comes after --, such as {word}", why=line)


def _is_program(word: str) -> bool:
    if not word or _RUNNERS.fullmatch(word) or "/" in word:
        return bool(word)
    from shutil import which

    from mcp_tool_filter.cli.table import COMMANDS

    return word not in COMMANDS and which(word) is not None


def typed_as(name: str, values: Sequence[str]) -> list[str]:
    """Return the words that set an option of ours to these values."""
    has_value = OPTIONS[name].value
    return [word for one in values for word in (f"--{name}", one)[: 2 if has_value else 1]]


def is_flag(word: str) -> bool:
    return word.startswith("-") and word != "-"


def _unknown_word(word: str, most_words: int, help: str) -> UsageError:
    from mcp_tool_filter.cli.table import COMMANDS

    if most_words or help != "mcp-tool-filter --help":
        return UsageError(f"There is one word too many: {word}", why=f"See {help}")
    if word in COMMANDS:
        return UsageError(f"The command comes first: mcp-tool-filter {word} …")
    if meant := _OTHER_COMMANDS.get(word):
        return UsageError(f"There is no command {word}: did you mean {meant}?")
    return no_such("command", word, COMMANDS)


_OTHER_COMMANDS = {
    "list": "clients", "ls": "clients", "servers": "clients", "version": "--version",
    "undo": "unwrap --all", "uninstall": "unwrap --all", "remove": "unwrap", "start": "serve",
}  # fmt: skip
"""What people type who know other programs."""


def _unknown_flag(word: str, flags: Sequence[Option], help: str) -> UsageError:
    name = word.partition("=")[0]
    if why := instead_of(name):
        return UsageError(f"There is no flag {name} any more", why=why)
    known = [f"--{flag.name}" for flag in flags]
    other = _OTHER_NAMES.get(name)
    if other in known:
        return UsageError(f"There is no flag {name}: did you mean {other}?", why=f"See {help}")
    return no_such("flag", name, known, help=help)


class UsageError(Mistake):
    def __init__(self, what: str, *, why: str = "See mcp-tool-filter --help") -> None:
        super().__init__(what, why=why)


class MissingUpstream(UsageError):
    """Nothing says what to filter; ``command`` is the one that wants to know it."""

    def __init__(self, command: str = "") -> None:
        ours = f"mcp-tool-filter {command}".rstrip()
        why = (
            f"Give its URL: {ours} --upstream http://localhost:3000/mcp\n"
            f"Or its command: {ours} [FLAGS] -- COMMAND ARGS"
        )
        super().__init__("Missing --upstream URL", why=why)


def refuse_empty(name: str, texts: Sequence[str], *, source: str) -> None:
    """Refuse an option with patterns that has none."""
    if OPTIONS[name].selects and not any(text.strip() for text in texts):
        raise EmptyList(name, source=source)


def no_such(
    kind: str,
    name: str,
    known: Iterable[str],
    *,
    where: str = "",
    help: str = "mcp-tool-filter --help",
) -> UsageError:
    """Return an error that there is no such thing, and what the user may have meant."""
    meant = closest(name, known)
    what = f"There is no {kind} {name}{where}" + (f": did you mean {meant}?" if meant else "")
    return UsageError(what, why=f"See {help}")


# What somebody else has written keeps its words: quoted texts, and mistakes in a rules file.
_QUOTED = r"\"[^\n]*\"|^[^\n]*:\d+:\d+: [^\n]*"


def with_flags(text: str) -> str:
    """Return a text of the layers below, which know mitmproxy's options, with our flags.

    >>> with_flags("HTTP 401: give them with upstream_headers")
    'HTTP 401: give them with --header'
    >>> with_flags('Invalid regex pattern in deny list: "(audit_log|x"')
    'Invalid regex pattern in deny list: "(audit_log|x"'
    """
    keys = "|".join(key for key, option in KEYS.items() if "_" in key and not option.negates)
    option = rf"{_QUOTED}|(?<![\w\"'/.-])({keys})(?![\w\"'/=-])"
    return re.sub(
        option,
        lambda found: f"--{KEYS[found[1]].name}" if found[1] else found[0],
        text,
        flags=re.MULTILINE,
    )


def closest(name: str, known: Iterable[str]) -> str | None:
    from difflib import get_close_matches  # slow to import, and seldom needed

    return next(iter(get_close_matches(name, known, n=1, cutoff=0.65)), None)
