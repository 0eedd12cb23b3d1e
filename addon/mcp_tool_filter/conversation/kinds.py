"""Each kind of asker has its own snapshot: an upstream's list may depend on who asks, and how.

The key of a kind is all that can change the upstream's answer: the revision, the capabilities that
the client declares, and who asks. All clients without credentials count as the same asker. The list
fetched at start is the snapshot of one kind; any other kind gets its first list from the upstream,
filtered by the patterns, and that list is pinned. No kind ever sees another's snapshot.

Until a kind's list is complete, the patterns alone judge names (``UnlistedTools``).

A stdio session has only one kind of asker, its one client (``OnlyKind``). We never ask the upstream
anything that the client has not asked, so the client finds no trace of us. Until the client has
listed all tools, the patterns judge names.
"""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from weakref import WeakValueDictionary, finalize

from mcp_tool_filter.conversation.memory import LONGEST_ENVELOPE, Envelopes
from mcp_tool_filter.errors import FetchFailed, ProtocolError
from mcp_tool_filter.policy.config import Config
from mcp_tool_filter.policy.exchange import Client
from mcp_tool_filter.policy.snapshot import (
    NamesByPattern,
    Snapshot,
    UnlistedTools,
    means_the_same,
    take_snapshot,
)
from mcp_tool_filter.policy.tool_filter import Envelope
from mcp_tool_filter.protocol.limits import MEBIBYTE, Limits
from mcp_tool_filter.protocol.messages import Message, Request, parse_message, singles
from mcp_tool_filter.protocol.tools import Definition, Listing, in_parts, parse_listing

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
        small = page is not None and sum(map(len, page.frame)) <= LONGEST_ENVELOPE
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


_LONGEST_CAPABILITIES = 4096  # characters; of longer ones we keep only a hash
ALL_CAPABILITIES = (
    '{"elicitation":{"form":{},"url":{}},"roots":{"listChanged":true},'
    '"sampling":{"context":{},"tools":{}},"tasks":{"cancel":{},"list":{},"requests":'
    '{"elicitation":{"create":{}},"sampling":{"createMessage":{}}}}}'
)
"""All capabilities of any revision: our own fetch declares them."""
_OF_MCP = "io.modelcontextprotocol/"
_IN_META = f"{_OF_MCP}clientCapabilities"
# Members of ``_meta`` by which an upstream chooses no other tools. ``server-variant`` is one of the
# others, and there may be more in later revisions.
_HARMLESS = frozenset(
    _OF_MCP + name
    for name in ("protocolVersion", "clientInfo", "logLevel", "related-task", "subscriptionId")
)
VARIANT = "\n"
"""Separates the capabilities from what else makes the asker another one; no JSON has it."""


def capabilities_in(message: Message) -> str | None:
    """Return what a request declares of its client: the capabilities in canonical spelling, and
    other members of ``_meta`` that may change the upstream's list; None if nothing."""
    if not isinstance(message, Request) or message.params is None:
        return None
    meta = message.params.named.get("_meta")
    of_mcp = [one for one in (meta and meta.members) or () if one.key.startswith(_OF_MCP)]
    if message.method == "initialize":
        declared = message.params.named.get("capabilities")
    else:
        declared = meta.named.get(_IN_META) if meta else None
    others = [
        f'"{one.key}":{canonical(message.place.cut(one.value))}'
        for one in of_mcp
        if one.key not in _HARMLESS and one.value is not declared
    ]
    said = canonical(message.place.cut(declared)) if declared else None
    return VARIANT.join([said or "", *others]) if others else said


def canonical(capabilities: str) -> str:
    """Return the same text for all spellings of the same capabilities.

    >>> canonical('{"sampling": {}, "roots":{}}')
    '{"roots":{},"sampling":{}}'
    """
    if len(capabilities) > _LONGEST_CAPABILITIES:
        return hashlib.sha256(capabilities.encode()).hexdigest()
    return _canonical(capabilities)


@lru_cache(maxsize=256)  # all clients of one program declare the same; long ones are not cached
def _canonical(capabilities: str) -> str:
    try:
        value = json.loads(capabilities, parse_int=str, parse_float=str)
    except (ValueError, RecursionError):
        return capabilities
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


MOST_KINDS = 1000
MOST_BYTES = 64 * MEBIBYTE
type KindKey = tuple[str | None, str | None, str]
"""Revision, capabilities, and who asks: empty for all clients without credentials."""


class Kinds:
    """All kinds of asker at one listener. It forgets the least recently used."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._lists = Lists()
        self._kinds: OrderedDict[KindKey, Kind] = OrderedDict()
        self.start = Kind(self._lists, config)
        """The kind of our own fetch, and of all clients that cannot be told from it."""
        self.start_key: KindKey = (None, None, "")
        self.same_for_all = False
        """True if all askers get the same list."""

    def of(self, client: Client, capabilities: str | None = None) -> Kind:
        """Return the kind of a client; ``capabilities`` are those that this message declares."""
        kind = self._known(client, capabilities)
        if kind.is_split and client.session is not None and not client.who:
            client.session.is_on_its_own = True
            kind = self._known(client, capabilities)
        return kind

    def _known(self, client: Client, capabilities: str | None) -> Kind:
        session = client.session
        if session is not None and (capabilities is None or capabilities.startswith(VARIANT)):
            capabilities = f"{session.capabilities or ''}{capabilities or ''}" or None
        if session is None:
            revision, who = client.said_revision, client.credential
        else:
            revision, who = session.revision, session.who
        if self.same_for_all:
            who, capabilities = "", None
        if not who and (revision is None or self._is_of_start(revision, capabilities)):
            return self.start
        key = revision, capabilities, who
        kind = self._kinds.get(key)
        if kind is None:
            kind = self._kinds[key] = Kind(self._lists, self._config)
            if self.same_for_all:
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
        """Take the next list from the upstream, which has said that the list changed.

        That may be true for this session only, so it gets its own kind; the other sessions of its
        kind get theirs too, because we cannot tell which are affected. A client without a session
        shares its list with all clients that have the same credentials.
        """
        session = client.session
        if self.same_for_all:
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
        """Yield all kinds that this client may belong to, because each message declares its own."""
        yield self.of(client)
        for (revision, _, who), kind in self:
            if (revision, who) == (client.revision, client.who):
                yield kind

    def _split_off(self, kind: Kind, revision: str | None, capabilities: str | None) -> None:
        """Start a session's own kind with the list that it shared until now."""
        is_of_start = self._is_of_start(revision, capabilities)
        shared = self.start if is_of_start else self._kinds.get((revision, capabilities, ""))
        if shared is not None:
            kind.copy_from(shared)
            kind.envelope = shared.envelope
            kind.is_stale = kind.is_listed

    def adopt(self, config: Config, *, same_patterns: bool) -> None:
        """Use another configuration from now on. If it raises, nothing has changed."""
        kinds = [self.start, *self._kinds.values()]
        prepared = [None if same_patterns else kind.prepare(config) for kind in kinds]
        self._config = config
        for kind, listed in zip(kinds, prepared, strict=True):
            if same_patterns:
                kind.follow(config)
            else:
                kind.adopt(config, listed)

    def forget_all(self) -> None:
        """Forget every list except that of the start, which is fetched again."""
        while self._kinds:
            self._kinds.popitem()[1].close()

    def __len__(self) -> int:
        return len(self._kinds)

    def __iter__(self) -> Iterator[tuple[KindKey, Kind]]:
        return iter(list(self._kinds.items()))

    @property
    def size(self) -> int:
        """Bytes of all lists that we remember."""
        return self._lists.size

    def _forget(self) -> None:
        while len(self._kinds) > MOST_KINDS:
            self._kinds.pop(self._least_useful()).close()
        while len(self._kinds) > 1 and self.size > MOST_BYTES:
            _, kind = self._kinds.popitem(last=False)
            kind.close()

    def _least_useful(self) -> KindKey:
        """Prefer a kind without a list: otherwise a client that makes up tokens could evict all
        others."""
        newest = next(reversed(self._kinds))
        unknown = (key for key, kind in self._kinds.items() if not kind.is_listed)
        first = next(unknown, newest)
        return first if first != newest else next(iter(self._kinds))


type OnListed = Callable[[Snapshot], None]
"""Called once, when the client has seen the complete list."""


class OnlyKind(Kind):
    """Learns its list from the answers to the client's requests."""

    __slots__ = ("_envelopes", "_on_listed", "_revision")

    def __init__(self, kind: Kind, on_listed: OnListed) -> None:
        """Replace a kind about which nothing is known."""
        super().__init__(kind._lists, kind._config)
        self._on_listed = on_listed
        self._envelopes = Envelopes()
        self._revision = ""

    def agree_on(self, revision: str) -> None:
        """Note the upstream's revision: the form of its lists depends on it."""
        self._revision = revision
        self.envelope = self._envelopes.get(revision)

    def learn_envelope(self, page: Listing | None) -> None:
        self._envelopes.learn(self._revision, page)
        self.envelope = self._envelopes.get(self._revision)

    def _finish(self, pages: tuple[bytes, ...], whole: Snapshot) -> None:
        is_first = not self.is_listed
        super()._finish(pages, whole)
        if is_first and self._listed is not None:
            self._on_listed(self._listed.snapshot)

    def _follow_list(self) -> None:
        super()._follow_list()
        if self._listed is not None:
            # Denied by pattern, not by list: a tool that the list lacks may be shown elsewhere.
            by_pattern = NamesByPattern(self._config.deny, self._config.allow)
            self.snapshot = replace(self.snapshot, by_pattern=by_pattern)


class OnlyKinds(Kinds):
    """Every asker is the one client, whatever it declares."""

    def __init__(self, config: Config, on_listed: OnListed) -> None:
        super().__init__(config)
        self.start = self.only = OnlyKind(self.start, on_listed)

    def of(self, client: Client, capabilities: str | None = None) -> Kind:
        return self.only

    def note_change(self, client: Client) -> None:
        """Take the client's next list from the upstream, even with ``tools_list=cache``."""
        self.only.is_stale = self.only.is_listed
