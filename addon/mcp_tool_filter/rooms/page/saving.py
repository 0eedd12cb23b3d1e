"""Save the patterns of the page in the config file: first show the change, then make it.

Only ``deny``, ``deny-glob`` and ``except`` of one table change; comments, order and all other
values stay, and that is checked before anything is written. A file that somebody has edited since
we read it is left alone: the page knows nothing of that edit, and could undo it.
"""

from __future__ import annotations

import difflib
import hashlib
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mcp_tool_filter.cli.config_file import ConfigFile, parse_file
from mcp_tool_filter.cli.parsing import parse_config
from mcp_tool_filter.cli.settings import Sources, settle
from mcp_tool_filter.cli.switching import NOTHING
from mcp_tool_filter.cli.terminal import say
from mcp_tool_filter.cli.whole_file import read_whole
from mcp_tool_filter.core.errors import ProtocolError, StartError
from mcp_tool_filter.core.policy.choice import Choice
from mcp_tool_filter.core.policy.config import Config

if TYPE_CHECKING:
    from mcp_tool_filter.cli.flags import Given

_DENY, _GLOB, _EXCEPT = "deny", "deny-glob", "except"
_KEYS = (_DENY, _GLOB, _EXCEPT)
_EDITED = "was edited since it was read"
_READ_AGAIN = "send SIGHUP to serve, or start the filter again, and then change the patterns"


class FileOfPatterns:
    """The config file, and all that is set besides."""

    def __init__(self, sources: Sources) -> None:
        """``sources`` have a file."""
        self._sources = sources
        self._shared: dict[str, Choice] = {}

    @property
    def sources(self) -> Sources:
        return self._sources

    @sources.setter
    def sources(self, sources: Sources) -> None:
        self._sources = sources
        self._shared.clear()

    @property
    def file(self) -> ConfigFile:
        assert self._sources.file
        return self._sources.file

    def of(self, server: str = "", *, is_one_of_several: bool = False) -> Savings:
        """Return what saves the patterns of a server, or those for everything. The page has only a
        server's own if it is one of several."""
        return Savings(self, server, adds_shared=is_one_of_several)

    def shared(self, server: str) -> Choice:
        """Return what is set besides the table of a server, or besides the top. Raises
        StartError."""
        if server not in self._shared:
            self._shared[server] = self._config(self.with_patterns(server, {}), server).choice
        return self._shared[server]

    def with_patterns(self, server: str, patterns: Mapping[str, Sequence[str]]) -> Sources:
        """Return the sources as if these were the only patterns of a table."""

        def changed(given: Given) -> Given:
            others = {key: values for key, values in given.items() if key not in _KEYS}
            return others | {key: [*values] for key, values in patterns.items() if values}

        file = self.file
        if server:
            servers = {**file.servers, server: changed(file.section(server))}
            return replace(self._sources, file=replace(file, servers=servers))
        return replace(self._sources, file=replace(file, top=changed(file.top)))

    @staticmethod
    def _config(sources: Sources, server: str) -> Config:
        return (sources.of_server(server) if server else settle(sources.given())).config()

    def save(self, server: str, wanted: Choice, token: str) -> dict[str, object]:
        """Return the change with its token; make it if that is the given one."""
        file = self.file
        path = Path(os.path.realpath(file.path))
        try:
            raw = read_whole(str(path))
            if raw != file.raw:
                return {"problem": f"{file.path} {_EDITED}: {_READ_AGAIN}"}
            new = _changed(raw, server, partial(_edit, wanted, self.shared(server)))
            after = replace(
                self._sources,
                file=parse_file(file.path, new, is_default=file.is_default),
            )
            choice = self._config(after, server).choice
        except StartError as error:
            return {"problem": str(error)}
        except OSError as error:
            return {"problem": f"Cannot read {file.path}: {error.strerror}"}
        ours = hashlib.sha256(raw + b"\0" + new).hexdigest()
        if token and token != ours:
            return {"problem": "The patterns have changed meanwhile: look at the change again"}
        if not token:
            note = "" if _same(choice, wanted) else _OTHERWISE
            return {
                "problem": "", "file": file.path, "diff": _diff(raw, new, file.path),
                "token": ours, "note": note,
            }  # fmt: skip
        from mcp_tool_filter.cli.whole_file import replace_if_unchanged

        try:
            if not replace_if_unchanged(path, raw, new):
                return {"problem": f"{file.path} {_EDITED}: {_READ_AGAIN}"}
        except OSError as error:
            return {"problem": f"{file.path} cannot be written: {error.strerror}"}
        self.sources = after
        say(f"The patterns of the page were saved in {file.path}")
        return {"problem": "", "saved": True}


_OTHERWISE = (
    "After a restart it is not quite the same: the command line, the environment or another table"
    " of the file has patterns, too."
)


class Savings:
    """Saves the patterns of one table; see ``dashboard.SavesPatterns``."""

    def __init__(self, file: FileOfPatterns, server: str, *, adds_shared: bool) -> None:
        self._file, self._server, self._adds_shared = file, server, adds_shared

    @property
    def path(self) -> str:
        return self._file.file.path

    def shared(self) -> Choice:
        return self._file.shared(self._server)

    def save(self, deny: Sequence[str], exceptions: Sequence[str], token: str) -> dict[str, object]:
        given = {_DENY: tuple(deny) or None, _EXCEPT: tuple(exceptions) or None}
        wanted = parse_config(given).choice
        if self._adds_shared:
            also = self.shared()
            wanted = replace(
                wanted,
                deny=(*wanted.deny, *also.deny),
                exceptions=(*wanted.exceptions, *also.exceptions),
            )
        return self._file.save(self._server, wanted, token)


def _same(one: Choice, other: Choice) -> bool:
    def patterns(choice: Choice) -> tuple[set[str], set[str]]:
        deny = {each.regex for each in choice.deny if each.text != NOTHING}
        return deny, {each.text for each in choice.exceptions}

    return patterns(one) == patterns(other)


def _diff(old: bytes, new: bytes, path: str) -> str:
    """Return the changed lines alone: those around may be secret."""
    before, after = (text.decode("utf-8-sig").splitlines() for text in (old, new))
    return "\n".join(difflib.unified_diff(before, after, path, path, lineterm="", n=0))


# The text of the file


def _changed(raw: bytes, server: str, edit: Callable[[Any], None]) -> bytes:
    """Return the file after an edit of one table. Raises StartError if anything else would
    change."""
    import tomllib

    from tomlkit.exceptions import TOMLKitError

    from mcp_tool_filter.rooms.clients.toml_text import edited

    text = raw.decode()
    why = f"Write them yourself, in {f'[servers.{server}]' if server else 'the top of the file'}"
    failed = StartError("The file is written in a way that cannot be edited here", why=why)
    wrong = (ProtocolError, TOMLKitError, ValueError, LookupError)
    try:
        new = edited(text, lambda document: edit(_table_of(document, server)))
        old_values, new_values = (tomllib.loads(one.removeprefix("\ufeff")) for one in (text, new))
    except (*wrong, TypeError, AttributeError, RecursionError):
        raise failed from None
    for values in (old_values, new_values):
        table = _table_of(values, server)
        for key in [each for each in table if each.replace("_", "-") in _KEYS]:
            del table[key]
    if old_values != new_values:
        raise failed
    return new.encode()


def _table_of(document: Any, server: str) -> Any:
    return document["servers"][server] if server else document


def _edit(wanted: Choice, shared: Choice, table: Any) -> None:
    """Make these the patterns of a table. What is set elsewhere, too, stays if it is here."""
    deny = [one.regex for one in wanted.deny if one.text != NOTHING]
    exceptions = [one.text for one in wanted.exceptions]
    elsewhere = {one.regex for one in shared.deny}
    spared = {one.text for one in shared.exceptions}
    globs = _keep(table, _GLOB, {*deny, *elsewhere})
    _put(table, _DENY, deny, elsewhere | globs)
    _put(table, _EXCEPT, exceptions, spared)
    for key in [_key_in(table, name) for name in _KEYS]:
        if table.get(key) == []:
            del table[key]


def _key_in(table: Any, name: str) -> str:
    return next((key for key in table if key.replace("_", "-") == name), name)


def _patterns_in(name: str, text: str) -> list[tuple[str, str]]:
    """Return the patterns of one text of the file, each as it is typed and as a regex."""
    choice = parse_config({name.replace("-", "_"): (text,)}).choice
    found = choice.exceptions if name == _EXCEPT else choice.deny
    return [(one.text, one.regex) for one in found]


def _keep(table: Any, name: str, wanted: Collection[str]) -> set[str]:
    """Remove what is not wanted; return what is left, as regexes. The key stays, with its comments:
    something may be added."""
    import tomlkit

    key, kept = _key_in(table, name), set[str]()
    value = table.get(key, [])
    is_list = isinstance(value, list)
    values = value if is_list else [value]
    for at in reversed(range(len(values))):
        patterns = _patterns_in(name, str(values[at]))
        left = [one for one in patterns if one[1] in wanted]
        kept |= {regex for _, regex in left}
        if not left:
            del values[at]
        elif len(left) < len(patterns):
            values[at] = _text(",".join(typed for typed, _ in left))
    if not is_list:
        table[key] = values[0] if values else tomlkit.array()
    return kept


def _put(table: Any, name: str, wanted: Sequence[str], elsewhere: Collection[str]) -> None:
    """Remove what is not wanted, and add what is missing."""
    import tomlkit

    kept = {*_keep(table, name, {*wanted, *elsewhere}), *elsewhere}
    missing = [_text(one) for one in wanted if one not in kept]
    if not missing:
        return
    key = _key_in(table, name)
    value = table.get(key)
    if not isinstance(value, list):
        first = [] if value is None else [value]
        table[key] = tomlkit.array()
        missing = first + missing
    for one in missing:
        table[key].append(one)


def _text(text: str) -> Any:
    """Return a text for the file, as people would write a regex."""
    import tomlkit

    return tomlkit.string(text, literal="'" not in text and text.isprintable())
