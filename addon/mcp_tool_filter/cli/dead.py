"""Which patterns match nothing: one answer for all who say so.

Several servers may have a pattern: it is at the top of their file, or was written into the entry of
each. It is dead only if it matches at none of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from mcp_tool_filter.cli.report import warnings_in
from mcp_tool_filter.core.policy.patterns import Pattern
from mcp_tool_filter.core.policy.snapshot import Snapshot
from mcp_tool_filter.core.process.start import key_of

type PatternKey = tuple[str, str]


@dataclass(frozen=True, slots=True)
class PatternHolder:
    """A server, and the patterns that judge its tools."""

    patterns: Sequence[Pattern]
    snapshot: Snapshot | None
    """None if it has not answered."""
    server: object = None
    """What makes two holders one server; if None, each is one."""


@dataclass(frozen=True, slots=True)
class DeadPattern:
    pattern: Pattern
    is_shared: bool
    """True if several servers have it."""
    is_sure: bool
    """True if all of them have answered."""

    @property
    def says(self) -> str:
        return f"the {self.finding}"

    @property
    def finding(self) -> str:
        of = ""
        if self.is_shared:
            of = " of any server" if self.is_sure else " of those that answered"
        return f'pattern "{self.pattern.text}" matches no {self.pattern.thing}{of}'


class DeadPatterns:
    """The patterns that match nothing at any of the servers that have them."""

    def __init__(self, holders: Iterable[PatternHolder]) -> None:
        having: dict[PatternKey, set[object]] = {}
        alive, silent = set[PatternKey](), set[PatternKey]()
        dead: dict[PatternKey, Pattern] = {}
        for one in list(holders):
            keys = set(map(key_of, one.patterns))
            for key in keys:
                having.setdefault(key, set()).add(one.server or id(one))
            if one.snapshot is None:
                silent |= keys
                continue
            unmatched = {key_of(each): each for each in one.snapshot.unmatched}
            alive |= keys - unmatched.keys()
            dead |= unmatched
        self._all = {
            key: DeadPattern(each, len(having.get(key, ())) > 1, key not in silent)
            for key, each in dead.items()
            if key not in alive
        }

    def find(self, pattern: Pattern) -> DeadPattern | None:
        return self._all.get(key_of(pattern))

    def in_list(self, snapshot: Snapshot | None) -> list[DeadPattern]:
        """Return those that a server has."""
        return list(filter(None, map(self.find, snapshot.unmatched if snapshot else ())))

    @property
    def shared(self) -> list[DeadPattern]:
        """Those that several servers have: to be said once."""
        return [one for one in self._all.values() if one.is_shared]

    def warnings_in(self, snapshot: Snapshot) -> Iterator[str]:
        """Yield the warnings about one server, except about patterns that several have."""
        own = {key_of(one.pattern) for one in self._all.values() if not one.is_shared}
        unmatched = tuple(one for one in snapshot.unmatched if key_of(one) in own)
        yield from warnings_in(replace(snapshot, unmatched=unmatched))
