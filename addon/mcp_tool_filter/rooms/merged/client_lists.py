"""The merged lists of one client: asked for when they are needed, and told when they change.

A list that the servers' snapshots have is there at once. Each other server is asked in a session; a
slow one is left out after a while, and joins later with ``list_changed``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from mcp_tool_filter.core.errors import ProtocolError
from mcp_tool_filter.core.messages.messages import METHOD_NOT_FOUND, Request
from mcp_tool_filter.rooms.merged.lists import KINDS, TOOLS, ListKind, MergedList, Offer, parse_page
from mcp_tool_filter.rooms.merged.messages import (
    INVALID_PARAMS,
    LONGEST_TTL,
    quoted,
    render_list,
    value_at,
    written_at,
)
from mcp_tool_filter.rooms.merged.server_session import Missing, Pending

if TYPE_CHECKING:
    from mcp_tool_filter.rooms.merged.session import Talk

_TOGETHER: Final = 0.1  # seconds in which changes are joined
_LIST_PATIENCE: Final = 3.0  # seconds that a list waits for a server
_MOST_PAGES: Final = 1000


_MISSING: Final = Offer(TOOLS, "", ())


class ClientLists:
    """The lists as one client knows them."""

    def __init__(self, talk: Talk) -> None:
        self._talk, self._endpoint = talk, talk.endpoint
        self.known: dict[ListKind, MergedList] = {}
        """As they were made last."""
        self.shown: dict[ListKind, MergedList] = {}
        """As the client knows them."""
        self.wanted: frozenset[str] | None = None
        """The changes to which a client of 2026-07-28 listens."""
        self._listing: dict[tuple[str, ListKind], asyncio.Task[Offer | None]] = {}
        self._late: set[tuple[str, ListKind]] = set()
        """The lists for which we have waited in vain."""
        self._changes = 0
        """How often servers, or what the file says of them, have changed."""
        self._changed: set[ListKind] = set()
        self._comparing: asyncio.TimerHandle | None = None

    def close(self) -> None:
        if self._comparing is not None:
            self._comparing.cancel()

    def ask(self, message: Request, pending: Pending) -> None:
        kind = KINDS[pending.method]
        if value_at(message, "cursor") is not None:
            return self._talk.refuse(
                pending, INVALID_PARAMS, "Invalid params: there is one page only"
            )
        known = self.at_once(kind)
        if known is None:
            self._talk.work_for(pending, self._list_later(kind, pending))
            return None
        return self._show(kind, known, pending)

    async def _list_later(self, kind: ListKind, pending: Pending) -> None:
        self._show(kind, await self.list_of(kind), pending)

    def _show(self, kind: ListKind, known: MergedList, pending: Pending) -> None:
        self.shown[kind] = known
        ttl = self._ttl(kind, known) if self._talk.is_stateless else None
        self._talk.settle(pending, render_list(pending.id, kind, known.body, ttl))

    def _ttl(self, kind: ListKind, known: MergedList) -> int:
        """Return for how long a list is fresh: not at all while a server is missing."""
        if len(known.offers) < len(self._endpoint.able(kind.capability)):
            return 0
        return min([LONGEST_TTL, *(one.ttl or 0 for one in known.offers)])

    def at_once(self, kind: ListKind) -> MergedList | None:
        """Return the merged list if no server has to be asked."""
        if kind is not TOOLS:
            return None
        offers: list[Offer] = []
        for server in self._endpoint.able(kind.capability):
            offer = self._offer_at_once(server)
            if offer is None:
                return None
            if offer is not _MISSING:
                offers.append(offer)
        known = self.known[kind] = self._endpoint.merged(kind, offers)
        return known

    def _offer_at_once(self, server: str) -> Offer | None:
        """Return a server's tools if its snapshot has them; ``_MISSING`` if it is down."""
        if self._endpoint.is_missing(server):
            self._endpoint.look_for(server)
            return _MISSING
        if self._talk.is_stateless:
            return None  # the server says for how long its list is fresh
        leg = self._talk.legs.get(server)
        return self._endpoint.snapshot_offer(server, leg.id if leg and leg.is_open else b"")

    async def list_of(self, kind: ListKind, some: Sequence[str] | None = None) -> MergedList:
        """Return the merged list as it is now, of all servers or of some. A slow server is left
        out, and joins later."""
        servers = self._endpoint.able(kind.capability) if some is None else some
        changes = self._changes
        found: dict[str, Offer | None] = {}
        asked: dict[str, asyncio.Task[Offer | None]] = {}
        for server in servers:
            known = self._offer_at_once(server) if kind is TOOLS else None
            if known is not None or self._endpoint.is_missing(server):
                found[server] = known
            else:
                asked[server] = self._ask_for(server, kind)
        waited = {one for server, one in asked.items() if (server, kind) not in self._late}
        if waited:
            await asyncio.wait(waited, timeout=_LIST_PATIENCE)
        for server, task in asked.items():
            if task.done() and not task.cancelled():
                found[server] = task.result()
            else:
                self._late.add((server, kind))
                found[server] = self._last_offer(server, kind)
        offers = [one for server in servers if (one := found[server]) and one is not _MISSING]
        merged = self._endpoint.merged(kind, offers)
        if some is None and changes == self._changes:
            self.known[kind] = merged
        return merged

    def _last_offer(self, server: str, kind: ListKind) -> Offer | None:
        before = self.known.get(kind)
        return (
            next((one for one in before.offers if one.server == server), None) if before else None
        )

    def _ask_for(self, server: str, kind: ListKind) -> asyncio.Task[Offer | None]:
        """Ask a server for a list; all who want it meanwhile share the answer."""
        key = server, kind
        task = self._listing.get(key)
        if task is None:
            task = self._listing[key] = self._talk.spawn(self._fetch(server, kind))
            task.add_done_callback(lambda _: self._fetched(key))
        return task

    def _fetched(self, key: tuple[str, ListKind]) -> None:
        self._listing.pop(key, None)
        if key in self._late:
            self._late.discard(key)
            if not self._talk.is_closed:
                self.note_change(key[1])

    async def _fetch(self, server: str, kind: ListKind) -> Offer | None:
        """Return what a server lists; None if it cannot be asked."""
        leg = self._talk.leg(server)
        pages: list[bytes] = []
        cursor = ""
        try:
            await leg.open()
            is_known = kind is TOOLS and not self._talk.is_stateless
            known = self._endpoint.snapshot_offer(server, leg.id) if is_known else None
            if known is not None:
                return known
            while len(pages) < _MOST_PAGES:
                params = f'{{"cursor":{quoted(cursor)}}}' if cursor else "{}"
                answer = await leg.request(kind.method, params)
                code = written_at(answer, "error") if b'"error"' in answer else None
                if code is not None:
                    return self._refused(server, kind, answer)
                pages.append(answer)
                self._talk.named.learn(server, answer)
                cursor = parse_page(kind, answer).cursor or ""
                if not cursor:
                    return self._endpoint.offer(server, kind, tuple(pages))
        except (Missing, ProtocolError) as error:
            self._endpoint.warn_once(f"Warning: {server}: {kind.member} are missing: {error}")
        return None

    def _refused(self, server: str, kind: ListKind, answer: bytes) -> Offer | None:
        """A server that has no such list has an empty one."""
        if f'"code":{METHOD_NOT_FOUND}' in answer.decode().replace(" ", ""):
            return self._endpoint.offer(server, kind, ())
        return None

    def note_change(self, *kinds: ListKind) -> None:
        """Tell the client soon, if a merged list is another one."""
        if self._talk.is_closed:
            return
        self._changed.update(kinds)
        if self._comparing is None:
            loop = asyncio.get_running_loop()
            self._comparing = loop.call_later(_TOGETHER, self._compare_soon)

    def note_change_of_servers(self) -> None:
        """A server came, went, or shows other tools."""
        self._changes += 1
        self.known.clear()
        self.note_change(TOOLS, *self.shown)

    def _compare_soon(self) -> None:
        self._comparing = None
        changed, self._changed = self._changed, set()
        self._talk.spawn(self._compare(changed))

    async def _compare(self, kinds: Iterable[ListKind]) -> None:
        notices: dict[str, None] = {}
        for kind in kinds:
            before = self.shown.get(kind)
            if before is not None or kind is TOOLS:
                after = self.shown[kind] = await self.list_of(kind)
                if before is not None and before.body == after.body:
                    continue
            if kind.notice and self._is_wanted(kind):
                notices[kind.notice] = None
        for method in notices:
            self._talk.tell(f'{{"jsonrpc":"2.0","method":"{method}"}}'.encode())

    def _is_wanted(self, kind: ListKind) -> bool:
        return self.wanted is None or f'"{kind.capability}ListChanged":true' in self.wanted

    def remember_shown(self) -> None:
        """Note the tools as they are: later changes are told."""
        if (known := self.at_once(TOOLS)) is not None:
            self.shown.setdefault(TOOLS, known)
