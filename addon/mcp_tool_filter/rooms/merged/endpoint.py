"""One merged endpoint, ``/mcp`` or a profile's: which servers it has, and what they show.

Sessions share what they can: a server's list under its exposed names, and the merged list, are made
once for all that get the same.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from mcp_tool_filter.core.conversation.conversation import Conversation
from mcp_tool_filter.core.conversation.memory import Fetched
from mcp_tool_filter.core.conversation.policy_in_force import Judged, PolicyInForce
from mcp_tool_filter.core.http.listener import Listener, open_listener
from mcp_tool_filter.core.messages.limits import STATELESS_REVISIONS
from mcp_tool_filter.core.policy.config import Config
from mcp_tool_filter.core.policy.situation import Client, Via
from mcp_tool_filter.core.policy.verdict import Reply
from mcp_tool_filter.rooms.merged.choices import Merging, Profile, judged_for
from mcp_tool_filter.rooms.merged.lists import (
    KINDS,
    TOOLS,
    ListKind,
    MergedList,
    Offer,
    make_offer,
    parse_page,
)
from mcp_tool_filter.rooms.merged.messages import (
    instructions_of,
    offered_by_all,
    render_introduction,
    render_list,
)
from mcp_tool_filter.rooms.merged.server_session import Outlet

if TYPE_CHECKING:
    from mcp_tool_filter.core.messages.limits import Limits
    from mcp_tool_filter.core.policy.situation import Editor
    from mcp_tool_filter.core.policy.snapshot import Snapshot
    from mcp_tool_filter.core.process.site import Site
    from mcp_tool_filter.rooms.merged.session import Talk
    from mcp_tool_filter.rooms.merged.visits import Route
    from mcp_tool_filter.rooms.serve.servers import Running, Servers

_START_PATIENCE: Final = 3.0  # seconds that ``initialize`` waits for servers that start
_MOST_OFFERS: Final = 1000
_MOST_LISTS: Final = 100
_MOST_KEPT: Final = 256 * 1024  # bytes of messages while a client reads no stream
_LOGIN_AGAIN: Final = 5.0  # seconds until a server that wants a login is asked again
_FIRST_LOOK, _LONGEST_LOOK = 1.0, 60.0  # seconds between two starts of a server that is missing


class MergedEndpoint:
    """One endpoint; its sessions are in ``talks``."""

    def __init__(
        self,
        servers: Servers,
        merging: Merging,
        profile: Profile,
        nothing: PolicyInForce,
        warn_once: Callable[[str], None],
    ) -> None:
        """``nothing`` is the policy of an upstream without tools: it refuses all names alike."""
        self._servers, self.warn_once = servers, warn_once
        self._nothing = nothing
        self.merging, self.profile = merging, profile
        self.talks: dict[Talk, None] = {}
        self._offers: OrderedDict[object, tuple[object, Offer]] = OrderedDict()
        self._merged: OrderedDict[tuple[int, ...], MergedList] = OrderedDict()
        self._last: dict[tuple[str, ListKind], Offer] = {}
        self._wants_login: dict[str, tuple[float, float]] = {}
        """Until when a server that wants a login is missing, and how long it will be next."""
        self.only_newer: set[str] = set()
        """The servers that have refused a session, and speak 2026-07-28."""
        self._shown: tuple[MergedList, Listener] | None = None
        self._looking: asyncio.Task[None] | None = None
        self._look_again: dict[str, tuple[float, float]] = {}

    @property
    def name(self) -> str:
        """What people call it."""
        return self.profile.name or "merged"

    @property
    def limits(self) -> Limits:
        return self._servers.listener.config.limits

    @property
    def route(self) -> Route:
        return self._servers.route

    # Servers

    def running(self, server: str) -> Running:
        return self._servers.at[server]

    @property
    def members(self) -> list[str]:
        """The servers that are there, in the file's order."""
        return [one for one in self.profile.servers if one in self._servers.at]

    def site(self, server: str) -> Site | None:
        return self._servers.at[server].site

    def _fetched(self, server: str) -> Fetched | None:
        site = self.site(server)
        return site.listener.fetched if site is not None else None

    def able(self, capability: str) -> list[str]:
        """Return the servers that have offered something, or may: some forget to declare tools."""
        return [
            server
            for server in self.members
            if capability == "tools" or self._may_offer(server, capability)
        ]

    def _may_offer(self, server: str, capability: str) -> bool:
        fetched = self._fetched(server)
        if fetched is None:
            return (server, _KIND_OF[capability]) in self._last
        offered = fetched.offered
        if not fetched.is_listed and not offered:
            return True
        extensions = offered.get("extensions")
        is_extension = isinstance(extensions, dict) and any(
            name.endswith(f"/{capability}") for name in extensions
        )
        return capability in offered or is_extension

    def is_missing(self, server: str) -> bool:
        """Tell whether a server cannot be asked now."""
        site = self.site(server)
        if site is None or site.is_lost or site.is_ending:
            return True
        return self._wants_login.get(server, (0.0, 0.0))[0] > self._now

    @property
    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    def note_login(self, server: str) -> None:
        """A server wants a login: it is missing for a while."""
        _, pause = self._wants_login.get(server, (0.0, _LOGIN_AGAIN))
        self._wants_login[server] = self._now + pause, min(pause * 2, _LONGEST_LOOK)

    def look_for(self, server: str) -> None:
        """Start a missing server again, if it does not run; not too often."""
        if self.site(server) is not None:
            return
        at, pause = self._look_again.get(server, (0.0, _FIRST_LOOK))
        if self._now >= at:
            self._look_again[server] = self._now + pause, min(pause * 2, _LONGEST_LOOK)
            self.running(server).start()

    async def _look_for_all(self) -> None:
        """While there are clients, look for what is missing."""
        while self.talks:
            for server in self.members:
                if self.is_missing(server):
                    self.look_for(server)
                    continue
                self._look_again.pop(server, None)
                until, _ = self._wants_login.get(server, (0.0, 0.0))
                if self._now - _FIRST_LOOK <= until:  # perhaps its user has logged in
                    self.note_change()
            await asyncio.sleep(_FIRST_LOOK)

    # Lists

    def snapshot_offer(self, server: str, session: bytes) -> Offer | None:
        """Return a server's tools if its listener would answer with a snapshot: that of the
        session, or that of the start; None if the server must be asked."""
        site = self.site(server)
        if site is None:
            return None
        policy = site.listener.policy
        config = policy.config
        if config.shadow or config.takes_news or policy.links:
            return None
        kind = policy.kinds.start
        if session:
            known = site.listener.sessions.get(session.decode("latin-1"), policy.clock())
            if known is None:
                return None
            kind = policy.kinds.of(Client(Via.HTTP, known))
        if not kind.is_listed or kind.is_stale:
            return None
        return self._offer_of(server, kind.snapshot)

    def _offer_of(self, server: str, snapshot: Snapshot) -> Offer:
        allowed, editor = snapshot.allowed, self._editor(server)
        key = server, id(allowed), id(editor)
        known = self._offers.get(key)
        if known is not None:
            return known[1]
        tools = editor.shown(snapshot) if editor else list(allowed.items())
        return self._remember(key, (allowed, editor), server, TOOLS, tools, None)

    def _editor(self, server: str) -> Editor | None:
        site = self.site(server)
        return site.listener.policy.config.editor if site is not None else None

    def offer(self, server: str, kind: ListKind, pages: tuple[bytes, ...]) -> Offer:
        """Return what a server's answers list. Raises ProtocolError."""
        parsed = [parse_page(kind, page) for page in pages]
        elements = [one for page in parsed for one in page.elements]
        ttls = [page.ttl for page in parsed if page.ttl is not None]
        ttl = min(ttls) if ttls else None
        key = server, kind, tuple(raw for _, raw in elements), ttl
        known = self._offers.get(key)
        if known is not None:
            self._last[server, kind] = known[1]
            return known[1]
        return self._remember(key, None, server, kind, elements, ttl)

    def _remember(
        self,
        key: object,
        source: object,
        server: str,
        kind: ListKind,
        elements: Sequence[tuple[str, bytes]],
        ttl: int | None,
    ) -> Offer:
        """Make an offer. (The source is kept so that nothing else gets its ``id``.)"""
        prefix, site = self.merging.prefixes[server], self.site(server)
        snapshot = site.listener.snapshot if site is not None else None
        hiding = judged_for(self.profile, snapshot, self._editor(server))
        offer = make_offer(kind, server, prefix, elements, ttl, hiding)
        self._offers[key] = source, offer
        self._last[server, kind] = offer
        if len(self._offers) > _MOST_OFFERS:
            self._offers.popitem(last=False)
        return offer

    def merged(self, kind: ListKind, offers: Sequence[Offer]) -> MergedList:
        """Return the merged list of these offers."""
        key = tuple(map(id, offers))
        known = self._merged.get(key)
        if known is None or known.kind is not kind:
            known = self._merged[key] = MergedList(kind, offers)
            for warning in known.warnings:
                self.warn_once(warning)
            if len(self._merged) > _MOST_LISTS:
                self._merged.popitem(last=False)
        return known

    def last_owner(self, kind: ListKind, exposed: str) -> tuple[str, str] | None:
        """Return the missing server that had this when it was there."""
        for server in self.members:
            last = self._last.get((server, kind)) if self.is_missing(server) else None
            for one in last.items if last is not None else ():
                if one.exposed == exposed:
                    return server, one.own
        return None

    def missing_with_prefix_of(self, exposed: str) -> str | None:
        """Return the missing server that this may be of, if nobody knows what that has."""
        for server in self.members:
            prefix = self.merging.prefixes[server]
            is_known = any((server, kind) in self._last for kind in KINDS.values())
            if prefix and exposed.startswith(prefix) and self.is_missing(server) and not is_known:
                return server
        return None

    def not_found(self, call: bytes, origin: object) -> bytes:
        """Return the answer to a call of a tool that is unknown here, and tell the observers."""
        judged = Conversation(self._nothing).from_client(call, origin)
        assert isinstance(judged, Judged)
        assert isinstance(judged.verdict, Reply)
        return judged.verdict.text

    def present(self) -> MergedList:
        """Return the tools that are known now, without asking anybody."""
        offers = []
        for server in self.members:
            site = None if self.is_missing(server) else self.site(server)
            if site is not None and site.listener.policy.kinds.start.is_listed:
                offers.append(self._offer_of(server, site.listener.snapshot))
        return self.merged(TOOLS, offers)

    def shown(self) -> Listener:
        """Return a listener with the tools that are known now: pages and programs look at it."""
        known = self.present()
        if self._shown is None or self._shown[0] is not known:
            page = render_list("0", TOOLS, known.body, None)
            said = Fetched(endpoint=self.profile.path, server_name="mcp-tool-filter", pages=(page,))
            listener = open_listener(
                upstream="http://servers.invalid", config=Config(), fetched=said
            )
            listener.called = f"{self.profile.path}: {', '.join(self.members)}"
            kind = listener.policy.kinds.start
            kind.snapshot = replace(kind.snapshot, faults=known.warnings, denied=known.hidden)
            self._shown = known, listener
        return self._shown[1]

    # What clients are told first

    async def settle(self) -> None:
        """Wait for the servers that start for the first time."""
        starting = [
            one.start()
            for one in map(self.running, self.members)
            if one.site is None and one.problem is None
        ]
        if starting:
            await asyncio.wait(starting, timeout=_START_PATIENCE)

    @property
    def is_stateless(self) -> bool:
        """True if every server speaks 2026-07-28."""
        fetched = [self._fetched(server) for server in self.members]
        return bool(fetched) and all(
            one is not None and one.revision in STATELESS_REVISIONS for one in fetched
        )

    def introduction(self, revision: str) -> bytes:
        """Return the result of ``initialize``, or of ``server/discover``."""
        known = {name: one for name in self.members if (one := self._fetched(name)) is not None}
        said = {name: one.instructions for name, one in known.items() if one.instructions}
        prefixes = {name: self.merging.prefixes[name] for name in self.members}
        offered = offered_by_all(one.offered for one in known.values())
        title = f"{self.profile.name or 'all'}: {', '.join(self.members)}"
        instructions = instructions_of(prefixes, said)
        return render_introduction(revision, offered, instructions, title=title)

    # Sessions

    def join(self, talk: Talk) -> None:
        self.talks[talk] = None
        if self._looking is None or self._looking.done():
            self._looking = asyncio.get_running_loop().create_task(self._look_for_all())

    def leave(self, talk: Talk) -> None:
        self.talks.pop(talk, None)
        talk.close()

    def note_change(self) -> None:
        """A server came, went, or shows other tools."""
        self.only_newer.clear()
        for talk in list(self.talks):
            talk.lists.note_change_of_servers()

    def adopt(self, merging: Merging, profile: Profile) -> None:
        """Use what the file says now."""
        if (merging, profile) != (self.merging, self.profile):
            self.merging, self.profile = merging, profile
            for known in (self._offers, self._merged, self._last):
                known.clear()
        self.note_change()

    def close(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
        for talk in list(self.talks):
            self.leave(talk)


_KIND_OF = {one.capability: one for one in reversed(KINDS.values())}


class Kept(Outlet):
    """Keeps messages while a client has no stream open; the oldest go first."""

    def __init__(self) -> None:
        self._messages: deque[bytes] = deque()
        self._size = 0

    def answer(self, raw: bytes, others: bytes = b"") -> None:
        self.tell(raw)

    def tell(self, raw: bytes, others: bytes = b"") -> bool:
        if raw:
            self._messages.append(raw)
            self._size += len(raw)
            while self._size > _MOST_KEPT:
                self._size -= len(self._messages.popleft())
        return True

    def drain(self) -> Iterator[bytes]:
        """Take all messages."""
        while self._messages:
            yield self._messages.popleft()
        self._size = 0
