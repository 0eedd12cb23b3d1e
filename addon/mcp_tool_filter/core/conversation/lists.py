"""The complete tool lists in use, each kept once, however many kinds of asker get it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from functools import cached_property
from weakref import WeakValueDictionary, finalize

from mcp_tool_filter.core.errors import FetchFailed, ProtocolError
from mcp_tool_filter.core.messages.large import in_parts
from mcp_tool_filter.core.messages.limits import MEBIBYTE, Limits
from mcp_tool_filter.core.messages.messages import parse_message, singles
from mcp_tool_filter.core.messages.tools import Definition, Listing, parse_listing
from mcp_tool_filter.core.policy.config import Config
from mcp_tool_filter.core.policy.effects import LET_OTHERS_GO_ON, Deciding
from mcp_tool_filter.core.policy.snapshot import Snapshot
from mcp_tool_filter.core.policy.taking import UnlistedTools, snapshot_in_steps

type Frame = tuple[str, str]
"""The text of a list's result before and after its tools; None for a list that we always get from
the upstream."""


class Listed:
    """A complete list and its snapshot; kinds that get the same list share it."""

    def __init__(self, pages: tuple[bytes, ...], snapshot: Snapshot, frame: Frame) -> None:
        self.pages = pages
        self.frame = frame
        self.snapshot = snapshot
        self.size = sum(map(len, pages)) + len(snapshot.allowed.tools)

    @cached_property
    def locked(self) -> tuple[tuple[str, bytes], ...]:
        """The definitions that the lock hides. (Read at the first question: only pages ask.)"""
        names = self.snapshot.locked
        pages = filter(None, listings_in(self.pages)) if names else ()
        found = [
            (definition.name, definition.raw) for page in pages for definition in page.definitions
        ]
        return tuple((name, raw) for name, raw in found if name and name in names)


MOST_BYTES = 64 * MEBIBYTE


class Lists:
    """The complete lists in use, each kept once."""

    def __init__(self) -> None:
        self._by_digest: WeakValueDictionary[bytes, Listed] = WeakValueDictionary()
        self.unfinished = 0
        """Bytes of the lists that are not complete yet."""
        self._whole = 0
        self._unlisted: tuple[Config, UnlistedTools] | None = None

    @property
    def size(self) -> int:
        """Bytes of all lists; those that several kinds share count once."""
        return self.unfinished + self._whole

    @property
    def is_full(self) -> bool:
        return self.size > MOST_BYTES

    def listed(
        self, pages: tuple[bytes, ...], config: Config, snapshot: Snapshot | None = None
    ) -> Deciding[Listed]:
        """Return these pages with their snapshot, which is taken now if unknown."""
        digest = hashlib.sha256(repr(config.choice).encode())
        for page in pages:
            digest.update(b"\0")
            for at in range(0, len(page), MEBIBYTE):
                digest.update(page[at : at + MEBIBYTE])
                yield LET_OTHERS_GO_ON
        known = self._by_digest.get(digest.digest())
        if known is not None:
            return known
        frames: list[Frame] = []
        if snapshot is None:
            listings = _noting_frames(listings_in(pages), frames)
            snapshot = yield from snapshot_in_steps(listings, config.choice)
        known = Listed(pages, snapshot, next(iter(frames), ('{"tools":', "}")))
        self._by_digest[digest.digest()] = known
        self._whole += known.size
        finalize(known, self._forget, known.size).atexit = False
        return known

    def _forget(self, size: int) -> None:
        self._whole -= size

    def unlisted(self, config: Config) -> UnlistedTools:
        """Return what judges the names of all who have no list and no room for one."""
        if self._unlisted is None or self._unlisted[0] is not config:
            self._unlisted = config, UnlistedTools(config.choice)
        return self._unlisted[1]

    def __len__(self) -> int:
        return len(self._by_digest)


def _noting_frames(
    listings: Iterable[Listing | None], frames: list[Frame]
) -> Iterator[Listing | None]:
    for listing in listings:
        if listing is not None and not frames:
            frames.append(listing.frame)
        yield listing


def listings_in(pages: Iterable[bytes]) -> Iterator[Listing | None]:
    """Parse answers to tools/list, a few tools at a time. (Parsed lists take much memory, so we
    parse again each time.) Yields None while it searches for the tools."""
    for page in pages:
        try:
            for part in in_parts(page):
                if part is None:
                    yield None
                    continue
                message = parse_message(part, Limits(message=len(part)))
                for listing in map(parse_listing, singles(message)):
                    if listing is None:
                        raise FetchFailed(why="The answer holds no tool list")
                    yield listing
        except ProtocolError as error:
            raise FetchFailed(why=f"The tool list cannot be read for sure: {error}") from None


def page_of(definitions: Iterable[Definition]) -> bytes:
    """Render an answer with these tools, to be parsed again when the patterns change."""
    tools = b",".join([definition.raw for definition in definitions])
    return b'{"jsonrpc":"2.0","id":0,"result":{"tools":[' + tools + b"]}}"
