"""Each kind of asker has its own snapshot: an upstream's list may depend on who asks, and how.

The key of a kind is all that can change the upstream's answer: the revision, the capabilities that
the client declares, and who asks. All clients without credentials count as the same asker. The list
fetched at start is the snapshot of one kind; any other kind gets its first list from the upstream,
filtered by the patterns, and that list is pinned. No kind ever sees another's snapshot.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from mcp_tool_filter.conversation.capabilities import VARIANT
from mcp_tool_filter.conversation.kind import Kind, Lists
from mcp_tool_filter.policy.config import Config
from mcp_tool_filter.policy.exchange import Client
from mcp_tool_filter.protocol.limits import MEBIBYTE

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
