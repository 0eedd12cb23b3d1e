"""What differs between two locks: the approved one, and what a server says now.

>>> from mcp_tool_filter.policy.lock import parse_lock
>>> old, new = (
...     parse_lock(b'{"version":1,"tools":{%s}}' % tools)
...     for tools in (
...         b'"read":{"description":"Reads a file"},"rm":{"title":"Deletes a file"}',
...         b'"read":{"description":"Reads a URL"},"remove":{"title":"Deletes a file"}',
...     )
... )
>>> [(one.kind.value, one.was, one.name) for one in compare(old, new).tools]
[('changed', 'read', 'read'), ('renamed', 'rm', 'remove')]

A tool that is gone and a new one are the same tool with another name if they are much alike, in
words and parameters that no other tool has.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, StrEnum
from itertools import pairwise, product, zip_longest
from typing import Final, NamedTuple
from unicodedata import normalize

from mcp_tool_filter.observers.introduced import Introduced, Names, introduced, texts_in, visible
from mcp_tool_filter.policy.lock import Doubled, Json, Lock, compact, doubled_in
from mcp_tool_filter.policy.snapshot import shown
from mcp_tool_filter.protocol.messages import fold
from mcp_tool_filter.protocol.uris import has_many_marks

_MOST_PAIRS = 20_000  # of gone and new tools that are compared; more are only the same or not
_MOST_WORDS = 300  # of a definition that are compared
_MOST_ALIKE = 10  # gone tools that say the same as a new one
_LONGEST_READ = 20_000  # characters of a text that are compared
_MOST_TWINS = 20  # names that look like one
_ALIKE = 0.55
_NAMES_ALIKE = 0.6
_WORD = re.compile(r"\w+")
_PLAIN = re.compile(r"[\w$-]{1,80}", re.ASCII)


class Absent(Enum):
    """Stands for a member that is not there: null is a value."""

    ABSENT = "absent"


ABSENT: Final = Absent.ABSENT


class Kind(StrEnum):
    ADDED = "added"
    REMOVED = "removed"
    RENAMED = "renamed"
    CHANGED = "changed"


class ToolChange(NamedTuple):
    kind: Kind
    name: str
    was: str
    """Its approved name, if it is renamed; else the same."""
    before: Json
    after: Json
    introduced: tuple[Introduced, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    old: Lock
    new: Lock
    tools: tuple[ToolChange, ...]
    """By name."""
    in_instructions: tuple[Introduced, ...] = ()
    """What changed instructions introduce."""

    @property
    def has_other_instructions(self) -> bool:
        return self.old.instructions != self.new.instructions

    @property
    def is_other_server(self) -> bool:
        return self.old.server_name != self.new.server_name

    @property
    def has_other_version(self) -> bool:
        return self.old.server_version != self.new.server_version

    @property
    def differs(self) -> bool:
        """Tell whether a person must approve something. (Another version alone is only news.)"""
        return bool(self.tools) or self.has_other_instructions or self.is_other_server


def compare(old: Lock, new: Lock) -> Changes:
    """Return what differs in a new lock."""
    gone, fresh = old.tools.keys() - new.tools.keys(), new.tools.keys() - old.tools.keys()
    renamed = _renamed(old.tools, new.tools, gone, fresh)
    names = Names([*old.tools, *new.tools])
    twins = defaultdict(list)
    for name in sorted(old.tools.keys() | new.tools.keys()):
        twins[_look_of(name)].append(name)

    def change(kind: Kind, name: str, was: str) -> ToolChange:
        before, after = old.tools.get(was), new.tools.get(name)
        found = []
        if name not in old.tools:
            alike = (one for one in twins[_look_of(name)][:_MOST_TWINS] if one not in (name, was))
            found = [Introduced("alike", visible(one)) for one in alike]
        if kind is not Kind.REMOVED:
            found += introduced(before, after, names, own=(name, was))
        return ToolChange(kind, name, was, before, after, tuple(found))

    tools = [
        *(change(Kind.RENAMED, name, was) for name, was in renamed.items()),
        *(change(Kind.ADDED, name, name) for name in fresh - renamed.keys()),
        *(change(Kind.REMOVED, name, name) for name in gone - {*renamed.values()}),
        *(change(Kind.CHANGED, one, one) for one, was in old.tools.items()
          if one in new.tools and new.tools[one] != was),
    ]  # fmt: skip
    return Changes(
        old=old,
        new=new,
        tools=tuple(sorted(tools, key=lambda one: (one.name, one.kind))),
        in_instructions=introduced(old.instructions, new.instructions, names),
    )


def problem_in(name: str, definition: Json) -> str:
    """Return why nobody can approve a definition; empty if somebody can."""
    if (twice := doubled_in(definition)) is None:
        return ""
    why = f'its definition has "{visible(twice)}" twice'
    return f"The tool {shown(name)} cannot be approved: {why}"


def _look_of(name: str) -> str:
    """Return a name without what people may overlook: case, width, accents, unseen characters."""
    return fold(name if has_many_marks(name) else normalize("NFKD", name))


def _renamed(
    old: Mapping[str, Json], new: Mapping[str, Json], gone: Iterable[str], fresh: Iterable[str]
) -> dict[str, str]:
    """Return the old name of each tool that has only another name now; the most alike first."""
    before, after = sorted(gone), sorted(fresh)
    if not before or not after:
        return {}
    words = [{name: _words_of(one) for name, one in tools.items()} for tools in (old, new)]
    common = Counter(word for side in words for some in side.values() for word in some)
    scores = (
        (_likeness(was, words[0][was], name, words[1][name], common), name, was)
        for was, name in _pairs(old, new, before, after)
    )
    renamed: dict[str, str] = {}
    taken: set[str] = set()
    for score, name, was in sorted(scores, key=lambda one: (-one[0], one[1:])):
        if score >= _ALIKE and name not in renamed and was not in taken:
            renamed[name] = was
            taken.add(was)
    return renamed


def _pairs(
    old: Mapping[str, Json], new: Mapping[str, Json], gone: Sequence[str], fresh: Sequence[str]
) -> Iterator[tuple[str, str]]:
    """Yield the pairs that may be one tool: of very many, only those that say the same."""
    if len(gone) * len(fresh) <= _MOST_PAIRS:
        yield from product(gone, fresh)
        return
    same: dict[str, list[str]] = defaultdict(list)
    for name in gone:
        same[compact(_nameless(old[name]))].append(name)
    for name in fresh:
        found = same[compact(_nameless(new[name]))]
        yield from ((was, name) for was in found[:_MOST_ALIKE])


def _nameless(definition: Json) -> Json:
    table = definition if isinstance(definition, dict) else {}
    return {key: one for key, one in table.items() if key != "name"}


def _words_of(definition: Json) -> frozenset[str]:
    found: dict[str, None] = {}
    for text in texts_in(_nameless(definition)):
        found |= dict.fromkeys(_WORD.findall(text[:_LONGEST_READ].lower()))
        if len(found) > _MOST_WORDS:
            break
    return frozenset(list(found)[:_MOST_WORDS])


def _likeness(
    was: str, before: frozenset[str], name: str, after: frozenset[str], common: Counter[str]
) -> float:
    """Return how much two tools are alike, from 0 to 1; words that many tools have count less."""
    before, after = (
        words - {*_WORD.findall(own.lower())} for words, own in ((before, was), (after, name))
    )
    names, shared = _names_alike(was, name), before & after
    if names < _NAMES_ALIKE and all(common[word] > 2 for word in shared):
        return 0.0  # nothing that only these two have
    weight = sum(1 / common[word] for word in before | after)
    alike = sum(1 / common[word] for word in shared) / weight if weight else 1.0
    return 0.75 * alike + 0.25 * names


def _names_alike(one: str, other: str) -> float:
    """Tell how many pairs of letters two names share."""
    pairs = [{*map("".join, pairwise(name.lower()))} for name in (one, other)]
    size = sum(map(len, pairs))
    return 2 * len(pairs[0] & pairs[1]) / size if size else 0.0


class MemberChange(NamedTuple):
    """A member of a definition that differs."""

    path: str
    before: Json | Absent
    after: Json | Absent


def members_changed(before: Json, after: Json, path: str = "") -> Iterator[MemberChange]:
    """Yield the innermost members that differ; an object with a member twice as a whole."""
    if isinstance(before, Doubled) or isinstance(after, Doubled):
        yield MemberChange(path, ABSENT if before == {} else before, after)
    elif isinstance(before, dict) and isinstance(after, dict):
        for key in sorted(before.keys() | after.keys()):
            below = _path(path, key)
            if key in before and key in after:
                yield from members_changed(before[key], after[key], below)
            else:
                yield MemberChange(below, before.get(key, ABSENT), after.get(key, ABSENT))
    elif isinstance(before, list) and isinstance(after, list) and before != after:
        yield from _items_changed(before, after, path)
    elif before != after:
        yield MemberChange(path, before, after)


def _items_changed(before: list[Json], after: list[Json], path: str) -> Iterator[MemberChange]:
    if all(not isinstance(one, dict | list) for one in (*before, *after)):  # such as an enum
        old, new = map(dict.fromkeys, (before, after))
        gone = [MemberChange(path, one, ABSENT) for one in old if one not in new]
        fresh = [MemberChange(path, ABSENT, one) for one in new if one not in old]
        yield from [*gone, *fresh] or [MemberChange(path, before, after)]  # only the order
        return
    for number, (old_item, new_item) in enumerate(zip_longest(before, after, fillvalue=ABSENT)):
        below = f"{path}[{number}]"
        if isinstance(old_item, Absent) or isinstance(new_item, Absent):
            yield MemberChange(below, old_item, new_item)
        else:
            yield from members_changed(old_item, new_item, below)


def _path(path: str, key: str) -> str:
    if not _PLAIN.fullmatch(key):
        return f"{path}[{compact(key)}]"
    return f"{path}.{key}" if path else key
