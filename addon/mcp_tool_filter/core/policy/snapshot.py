"""The snapshot: the upstream's tools as fetched at start, allowed and denied, frozen.

A tool that appears later is not exposed; a tool that changes keeps its old definition. Such later
differences are drift, and get a warning.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from mcp_tool_filter.core.errors import printable
from mcp_tool_filter.core.policy.choice import (
    EVERYTHING,
    IN_LOCK,
    UNDECIDED,
    Cause,
    Choice,
    Hider,
    is_locked,
)
from mcp_tool_filter.core.policy.patterns import MAX_NAME, Pattern


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


class HiddenNames(Collection[str]):
    """All names that the choice hides: an infinite collection, which cannot be iterated.

    If only the definition can judge a name, ``known`` says what hides its tool. It remembers the
    last name, because a call's name is asked for several times: by the decision and by those who
    report it.
    """

    def __init__(self, choice: Choice, known: Mapping[str, Hider | None]) -> None:
        self._choice = choice
        self._known = known
        self._last: tuple[str | None, Hider | None] = (None, None)
        self._length = 0 if choice.hides_nothing else 1  # each answer asks

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self.hiding(name) not in (None, UNDECIDED)

    def hiding(self, name: str) -> Hider | None:
        """Return what hides a name, or None."""
        if len(name) > MAX_NAME:  # such a tool is never exposed, so no pattern has to read the name
            return None
        last = self._last  # read once: others may ask meanwhile
        if last[0] != name:
            last = self._last = (name, self._choice.hiding(name))
        return self._known.get(name, UNDECIDED) if last[1] is UNDECIDED else last[1]

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[str]:
        yield ""  # for searches in text that is not JSON, which could contain any name


class CatalogItem(NamedTuple):
    """A prompt, a resource or a skill that the upstream lists."""

    kind: str
    name: str
    """In a form that is safe to show."""
    pattern: str = ""
    """The pattern that hides it."""


_MOST_NEWS = 12  # changes that we list


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    allowed: Definitions
    """The allowed tools in the upstream's order."""
    denied: Mapping[str, Hider]
    """The denied tools, and what hides each."""
    denied_bytes: int = 0
    """The bytes of the denied tools' definitions."""
    unmatched: tuple[Pattern, ...] = ()
    """Patterns that match no tool, perhaps because of a typing error."""
    too_wide: tuple[Pattern, ...] = ()
    """Patterns that match every one of several tools."""
    faults: tuple[str, ...] = ()
    """The problems of tools that cannot be exposed."""
    is_unannotated: bool = False
    """True if only hints hide tools, and no hidden tool says anything of itself."""
    choice: Choice = EVERYTHING
    """The choice that it was made with."""
    catalog: tuple[CatalogItem, ...] = ()
    """What else the upstream lists, if patterns judge that and we have asked for it."""
    by_name: HiddenNames | None = None
    """If the list is not known completely: also denies names that are not in it."""
    is_open: bool = False
    """True if all names that the choice does not hide are allowed, too."""
    hidden_names: Collection[str] = field(init=False)
    """The names of hidden tools, as far as we know them. (No property: each message asks.)"""
    never_shown: Collection[str] = field(init=False)
    """The names whose definition no message may show, also those of tools that were never listed,
    or are gone."""

    def __post_init__(self) -> None:
        hidden = self.denied if self.by_name is None else self.by_name
        object.__setattr__(self, "hidden_names", hidden)
        never = hidden
        if self.by_name is None and not self.choice.hides_nothing:
            never = names_hidden_by(self)
        object.__setattr__(self, "never_shown", never)

    def standing(self, name: str) -> Standing:
        """Tell whether a client may call the tool of this name."""
        if name in self.allowed.names:
            return Standing.ALLOWED
        if name in self.hidden_names:
            return Standing.DENIED
        is_allowed = self.is_open and not (is_too_long(name) or self.is_undecided(name))
        return Standing.ALLOWED if is_allowed else Standing.UNKNOWN

    def hiding(self, name: str) -> Hider | None:
        """Return what hides the tool of this name; None if nothing does."""
        by = self.by_name.hiding(name) if self.by_name else self.denied.get(name)
        return by if self.is_open or by is not UNDECIDED else None

    def is_undecided(self, name: str) -> bool:
        """Tell whether only the tool's definition, which we do not know, can judge it."""
        if self.by_name is None or not self.choice.needs_definitions:
            return False
        return self.by_name.hiding(name) is UNDECIDED

    @property
    def locked(self) -> dict[str, Hider]:
        """The tools that only the lock hides, and why."""
        return {name: by for name, by in self.denied.items() if is_locked(by)}

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
        said = ", ".join(news[:_MOST_NEWS]) or "its tools are the same as before"
        return f"{said} and {more} more" if more > 0 else said


def names_hidden_by(snapshot: Snapshot) -> HiddenNames:
    known: dict[str, Hider | None] = {}
    if snapshot.choice.needs_definitions:
        known = {**snapshot.denied, **dict.fromkeys(snapshot.allowed)}
    return HiddenNames(snapshot.choice, known)


def shown(name: str) -> str:
    """Return a tool name in a form that is safe to show.

    >>> shown("delete_file"), shown("a\\n\\x1b[31m"), len(shown("x" * 1000))
    ('delete_file', 'a\\\\n\\\\x1b[31m', 129)
    """
    if len(name) <= 128 and name.isprintable():
        return name  # nearly all names
    return printable(name if len(name) <= 128 else name[:128] + "…")


def is_too_long(name: str) -> bool:
    if len(name) <= MAX_NAME // 2:
        return False
    return len(name.encode("utf-16-le", "surrogatepass")) // 2 > MAX_NAME


def too_long_name(name: str) -> str:
    return (
        f"the tool name {shown(name)} is longer than {MAX_NAME} characters: not exposed; "
        "to get the tool, give it a shorter name in the upstream"
    )


def not_in_lock(name: str, by: Hider | None) -> str:
    """Say why the lock does not let a tool pass."""
    says = by.says if isinstance(by, Cause) else ""
    verb = "has" if says.startswith("changed") else "is"
    return f"the tool {shown(name)} {verb} {says}{IN_LOCK}"


def is_about_lock(sentence: str) -> bool:
    """Tell whether this is such a sentence: it holds for all kinds of asker."""
    return sentence.endswith(IN_LOCK)
