"""Each kind of asker has its own snapshot: what an upstream lists may depend on who asks, and how.

A kind is known by what can change the upstream's answer: the revision, the capabilities that the
client declares, and who asks. Who asks without credentials asks like everybody else. The list that
was fetched at start is the snapshot of one kind; any other kind gets its first list from the
upstream, filtered by the patterns, and that list is pinned. No kind ever sees another's snapshot.

Until a kind's list is whole, names are judged by the patterns alone (``UnlistedTools``).
"""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from weakref import WeakValueDictionary, finalize

from mcp_tool_filter.errors import FetchFailed, ProtocolError
from mcp_tool_filter.policy.config import Config
from mcp_tool_filter.policy.exchange import Client
from mcp_tool_filter.policy.snapshot import Snapshot, take_snapshot
from mcp_tool_filter.policy.tool_filter import Envelope
from mcp_tool_filter.policy.unlisted import UnlistedTools
from mcp_tool_filter.protocol.limits import MEBIBYTE, Limits
from mcp_tool_filter.protocol.messages import Message, Request, parse_message, singles
from mcp_tool_filter.protocol.tools import Definition, Listing, in_parts, parse_listing

MOST_KINDS = 1000
MOST_BYTES = 64 * MEBIBYTE
_LONGEST_CAPABILITIES = 4096  # characters that are kept as they are
_LONGEST_ENVELOPE = 64 * 1024  # characters; without one, the upstream answers each list itself
ALL_CAPABILITIES = (
    '{"elicitation":{"form":{},"url":{}},"roots":{"listChanged":true},'
    '"sampling":{"context":{},"tools":{}},"tasks":{"cancel":{},"list":{},"requests":'
    '{"elicitation":{"create":{}},"sampling":{"createMessage":{}}}}}'
)
"""All that a client can declare in any revision: our own fetch does."""
_META_CAPABILITIES = "io.modelcontextprotocol/clientCapabilities"

type Key = tuple[str | None, str | None, str]
"""Revision, capabilities, and who asks: empty for all who bring no credentials."""


class _Listed:
    """A whole list and the snapshot of it; kinds that get the same list share it."""

    __slots__ = ("__weakref__", "pages", "size", "snapshot")

    def __init__(self, pages: tuple[bytes, ...], snapshot: Snapshot) -> None:
        self.pages = pages
        self.snapshot = snapshot
        self.size = sum(map(len, pages)) + len(snapshot.tools)


class Kind:
    """One kind of asker."""

    __slots__ = (
        "_config",
        "_listed",
        "_lists",
        "_next",
        "envelope",
        "is_listed",
        "is_split",
        "is_stale",
        "snapshot",
    )
    is_listed: bool
    """Its whole list is known."""
    snapshot: Snapshot
    """What it is judged by: attributes, for every message asks for them."""

    def __init__(self, lists: _Lists, config: Config) -> None:
        self._lists = lists
        self._config = config
        self._listed: _Listed | None = None
        self._next: UnlistedTools | None = UnlistedTools(config.deny, config.allow)
        self.envelope: Envelope | None = None
        """The frame of the list, in the form of the kind's revision."""
        self.is_stale = False
        """The upstream has said that its list changed: the next one comes from there."""
        self.is_split = False
        """It has said so in one session: each of the others finds out for itself."""
        self._follow_list()

    def _follow_list(self) -> None:
        """Be judged by what is known of the list now."""
        self.is_listed = self._listed is not None
        known = self._listed or self._next
        assert known
        self.snapshot = known.snapshot

    def snapshot_for(self, pages: Sequence[Listing]) -> Snapshot:
        """Return what a message that carries these lists is judged by; pin what is new in them."""
        if not pages or (self._listed is not None and not self._config.judges_new_tools):
            return self.snapshot
        first = pages[0]
        definitions = tuple(one for page in pages for one in page.definitions)
        if self._listed is not None:
            definitions = tuple(map(self._pinned, definitions))
        page = Listing(definitions, None, first.frame, first.head, first.tail)
        if self._listed is not None or self._next is None:
            return take_snapshot([page], self._config.deny, self._config.allow)
        before = self._next.size
        snapshot = self._next.judge_page(page)
        self._lists.unfinished += self._next.size - before
        return snapshot

    def learn(self, cursor: str | None, page: Listing) -> None:
        """Note a page that passed; when it was the last, the list is whole."""
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
        """Keep what stands around the tools of the first page."""
        small = page is not None and sum(map(len, page.frame)) <= _LONGEST_ENVELOPE
        self.envelope = Envelope(*page.frame) if page and small else None

    def take(self, pages: tuple[bytes, ...]) -> None:
        """Make this the whole list. Raises FetchFailed if it cannot be read."""
        self._listed = self._lists.listed(pages, self._config)
        self.close()
        self._next, self.is_stale, self.is_split = None, False, False
        self._follow_list()
        self.learn_envelope(next(listings_in(pages), None))

    def close(self) -> None:
        """Count what was not finished no more."""
        if self._next is not None:
            self._lists.unfinished -= self._next.size

    def prepare(self, config: Config) -> _Listed | None:
        """Apply other patterns to the list; nothing changes yet."""
        return self._lists.listed(self._listed.pages, config) if self._listed else None

    def adopt(self, config: Config, prepared: _Listed | None) -> None:
        """Judge by other patterns from now on."""
        self._config, self._listed = config, prepared
        if self._next is not None:
            self.close()
            self._next = UnlistedTools(config.deny, config.allow)
        self._follow_list()

    def follow(self, config: Config) -> None:
        """Note another configuration with the same patterns."""
        self._config = config

    def copy_from(self, other: Kind) -> None:
        """Begin with what another kind knows, which this one was a part of."""
        if other._listed is not None:
            self._listed, self._next = other._listed, None
            self._follow_list()

    def _pinned(self, definition: Definition) -> Definition:
        """Return the definition of that name that came first."""
        known = self.snapshot.allowed.get(definition.name) if definition.name else None
        return definition if known is None else replace(definition, problem=None, raw=known)

    def _finish(self, pages: tuple[bytes, ...], whole: Snapshot) -> None:
        if self._listed is not None:
            there = tuple(self._still_there(self._listed.pages, pages))
            self._listed = self._lists.listed((_page_of(there),), self._config)
        else:
            self._listed = self._lists.listed(pages, self._config, whole)
        self.close()
        self._next, self.is_stale = None, False
        self._follow_list()

    def _still_there(
        self, before: tuple[bytes, ...], now: tuple[bytes, ...]
    ) -> Iterator[Definition]:
        """Yield what is pinned and still there; and new tools, where they are judged."""
        pinned = {one.name: one for page in listings_in(before) for one in page.definitions}
        for page in listings_in(now):
            for one in page.definitions:
                if one.name in pinned:
                    yield pinned[one.name]
                elif self._config.judges_new_tools:
                    yield one


class _Lists:
    """The whole lists that are in use, each once."""

    def __init__(self) -> None:
        self._by_digest: WeakValueDictionary[bytes, _Listed] = WeakValueDictionary()
        self.unfinished = 0
        """Bytes of the lists that are not whole."""
        self._whole = 0

    @property
    def size(self) -> int:
        """Bytes of all lists; those that several kinds share count once."""
        return self.unfinished + self._whole

    def listed(
        self, pages: tuple[bytes, ...], config: Config, snapshot: Snapshot | None = None
    ) -> _Listed:
        """Return these pages with their snapshot, which is taken now if it is not known."""
        digest = hashlib.sha256()
        for pattern in (*config.deny, None, *config.allow):
            digest.update(b"\0" + (pattern.text.encode() if pattern else b"\0"))
        for page in pages:
            digest.update(b"\0" + page)
        known = self._by_digest.get(digest.digest())
        if known is None:
            taken = snapshot or take_snapshot(listings_in(pages), config.deny, config.allow)
            known = _Listed(pages, taken)
            self._by_digest[digest.digest()] = known
            self._whole += known.size
            finalize(known, self._forget, known.size).atexit = False
        return known

    def _forget(self, size: int) -> None:
        self._whole -= size


class Kinds:
    """All kinds of asker at one listener; the least recently used are forgotten."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._lists = _Lists()
        self._kinds: OrderedDict[Key, Kind] = OrderedDict()
        self.start = Kind(self._lists, config)
        """That of our own fetch, and of whoever cannot be told from it."""
        self.start_key: Key = (None, None, "")
        self.are_one = False
        """All askers get the same list."""

    def of(self, client: Client, capabilities: str | None = None) -> Kind:
        """Return the kind of a client; ``capabilities`` are those that its message declares."""
        kind = self._known(client, capabilities)
        if kind.is_split and client.session is not None and not client.who:
            client.session.is_on_its_own = True
            kind = self._known(client, capabilities)
        return kind

    def _known(self, client: Client, capabilities: str | None) -> Kind:
        session = client.session
        if capabilities is None and session is not None:
            capabilities = session.capabilities
        if session is None:
            revision, who = client.said_revision, client.credential
        else:
            revision, who = session.revision, session.who
        if self.are_one:
            who, capabilities = "", None
        if not who and (revision is None or self._is_of_start(revision, capabilities)):
            return self.start
        key = revision, capabilities, who
        kind = self._kinds.get(key)
        if kind is None:
            kind = self._kinds[key] = Kind(self._lists, self._config)
            if self.are_one:
                kind.copy_from(self.start)
            elif session is not None and session.is_on_its_own and session.is_like_the_fetch:
                self._split_off(kind, revision, capabilities)
            self._forget()
        self._kinds.move_to_end(key)
        return kind

    def _is_of_start(self, revision: str | None, capabilities: str | None) -> bool:
        start_revision, start_capabilities, _ = self.start_key
        return revision == start_revision and capabilities in (None, start_capabilities)

    def note_change(self, client: Client) -> None:
        """Let the next list come from the upstream: it has said that the list changed.

        That may be so for this session only, so it gets a kind of its own; and so do the others of
        its kind, for not all can be told. Who has no session shares its list with others who bring
        the same credentials.
        """
        session = client.session
        if self.are_one:
            kinds = [self.start]
        elif session is None:
            kinds = list(self._without_session(client))
        elif client.who:
            kinds = [self.of(client)]
        else:
            self.of(client).is_split = True
            kinds = [self.of(client)]
        for kind in kinds:
            kind.is_stale = kind.is_listed

    def _without_session(self, client: Client) -> Iterator[Kind]:
        """Yield all kinds that this client may be of: each of its messages declares its own."""
        yield self.of(client)
        for (revision, _, who), kind in self:
            if (revision, who) == (client.revision, client.who):
                yield kind

    def _split_off(self, kind: Kind, revision: str | None, capabilities: str | None) -> None:
        """Begin a session's kind with the list that it shared, to be compared with its next one."""
        is_of_start = self._is_of_start(revision, capabilities)
        shared = self.start if is_of_start else self._kinds.get((revision, capabilities, ""))
        if shared is not None:
            kind.copy_from(shared)
            kind.envelope = shared.envelope
            kind.is_stale = kind.is_listed

    def adopt(self, config: Config, *, same_patterns: bool) -> None:
        """Judge by another configuration from now on. Raises before anything has changed."""
        kinds = [self.start, *self._kinds.values()]
        prepared = [None if same_patterns else kind.prepare(config) for kind in kinds]
        self._config = config
        for kind, listed in zip(kinds, prepared, strict=True):
            if same_patterns:
                kind.follow(config)
            else:
                kind.adopt(config, listed)

    def forget_all(self) -> None:
        """Forget every list but that of the start, which is fetched anew."""
        while self._kinds:
            self._kinds.popitem()[1].close()

    def __len__(self) -> int:
        return len(self._kinds)

    def __iter__(self) -> Iterator[tuple[Key, Kind]]:
        return iter(list(self._kinds.items()))

    @property
    def size(self) -> int:
        """Bytes of all that is remembered."""
        return self._lists.size

    def _forget(self) -> None:
        while len(self._kinds) > MOST_KINDS:
            self._kinds.pop(self._least_useful()).close()
        while len(self._kinds) > 1 and self.size > MOST_BYTES:
            _, kind = self._kinds.popitem(last=False)
            kind.close()

    def _least_useful(self) -> Key:
        """Choose one of which nothing is known, or whoever makes up tokens could empty all."""
        newest = next(reversed(self._kinds))
        unknown = (key for key, kind in self._kinds.items() if not kind.is_listed)
        first = next(unknown, newest)
        return first if first != newest else next(iter(self._kinds))


def capabilities_in(message: Message) -> str | None:
    """Return what a request declares its client to be capable of, in one spelling."""
    if not isinstance(message, Request) or message.params is None:
        return None
    if message.method == "initialize":
        declared = message.params.get("capabilities")
    else:
        meta = message.params.get("_meta")
        declared = meta.get(_META_CAPABILITIES) if meta else None
    return canonical(message.place.cut(declared)) if declared else None


@lru_cache(maxsize=256)
def canonical(capabilities: str) -> str:
    """Return the same text for all spellings of the same capabilities.

    >>> canonical('{"sampling": {}, "roots":{}}')
    '{"roots":{},"sampling":{}}'
    """
    if len(capabilities) > _LONGEST_CAPABILITIES:
        return hashlib.sha256(capabilities.encode()).hexdigest()
    try:
        value = json.loads(capabilities, parse_int=str, parse_float=str)
    except (ValueError, RecursionError):
        return capabilities
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def listings_in(pages: Iterable[bytes]) -> Iterator[Listing]:
    """Read answers to tools/list: each time anew, for that takes much room."""
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
    """Write an answer with these tools, to be read again when the patterns change."""
    tools = b",".join([one.raw for one in definitions])
    return b'{"jsonrpc":"2.0","id":0,"result":{"tools":[' + tools + b"]}}"
