"""Each kind of asker has its own snapshot: an upstream's list may depend on who asks, and how.

The key of a kind is all that can change the upstream's answer: the revision, the capabilities and
the program that the client declares, and who asks. All clients without credentials count as the
same asker. The list fetched at start is the snapshot of one kind; any other kind gets its first
list from the upstream, filtered by the patterns, and that list is pinned. No kind ever sees
another's snapshot.

What one client asks for never changes what another one sees. So a kind that many clients share
learns only from answers to requests as our own fetch sends them (``Exchange.is_unusual``), and not
from a session that has acted (``Session.has_acted``): that one may have changed its own list.

Until a kind's list is complete, the patterns alone judge names (``UnlistedTools``).
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from weakref import ref

from mcp_tool_filter.core.conversation.declared import VARIANT
from mcp_tool_filter.core.conversation.lists import Frame, Listed, Lists, listings_in, page_of
from mcp_tool_filter.core.messages.limits import MEBIBYTE
from mcp_tool_filter.core.messages.sizes import HEAD
from mcp_tool_filter.core.messages.tools import Definition, Listing
from mcp_tool_filter.core.policy.choice import is_hint, is_locked
from mcp_tool_filter.core.policy.config import Config
from mcp_tool_filter.core.policy.effects import LET_OTHERS_GO_ON, Deciding, at_once
from mcp_tool_filter.core.policy.situation import Client, RpcExchange, Session
from mcp_tool_filter.core.policy.snapshot import Snapshot
from mcp_tool_filter.core.policy.taking import (
    UnlistedTools,
    by_name,
    means_the_same,
    snapshot_in_steps,
)
from mcp_tool_filter.core.policy.tool_filter import Envelope

_MOST_GONE = MEBIBYTE  # bytes of the definitions that we remember of tools that are gone


@dataclass(slots=True, eq=False)
class Kind:
    """One kind of asker. What may take long is done in steps, and applies at the end of them."""

    _lists: Lists
    _config: Config
    _is_start: bool = False
    is_listed: bool = field(init=False)
    """True if its complete list is known."""
    is_settled: bool = field(init=False)
    """True if its snapshot judges every list; else ``snapshot_for`` must be asked."""
    snapshot: Snapshot = field(init=False)
    """The snapshot that judges it. (No properties here: every message reads these attributes.)"""
    unlisted_until: float = 0.0
    """The time until which we do not ask for its list, because the upstream has not listed."""
    used_at: float = 0.0
    is_kept: bool = True
    """False if it is used only until its messages are judged: it pins nothing, and nothing counts
    it."""
    is_shared: bool = False
    """True if many clients are of this kind: no odd request of one may teach it anything."""
    session: ref[Session] | None = None
    """The only session of this kind, if it is the kind of one session."""
    envelope: Envelope | None = None
    """The text around the tools of its list, in the form of the kind's revision."""
    is_stale: bool = False
    """True if the upstream has said that its list changed: the next list comes from the
    upstream."""
    is_split: bool = False
    """True if it said so in one session only: the other sessions find out for themselves."""
    is_taking: bool = False
    """True while a list that we have fetched is read."""
    _listed: Listed | None = None
    _next: UnlistedTools | None = field(init=False)
    _gone: dict[str, bytes] = field(default_factory=dict)
    """The definitions of pinned tools that the upstream removed."""
    _counted: int = 0
    """Bytes of both."""
    _has_forgotten: bool = False
    """There were too many: a hint may have hidden a tool, so no definition lifts one any more."""
    _hidden: Collection[str] = ()
    """The hidden tools of the list."""
    _has_lost: bool = False
    """Some of them are gone: what is not JSON may still show them."""

    def __post_init__(self) -> None:
        self._next = UnlistedTools(self._config.choice) if self.is_kept else None
        self._follow_list()

    def _follow_list(self) -> None:
        """Use the snapshot of what is now known of the list."""
        self.is_listed = self._listed is not None
        known = self._listed or self._next or self._lists.unlisted(self._config)
        self.snapshot = known.snapshot
        if self._listed is not None:
            hidden = self.snapshot.denied.keys()
            self._has_lost = self._has_lost or not hidden >= set(self._hidden)
            self._hidden = hidden
            if self._has_lost:
                self.snapshot = by_name(self.snapshot)
        self._note_settled()
        self._count()

    def _note_settled(self) -> None:
        may_grow = self._config.takes_news or bool(self._gone)
        self.is_settled = self.is_listed and not may_grow

    @property
    def locked(self) -> tuple[tuple[str, bytes], ...]:
        """The definitions in its list that the lock hides."""
        return self._listed.locked if self._listed is not None else ()

    @property
    def lacks_list(self) -> bool:
        """True if its list is unknown; or may be another one by now, and a lock pins the tools."""
        is_in_doubt = self.is_stale and self.is_kept and self._config.is_locked
        return not self.is_listed or is_in_doubt

    @property
    def may_learn(self) -> bool:
        """True if a list may contain something new for it."""
        is_known = self.is_listed and not self.is_stale and self.envelope is not None
        return not is_known or self._config.takes_news

    @property
    def is_needed(self) -> bool:
        """True if it has pinned tools, or is about to, and its session, if it is that of one, is
        still remembered."""
        has_begun = self.is_taking or (self._next is not None and self._next.size > 0)
        is_known = self.is_listed or has_begun
        return is_known and (self.session is None or self.session() is not None)

    def _count(self) -> None:
        """Count the bytes of what is remembered besides the complete list."""
        size = sum(map(len, self._gone.values())) + (self._next.size if self._next else 0)
        size = size if self.is_kept else 0
        self._lists.unfinished += size - self._counted
        self._counted = size

    def snapshot_for(self, page: Listing, *, pins: bool = True) -> Deciding[Snapshot]:
        """Return the snapshot to judge a message with this list by; pin the new tools in it if it
        ``pins``."""
        if self.is_settled:
            return self.snapshot
        definitions = page.definitions
        if self._gone and (pins or not self.is_shared):
            yield from self._take_back(definitions)
        if self._listed is not None and not self._config.takes_news:
            return self.snapshot
        if self._listed is not None:
            definitions = tuple(map(self._pinned, definitions))
        page = replace(page, definitions=definitions, next_cursor=None)
        if self._next is None or self._listed is not None:
            judged = yield from snapshot_in_steps([page], self._config.choice)
            if self._config.is_locked:  # whoever has asked: a changed tool is hidden from all
                yield from self._note_changed(definitions, judged)
            return judged
        return self._judge_page(self._next, page, pins=pins)

    def foresee(self, page: Listing) -> Deciding[None]:
        """Read the hints in a long list, with pauses; to judge it is quick then."""
        if self._next is not None and self._listed is None:
            yield from self._next.foresee(page)

    def _note_changed(self, page: Iterable[Definition], judged: Snapshot) -> Deciding[None]:
        """Hide the tools whose definitions on a page are other ones than the lock has."""
        exposed, locked = judged.allowed.names, self._config.choice.locked
        hidden = (one for one in page if one.name is not None and one.name not in exposed)
        changed = {
            one.name: one
            for one in hidden
            if is_locked(locked(one.name or "", b"" if one.problem else one.raw))
        }
        while (before := self._listed) is not None:
            config, allowed = self._config, before.snapshot.allowed.names
            new = {name: one for name, one in changed.items() if name in allowed}
            if not new:
                return
            pinned = yield from self._pinned_in(before)
            pages = (page_of({**pinned, **new}.values()),)
            listed = yield from self._lists.listed(pages, config)
            if config is self._config and before is self._listed:
                self._listed = listed
                self._follow_list()

    def _judge_page(self, unlisted: UnlistedTools, page: Listing, *, pins: bool = True) -> Snapshot:
        pins = pins and (self._is_start or not self._lists.is_full)
        snapshot = unlisted.judge_page(page, pins=pins)
        self._count()
        return snapshot

    def learn(self, cursor: str | None, page: Listing) -> Deciding[Snapshot | None]:
        """Note a page that passed; after the last page the list is complete: return the snapshot
        in force then, or None if another list was quicker."""
        if not self.is_kept:
            return None
        if cursor is None:
            self.learn_envelope(page.frame)
        if self._next is None:
            if not self.is_stale and not self._config.takes_news:
                return None
            self._next = UnlistedTools(self._config.choice)
        unlisted = self._next
        if self._listed is not None:  # a new kind has pinned it already
            self._judge_page(unlisted, page)
        whole = unlisted.finish_page(cursor, page)
        if whole is None or unlisted is not self._next:
            return None
        return (yield from self._finish(unlisted, whole))

    def expects(self, cursor: str) -> bool:
        """Tell whether the page with this cursor is the next one of its list."""
        return self._next is not None and cursor == self._next.next_cursor

    def learn_envelope(self, frame: Frame) -> None:
        """Keep the text around the tools of the first page."""
        is_short = sum(map(len, frame)) <= HEAD
        self.envelope = Envelope(*frame) if is_short else None

    def take(self, pages: tuple[bytes, ...], *, keeps: bool = True) -> Deciding[Snapshot]:
        """Make this the complete list if it ``keeps`` it, and return its snapshot. Raises
        FetchFailed if it cannot be read.

        If the client's own first list was complete earlier, that one stays: the client has seen it.
        """
        self.is_taking, is_first = True, self._listed is None
        try:
            config = None
            while config is not self._config:  # the patterns may change meanwhile
                config = self._config
                whole = yield from self._with_pins(pages)
                listed = yield from self._lists.listed(whole, config)
        finally:
            self.is_taking = False
        if is_first and self._listed is not None:
            return self.snapshot
        if keeps and self._may_keep():
            self._listed, self._next, self._gone = listed, None, {}
            self.is_stale = self.is_split = False
            self._follow_list()
            if whole is pages or self.envelope is None:
                self.learn_envelope(listed.frame)
        return listed.snapshot

    def _with_pins(self, pages: tuple[bytes, ...]) -> Deciding[tuple[bytes, ...]]:
        """Return the list with the definitions that its asker has seen on some pages already."""
        pinned = self._next.pinned if self._next is not None and not self._config.is_locked else {}
        if not pinned:
            return pages
        there: list[Definition] = []
        has_changed = False
        for listing in listings_in(pages):
            for one in listing.definitions if listing is not None else ():
                known = pinned.get(one.name or "", one)
                has_changed = has_changed or known.raw != one.raw
                there.append(known)
            yield LET_OTHERS_GO_ON
        return (page_of(there),) if has_changed else pages

    def _may_keep(self) -> bool:
        """Tell whether there is room for one more list. (Those of others are never given up.)"""
        return self._is_start or (self.is_kept and not self._lists.is_full)

    def close(self) -> None:
        """Stop counting what is remembered besides the complete list."""
        self.is_kept, self._next, self._gone = False, None, {}
        self._count()

    @property
    def listed(self) -> Listed | None:
        """Its list, if it is complete."""
        return self._listed

    def adopt(self, config: Config, prepared: Listed | None) -> None:
        """Use other patterns from now on."""
        self._config, self._listed, self._hidden = config, prepared, ()
        if self._next is not None:
            self._next = self._next.under(config.choice)
        self._follow_list()

    def follow(self, config: Config) -> None:
        """Use another configuration with the same choice."""
        self._config = config
        self._note_settled()

    def copy_from(self, other: Kind) -> None:
        """Start with the list of another kind, of which this one was part."""
        if other._listed is not None:
            self._listed, self._next, self._gone = other._listed, None, dict(other._gone)
            self._has_forgotten, self._has_lost = other._has_forgotten, other._has_lost
            self._follow_list()

    def _pinned(self, definition: Definition) -> Definition:
        """Return the pinned definition of that name, or this one if none is pinned."""
        name = definition.name
        if name is None or self._config.is_locked:
            return definition
        known = self.snapshot.allowed.get(name, self._gone.get(name))
        if known is None and (self._has_forgotten or is_hint(self.snapshot.denied.get(name))):
            known = b'{"name":%s,"inputSchema":{}}' % json.dumps(name).encode()  # the worst case
            if not is_hint(self._config.choice.hiding(name, known)):
                return definition
        elif known is None and self._next is not None and name in self._next.pinned:
            known = self._next.pinned[name].raw  # an earlier page had it
        return definition if known is None else replace(definition, problem=None, raw=known)

    def _finish(self, unlisted: UnlistedTools, whole: Snapshot) -> Deciding[Snapshot | None]:
        """Use the list that is complete now, unless another was quicker."""
        config, before = self._config, self._listed
        definitions: Iterable[Definition] = unlisted.definitions
        gone = {} if self._config.is_locked else self._gone
        if before is not None and not self._config.is_locked:
            pinned = yield from self._pinned_in(before)
            there: list[Definition] = []
            for one in definitions:
                if one.name in pinned:
                    there.append(pinned.pop(one.name))
                elif config.judges_new_tools:
                    there.append(self._pinned(one))
            definitions = there
            gone = gone | {one.name: one.raw for one in pinned.values() if one.name is not None}
        pages = (page_of(definitions),)
        is_whole = before is None or self._config.is_locked
        listed = yield from self._lists.listed(pages, config, whole if is_whole else None)
        if unlisted is not self._next or config is not self._config or before is not self._listed:
            return None
        if self._may_keep():
            self._listed, self._next, self.is_stale = listed, None, False
            self._gone = _few_of_these(gone)
            self._has_forgotten = self._has_forgotten or len(self._gone) < len(gone)
        else:
            self._next = UnlistedTools(config.choice)
        self._follow_list()
        return self.snapshot

    def _pinned_in(self, listed: Listed) -> Deciding[dict[str | None, Definition]]:
        pinned: dict[str | None, Definition] = {}
        for listing in listings_in(listed.pages):
            if listing is not None:
                for definition in listing.definitions:  # the first that can be shown counts
                    if definition.name not in pinned or (
                        pinned[definition.name].problem and not definition.problem
                    ):
                        pinned[definition.name] = definition
            yield LET_OTHERS_GO_ON
        return pinned

    def _take_back(self, definitions: Iterable[Definition]) -> Deciding[None]:
        """Show tools again that come back as they were; a changed one is a new tool."""
        config, before = self._config, self._listed
        back = {
            definition.name: replace(definition, raw=known)
            for definition in definitions
            if definition.name is not None
            and definition.problem is None
            and (known := self._gone.get(definition.name)) is not None
            and means_the_same(known, definition.raw)
        }
        if not back or before is None:
            return
        pinned = yield from self._pinned_in(before)
        pages = (page_of([*pinned.values(), *back.values()]),)
        listed = yield from self._lists.listed(pages, config)
        if config is self._config and before is self._listed:
            self._listed = listed
            self._gone = {name: raw for name, raw in self._gone.items() if name not in back}
            self._follow_list()


def _few_of_these(gone: dict[str, bytes]) -> dict[str, bytes]:
    """Return as many definitions as we remember of tools that are gone, the latest ones."""
    gone = dict(gone)
    while sum(map(len, gone.values())) > _MOST_GONE:
        del gone[next(iter(gone))]
    return gone


_IN_USE = 3600.0  # seconds since its last message
_MOST_FOR_A_LIST = 5  # kinds for each session; one that shares its list takes less than 1 kB
_SECONDS_BETWEEN_LOOKS = 1.0
type KindKey = tuple[str | None, str | None, str, str | None]
"""Revision, capabilities, who asks (empty for all clients without credentials), and its program."""


class Kinds:
    """All kinds of asker at one listener.

    As many different lists as sessions, of so many bytes; kinds with the same list share it. If
    there are more, it forgets those that nobody has used for an hour, those of sessions that have
    ended, and those whose list is unknown, but no other: else a client that makes up credentials
    could make us forget the pinned tools of others. Nothing is pinned for a new kind for which
    there is no room: the patterns judge its lists, and its calls the list that it gets just then.
    """

    def __init__(self, config: Config, clock: Callable[[], float] = time.monotonic) -> None:
        self._config = config
        self._clock = clock
        self._lists = Lists()
        self._kinds: dict[KindKey, Kind] = {}
        self.start = Kind(self._lists, config, _is_start=True, is_shared=True)
        """The kind of our own fetch, and of all clients that cannot be told from it."""
        self.start_key: tuple[str | None, str | None] = (None, None)
        """Its revision and capabilities."""
        self._look_again = 0.0
        """When to look again for kinds to forget."""
        self.same_for_all = False
        """True if all askers get the same list."""

    def of(self, client: Client, exchange: RpcExchange | None = None) -> Kind:
        """Return the kind of a client, which may declare in each request what it can."""
        kind, session = self._known(client, exchange), client.session
        if session is None or not kind.is_shared:
            return kind
        # Its own acts may have changed its list: no other client gets the list that it gets now.
        is_changed = session.has_acted and (kind.is_stale or not kind.is_listed)
        if kind.is_split or is_changed:
            session.is_on_its_own = True
            kind = self._known(client, exchange)
        return kind

    def unchanged_by(self, client: Client, asked: RpcExchange) -> Snapshot | None:
        """Return the asker's snapshot, unless the answer to this request may change it."""
        kind = self.of(client, asked)
        return None if asked.method == "tools/list" and kind.may_learn else kind.snapshot

    def _known(self, client: Client, exchange: RpcExchange | None) -> Kind:
        session = client.session
        capabilities = exchange.capabilities if exchange else None
        program = exchange.program if exchange else None
        if session is not None and (capabilities is None or capabilities.startswith(VARIANT)):
            capabilities = f"{session.capabilities or ''}{capabilities or ''}" or None
        if session is None:
            revision, who = client.said_revision, client.credential
        else:
            revision, who, program = session.revision, session.who, session.program
        if self.same_for_all:
            who, capabilities, program = "", None, None
        is_unsaid = revision is None and VARIANT not in (capabilities or "")
        if not who and (is_unsaid or self._is_of_start(revision, capabilities)):
            return self.start
        key = revision, capabilities, who, program
        kind = self._kinds.get(key)
        if kind is None:
            has_room = self._has_room()
            kind = Kind(self._lists, self._config, is_kept=has_room, is_shared=not who)
            if not has_room:
                return kind
            self._kinds[key] = kind
            if session is not None and who:
                kind.session = ref(session)
            if self.same_for_all:
                kind.copy_from(self.start)
            elif session is not None and session.is_on_its_own and session.is_like_the_fetch:
                self._split_off(kind, key)
        kind.used_at = self._clock()
        return kind

    def _is_of_start(self, revision: str | None, capabilities: str | None) -> bool:
        start_revision, start_capabilities = self.start_key
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

    def note_change_for_all(self) -> None:
        """Take each next list from the upstream, which has told nobody in particular."""
        for kind in (self.start, *self._kinds.values()):
            kind.is_stale = kind.is_listed

    def _without_session(self, client: Client) -> Iterator[Kind]:
        """Yield all kinds that this client may belong to, because each message declares its own."""
        yield self.of(client)
        for (revision, _, who, _), kind in self:
            if (revision, who) == (client.revision, client.who):
                yield kind

    def _split_off(self, kind: Kind, key: KindKey) -> None:
        """Start a session's own kind with the list that it shared until now."""
        revision, capabilities, _, program = key
        is_of_start = self._is_of_start(revision, capabilities)
        before = revision, capabilities, "", program
        shared = self.start if is_of_start else self._kinds.get(before)
        if shared is not None:
            kind.copy_from(shared)
            kind.envelope = shared.envelope
            kind.is_stale = kind.is_listed

    def adopt(self, config: Config, *, same_choice: bool) -> None:
        """Use another configuration from now on. If it raises, nothing has changed."""
        kinds = [self.start, *self._kinds.values()]
        lists = dict.fromkeys(kind.listed for kind in kinds if kind.listed and not same_choice)
        new = {one: at_once(self._lists.listed(one.pages, config)) for one in lists}
        self._config = config
        for kind in kinds:
            if same_choice:
                kind.follow(config)
            else:
                kind.adopt(config, new[kind.listed] if kind.listed else None)

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

    def _has_room(self) -> bool:
        """Tell whether there is room for one more kind, perhaps after forgetting what is not
        needed."""
        if not self._is_full:
            return True
        if (now := self._clock()) >= self._look_again:  # not for each call: it looks at all kinds
            self._look_again = now + _SECONDS_BETWEEN_LOOKS
            for key, kind in list(self._kinds.items()):
                if not kind.is_needed or now - kind.used_at > _IN_USE:
                    self._kinds.pop(key).close()
        return not self._is_full

    @property
    def _is_full(self) -> bool:
        most, lists = self._config.limits.sessions, self._lists
        has_many = len(lists) > most or len(self._kinds) >= _MOST_FOR_A_LIST * most
        return has_many or lists.is_full
