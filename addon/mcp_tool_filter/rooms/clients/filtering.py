"""Is an entry of a client's file filtered, and by what: one answer for all who ask.

The policy may stand in the entry, in a section of a file of servers that the entry names, at the
top of that file, or in the file that is read if none is named.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from mcp_tool_filter.cli.flags import COMMAND, parse_flags, typed_as
from mcp_tool_filter.cli.options import CHOICE, OPTIONS
from mcp_tool_filter.cli.settings import AllSet, Settings, chosen, gather, read_sources, settle
from mcp_tool_filter.core.errors import StartError
from mcp_tool_filter.core.policy.snapshot import shown
from mcp_tool_filter.rooms.clients import entries
from mcp_tool_filter.rooms.clients.entries import ServerEntry
from mcp_tool_filter.rooms.clients.moving import server_named_in
from mcp_tool_filter.rooms.clients.one_entry import START, file_of

_POLICY = (*CHOICE, "lock", "rules", "new-tools", "shadow")


class Filtered(StrEnum):
    NO = "no"
    YES = "yes"
    WATCHED = "only watched"
    """The filter is there, and enforces nothing."""


@dataclass(frozen=True, slots=True)
class Filtering:
    answer: Filtered = Filtered.NO
    by: tuple[str, ...] = ()
    """The flags that say what is hidden, wherever they stand, and where that is."""

    @property
    def policy(self) -> str:
        """The same as one text, for people."""
        return shown(shlex.join(self.by))

    @property
    def reason(self) -> str:
        return f": {self.policy}" if self.by else ""


NOT_FILTERED: Final = Filtering()


def filtering_of(entry: ServerEntry) -> Filtering:
    """Tell whether an entry is filtered, and by what."""
    if not entries.is_filtered(entry):
        return NOT_FILTERED
    words, _ = entries.start_of(entry)
    try:
        behind = list(map(_flags_in, _settings_behind(entry)))
    except StartError:  # it would not start: nothing passes
        is_watched = "--shadow" in words
        return Filtering(Filtered.WATCHED if is_watched else Filtered.YES, tuple(_where(entry)))
    is_watched = any("--shadow" in one for one in behind)
    first, *others = behind or [[]]
    shared = [one for one in first if all(one in other for other in others)]
    by = (*_where(entry), *(word for one in shared for word in one.split("\0")))
    return Filtering(Filtered.WATCHED if is_watched else Filtered.YES, by)


def _flags_in(settings: Settings) -> list[str]:
    """Return the flags that say what is hidden; a flag and its value have a NUL between them."""
    found: list[str] = []
    for name in _POLICY:
        option = OPTIONS[name]
        value = settings.texts[option.key]
        values = [value] if isinstance(value, str) else list(value or ())
        if name == "allow":
            values += settings.allow_too
        set_ones = [one for one in values if one not in ("", "false", option.default)]
        found += ["\0".join(typed_as(name, [one])) for one in set_ones]
    return found


def filtering_by(settings: Settings) -> Filtering:
    """Return how a section of a file of servers is filtered."""
    flags = _flags_in(settings)
    answer = Filtered.WATCHED if "--shadow" in flags else Filtered.YES
    return Filtering(answer, tuple(word for one in flags for word in one.split("\0")))


def _where(entry: ServerEntry) -> list[str]:
    """Return the words with which an entry names sections of a file."""
    name, path = server_named_in(entry) or ("", None)
    words = ["--server", name] if name else []
    if (file := file_of(entry, "")) is not None:
        words, path = list(START), file
    return [*words, "--config", path] if words and path else words


def _settings_behind(entry: ServerEntry) -> Iterator[Settings]:
    """Yield the settings with which a filtered entry starts. Raises StartError."""
    _, path = server_named_in(entry) or ("", file_of(entry, ""))
    if path and not os.path.isfile(os.path.expanduser(path)):  # a pipe would never end
        raise StartError(f"Cannot read {path}", why="It is not a regular file")
    if file_of(entry, "") is None:
        yield settings_of(entry, is_whole=False)
        return
    words, variables = entries.start_of(entry)
    given = {key: one for key, one in parse_flags(words[2:]).items() if key != "profile"}
    sources = read_sources(given, AllSet(os.environ | variables))
    for name in sources.file.servers if sources.file else ():
        yield sources.of_server(name, is_stdio=True)


def settings_of(
    entry: ServerEntry, patience: str = "", *, is_bare: bool = False, is_whole: bool = True
) -> Settings:
    """Return the settings with which an entry starts the filter. Raises StartError.

    ``patience`` is for how long to wait for it, in milliseconds, unless a flag says so; with
    ``is_bare``, the default config file does not count. If not ``is_whole``, a variable of the
    server may be unset: the client may know it.
    """
    home = {} if is_bare else home_variables()
    words, variables = entries.start_of(entry)
    given = parse_flags([entries.expanded(word, os.environ) for word in words])
    if patience:
        given.setdefault("connection-timeout", [patience])
    values = {name: entries.expanded(value, os.environ) for name, value in variables.items()}
    if "server" in given:
        known = {**os.environ, **values}
        return chosen(given, known) if is_whole else chosen(given, AllSet(known), ("header",))
    if COMMAND not in given:
        return settle(gather(given, home | variables))  # the filter expands its headers itself
    if values:
        given["env"] = [f"{name}={value}" for name, value in values.items()]
    if isinstance(folder := entry.get("cwd"), str):
        given["cwd"] = [folder]
    return settle(gather(given, home))


def home_variables() -> dict[str, str]:
    """Return the variables that say where the default config file is."""
    names = ("HOME", "XDG_CONFIG_HOME", "APPDATA")
    return {name: os.environ[name] for name in names if name in os.environ}
