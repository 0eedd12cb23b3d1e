"""Each kind of asker has its own snapshot: what an upstream lists may depend on who asks, and how.

A kind is known by what can change the upstream's answer: the revision, the capabilities that the
client declares, and who asks. Who asks without credentials asks like everybody else. The list that
was fetched at start is the snapshot of one kind; any other kind gets its first list from the
upstream, filtered by the patterns, and that list is pinned. No kind ever sees another's snapshot.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from mcp_tool_filter.conversation.kind import Kind, Lists
from mcp_tool_filter.policy.config import Config
from mcp_tool_filter.policy.exchange import Client
from mcp_tool_filter.protocol.limits import MEBIBYTE

MOST_KINDS = 1000
MOST_BYTES = 64 * MEBIBYTE
type Key = tuple[str | None, str | None, str]
"""Revision, capabilities, and who asks: empty for all who bring no credentials."""


class Kinds:
    """All kinds of asker at one listener; the least recently used are forgotten."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._lists = Lists()
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
