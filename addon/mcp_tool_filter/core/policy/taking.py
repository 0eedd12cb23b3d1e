"""Take a snapshot of a list of tools, at once or in steps.

While the complete list is unknown, the patterns judge (``UnlistedTools``). A client may call a tool
before it has seen a list, and may read a long list page by page. Until the last page has passed, we
refuse names that the patterns deny, and those that a hint could hide unless we have seen their
definitions; we forward all others. We pin each definition when we first see it. Then the list is
complete and becomes an ordinary snapshot.

>>> from mcp_tool_filter.core.policy.patterns import parse_pattern
>>> tools = UnlistedTools(Choice(deny=(parse_pattern("^rm"),)))
>>> [tools.snapshot.standing(name).value for name in ("read_file", "rm_rf")]
['allowed', 'denied']
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from mcp_tool_filter.core.messages.limits import MEBIBYTE
from mcp_tool_filter.core.messages.tools import (
    Definition,
    Listing,
    carries,
    carries_another,
    may_carry_another,
)
from mcp_tool_filter.core.policy.choice import (
    EVERYTHING,
    UNDECIDED,
    Choice,
    Hider,
    is_locked,
    says_nothing,
)
from mcp_tool_filter.core.policy.effects import LET_OTHERS_GO_ON, Deciding, at_once
from mcp_tool_filter.core.policy.patterns import ALLOW_ALL, Pattern
from mcp_tool_filter.core.policy.snapshot import (
    Definitions,
    HiddenNames,
    Snapshot,
    Standing,
    is_too_long,
    names_hidden_by,
    not_in_lock,
    shown,
    too_long_name,
)


def take_snapshot(listings: Iterable[Listing], choice: Choice = EVERYTHING) -> Snapshot:
    """Apply the choice to all pages of the upstream's list."""
    return at_once(snapshot_in_steps(listings, choice))


def snapshot_in_steps(listings: Iterable[Listing | None], choice: Choice) -> Deciding[Snapshot]:
    """Do the same for a list that is read in parts, with a pause after each.

    None among the parts is only a pause.
    """
    sorting, allowed = _Sorting(choice), Definitions()
    nested: list[str] = []
    for listing in listings:
        for one in listing.definitions if listing else ():
            name = one.name or ""
            if name in allowed.names and sorting.deny_changed(one):
                continue
            if name in allowed.names and not one.problem:
                sorting.faults.append(listed_twice(name))
            elif sorting.judge(one) is Standing.ALLOWED:
                allowed.add(name, one.raw)
                if may_carry_another(one.raw.decode()):
                    nested.append(name)
        yield LET_OTHERS_GO_ON
    if not sorting.denied.keys().isdisjoint(allowed):
        allowed = Definitions(
            (name, raw) for name, raw in allowed.items() if name not in sorting.denied
        )
    # Which tools are denied is known only now. Few definitions have any of a definition in them.
    there = (name for name in nested if name in allowed.names)
    carrying = {name for name in there if carries(allowed[name].decode(), sorting.denied)}
    if carrying:
        sorting.faults += map(_carrying, filter(carrying.__contains__, allowed))
        allowed = Definitions((name, raw) for name, raw in allowed.items() if name not in carrying)
    return sorting.snapshot(allowed)


@dataclass(slots=True)
class _Sorting:
    """Sorts tools into exposed and other ones, and notes why those are not exposed."""

    choice: Choice
    hidden: HiddenNames | None = None
    """Names that no definition may show; if None, whoever sorts looks for denied ones itself."""
    denied: dict[str, Hider] = field(default_factory=dict)
    denied_bytes: int = 0
    matched: Counter[Pattern] = field(default_factory=Counter)
    judged: int = 0
    is_unannotated: bool = True
    faults: list[str] = field(default_factory=list)
    foreseen: dict[str, tuple[bytes, Hider | None]] = field(default_factory=dict)
    """Definitions that were looked at before, and what hides them, by name."""

    def judge(self, definition: Definition) -> Standing:
        """Tell whether a tool is exposed, denied, or cannot be exposed (unknown)."""
        name = definition.name
        if definition.problem or name is None:
            self.faults.append(f"{definition.problem}: not exposed")
            return Standing.UNKNOWN
        if is_too_long(name):
            self.faults.append(too_long_name(name))
            return Standing.UNKNOWN
        if name in self.denied:  # listed twice: the first definition counts
            self.denied_bytes += len(definition.raw)
            return Standing.DENIED
        hits = self.choice.hits(name)
        self.matched.update(hits)
        self.judged += 1
        before = self.foreseen.get(name)
        if before and before[0] is definition.raw:  # to read its hints again would take as long
            by = before[1]
        else:
            by = self.choice.hiding(name, definition.raw, hits=hits)
        if by is not None:
            self._deny(name, by, definition)
            return Standing.DENIED
        if self.hidden is not None and carries_another(definition.raw.decode(), self.hidden):
            self.faults.append(_carrying(name))
            return Standing.UNKNOWN
        return Standing.ALLOWED

    def deny_changed(self, definition: Definition) -> bool:
        """Deny a tool, also one that was allowed, if the lock does not approve this definition."""
        name, choice = definition.name, self.choice
        if choice.lock is None or name is None:
            return False
        hits = choice.hits(name)
        by = choice.hiding(name, b"" if definition.problem else definition.raw, hits=hits)
        if is_locked(by) and by is not None and name not in self.denied:
            self.matched.update(hits)
            self.judged += 1
            self._deny(name, by, definition)
        return is_locked(by)

    def _deny(self, name: str, by: Hider, definition: Definition) -> None:
        self.denied[name] = by
        self.denied_bytes += len(definition.raw)
        if self.is_unannotated:
            self.is_unannotated = by in self.choice.causes and says_nothing(definition.raw)
        if is_locked(by):
            self.faults.append(not_in_lock(name, by))

    def snapshot(self, allowed: Definitions) -> Snapshot:
        """Return the snapshot in which these tools are exposed."""
        patterns = self.choice.patterns
        return Snapshot(
            allowed=allowed,
            denied=MappingProxyType(dict(self.denied)),
            denied_bytes=self.denied_bytes,
            unmatched=tuple(pattern for pattern in patterns if pattern not in self.matched),
            too_wide=tuple(
                pattern
                for pattern in patterns
                if self.matched[pattern] == self.judged > 1
                and (pattern.option, pattern.text) != ALLOW_ALL
            ),
            faults=tuple(self.faults),
            is_unannotated=self.is_unannotated and bool(self.denied),
            choice=self.choice,
        )


def by_name(snapshot: Snapshot) -> Snapshot:
    """Return a snapshot of the same list that also denies names which are not in it."""
    return replace(snapshot, by_name=names_hidden_by(snapshot))


def drift_of(
    definition: Definition, snapshot: Snapshot, faults: Collection[str] = ()
) -> str | None:
    """Return how a tool differs from the snapshot, or None; ``faults`` is the set of its faults."""
    name = definition.name
    if definition.problem or name is None:
        return f"the upstream sent {definition.problem}: not exposed"
    if is_too_long(name):
        return too_long_name(name)
    if (known := snapshot.allowed.get(name)) is not None:
        if means_the_same(known, definition.raw):
            return None
        change = f"the upstream changed the tool {shown(name)}"
        return f"{change}: still serving the version seen at start-up"
    if (by := snapshot.hiding(name)) in (None, UNDECIDED):
        by = snapshot.choice.hiding(name, definition.raw)
    if by is not None:
        return not_in_lock(name, by) if is_locked(by) else None
    if (carrying := _carrying(name)) in faults:
        return carrying
    return (
        f"the upstream has a new tool {shown(name)}: hidden until you restart the filter; "
        "with --new-tools judge, the patterns decide about new tools"
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


_AT_A_TIME = 100  # definitions whose hints are read without a pause
_LONGEST_LIST = 80 * MEBIBYTE  # bytes; longer lists are not pinned, only judged by pattern


class UnlistedTools:
    """Learns the upstream's list from the pages that pass. Each tool is judged once."""

    def __init__(self, choice: Choice) -> None:
        self._known: dict[str, Hider | None] = {}
        self._hidden = HiddenNames(choice, self._known)
        self._sorting = _Sorting(choice, self._hidden)
        self.pinned: dict[str, Definition] = {}
        self._faulty: list[Definition] = []
        self.next_cursor: str | None = None
        """The cursor of the next page of the list."""
        self.size = 0
        """Bytes of the definitions so far."""
        self.snapshot = Snapshot(
            allowed=Definitions(), denied={}, choice=choice, by_name=self._hidden, is_open=True
        )
        """Judges calls, and everything else that names a tool, by name, or as its pinned definition
        was judged."""

    @property
    def definitions(self) -> tuple[Definition, ...]:
        """All definitions seen so far, in the upstream's order."""
        return (*self.pinned.values(), *self._faulty)

    def under(self, choice: Choice) -> UnlistedTools:
        """Return the same definitions, judged by another choice."""
        new = UnlistedTools(choice)
        if definitions := self.definitions:
            new.judge_page(Listing(definitions, None, ("", ""), "", ""))
        new.next_cursor = self.next_cursor
        return new

    def judge_page(self, page: Listing, *, pins: bool = True) -> Snapshot:
        """Return the snapshot for rewriting a page; pin its new definitions if it ``pins``."""
        sorting = self._sorting
        of_page = _Sorting(sorting.choice, self._hidden)
        allowed = Definitions()
        if sorting.choice.lock is not None:
            self._deny_changed(page, pins=pins)
        if pins:
            at_once(self.foresee(page))
        for definition in page.definitions:
            name = definition.name or ""
            if pins and name not in self.pinned and self.size <= _LONGEST_LIST:
                self._pin(definition)
            known = self.pinned.get(name)
            is_denied = known is not None or sorting.choice.lock is not None
            if is_denied and name in sorting.denied:
                of_page.denied[name] = sorting.denied[name]
                of_page.denied_bytes += len((known or definition).raw)
            elif name not in allowed.names and (
                known is not None or of_page.judge(definition) is Standing.ALLOWED
            ):
                allowed.add(name, (known or definition).raw)
        sorting.foreseen.clear()
        return replace(of_page.snapshot(allowed), by_name=self._hidden)

    def _deny_changed(self, page: Listing, *, pins: bool) -> None:
        """Deny what the lock does not approve, also if it approved another definition before."""
        for definition in page.definitions:
            if self._sorting.deny_changed(definition) and definition.name is not None:
                self._known[definition.name] = self._sorting.denied[definition.name]
                if definition.name in self.pinned or (pins and self.size <= _LONGEST_LIST):
                    self.pinned[definition.name] = definition
                    self.size += len(definition.raw)

    def foresee(self, page: Listing) -> Deciding[None]:
        """Note the tools that a page's definitions hide: no other of its tools may carry one."""
        if not self._sorting.choice.needs_definitions:
            return
        first = {
            definition.name: definition
            for definition in reversed(page.definitions)
            if not definition.problem
        }
        for number, one in enumerate(first.values()):
            is_known = one.name in self._known or one.name in self._sorting.foreseen
            if one.name is not None and not is_known:
                by = self._sorting.choice.hiding(one.name, one.raw)
                self._sorting.foreseen[one.name] = one.raw, by
                if by:
                    self._known[one.name] = by
                if number % _AT_A_TIME == 0:
                    yield LET_OTHERS_GO_ON

    def _pin(self, definition: Definition) -> None:
        """Remember the first definition of a tool."""
        standing, name = self._sorting.judge(definition), definition.name
        self.size += len(definition.raw)
        if name is None or standing is Standing.UNKNOWN:
            self._faulty.append(definition)
        else:
            self.pinned[name] = definition
            if self._sorting.choice.needs_definitions:
                self._known[name] = self._sorting.denied.get(name)

    def finish_page(self, asked: str | None, page: Listing) -> Snapshot | None:
        """Note the page that answers this cursor; return the snapshot if the list is complete
        now."""
        if asked is not None and asked != self.next_cursor:
            return None
        self.next_cursor = page.next_cursor or None
        if self.next_cursor is not None or self.size > _LONGEST_LIST:
            return None
        allowed = Definitions()
        for one in self.pinned.values():
            if one.name is not None and one.name not in self._sorting.denied:
                allowed.add(one.name, one.raw)
        return self._sorting.snapshot(allowed)
