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
from itertools import batched
from types import MappingProxyType

from mcp_tool_filter.errors import printable
from mcp_tool_filter.policy.effects import LET_OTHERS_GO_ON, Deciding, at_once
from mcp_tool_filter.policy.patterns import MAX_NAME, Pattern
from mcp_tool_filter.protocol.limits import MEBIBYTE
from mcp_tool_filter.protocol.tools import Definition, Listing, shows_other_tool


class Definitions(Mapping[str, bytes]):
    """Definitions by name, kept as one JSON array, because there may be ten thousand.

    >>> known = Definitions([("a", b'{"name":"a"}'), ("b", b"{}")])
    >>> known.tools, known["b"]
    (b'[{"name":"a"},{}]', b'{}')
    """

    __slots__ = ("_numbers", "_starts", "_written", "names")
    names: Container[str]
    """The same names. (Each call checks its tool against them.)"""

    def __init__(self, definitions: Iterable[tuple[str, bytes]] = ()) -> None:
        self._written: bytearray | bytes = bytearray(b"[")
        self._starts = array("Q", [1])
        self._numbers: dict[str, int] = {}
        self.names = self._numbers
        for name, raw in definitions:
            self.add(name, raw)

    def add(self, name: str, raw: bytes) -> None:
        """Add the next one. (None can be added once ``tools`` has been asked for.)"""
        assert isinstance(self._written, bytearray)
        self._numbers[name] = len(self._numbers)
        self._written += raw
        self._written += b","
        self._starts.append(len(self._written))

    @property
    def tools(self) -> bytes:
        """All definitions as one JSON array."""
        if isinstance(self._written, bytearray):
            self._written[-1:] = b"]" if self._numbers else b"[]"
            self._written = bytes(self._written)
        return self._written

    def __getitem__(self, name: str) -> bytes:
        number = self._numbers[name]
        return bytes(self._written[self._starts[number] : self._starts[number + 1] - 1])

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


_MOST_NEWS = 12  # changes that we list


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
    hidden_names: Collection[str] = field(init=False)
    """The names that nothing may show. (No property: each message asks for it.)"""

    def __post_init__(self) -> None:
        hidden = self.denied if self.by_pattern is None else self.by_pattern
        object.__setattr__(self, "hidden_names", hidden)

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

    def changes_since(self, old: Snapshot) -> str:
        """Return what is different from an older snapshot, in one line."""
        before, after = ({*one.allowed, *one.denied} for one in (old, self))
        news = [f"new tool {shown(name)}" for name in sorted(after - before)]
        news += [f"tool {shown(name)} is gone" for name in sorted(before - after)]
        news += [
            f"tool {shown(name)} has changed"
            for name, raw in old.allowed.items()
            if self.allowed.get(name, raw) != raw
        ]
        more = len(news) - _MOST_NEWS
        said = ", ".join(news[:_MOST_NEWS]) or "its tools are the same"
        return f"{said} and {more} more" if more > 0 else said


def take_snapshot(
    listings: Iterable[Listing], deny: Sequence[Pattern], allow: Sequence[Pattern] = ()
) -> Snapshot:
    """Apply the patterns to all pages of the upstream's list."""
    return at_once(snapshot_in_steps(listings, deny, allow))


def snapshot_in_steps(
    listings: Iterable[Listing | None], deny: Sequence[Pattern], allow: Sequence[Pattern]
) -> Deciding[Snapshot]:
    """Do the same for a list that may be long: other clients are served meanwhile.

    None among the pages is only a pause.
    """
    sorting, allowed = _Sorting(deny, allow), Definitions()
    for listing in listings:
        for some in few_of(listing.definitions if listing else ()):
            for one in some:
                name = one.name or ""
                if name in allowed.names and not one.problem:
                    sorting.faults.append(listed_twice(name))
                elif sorting.judge(one) is Standing.ALLOWED:
                    allowed.add(name, one.raw)
            yield LET_OTHERS_GO_ON
    carrying: set[str] = set()
    for names in batched(allowed, _FEW):
        raws = [(name, allowed[name].decode()) for name in names]
        carrying.update(name for name, raw in raws if shows_other_tool(raw, sorting.denied))
        yield LET_OTHERS_GO_ON
    if carrying:
        sorting.faults += map(_carrying, filter(carrying.__contains__, allowed))
        allowed = Definitions((name, raw) for name, raw in allowed.items() if name not in carrying)
    return sorting.snapshot(allowed)


_FEW = 200  # tools that are judged without a pause
_LITTLE = 32 * 1024  # bytes of their definitions


def few_of(definitions: Iterable[Definition]) -> Iterator[list[Definition]]:
    """Yield a few definitions at a time: judging them takes a few milliseconds."""
    some: list[Definition] = []
    size = 0
    for one in definitions:
        some.append(one)
        size += len(one.raw)
        if len(some) == _FEW or size > _LITTLE:
            yield some
            some, size = [], 0
    yield some


@dataclass(slots=True)
class _Sorting:
    """Sorts tools into exposed and other ones, and notes why those are not exposed."""

    deny: Sequence[Pattern]
    allow: Sequence[Pattern]
    hidden: NamesByPattern | None = None
    """Names that no definition may show; if None, whoever sorts looks for denied ones itself."""
    denied: dict[str, Pattern | None] = field(default_factory=dict)
    denied_bytes: int = 0
    matched: set[Pattern] = field(default_factory=set)
    faults: list[str] = field(default_factory=list)

    @property
    def _exceptions(self) -> tuple[Pattern, ...]:
        return self.deny[0].exceptions if self.deny else ()  # all have the same

    def judge(self, definition: Definition) -> Standing:
        """Tell whether a tool is exposed, denied, or cannot be exposed (unknown)."""
        name = definition.name
        if definition.problem or name is None:
            self.faults.append(f"{definition.problem}: not exposed")
            return Standing.UNKNOWN
        if _is_too_long(name):
            self.faults.append(_too_long(name))
            return Standing.UNKNOWN
        hits = [pattern for pattern in (*self.deny, *self.allow) if pattern.matches(name)]
        self.matched.update(hits)
        self.matched.update(one for one in self._exceptions if one.matches(name))
        denying = next((pattern for pattern in hits if pattern in self.deny), None)
        if denying is not None or (self.allow and not any(one in self.allow for one in hits)):
            self.denied[name] = denying
            self.denied_bytes += len(definition.raw)
            return Standing.DENIED
        if self.hidden is not None and shows_other_tool(definition.raw.decode(), self.hidden):
            self.faults.append(_carrying(name))
            return Standing.UNKNOWN
        return Standing.ALLOWED

    def snapshot(self, allowed: Definitions) -> Snapshot:
        """Return the snapshot in which these tools are exposed."""
        return Snapshot(
            allowed=allowed,
            denied=MappingProxyType(dict(self.denied)),
            denied_bytes=self.denied_bytes,
            unmatched=tuple(
                one
                for one in (*self.deny, *self.allow, *self._exceptions)
                if one not in self.matched
            ),
            faults=tuple(self.faults),
            patterns=(self.deny, self.allow),
        )


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
    if len(name) <= 128 and name.isprintable():
        return name  # nearly all names
    return printable(name if len(name) <= 128 else name[:128] + "…")


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
    """Learns the upstream's list from the pages that pass. Each tool is judged once."""

    def __init__(self, deny: Sequence[Pattern], allow: Sequence[Pattern]) -> None:
        self._by_pattern = NamesByPattern(deny, allow)
        self._sorting = _Sorting(deny, allow, self._by_pattern)
        self._pinned: dict[str, Definition] = {}
        self._faulty: list[Definition] = []
        self._next: str | None = None  # the cursor of the next page of the list
        self.size = 0
        """Bytes of the definitions so far."""
        self.snapshot = Snapshot(
            allowed=Definitions(), denied={}, by_pattern=self._by_pattern, is_open=True
        )
        """Judges calls, and everything else that names a tool, only by name."""

    @property
    def definitions(self) -> tuple[Definition, ...]:
        """All definitions seen so far, in the upstream's order."""
        return (*self._pinned.values(), *self._faulty)

    def judge_page(self, page: Listing, *, pins: bool = True) -> Deciding[Snapshot]:
        """Return the snapshot for rewriting a page; pin its new definitions if it ``pins``."""
        sorting = self._sorting
        of_page = _Sorting(sorting.deny, sorting.allow, self._by_pattern)
        allowed = Definitions()
        for some in few_of(page.definitions):
            for one in some:
                name = one.name or ""
                if pins and name not in self._pinned and self.size <= _LONGEST_LIST:
                    self._pin(one)
                known = self._pinned.get(name)
                if known is not None and name in sorting.denied:
                    of_page.denied[name] = sorting.denied[name]
                    of_page.denied_bytes += len(known.raw)
                elif name not in allowed.names and (
                    known is not None or of_page.judge(one) is Standing.ALLOWED
                ):
                    allowed.add(name, (known or one).raw)
            yield LET_OTHERS_GO_ON
        return replace(of_page.snapshot(allowed), by_pattern=self._by_pattern)

    def _pin(self, definition: Definition) -> None:
        """Remember the first definition of a tool."""
        standing, name = self._sorting.judge(definition), definition.name
        self.size += len(definition.raw)
        if name is None or standing is Standing.UNKNOWN:
            self._faulty.append(definition)
        else:
            self._pinned[name] = definition

    def finish_page(self, asked: str | None, page: Listing) -> Deciding[Snapshot | None]:
        """Note the page that answers this cursor; return the snapshot if the list is complete
        now."""
        if asked is not None and asked != self._next:
            return None
        self._next = page.next_cursor or None
        if self._next is not None or self.size > _LONGEST_LIST:
            return None
        allowed = Definitions()
        for some in few_of(tuple(self._pinned.values())):
            for one in some:
                if one.name is not None and one.name not in self._sorting.denied:
                    allowed.add(one.name, one.raw)
            yield LET_OTHERS_GO_ON
        return self._sorting.snapshot(allowed)
