"""The snapshot: the upstream's tools as fetched at start, allowed and denied, frozen.

A tool that appears later is not exposed; a tool that changes keeps its old definition. Such later
differences are drift, and get a warning.

While the complete list is unknown, the patterns judge (``UnlistedTools``). A client may call a tool
before it has seen a list, and may read a long list page by page. Until the last page has passed, we
refuse names that the patterns deny and forward all others. We pin each definition when we first see
it. Then the list is complete and becomes an ordinary snapshot.

>>> from mcp_tool_filter.policy.patterns import parse_pattern
>>> tools = UnlistedTools([parse_pattern("^rm")], [])
>>> [tools.snapshot.standing(name).value for name in ("read_file", "rm_rf")]
['allowed', 'denied']
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from types import MappingProxyType

from mcp_tool_filter.errors import printable
from mcp_tool_filter.policy.patterns import MAX_NAME, Pattern
from mcp_tool_filter.protocol.limits import MEBIBYTE
from mcp_tool_filter.protocol.tools import Definition, Listing, shows_other_tool


class Definitions(Mapping[str, bytes]):
    """Definitions by name, kept as one JSON array, because there may be ten thousand.

    >>> known = Definitions([("a", b'{"name":"a"}'), ("b", b"{}")])
    >>> known.tools, known["b"]
    (b'[{"name":"a"},{}]', b'{}')
    """

    __slots__ = ("_numbers", "_starts", "names", "tools")
    names: Container[str]
    """The same names. (Each call checks its tool against them.)"""

    def __init__(self, definitions: Iterable[tuple[str, bytes]]) -> None:
        written = bytearray(b"[")
        self._starts = array("Q", [1])
        self._numbers: dict[str, int] = {}
        self.names = self._numbers
        for name, raw in definitions:
            self._numbers[name] = len(self._numbers)
            written += raw
            written += b","
            self._starts.append(len(written))
        written[-1:] = b"]" if self._numbers else b"[]"
        self.tools = bytes(written)

    def __getitem__(self, name: str) -> bytes:
        number = self._numbers[name]
        return self.tools[self._starts[number] : self._starts[number + 1] - 1]

    def __contains__(self, name: object) -> bool:
        return name in self._numbers

    def __iter__(self) -> Iterator[str]:
        return iter(self._numbers)

    def __len__(self) -> int:
        return len(self._numbers)


class Standing(Enum):
    """What a tool's name is to a client."""

    ALLOWED = "allowed"
    DENIED = "denied"
    UNKNOWN = "unknown"


type _Judged = tuple[str | None, bool, Pattern | None]
"""A name, whether it is denied, and by which pattern."""


class NamesByPattern(Collection[str]):
    """All names that the patterns deny: an infinite collection, which cannot be iterated.

    It remembers the last name, because a call's name is asked for several times: by the decision
    and by those who report it.
    """

    def __init__(self, deny: Sequence[Pattern], allow: Sequence[Pattern]) -> None:
        self._deny = deny
        self._allow = allow
        self._last: _Judged = (None, False, None)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self._of(name)[1]

    def denying(self, name: str) -> Pattern | None:
        """Return the pattern that denies a name; None if no allow pattern matches."""
        return self._of(name)[2]

    def _of(self, name: str) -> _Judged:
        if len(name) > MAX_NAME:  # such a tool is never exposed, so no pattern has to read the name
            return None, False, None
        last = self._last  # read once: others may ask meanwhile
        if last[0] != name:
            last = self._last = (name, *self._judge(name))
        return last

    def _judge(self, name: str) -> tuple[bool, Pattern | None]:
        for pattern in self._deny:
            if pattern.matches(name):
                return True, pattern
        return bool(self._allow) and not any(one.matches(name) for one in self._allow), None

    def __len__(self) -> int:
        return len(self._deny) + len(self._allow)

    def __iter__(self) -> Iterator[str]:
        yield ""  # for searches in text that is not JSON, which could contain any name


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    allowed: Definitions
    """The allowed tools in the upstream's order."""
    denied: Mapping[str, Pattern | None]
    """The denied tools and the pattern that denies each; None if no allow pattern matches."""
    denied_bytes: int = 0
    """The bytes of the denied tools' definitions."""
    unmatched: tuple[Pattern, ...] = ()
    """Patterns that match no tool, perhaps because of a typing error."""
    faults: tuple[str, ...] = ()
    """The problems of tools that cannot be exposed."""
    patterns: tuple[Sequence[Pattern], Sequence[Pattern]] = ((), ())
    """The patterns it was made with: deny and allow."""
    by_pattern: NamesByPattern | None = None
    """If the list is not known completely: also denies names that are not in it."""
    is_open: bool = False
    """True if all names that the patterns do not deny are allowed, too."""

    def standing(self, name: str) -> Standing:
        """Tell whether a client may call the tool of this name."""
        if name in self.allowed.names:
            return Standing.ALLOWED
        if name in self.hidden_names:
            return Standing.DENIED
        is_allowed = self.is_open and not _is_too_long(name)
        return Standing.ALLOWED if is_allowed else Standing.UNKNOWN

    def denying(self, name: str) -> Pattern | None:
        """Return the pattern that denies a name; None if none does."""
        return self.by_pattern.denying(name) if self.by_pattern else self.denied.get(name)

    @property
    def hidden_names(self) -> Collection[str]:
        """The names that nothing may show."""
        return self.denied if self.by_pattern is None else self.by_pattern

    @property
    def tools(self) -> bytes:
        """The allowed definitions as one JSON array."""
        return self.allowed.tools


def take_snapshot(
    listings: Iterable[Listing], deny: Sequence[Pattern], allow: Sequence[Pattern] = ()
) -> Snapshot:
    """Apply the patterns to all pages of the upstream's list."""
    sorting = _Sorting(deny, allow)
    allowed = Definitions(sorting.allowed_in(listings))
    carrying = sorting.carrying_in(allowed)
    if carrying:
        allowed = Definitions((name, raw) for name, raw in allowed.items() if name not in carrying)
    return Snapshot(
        allowed=allowed,
        denied=MappingProxyType(sorting.denied),
        denied_bytes=sorting.denied_bytes,
        unmatched=tuple(one for one in (*deny, *allow) if one not in sorting.matched),
        faults=tuple(sorting.faults),
        patterns=(deny, allow),
    )


@dataclass(slots=True)
class _Sorting:
    """Sorts tools into exposed and other ones, and notes why those are not exposed."""

    deny: Sequence[Pattern]
    allow: Sequence[Pattern]
    denied: dict[str, Pattern | None] = field(default_factory=dict)
    denied_bytes: int = 0
    matched: set[Pattern] = field(default_factory=set)
    faults: list[str] = field(default_factory=list)

    def allowed_in(self, listings: Iterable[Listing]) -> Iterator[tuple[str, bytes]]:
        known: set[str] = set()
        for definition in (one for listing in listings for one in listing.definitions):
            name = definition.name
            if fault := _fault(definition, known):
                self.faults.append(fault)
            elif name is not None and self._is_allowed(name, definition.raw):
                known.add(name)
                yield name, definition.raw

    def _is_allowed(self, name: str, raw: bytes) -> bool:
        hits = [pattern for pattern in (*self.deny, *self.allow) if pattern.matches(name)]
        self.matched.update(hits)
        denying = next((pattern for pattern in hits if pattern in self.deny), None)
        if denying is None and (not self.allow or any(one in self.allow for one in hits)):
            return True
        self.denied[name] = denying
        self.denied_bytes += len(raw)
        return False

    def carrying_in(self, allowed: Mapping[str, bytes]) -> set[str]:
        """Return the tools that would show a denied one."""
        found = [
            name for name, raw in allowed.items() if shows_other_tool(raw.decode(), self.denied)
        ]
        self.faults += map(_carrying, found)
        return set(found)


def drift_of(definition: Definition, snapshot: Snapshot) -> str | None:
    """Return how a tool differs from the snapshot, or None."""
    name = definition.name
    if definition.problem or name is None:
        return f"the upstream sent {definition.problem}: not exposed"
    if _is_too_long(name):
        return _too_long(name)
    if (known := snapshot.allowed.get(name)) is not None:
        if means_the_same(known, definition.raw):
            return None
        change = f"the upstream changed the tool {shown(name)}"
        return f"{change}: still serving the version seen at start-up"
    if name in snapshot.hidden_names or name in NamesByPattern(*snapshot.patterns):
        return None
    if (carrying := _carrying(name)) in snapshot.faults:
        return carrying
    return (
        f"the upstream has a new tool {shown(name)}: hidden until you restart the filter; "
        "with --new-tools judge, the patterns decide about new tools"
    )


def shown(name: str) -> str:
    """Return a tool name in a form that is safe to show.

    >>> shown("delete_file"), shown("a\\n\\x1b[31m"), len(shown("x" * 1000))
    ('delete_file', 'a\\\\n\\\\x1b[31m', 129)
    """
    return printable(name if len(name) <= 128 else name[:128] + "…")


def _fault(definition: Definition, known: Collection[str]) -> str | None:
    name = definition.name
    if definition.problem or name is None:
        return f"{definition.problem}: not exposed"
    if _is_too_long(name):
        return _too_long(name)
    return listed_twice(name) if name in known else None


def _is_too_long(name: str) -> bool:
    if len(name) <= MAX_NAME // 2:
        return False
    return len(name.encode("utf-16-le", "surrogatepass")) // 2 > MAX_NAME


def _too_long(name: str) -> str:
    return (
        f"the tool name {shown(name)} is longer than {MAX_NAME} characters: not exposed; "
        "to get the tool, give it a shorter name in the upstream"
    )


def _carrying(name: str) -> str:
    return f"the tool {shown(name)} has the definition of another tool: not exposed"


def listed_twice(name: str) -> str:
    return (
        f"the upstream lists {shown(name)} twice: the first definition counts; "
        "to get both, give each its own name in the upstream"
    )


def means_the_same(one: bytes, other: bytes) -> bool:
    """Tell whether two definitions say the same, however they are written."""
    return one == other or bool(json.loads(one, parse_int=str) == json.loads(other, parse_int=str))


_LONGEST_LIST = 80 * MEBIBYTE  # bytes; longer lists are not pinned, only judged by pattern


class UnlistedTools:
    """Learns the upstream's list from the pages that pass."""

    def __init__(self, deny: Sequence[Pattern], allow: Sequence[Pattern]) -> None:
        self._deny = deny
        self._allow = allow
        self._denied = NamesByPattern(deny, allow)
        self._pinned: dict[str, Definition] = {}
        self._faulty: list[Definition] = []
        self._size = 0
        self._next: str | None = None  # the cursor of the next page of the list
        self.snapshot = Snapshot(
            allowed=Definitions([]), denied={}, by_pattern=self._denied, is_open=True
        )
        """Judges calls, and everything else that names a tool, only by name."""

    @property
    def size(self) -> int:
        """Bytes of the definitions so far."""
        return self._size

    @property
    def definitions(self) -> tuple[Definition, ...]:
        """All definitions seen so far, in the upstream's order."""
        return (*self._pinned.values(), *self._faulty)

    def judge_page(self, page: Listing, *, pins: bool = True) -> Snapshot:
        """Return the snapshot for rewriting a page; pin its new definitions if it ``pins``."""
        pin = self._pin if pins else self._known_or
        pinned = tuple(pin(definition) for definition in page.definitions)
        partial = take_snapshot([replace(page, definitions=pinned)], self._deny, self._allow)
        return replace(partial, by_pattern=self._denied)

    def finish_page(self, asked: str | None, page: Listing) -> Snapshot | None:
        """Note the page that answers this cursor; return the snapshot if the list is complete
        now."""
        if asked is not None and asked != self._next:
            return None
        self._next = page.next_cursor or None
        if self._next is not None or self._size > _LONGEST_LIST:
            return None
        whole = replace(page, definitions=self.definitions)
        return take_snapshot([whole], self._deny, self._allow)

    def _pin(self, definition: Definition) -> Definition:
        """Return the first definition seen with that name."""
        known = self._known_or(definition)
        if known is not definition:
            return known
        name = definition.name
        self._size += len(definition.raw)
        if name is not None and self._carries_denied(name, definition.raw):
            problem = f"the tool {shown(name)} has the definition of another tool"
            definition = replace(definition, problem=problem)
        if self._size > _LONGEST_LIST:
            return definition
        if name is None or definition.problem:
            self._faulty.append(definition)
        else:
            self._pinned[name] = definition
        return definition

    def _known_or(self, definition: Definition) -> Definition:
        return self._pinned.get(definition.name or "", definition)

    def _carries_denied(self, name: str, raw: bytes) -> bool:
        """Tell whether an allowed tool shows a denied one, listed or not."""
        is_allowed = self.snapshot.standing(name) is Standing.ALLOWED
        return is_allowed and shows_other_tool(raw.decode(), self._denied)
