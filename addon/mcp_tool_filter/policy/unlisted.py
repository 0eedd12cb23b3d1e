r"""Judge tools by the patterns while the upstream's complete list is unknown.

A client may call a tool before it has seen a list, and may read a long list page by page. Until the
last page has passed, we refuse names that the patterns deny and forward all others. We pin each
definition when we first see it. Then the list is complete and becomes an ordinary snapshot.

>>> from mcp_tool_filter.policy.patterns import parse_pattern
>>> tools = UnlistedTools([parse_pattern("^rm")], [])
>>> "read_file" in tools.snapshot.allowed, "rm_rf" in tools.snapshot.denied
(True, True)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from mcp_tool_filter.policy.patterns import MAX_NAME, Pattern
from mcp_tool_filter.policy.snapshot import Definitions, Snapshot, shown, take_snapshot
from mcp_tool_filter.protocol.limits import MEBIBYTE
from mcp_tool_filter.protocol.tools import Definition, Listing, shows_other_tool

_LONGEST_LIST = 80 * MEBIBYTE  # bytes; longer lists are not pinned, only judged by pattern


class UnlistedTools:
    """Learns the upstream's list from the pages that pass."""

    def __init__(self, deny: Sequence[Pattern], allow: Sequence[Pattern]) -> None:
        self._deny = deny
        self._allow = allow
        self._denied = _DeniedNames(deny, allow)
        self._pinned: dict[str, Definition] = {}
        self._faulty: list[Definition] = []
        self._size = 0
        self._next: str | None = None  # the cursor of the next page of the list
        self.snapshot = Snapshot(allowed=_AllowedNames(self._denied), denied=self._denied)
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
        return replace(partial, denied=self._denied)

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
        return name in self.snapshot.allowed and shows_other_tool(raw.decode(), self._denied)


class _DeniedNames(Mapping[str, Pattern | None]):
    """All names that the patterns deny: an infinite set, which cannot be iterated."""

    def __init__(self, deny: Sequence[Pattern], allow: Sequence[Pattern]) -> None:
        self._deny = deny
        self._allow = allow

    def __getitem__(self, name: str) -> Pattern | None:
        if len(name) > MAX_NAME:
            raise KeyError(name)  # such a tool is never exposed, so no pattern has to read the name
        for pattern in self._deny:
            if pattern.matches(name):
                return pattern
        if self._allow and not any(pattern.matches(name) for pattern in self._allow):
            return None
        raise KeyError(name)

    def __len__(self) -> int:
        return len(self._deny) + len(self._allow)

    def __iter__(self) -> Iterator[str]:
        yield ""  # for searches in text that is not JSON, which could contain any name


class _AllowedNames(Definitions):
    """All other names."""

    __slots__ = ("_denied",)

    def __init__(self, denied: _DeniedNames) -> None:
        super().__init__([])
        self._denied = denied
        self.names = self

    def __contains__(self, name: object) -> bool:
        if not isinstance(name, str) or len(name) > MAX_NAME:
            return False
        return len(name.encode("utf-16-le", "surrogatepass")) // 2 <= MAX_NAME and (
            name not in self._denied
        )
