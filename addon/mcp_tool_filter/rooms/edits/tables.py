"""The tables that say what to edit, read and checked.

>>> edits = parse_edits({"create_*": {"hints": {"read-only": False}}, "old": {"name": "new"}})
>>> edits.for_tool("create_issue").hints, edits.for_tool("old").name
({'read-only': False}, 'new')
>>> edits.own_names
{'new': 'old'}
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Final

from mcp_tool_filter.core.errors import StartError, UnsetVariable, printable
from mcp_tool_filter.core.messages.messages import fold
from mcp_tool_filter.core.policy.choice import Claims
from mcp_tool_filter.core.policy.patterns import MAX_NAME, Pattern, parse_glob
from mcp_tool_filter.core.policy.snapshot import shown

HINTS: Final = {
    "read-only": "readOnlyHint",
    "destructive": "destructiveHint",
    "idempotent": "idempotentHint",
    "open-world": "openWorldHint",
}
"""The hints as users call them, and as definitions do."""
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")
_TEXT: Final = {"type": "string"}
_HINTS_OF_TOOL: Final = {f"^{hint.replace('-', '[-_]')}$": {"type": "boolean"} for hint in HINTS}
_KEYS: Final = {
    "name": _TEXT | {"pattern": f"^{_NAME.pattern}$"},
    "title": _TEXT,
    "description": _TEXT,
    "hints": {
        "type": "object",
        "properties": dict.fromkeys(HINTS, True),  # an editor offers these spellings
        "patternProperties": _HINTS_OF_TOOL,
        "additionalProperties": False,
    },
    "meta": {"type": "object"},
    "fix": {"type": "object"},
    "drop": {"type": "array", "items": _TEXT | {"minLength": 1}},
    "schema": {"const": "flat"},
}
_NO_MORE: Final = {"additionalProperties": False, "minProperties": 1}
TABLE: Final = {"type": "object", "properties": _KEYS, **_NO_MORE}
"""The schema of ``[tools.NAME]``, for editors."""
_GLOB = re.compile(r"[*?\[{]")
_VARIABLE = re.compile(r"\$(?:(\$)|([A-Za-z_][A-Za-z0-9_]*)|\{([A-Za-z_][A-Za-z0-9_]*)\})")
_MOST_LEVELS = 64


class BadEdit(StartError):
    """An edit that cannot be made. ``str()`` names its table."""


class UnsetInEdit(BadEdit, UnsetVariable):
    """An edit needs an environment variable that is not set: with several servers, only its own
    server cannot start."""

    def __init__(self, option: str, given: str = "…", *, why: str) -> None:
        UnsetVariable.__init__(self, option, given, why=why)
        self.what = f"{option.removeprefix('--')} cannot be filled in"  # it is no flag


@dataclass(frozen=True, kw_only=True)
class ToolEdit:
    """What changes of a tool."""

    name: str | None = None
    title: str | None = None
    description: str | None = None
    hints: Mapping[str, bool] = field(default_factory=dict)
    meta: Mapping[str, str] = field(default_factory=dict)
    """Members of ``_meta``, each with its value as JSON."""
    fix: Mapping[str, str] = field(default_factory=dict, repr=False)  # may contain secrets
    """Parameters that each call gets, each with its value as JSON."""
    drop: tuple[str, ...] = ()
    flat: bool | None = None

    @cached_property
    def fixed(self) -> str:
        """The fixed parameters as members of an object."""
        members = (f"{json.dumps(key, ensure_ascii=False)}:{one}" for key, one in self.fix.items())
        return ",".join(members)

    @cached_property
    def not_to_bring(self) -> frozenset[str]:
        """What a call must not set, whatever the case."""
        return frozenset(map(fold, self.fix))

    def over(self, other: ToolEdit) -> ToolEdit:
        """Return both edits; where they set the same, this one counts."""
        joined = {key: {**getattr(other, key), **getattr(self, key)} for key in _MAPPINGS}
        single = {
            key: getattr(other, key) if getattr(self, key) is None else getattr(self, key)
            for key in _SINGLE
        }
        dropped = tuple(dict.fromkeys((*other.drop, *self.drop)))
        return ToolEdit(**joined, **single, drop=dropped)  # type: ignore[arg-type]  # mypy sees no key's type

    def disagrees(self, other: ToolEdit) -> bool:
        """Tell whether both set the same, and not to the same."""
        for key in _MAPPINGS:
            mine, others = getattr(self, key), getattr(other, key)
            if any(others.get(name, value) != value for name, value in mine.items()):
                return True
        pairs = [(getattr(self, key), getattr(other, key)) for key in _SINGLE]
        return any(None not in pair and pair[0] != pair[1] for pair in pairs)

    def says(self) -> Iterator[str]:
        """Yield what it changes, for people, without values that may be secret."""
        if self.name is not None:
            yield f"named {self.name}"
        yield from (key for key in ("title", "description") if getattr(self, key) is not None)
        for name, value in self.hints.items():
            yield f"vouched {'' if value else 'not '}{name}"
        yield from (f"meta {name}" for name in self.meta)
        yield from (f"fixed {name}" for name in self.fix)
        yield from (f"dropped {name}" for name in self.drop)
        yield from ("flat schema",) if self.flat else ()


_MAPPINGS = ("hints", "meta", "fix")
_SINGLE = ("name", "title", "description", "flat")
NO_EDIT: Final = ToolEdit()


@dataclass(frozen=True, slots=True)
class GlobEdit:
    glob: Pattern
    table: str
    edit: ToolEdit


@dataclass(frozen=True)
class Edits:
    """All edits of one server. A server's own tables come before those for all."""

    exact: tuple[Mapping[str, ToolEdit], ...] = ()
    """By the tool's own name; the most particular table first."""
    globs: tuple[tuple[GlobEdit, ...], ...] = ()

    @cached_property
    def own_names(self) -> dict[str, str]:
        """Each new name, and the tool's own one."""
        names = {name for tables in self.exact for name in tables}
        return {new: own for own in names if (new := self.for_tool(own).name)}

    @property
    def patterns(self) -> Iterator[str]:
        """The names and globs that users wrote."""
        for tables in self.exact:
            yield from tables
        for level in self.globs:
            yield from (one.glob.text for one in level)

    def matches(self, pattern: str, names: Iterable[str]) -> bool:
        """Tell whether one of these names and globs matches one of these tools."""
        same = [one.glob for level in self.globs for one in level if one.glob.text == pattern]
        return any(name == pattern or any(one.matches(name) for one in same) for name in names)

    def for_tool(self, name: str) -> ToolEdit:
        """Return what changes of a tool. Raises BadEdit if two globs disagree."""
        known = self._known.get(name)
        if known is None:
            known = self._find(name)
            if len(self._known) < _MOST_KNOWN:
                self._known[name] = known
        return known

    @cached_property
    def _known(self) -> dict[str, ToolEdit]:
        return {}

    def _find(self, name: str) -> ToolEdit:
        edits = [tables[name] for tables in self.exact if name in tables]
        for level in self.globs if len(name) <= MAX_NAME else ():
            fitting = [one for one in level if one.glob.matches(name)]
            for at, one in enumerate(fitting):
                for other in fitting[:at]:
                    if one.edit.disagrees(other.edit):
                        what = f"{other.table} and {one.table} disagree about {shown(name)}"
                        raise BadEdit(what, why="Give the tool a table of its own, or one glob")
            edits += [one.edit for one in fitting]
        found = NO_EDIT
        for edit in edits:
            found = found.over(edit)
        return found

    def vouched(self, name: str, claims: Claims) -> Claims:
        """Return what a definition claims, with the operator's word in its place."""
        try:
            hints = self.for_tool(name).hints
        except BadEdit:
            return Claims()  # the worst case
        said = {key.replace("-", "_"): value for key, value in hints.items()}
        return replace(claims, **said) if said else claims


_MOST_KNOWN = 20_000  # tools; a server has that many


def parse_edits(
    tables: Mapping[str, object],
    environment: Mapping[str, str] = {},
    *,
    section: str = "tools",
    more: Edits | None = None,
) -> Edits:
    """Read ``[tools.NAME]`` tables; ``more`` are those for all servers. Raises BadEdit."""
    exact: dict[str, ToolEdit] = {}
    globs: list[GlobEdit] = []
    for name, table in tables.items():
        where = f"[{section}.{_quoted(name)}]"
        edit = _parse_edit(where, table, environment)
        if not _GLOB.search(name):
            exact[name] = edit
            continue
        if edit.name is not None:
            what = f"{where} cannot set name: it may match several tools"
            raise BadEdit(what, why="Write a table for each tool that gets a new name")
        globs.append(GlobEdit(parse_glob(name), where, edit))
    beside = more or Edits()
    edits = Edits((exact, *beside.exact), (tuple(globs), *beside.globs))
    _refuse_two_of_one_name(edits, section)
    return edits


def _quoted(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else json.dumps(printable(name[:128]))


def _refuse_two_of_one_name(edits: Edits, section: str) -> None:
    first: dict[str, str] = {}
    for own in dict.fromkeys(name for tables in edits.exact for name in tables):
        new = edits.for_tool(own).name
        if new is None:
            continue
        if (other := first.setdefault(new, own)) != own:
            what = f'[{section}] gives {shown(other)} and {shown(own)} the same name "{new}"'
            raise BadEdit(what, why="Give each its own name")
    for own in first.values():
        new = edits.for_tool(own).name
        if new in first.values() and new != own:
            what = f'[{section}.{_quoted(own)}] takes the name "{new}", which is another tool\'s'
            raise BadEdit(what, why="Names cannot be swapped: choose one that no tool has")


def _parse_edit(where: str, table: object, environment: Mapping[str, str]) -> ToolEdit:
    if not isinstance(table, dict):
        raise BadEdit(f"{where} must be a table", why='For example: description = "…"')
    if not table:
        raise BadEdit(f"{where} changes nothing", why=f"It has one of: {', '.join(_KEYS)}")
    for key in table:
        if key not in _KEYS:
            raise _unknown(where, "setting", key, _KEYS)
    drop = _texts(where, "drop", table.get("drop", []))
    fix = _mapping(where, "fix", table.get("fix", {}))
    if both := [name for name in drop if name in fix]:
        raise BadEdit(f"{where} fixes and drops {shown(both[0])}", why="Do one of them")
    flat = table.get("schema")
    if flat not in (None, "flat"):
        raise BadEdit(f"schema in {where} must be flat", why='Write schema = "flat"')
    return ToolEdit(
        name=_new_name(where, table.get("name")),
        title=_text(where, "title", table.get("title")),
        description=_text(where, "description", table.get("description")),
        hints=_hints(where, table.get("hints", {})),
        meta=_json_members(where, "meta", _mapping(where, "meta", table.get("meta", {}))),
        fix=_json_members(where, "fix", fix, environment),
        drop=tuple(drop),
        flat=True if flat else None,
    )


def _unknown(where: str, kind: str, name: str, known: Collection[str]) -> BadEdit:
    near = difflib.get_close_matches(name, known, 1)
    hint = f": did you mean {near[0]}?" if near else ""
    what = f"There is no {kind} in {where} called {printable(name[:80])}{hint}"
    return BadEdit(what, why=f"It has one of: {', '.join(known)}")


def _new_name(where: str, value: object) -> str | None:
    name = _text(where, "name", value)
    if name is not None and not _NAME.fullmatch(name):
        why = "It has letters, digits, _ . and -, and is at most 128 long"
        raise BadEdit(f"{where} cannot call a tool {printable(json.dumps(name)[:160])}", why=why)
    return name


def _text(where: str, key: str, value: object) -> str | None:
    if value is not None and not isinstance(value, str):
        raise BadEdit(f"{key} in {where} must be a text", why=f'Write it as {key} = "…"')
    return value


def _texts(where: str, key: str, value: object) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(one, str) and one for one in value):
        raise BadEdit(f"{key} in {where} must be a list of parameters", why='For example ["a"]')
    return value


def _mapping(where: str, key: str, value: object) -> dict[str, object]:
    if not isinstance(value, dict):
        why = f"Write it as {key} = {{NAME = VALUE}}"
        raise BadEdit(f"{key} in {where} must be a table", why=why)
    return value


def _hints(where: str, value: object) -> dict[str, bool]:
    hints: dict[str, bool] = {}
    for key, said in _mapping(where, "hints", value).items():
        name = key.replace("_", "-")
        if name not in HINTS:
            raise _unknown(where, "hint", key, tuple(HINTS))
        if name in hints:
            raise BadEdit(f"The hint {name} in {where} is there twice", why="Write it with -")
        if not isinstance(said, bool):
            raise BadEdit(f"The hint {name} in {where} is not true or false", why="Write one")
        hints[name] = said
    return hints


def _json_members(
    where: str,
    key: str,
    table: Mapping[str, object],
    environment: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Return values as JSON; variables are expanded only if there is an ``environment``."""

    def expanded(value: object, level: int = 0) -> object:
        if level > _MOST_LEVELS:
            raise BadEdit(f"{key} in {where} is nested too deeply", why="Make it flat")
        if isinstance(value, dict):
            return {name: expanded(one, level + 1) for name, one in value.items()}
        if isinstance(value, list):
            return [expanded(one, level + 1) for one in value]
        if isinstance(value, str) and environment is not None:
            return _VARIABLE.sub(look_up, value)
        return value

    def look_up(found: re.Match[str]) -> str:
        if found[1]:
            return "$"
        wanted = found[2] or found[3]
        if environment is None or wanted not in environment:
            why = f"The environment variable {wanted} is not set"
            raise UnsetInEdit(f"{key} in {where}", why=why)
        return environment[wanted]

    written: dict[str, str] = {}
    for name, value in table.items():
        if not name:
            raise BadEdit(f"{key} in {where} has an empty name", why="Name it")
        try:
            written[name] = json.dumps(expanded(value), ensure_ascii=False, allow_nan=False)
            written[name].encode()  # a variable may have bytes that are no text
        except (TypeError, ValueError):
            why = "JSON has texts, numbers, true, false, lists and tables, no dates"
            raise BadEdit(f"{name} of {key} in {where} is not JSON", why=why) from None
    return written


assert {one.name for one in fields(ToolEdit)} == {*_MAPPINGS, *_SINGLE, "drop"}
