"""One kind of asker: the known part of its list, and the snapshot that judges it.

Until the list is complete, the patterns alone judge names (``UnlistedTools``).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from weakref import WeakValueDictionary, finalize

from mcp_tool_filter.errors import FetchFailed, ProtocolError
from mcp_tool_filter.policy.config import Config
from mcp_tool_filter.policy.snapshot import Snapshot, UnlistedTools, means_the_same, take_snapshot
from mcp_tool_filter.policy.tool_filter import Envelope
from mcp_tool_filter.protocol.limits import MEBIBYTE, Limits
from mcp_tool_filter.protocol.messages import parse_message, singles
from mcp_tool_filter.protocol.tools import Definition, Listing, in_parts, parse_listing

_LONGEST_ENVELOPE = 64 * 1024  # characters; without one, the upstream answers each list itself
_MOST_GONE = MEBIBYTE  # bytes of the definitions that we remember of tools that are gone


class Listed:
    """A complete list and its snapshot; kinds that get the same list share it."""

    __slots__ = ("__weakref__", "pages", "size", "snapshot")

    def __init__(self, pages: tuple[bytes, ...], snapshot: Snapshot) -> None:
        self.pages = pages
        self.snapshot = snapshot
        self.size = sum(map(len, pages)) + len(snapshot.tools)


class Kind:
    """One kind of asker."""

    __slots__ = (
        "_config",
        "_gone",
        "_listed",
        "_lists",
        "_next",
        "envelope",
        "is_listed",
        "is_settled",
        "is_split",
        "is_stale",
        "snapshot",
    )
    is_listed: bool
    """True if its complete list is known."""
    is_settled: bool
    """True if its snapshot judges every list; else ``snapshot_for`` must be asked."""
    snapshot: Snapshot
    """The snapshot that judges it. (No properties here: every message reads these attributes.)"""

    def __init__(self, lists: Lists, config: Config) -> None:
        self._lists = lists
        self._config = config
        self._listed: Listed | None = None
        self._gone: dict[str, bytes] = {}  # definitions of pinned tools that the upstream removed
        self._next: UnlistedTools | None = UnlistedTools(config.deny, config.allow)
        self.envelope: Envelope | None = None
        """The text around the tools of its list, in the form of the kind's revision."""
        self.is_stale = False
        """True if the upstream has said that its list changed: the next list comes from the
        upstream."""
        self.is_split = False
        """True if it said so in one session only: the other sessions find out for themselves."""
        self._follow_list()

    def _follow_list(self) -> None:
        """Use the snapshot of what is now known of the list."""
        self.is_listed = self._listed is not None
        known = self._listed or self._next
        assert known
        self.snapshot = known.snapshot
        self._note_settled()

    def _note_settled(self) -> None:
        may_grow = self._config.judges_new_tools or bool(self._gone)
        self.is_settled = self.is_listed and not may_grow

    def snapshot_for(self, pages: Sequence[Listing], *, pins: bool = True) -> Snapshot:
        """Return the snapshot to judge a message with these lists by; pin the new tools in them if
        it ``pins``."""
        if not pages or self.is_settled:
            return self.snapshot
        first = pages[0]
        definitions = tuple(one for page in pages for one in page.definitions)
        if self._gone:
            self._take_back(definitions)
        if self._listed is not None and not self._config.judges_new_tools:
            return self.snapshot
        if self._listed is not None:
            definitions = tuple(map(self._pinned, definitions))
        page = Listing(definitions, None, first.frame, first.head, first.tail)
        if self._listed is not None or self._next is None:
            return take_snapshot([page], self._config.deny, self._config.allow)
        before = self._next.size
        snapshot = self._next.judge_page(page, pins=pins)
        self._lists.unfinished += self._next.size - before
        return snapshot

    def learn(self, cursor: str | None, page: Listing) -> None:
        """Note a page that passed; after the last page the list is complete."""
        if cursor is None:
            self.learn_envelope(page)
        if self._next is None:
            if not self.is_stale and not self._config.judges_new_tools:
                return
            self._next = UnlistedTools(self._config.deny, self._config.allow)
        if self._listed is not None:  # a new kind has pinned it already
            before = self._next.size
            self._next.judge_page(page)
            self._lists.unfinished += self._next.size - before
        whole = self._next.finish_page(cursor, page)
        if whole is not None:
            self._finish((_page_of(self._next.definitions),), whole)

    def learn_envelope(self, page: Listing | None) -> None:
        """Keep the text around the tools of the first page."""
        small = page is not None and sum(map(len, page.frame)) <= _LONGEST_ENVELOPE
        self.envelope = Envelope(*page.frame) if page and small else None

    def take(self, pages: tuple[bytes, ...]) -> None:
        """Make this the complete list. Raises FetchFailed if it cannot be read."""
        self._listed = self._lists.listed(pages, self._config)
        self._stop_counting()
        self._next, self.is_stale, self.is_split = None, False, False
        self._remember_gone({})
        self._follow_list()
        self.learn_envelope(next(listings_in(pages), None))

    def close(self) -> None:
        """Stop counting what is remembered besides the complete list."""
        self._stop_counting()
        self._remember_gone({})

    def _remember_gone(self, gone: dict[str, bytes]) -> None:
        while sum(map(len, gone.values())) > _MOST_GONE:
            del gone[next(iter(gone))]
        before = sum(map(len, self._gone.values()))
        self._lists.unfinished += sum(map(len, gone.values())) - before
        self._gone = gone

    def _stop_counting(self) -> None:
        if self._next is not None:
            self._lists.unfinished -= self._next.size

    def prepare(self, config: Config) -> Listed | None:
        """Return the list under other patterns; nothing changes yet."""
        return self._lists.listed(self._listed.pages, config) if self._listed else None

    def adopt(self, config: Config, prepared: Listed | None) -> None:
        """Use other patterns from now on."""
        self._config, self._listed = config, prepared
        if self._next is not None:
            self._stop_counting()
            self._next = UnlistedTools(config.deny, config.allow)
        self._follow_list()

    def follow(self, config: Config) -> None:
        """Use another configuration with the same patterns."""
        self._config = config
        self._note_settled()

    def copy_from(self, other: Kind) -> None:
        """Start with the list of another kind, of which this one was part."""
        if other._listed is not None:
            self._listed, self._next = other._listed, None
            self._remember_gone(dict(other._gone))
            self._follow_list()

    def _pinned(self, definition: Definition) -> Definition:
        """Return the pinned definition of that name, or this one if none is pinned."""
        name = definition.name
        known = self.snapshot.allowed.get(name, self._gone.get(name)) if name else None
        return definition if known is None else replace(definition, problem=None, raw=known)

    def _finish(self, pages: tuple[bytes, ...], whole: Snapshot) -> None:
        if self._listed is not None:
            there = tuple(self._still_there(self._listed.pages, pages))
            self._listed = self._lists.listed((_page_of(there),), self._config)
        else:
            self._listed = self._lists.listed(pages, self._config, whole)
        self._stop_counting()
        self._next, self.is_stale = None, False
        self._follow_list()

    def _still_there(
        self, before: tuple[bytes, ...], now: tuple[bytes, ...]
    ) -> Iterator[Definition]:
        """Yield the pinned tools that still exist, and new tools if patterns judge them; remember
        the others."""
        pinned = {one.name: one for page in listings_in(before) for one in page.definitions}
        for page in listings_in(now):
            for one in page.definitions:
                if one.name in pinned:
                    yield pinned.pop(one.name)
                elif self._config.judges_new_tools:
                    yield self._pinned(one)
        gone = {one.name: one.raw for one in pinned.values() if one.name is not None}
        self._remember_gone({**self._gone, **gone})

    def _take_back(self, definitions: Iterable[Definition]) -> None:
        """Show tools again that come back as they were; a changed one is a new tool."""
        back = tuple(
            replace(one, raw=known)
            for one in definitions
            if one.name is not None
            and one.problem is None
            and (known := self._gone.get(one.name)) is not None
            and means_the_same(known, one.raw)
        )
        if not back or self._listed is None:
            return
        before = (one for page in listings_in(self._listed.pages) for one in page.definitions)
        self._listed = self._lists.listed((_page_of((*before, *back)),), self._config)
        names = {one.name for one in back}
        self._remember_gone({name: raw for name, raw in self._gone.items() if name not in names})
        self._follow_list()


class Lists:
    """The complete lists in use, each kept once."""

    def __init__(self) -> None:
        self._by_digest: WeakValueDictionary[bytes, Listed] = WeakValueDictionary()
        self.unfinished = 0
        """Bytes of the lists that are not complete yet."""
        self._whole = 0

    @property
    def size(self) -> int:
        """Bytes of all lists; those that several kinds share count once."""
        return self.unfinished + self._whole

    def listed(
        self, pages: tuple[bytes, ...], config: Config, snapshot: Snapshot | None = None
    ) -> Listed:
        """Return these pages with their snapshot, which is taken now if unknown."""
        digest = hashlib.sha256()
        for pattern in (*config.deny, None, *config.allow):
            digest.update(b"\0" + (pattern.text.encode() if pattern else b"\0"))
        for page in pages:
            digest.update(b"\0" + page)
        known = self._by_digest.get(digest.digest())
        if known is None:
            taken = snapshot or take_snapshot(listings_in(pages), config.deny, config.allow)
            known = Listed(pages, taken)
            self._by_digest[digest.digest()] = known
            self._whole += known.size
            finalize(known, self._forget, known.size).atexit = False
        return known

    def _forget(self, size: int) -> None:
        self._whole -= size


def listings_in(pages: Iterable[bytes]) -> Iterator[Listing]:
    """Parse answers to tools/list. (Parsed lists take much memory, so we parse again each time.)"""
    for page in pages:
        try:
            for part in in_parts(page):
                message = parse_message(part, Limits(message=len(part)))
                for listing in map(parse_listing, singles(message)):
                    if listing is None:
                        raise FetchFailed(why="The answer holds no tool list")
                    yield listing
        except ProtocolError as error:
            raise FetchFailed(why=f"The tool list cannot be read for sure: {error}") from None


def _page_of(definitions: tuple[Definition, ...]) -> bytes:
    """Render an answer with these tools, to be parsed again when the patterns change."""
    tools = b",".join([one.raw for one in definitions])
    return b'{"jsonrpc":"2.0","id":0,"result":{"tools":[' + tools + b"]}}"
