"""The config file: settings for everything at its top, and a table for each server.

    deny = ["^delete_"]
    [servers.files]
    command = ["npx", "-y", "a-server", "~/project"]
    [servers.linear]
    url = "https://mcp.linear.app/mcp"
    header = ["X-Team: $TEAM"]

A key is the name of a flag. Whatever is wrong in any of the tables is an error that names the file,
the server and the key: a mistake must not open what the user thinks is closed. Only a variable that
is not set is found later, because it concerns one server.

Relative files are beside this one. A file in the current folder is never taken by itself: a
repository could weaken the policy, or start commands.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from mcp_tool_filter.cli.flags import COMMAND, EDITS, Given, UsageError, no_such, refuse_empty
from mcp_tool_filter.cli.options import A_COMMAND, A_URL, GROUPS, OPTIONS, Option, instead_of
from mcp_tool_filter.cli.whole_file import read_whole
from mcp_tool_filter.core.errors import StartError, printable

if TYPE_CHECKING:
    from mcp_tool_filter.rooms.merged.choices import Merging

NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_SERVERS = "servers"
_PROFILES = "profiles"
OF_MERGING: Final = ("prefix", "merge")
"""What a server's table says about the server that all of them are together."""
_FOR_ALL = frozenset(
    {one.name for group in ("Where to listen", "Watch", "More") for one in GROUPS[group]}
    - {"paths"} | {"cert", "drain", "max-clients"}
)  # fmt: skip
"""Options of the whole process."""
OTHERWISE: Final = {"upstream": "url", "upstream-cmd": "command"}
"""Options that have another name in a server's table."""
NOT_OF_A_SERVER: Final = frozenset({*_FOR_ALL, *OTHERWISE, "stdio"})
"""Options that cannot be in a server's table under their names."""


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """A file that was read and checked."""

    path: str
    top: Given = field(default_factory=dict)
    """The settings for everything."""
    servers: Mapping[str, Given] = field(default_factory=dict)
    """The own settings of each server, in the file's order. Variables are not expanded yet."""
    is_default: bool = False
    """True if nobody has named it."""
    raw: bytes = field(default=b"", repr=False)
    merging: Merging | None = None
    """How its servers are one server, if it says so."""

    def how_to_merge(self) -> Merging:
        """Return how its servers are one server. Raises UsageError."""
        from mcp_tool_filter.rooms.merged.choices import read_merging  # only ``serve`` merges

        return self.merging or read_merging(self.path, {one: {} for one in self.servers}, {})

    def section(self, name: str) -> Given:
        """Return the settings of a server. Raises UsageError."""
        if name not in self.servers:
            what = no_such("server", name, self.servers, where=f" in {self.path}").what
            raise UsageError(what, why=f"Its servers: {', '.join(self.servers) or 'none'}")
        return self.servers[name]

    def variables_of_others(self, name: str) -> frozenset[str]:
        """Return the variables that the file expands for other servers, and not for this one: the
        command of this one has no use for their tokens."""
        others = [given for other, given in self.servers.items() if other != name]
        ours = _variables_in(self.servers.get(name, {})) | _variables_in(self.top, ("env", EDITS))
        theirs = _variables_in(self.top, ("metrics-token",)).union(*map(_variables_in, others))
        return frozenset(one for one in theirs - ours if not _OF_EVERYBODY.fullmatch(one))

    def at(self, name: str, error: StartError) -> StartError:
        """Make an error about a server's settings also name the server and the file."""
        what = re.sub(r"(?<![\w-])--(?=[a-z])", "", error.what)  # a key, not a flag
        error.what = f"[{_SERVERS}.{name}] in {self.path}: {what}"
        return error


_EXPANDED = ("upstream", "env", "header")
_OF_EVERYBODY = re.compile(
    r"PATH|HOME|USER|LOGNAME|SHELL|TERM|LANG|TZ|PWD|TMPDIR|TEMP|TMP|(?:LC|XDG)_.+"
    r"|APPDATA|LOCALAPPDATA|PROGRAM(?:DATA|FILES)|SYSTEM(?:DRIVE|ROOT)|USER(?:NAME|PROFILE)",
    re.IGNORECASE,
)
"""Variables that most programs need, and that are no secrets."""


def _variables_in(given: Given, keys: Sequence[str] = (*_EXPANDED, EDITS)) -> set[str]:
    """Return the names of the variables that some settings expand."""
    from mcp_tool_filter.cli.parsing import variables_in

    texts = [text for key in keys if key != EDITS for text in given.get(key, ())]
    for edits in given.get(EDITS, ()) if EDITS in keys else ():
        tables = json.loads(edits).values()
        texts += [json.dumps(one.get("fix")) for one in tables if isinstance(one, dict)]
    return set[str]().union(*map(variables_in, texts))


def read_file(path: str, *, is_default: bool = False) -> ConfigFile:
    """Read a TOML file. Raises UsageError."""
    try:
        raw = read_whole(path)
    except OSError as error:
        raise UsageError(f"Cannot read the config file {path}", why=str(error.strerror)) from None
    return parse_file(path, raw, is_default=is_default)


def parse_file(path: str, raw: bytes, *, is_default: bool = False) -> ConfigFile:
    """Check the content of a file at this path. Raises UsageError."""
    import tomllib

    try:
        table = tomllib.loads(raw.decode("utf-8-sig"))  # some editors write the mark
    except UnicodeDecodeError:
        raise UsageError(f"The config file {path} is not UTF-8", why="Save it as UTF-8") from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"The config file {path} is not TOML", why=str(error)) from None
    tables = table.pop(_SERVERS, {})
    if not isinstance(tables, dict):
        raise UsageError(f"{_SERVERS} in {path} must be tables", why=f"Write [{_SERVERS}.NAME]")
    known = [flag.name for flag in OPTIONS.values() if not flag.only_typed]
    merging = _read_merging(path, tables, table.pop(_PROFILES, {}))
    edits = _edits_in(path, EDITS, table)
    top = edits | Table(path, path, [*known, _SERVERS, _PROFILES]).read(table)
    if "header" in top and (tables or is_default):
        raise _belongs_to_one("header", path, "all servers would get it")
    servers = {name: _read_server(path, name, one) for name, one in tables.items()}
    return ConfigFile(path, top, servers, is_default, raw, merging)


def _read_merging(path: str, tables: dict[str, object], profiles: object) -> Merging | None:
    """Take what is about merging out of the tables, and check it. Raises UsageError."""
    own: dict[str, dict[str, object]] = {}
    for name, table in tables.items():
        known = [key for key in table if key in OF_MERGING] if isinstance(table, dict) else []
        own[name] = {key: table.pop(key) for key in known} if isinstance(table, dict) else {}
    if not profiles and not any(own.values()):
        return None
    from mcp_tool_filter.rooms.merged.choices import read_merging

    return read_merging(path, own, profiles)


def _belongs_to_one(key: str, path: str, reason: str) -> UsageError:
    what = f"{key} cannot be at the top of {path}: {reason}"
    return UsageError(what, why=f"Write it in the table of a server: [{_SERVERS}.NAME]")


def _read_server(path: str, name: str, table: object) -> Given:
    section = f"{_SERVERS}.{name}"
    where = f"[{section}] of {path}"
    if not NAME.fullmatch(name):
        why = "It has letters, digits, _ . and -, begins with a letter or digit, and is at most 64"
        raise UsageError(f'A server in {path} cannot be called "{printable(name[:80])}"', why=why)
    if not isinstance(table, dict):
        raise UsageError(f"{section} in {path} must be a table", why=f"Write [{section}]")
    known = [one.name for one in OPTIONS.values() if not one.only_typed]
    own = [name for name in known if name not in NOT_OF_A_SERVER]
    edits = _edits_in(path, f"{section}.{EDITS}", table)
    known = [*own, *OTHERWISE.values(), *OF_MERGING]
    given = edits | Table(path, where, known).read(table)
    url, words = given.pop("url", None), given.get(COMMAND)
    if url is not None and words is not None:
        raise UsageError(f"{where} has url and command", why="Give one of them, not both")
    if url is None and words is None:
        why = 'Give its url = "https://…" or its command = ["PROGRAM", "ARGUMENT"]'
        raise UsageError(f"{where} has no url and no command", why=why)
    unused, only = (A_COMMAND, "command") if words is None else (A_URL, "url")
    for key in given:
        if key in OPTIONS and unused in OPTIONS[key].needs:
            raise UsageError(f"{key} in {where} has no effect", why=f"It is for a {only}")
    if words and "cwd" not in given and _is_relative(words[0]):
        given[COMMAND] = [_beside(path, words[0]), *words[1:]]
    return given | ({"upstream": url} if url else {})


def _is_relative(program: str) -> bool:
    """Tell whether a program is a file in a folder that is not named from the root. (In the current
    folder, a repository could plant one.)"""
    return os.path.dirname(program) != "" and not os.path.isabs(program)


def _beside(path: str, name: str) -> str:
    """Return a path that does not depend on the current folder."""
    return os.path.join(os.path.dirname(os.path.abspath(path)), name)


def _edits_in(path: str, section: str, table: dict[str, object]) -> Given:
    """Take the tables with edits out of a table; return them as JSON."""
    if (edits := table.pop(EDITS, None)) is None:
        return {}
    if not isinstance(edits, dict):
        raise UsageError(f"{section} in {path} must be tables", why=f"Write [{section}.NAME]")
    try:
        return {EDITS: [json.dumps(edits, allow_nan=False)]} if edits else {}
    except RecursionError:
        raise UsageError(f"{section} in {path} is nested too deeply", why="Make it flat") from None
    except (TypeError, ValueError):
        why = "JSON has texts, numbers, true, false, lists and tables, and no dates"
        raise UsageError(f"{section} in {path} has a value that is not JSON", why=why) from None


class Table:
    """One table of a file."""

    def __init__(self, path: str, where: str, known: Sequence[str]) -> None:
        self._path, self._where, self._known = path, where, known

    def read(self, table: Mapping[str, object]) -> Given:
        """Return the table's settings as text. Raises UsageError."""
        given: Given = {}
        for key, value in table.items():
            name = key.replace("_", "-")
            if name not in self._known:
                raise self._unknown(name)
            if name in given:
                why = "It is there once with _ and once with -"
                raise UsageError(f"{name} is in {self._where} twice", why=why)
            given[name] = self._texts(name, value)
        return {name: texts for name, texts in given.items() if texts}  # env = {} sets nothing

    def _unknown(self, name: str) -> UsageError:
        if why := instead_of(name):
            return UsageError(f"There is no setting {name} any more ({self._where})", why=why)
        is_server = self._where != self._path
        if is_server and name in _FOR_ALL:
            what = f"{name} in {self._where} is for the whole process"
            return UsageError(what, why=f"Write it at the top of {self._path}")
        if not is_server and name in OTHERWISE.values():
            return _belongs_to_one(name, self._path, "it is for one server")
        if is_server and name in OTHERWISE:
            what = f"There is no setting in {self._where} called {name}"
            return UsageError(f"{what}: did you mean {OTHERWISE[name]}?")
        return no_such(f"setting in {self._where} called", name, self._known)

    def _texts(self, name: str, value: object) -> list[str]:
        at = f"{name} in {self._where}"
        if name == "url":
            if isinstance(value, str) and value:
                return [value]
            raise UsageError(
                f"{at} must be a text", why='Write it as url = "https://mcp.example/mcp"'
            )
        if name == COMMAND:
            return _words(at, value)
        if name == "env" and isinstance(value, dict):
            return _variables(at, value)
        flag = OPTIONS[name]
        if isinstance(value, list) and not flag.many:
            raise UsageError(f"{at} must be one value, not a list")
        values = value if isinstance(value, list) else [value]
        if wrong := [each for each in values if not _fits(each, flag)]:
            what = f"{at} cannot be {_KINDS.get(type(wrong[0]), 'a date or time')}"
            raise UsageError(what, why=_what_fits(flag))
        texts = [str(each).lower() if isinstance(each, bool) else str(each) for each in values]
        refuse_empty(name, texts, source=at)
        is_path = flag.value in ("FILE", "DIR") and texts[0]
        return [self._beside(text, name) for text in texts] if is_path else texts

    def _beside(self, text: str, name: str) -> str:
        domain, equals, file = text.rpartition("=" if name == "cert" else "\0")  # DOMAIN=FILE
        return domain + equals + _beside(self._path, os.path.expanduser(file))


def _words(at: str, value: object) -> list[str]:
    """Return the words of a command; ``~/`` at the beginning of one is expanded."""
    words = value if isinstance(value, list) else []
    if not words or not all(isinstance(word, str) and "\0" not in word for word in words):
        why = 'Write it as command = ["PROGRAM", "ARGUMENT"]'
        raise UsageError(f"{at} must be a list of words", why=why)
    if not words[0]:
        raise UsageError(f"{at} names no program", why="Its first word is empty")
    return [os.path.expanduser(word) if word.startswith("~/") else word for word in words]


def _variables(at: str, table: Mapping[str, object]) -> list[str]:
    for name, value in table.items():
        if not name or not name.isprintable() or "=" in name:
            what = f'{at} cannot set "{printable(name[:80])}"'
            raise UsageError(what, why="That names no variable")
        if not isinstance(value, str):
            raise UsageError(f"{name} of {at} must be a text", why=f'Write it as {name} = "…"')
    return [f"{name}={value}" for name, value in table.items()]


_KINDS = {  # names of TOML's types
    str: "a text",
    bool: "true or false",
    int: "a number",
    float: "a fraction",
    list: "a list",
    dict: "a table",
}


def _fits(value: object, flag: Option) -> bool:
    if isinstance(value, str):
        return True
    if isinstance(value, bool):
        return not flag.value or flag.choices == ("true", "false")
    return isinstance(value, int) and flag.is_number


def _what_fits(flag: Option) -> str:
    example = f'"{flag.value}"'
    if not flag.value or flag.choices == ("true", "false"):
        example = "true"
    elif flag.is_number:
        example = "1"
    several = f" or {flag.name} = [{example}]" if flag.many and flag.value else ""
    return f"Write it as {flag.name} = {example}{several}"
