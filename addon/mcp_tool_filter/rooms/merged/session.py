"""One client's talk with all servers: whom a message is for, and what the client gets back.

    talk = Talk(endpoint, visitor, revision=…, capabilities=…, client_info=…)
    talk.take(message, outlet)     # a message of the client; its answer goes to the outlet
    talk.stream = outlet           # where everything else goes
    talk.close()

A client's ids pass as they are. An id of a server, and its progress tokens, get the server's name
(``messages``). Each kind of list is one merged list; a notice of a change is sent once for all that
happens within a moment, and only if the merged list is another one.

What needs no new session is passed on within the call that brings it; all else runs as a task.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Iterable
from typing import TYPE_CHECKING, Any, Final

from mcp_tool_filter.core.errors import ProtocolError
from mcp_tool_filter.core.messages.large import find_result_envelope
from mcp_tool_filter.core.messages.limits import (
    META_REVISION,
    NEWEST_STATELESS,
    STATELESS_REVISIONS,
)
from mcp_tool_filter.core.messages.messages import (
    INTERNAL_ERROR,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    UPSTREAM_LOST,
    Notification,
    Request,
    Response,
    Single,
    id_value,
    parse_message,
    render_error,
    singles,
)
from mcp_tool_filter.core.messages.scan import Value, open_value
from mcp_tool_filter.core.messages.tools import parse_tool_call
from mcp_tool_filter.core.policy.tool_filter import tool_not_found
from mcp_tool_filter.core.process.background import look_at, start_later
from mcp_tool_filter.rooms.merged.lists import (
    KINDS,
    PROMPTS,
    RESOURCES,
    SKILLS,
    TEMPLATES,
    TOOLS,
    ListKind,
    MergedList,
    Offer,
    parse_page,
)
from mcp_tool_filter.rooms.merged.messages import (
    INVALID_PARAMS,
    LONGEST_TTL,
    META,
    Questions,
    answers_to,
    for_client,
    id_for_client,
    questions_in,
    quoted,
    render_list,
    render_question,
    render_result,
    stateless,
    text_at,
    unknown_thing,
    value_at,
    with_id,
    with_params,
    with_value,
    written_at,
)
from mcp_tool_filter.rooms.merged.server_session import Missing, Outlet, Pending, ServerSession
from mcp_tool_filter.rooms.merged.uris import Named, server_of

if TYPE_CHECKING:
    from mcp_tool_filter.core.messages.limits import Limits
    from mcp_tool_filter.rooms.merged.endpoint import MergedEndpoint
    from mcp_tool_filter.rooms.merged.visits import Route, Visitor

log = logging.getLogger(__name__)

_TOGETHER: Final = 0.1  # seconds in which changes are joined
_LIST_PATIENCE: Final = 3.0  # seconds that a list waits for a server
_MOST_PAGES: Final = 1000
_MOST_ASKED: Final = 1000
"""Requests of servers that we remember, and subscriptions."""
_MOST_ROUNDS: Final = 10
_LOST: Final = "Upstream connection lost"
_SUBSCRIPTION: Final = f"{META}subscriptionId"
_NOTICES: Final = {kind.notice: kind for kind in KINDS.values() if kind.notice}


class Talk:
    """The talk with one client. For 2026-07-28, that with one request."""

    def __init__(
        self,
        endpoint: MergedEndpoint,
        visitor: Visitor,
        *,
        revision: str,
        capabilities: str,
        client_info: str,
    ) -> None:
        """The capabilities and the client's introduction are as they are written."""
        self.endpoint, self.visitor = endpoint, visitor
        self.revision = revision
        self.capabilities, self.client_info = capabilities, client_info
        self.is_stateless = revision in STATELESS_REVISIONS
        self.level: str | None = None
        """The level of log messages that the client wants, as it is written."""
        self.subscription: str | None = None
        """The id of the client's ``subscriptions/listen``, since 2026-07-28."""
        self.waiting: OrderedDict[str, Pending] = OrderedDict()
        self.stream: Outlet = endpoint.no_stream()
        self.is_listening = False
        self.used_at = 0.0
        self._legs: dict[str, ServerSession] = {}
        self._asked: OrderedDict[str, tuple[ServerSession, str] | asyncio.Future[bytes]] = (
            OrderedDict()
        )
        self._tokens: dict[str, tuple[ServerSession, str]] = {}
        self._progress: OrderedDict[str, ServerSession] = OrderedDict()
        """The server of each progress token of the client."""
        self._named = Named()
        self._subscribed: OrderedDict[str, str] = OrderedDict()
        self._lists: dict[ListKind, MergedList] = {}
        self._shown: dict[ListKind, MergedList] = {}
        self._listing: dict[tuple[str, ListKind], asyncio.Task[Offer | None]] = {}
        self._late: set[tuple[str, ListKind]] = set()
        """The lists for which we have waited in vain."""
        self._changed: set[ListKind] = set()
        self._wanted: frozenset[str] | None = None
        """The changes to which a client of 2026-07-28 listens."""
        self._comparing: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._is_closed = False

    # What legs need

    @property
    def limits(self) -> Limits:
        return self.endpoint.limits

    @property
    def route(self) -> Route:
        return self.endpoint.route

    def spawn[Result](self, work: Coroutine[Any, Any, Result]) -> asyncio.Task[Result]:
        """Run work in the background, at most until the talk ends."""
        task = start_later(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _work_for(self, pending: Pending, work: Coroutine[Any, Any, None]) -> None:
        """Run work for a request, which gets an error if that raises."""
        self.spawn(self._guarded(pending, work))

    async def _guarded(self, pending: Pending, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Exception:
            log.exception("internal error; a request was refused")
            self._refuse(pending, INTERNAL_ERROR, "Internal error")

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        look_at(task)

    def waits_for(self, pending: Pending) -> bool:
        return self.waiting.get(id_value(pending.id)) is pending

    def subscriptions(self, leg: ServerSession) -> list[str]:
        """Return the URIs of a server to which the client has subscribed."""
        return [uri for uri, server in self._subscribed.items() if server == leg.name]

    def note_login(self, server: str) -> None:
        self.endpoint.note_login(server)

    def as_stateless(self, raw: bytes) -> bytes:
        """Return a request of a session's client, or of our own, for a stateless server."""
        meta = {
            META_REVISION: quoted(NEWEST_STATELESS),
            f"{META}clientInfo": self.client_info,
            f"{META}clientCapabilities": self.capabilities,
        }
        if self.level is not None:
            meta[f"{META}logLevel"] = self.level
        return stateless(raw, meta, {})

    # The end

    def close(self) -> None:
        """End all sessions."""
        self._is_closed = True
        if self._comparing is not None:
            self._comparing.cancel()
        for pending in list(self.waiting.values()):
            if pending.ask is not None:
                pending.ask.leave()
        self.waiting.clear()
        for task in list(self._tasks):
            task.cancel()
        for leg in self._legs.values():
            leg.close()

    def lose_all(self, leg: ServerSession) -> None:
        """A server's only stream has ended: nothing that waits gets an answer."""
        for pending in [one for one in self.waiting.values() if one.leg is leg]:
            self.settle(pending, render_error(pending.id, UPSTREAM_LOST, _LOST))

    def leave(self, outlet: Outlet) -> None:
        """The client does not read this answer any more."""
        for key, pending in list(self.waiting.items()):
            if pending.outlet is outlet:
                if pending.ask is not None:
                    pending.ask.leave()
                if not pending.last_id and not (pending.leg and pending.leg.is_legacy):
                    del self.waiting[key]

    def lose_stream(self, stream: Outlet) -> None:
        """The client has closed its stream: keep what comes until it opens another one."""
        if self.stream is stream:
            self.stream = self.endpoint.no_stream()

    def slow_down(self, outlet: Outlet, on: bool) -> None:
        """Let the servers wait whose answers go to a client that reads slowly."""
        for pending in self.waiting.values():
            if pending.outlet is outlet and pending.ask is not None:
                pending.ask.slow_down(on)

    def start_listening(self) -> None:
        """Open the streams of all servers: the client reads one now."""
        self.is_listening = True
        for leg in self._legs.values():
            if leg.is_open:
                leg.listen()

    def end(self) -> None:
        """The only request is answered."""
        self.endpoint.leave(self)

    # Messages of the client

    def take(self, message: Single, outlet: Outlet) -> None:
        """Take a message of the client. Raises ProtocolError if it cannot be judged."""
        if isinstance(message, Request):
            self._take_request(message, outlet)
        elif isinstance(message, Response):
            self._take_answer(message)
        else:
            self._take_notification(message)

    def _take_request(self, message: Request, outlet: Outlet) -> None:
        pending = Pending(message.id, message.method, outlet)
        key = id_value(message.id)
        before = self.waiting.get(key)
        if before is not None and not before.outlet.is_open:  # its client has left
            del self.waiting[key]
            before = None
        if message.id == "null" or before is not None:
            return outlet.answer(render_error(message.id, INVALID_REQUEST, "Invalid Request"))
        while len(self.waiting) >= self.limits.exchanges:
            oldest = next(iter(self.waiting.values()))
            self._refuse(oldest, INTERNAL_ERROR, "Too many requests")
        token = value_at(message, "_meta", "progressToken")
        pending.token = message.place.cut(token) if token is not None else None
        take = self._ways.get(message.method)
        if take is None:
            error = render_error(message.id, METHOD_NOT_FOUND, "Method not found")
            return outlet.answer(error)
        self.waiting[key] = pending
        try:
            return take(self, message, pending)
        except BaseException:
            self.waiting.pop(key, None)
            raise

    def settle(self, pending: Pending, raw: bytes, others: bytes = b"") -> None:
        """Answer a request, unless it was answered."""
        if self.waits_for(pending):
            del self.waiting[id_value(pending.id)]
            pending.outlet.answer(raw, others)

    def _refuse(self, pending: Pending, code: int, text: str) -> None:
        self.settle(pending, render_error(pending.id, code, text))

    def _ping(self, _message: Request, pending: Pending) -> None:
        self.settle(pending, render_result(pending.id, b"{}"))

    def _set_level(self, message: Request, pending: Pending) -> None:
        level = value_at(message, "level")
        if level is None or level.text is None:
            return self._refuse(pending, INVALID_PARAMS, "Invalid params: level")
        self.level = message.place.cut(level)
        for leg in self._legs.values():
            if leg.is_open and not leg.is_stateless and "logging" in leg.offered:
                self.spawn(leg.request("logging/setLevel", f'{{"level":{self.level}}}'))
        return self.settle(pending, render_result(pending.id, b"{}"))

    # Names

    def _call(self, message: Request, pending: Pending) -> None:
        pending.called = parse_tool_call(message).tool_name
        self._by_name(TOOLS, message, pending, value_at(message, "name"))

    def _get_prompt(self, message: Request, pending: Pending) -> None:
        self._by_name(PROMPTS, message, pending, value_at(message, "name"))

    def _complete(self, message: Request, pending: Pending) -> None:
        if text_at(message, "ref", "type") == "ref/prompt":
            return self._by_name(PROMPTS, message, pending, value_at(message, "ref", "name"))
        return self._by_uri(message, pending, value_at(message, "ref", "uri"))

    def _by_name(
        self, kind: ListKind, message: Request, pending: Pending, name: Value | None
    ) -> None:
        if name is None or name.text is None:
            return self._refuse(pending, INVALID_PARAMS, "Invalid params: name")
        known = self._lists.get(kind) or self._list_at_once(kind)
        owner = known.owner(name.text) if known else None
        if owner is None:
            self._work_for(pending, self._look_up(kind, message, pending, name))
            return None
        return self._forward_named(owner, message, pending, name)

    async def _look_up(
        self, kind: ListKind, message: Request, pending: Pending, name: Value
    ) -> None:
        """Find a name in the present lists."""
        assert name.text is not None
        owner = (await self.list_of(kind)).owner(name.text)
        owner = owner or self.endpoint.last_owner(kind, name.text)
        if owner is None and (server := self.endpoint.missing_with_prefix_of(name.text)):
            if not await self._is_open(self.leg(server), pending):
                return None
            owner = (await self.list_of(kind)).owner(name.text)
        if owner is not None:
            return self._forward_named(owner, message, pending, name)
        if kind is TOOLS:
            raw, origin = message.place.raw, pending.outlet.origin
            return self.settle(pending, self.endpoint.not_found(raw, origin))
        return self._unknown(message, pending, name.text)

    def _unknown(self, message: Request, pending: Pending, name: str) -> None:
        method = (
            "prompts/get" if text_at(message, "ref", "type") == "ref/prompt" else pending.method
        )
        raw = unknown_thing(pending.id, method, name, is_stateless=self.is_stateless)
        self.settle(pending, raw)

    def _forward_named(
        self, owner: tuple[str, str], message: Request, pending: Pending, name: Value
    ) -> None:
        raw = with_params(message, (name, quoted(owner[1])))
        self._forward(self.leg(owner[0]), raw, pending)

    # URIs

    def _use_uri(self, message: Request, pending: Pending) -> None:
        self._by_uri(message, pending, value_at(message, "uri"))

    def _by_uri(self, message: Request, pending: Pending, uri: Value | None) -> None:
        if uri is None or uri.text is None:
            return self._refuse(pending, INVALID_PARAMS, "Invalid params: uri")
        self._work_for(pending, self._forward_by_uri(message, pending, uri.text))
        return None

    async def _forward_by_uri(self, message: Request, pending: Pending, uri: str) -> None:
        server = await self._server_of(uri, pending.method)
        if server is None:
            return self._unknown(message, pending, uri)
        leg = self.leg(server)
        if pending.method == "resources/subscribe":
            self._subscribed[uri] = server
            if len(self._subscribed) > _MOST_ASKED:
                self._subscribed.popitem(last=False)
        elif pending.method == "resources/unsubscribe":
            self._subscribed.pop(uri, None)
        else:
            return self._forward(leg, message.place.raw, pending)
        return await self._subscribe(leg, message, pending)

    async def _subscribe(self, leg: ServerSession, message: Request, pending: Pending) -> None:
        if await self._is_open(leg, pending):
            if not leg.is_stateless:
                return self._forward(leg, message.place.raw, pending)
            leg.subscribe_again()
            self.settle(pending, render_result(pending.id, b"{}"))
        return None

    async def _server_of(self, uri: str, method: str) -> str | None:
        able = self.endpoint.able("resources")
        if method == "skills/get":
            owner = (await self.list_of(SKILLS)).owner(uri)
            return owner[0] if owner else None
        if len(able) == 1:
            return able[0]
        listed, templates = await asyncio.gather(
            self._known_list(RESOURCES, uri), self._known_list(TEMPLATES, uri)
        )
        if method == "completion/complete" and (owner := templates.owner(uri)) is not None:
            return owner[0]
        return server_of(uri, listed, self._named, templates, able)

    async def _known_list(self, kind: ListKind, uri: str) -> MergedList:
        known = self._lists.get(kind)
        if known is None or (kind is RESOURCES and known.owner(uri) is None):
            known = await self.list_of(kind)
        return known

    # Passing requests on

    def leg(self, server: str) -> ServerSession:
        """Return our session with a server, which may not be open yet."""
        leg, running = self._legs.get(server), self.endpoint.running(server)
        if leg is None or leg.running is not running:
            if leg is not None:
                leg.close()
            leg = self._legs[server] = ServerSession(self, running)
        return leg

    def _forward(self, leg: ServerSession, raw: bytes, pending: Pending) -> None:
        """Pass a request on, at once if the session is open."""
        pending.leg = leg
        if pending.token is not None:
            self._progress[id_value(pending.token)] = leg
            if len(self._progress) > _MOST_ASKED:
                self._progress.popitem(last=False)
        if leg.is_open and leg.running.site is not None:
            self._send(leg, raw, pending)
        else:
            self._work_for(pending, self._open_and_send(leg, raw, pending))

    async def _open_and_send(self, leg: ServerSession, raw: bytes, pending: Pending) -> None:
        if await self._is_open(leg, pending):
            self._send(leg, raw, pending)

    async def _is_open(self, leg: ServerSession, pending: Pending) -> bool:
        """Open a session for a request; tell whether it still waits, and can be sent."""
        try:
            await leg.open()
        except Missing as missing:
            self._refuse(pending, UPSTREAM_LOST, str(missing))
        return self.waits_for(pending)

    def _send(self, leg: ServerSession, raw: bytes, pending: Pending) -> None:
        if leg.is_stateless and not self.is_stateless:
            raw = pending.raw = self.as_stateless(raw)
        leg.send(raw, pending)

    # Lists

    def _list(self, message: Request, pending: Pending) -> None:
        kind = KINDS[pending.method]
        if value_at(message, "cursor") is not None:
            return self._refuse(pending, INVALID_PARAMS, "Invalid params: there is one page only")
        known = self._list_at_once(kind)
        if known is None:
            self._work_for(pending, self._list_later(kind, pending))
            return None
        return self._show(kind, known, pending)

    async def _list_later(self, kind: ListKind, pending: Pending) -> None:
        self._show(kind, await self.list_of(kind), pending)

    def _show(self, kind: ListKind, known: MergedList, pending: Pending) -> None:
        self._shown[kind] = known
        ttl = self._ttl(kind, known) if self.is_stateless else None
        self.settle(pending, render_list(pending.id, kind, known.body, ttl))

    def _ttl(self, kind: ListKind, known: MergedList) -> int:
        """Return for how long a list is fresh: not at all while a server is missing."""
        if len(known.offers) < len(self.endpoint.able(kind.capability)):
            return 0
        return min([LONGEST_TTL, *(one.ttl or 0 for one in known.offers)])

    def _list_at_once(self, kind: ListKind) -> MergedList | None:
        """Return the merged list if no server has to be asked."""
        if kind is not TOOLS:
            return None
        offers: list[Offer] = []
        for server in self.endpoint.able(kind.capability):
            offer = self._offer_at_once(server)
            if offer is None:
                return None
            if offer is not _MISSING:
                offers.append(offer)
        known = self._lists[kind] = self.endpoint.merged(kind, offers)
        return known

    def _offer_at_once(self, server: str) -> Offer | None:
        """Return a server's tools if its snapshot has them; ``_MISSING`` if it is down."""
        if self.endpoint.is_missing(server):
            self.endpoint.look_for(server)
            return _MISSING
        if self.is_stateless:
            return None  # the server says for how long its list is fresh
        leg = self._legs.get(server)
        return self.endpoint.snapshot_offer(server, leg.id if leg and leg.is_open else b"")

    async def list_of(self, kind: ListKind) -> MergedList:
        """Return the merged list as it is now. A slow server is left out, and joins later."""
        servers = self.endpoint.able(kind.capability)
        found: dict[str, Offer | None] = {}
        asked: dict[str, asyncio.Task[Offer | None]] = {}
        for server in servers:
            known = self._offer_at_once(server) if kind is TOOLS else None
            if known is not None or self.endpoint.is_missing(server):
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
        merged = self._lists[kind] = self.endpoint.merged(kind, offers)
        return merged

    def _last_offer(self, server: str, kind: ListKind) -> Offer | None:
        before = self._lists.get(kind)
        return (
            next((one for one in before.offers if one.server == server), None) if before else None
        )

    def _ask_for(self, server: str, kind: ListKind) -> asyncio.Task[Offer | None]:
        """Ask a server for a list; all who want it meanwhile share the answer."""
        key = server, kind
        task = self._listing.get(key)
        if task is None:
            task = self._listing[key] = self.spawn(self._fetch(server, kind))
            task.add_done_callback(lambda _: self._fetched(key))
        return task

    def _fetched(self, key: tuple[str, ListKind]) -> None:
        self._listing.pop(key, None)
        if key in self._late:
            self._late.discard(key)
            if not self._is_closed:
                self.note_change(key[1])

    async def _fetch(self, server: str, kind: ListKind) -> Offer | None:
        """Return what a server lists; None if it cannot be asked."""
        leg = self.leg(server)
        pages: list[bytes] = []
        cursor = ""
        try:
            await leg.open()
            is_known = kind is TOOLS and not self.is_stateless
            known = self.endpoint.snapshot_offer(server, leg.id) if is_known else None
            if known is not None:
                return known
            while len(pages) < _MOST_PAGES:
                params = f'{{"cursor":{quoted(cursor)}}}' if cursor else "{}"
                answer = await leg.request(kind.method, params)
                code = written_at(answer, "error") if b'"error"' in answer else None
                if code is not None:
                    return self._refused(server, kind, answer)
                pages.append(answer)
                self._named.learn(server, answer)
                cursor = parse_page(kind, answer).cursor or ""
                if not cursor:
                    return self.endpoint.offer(server, kind, tuple(pages))
        except (Missing, ProtocolError) as error:
            self.endpoint.warn_once(f"Warning: {server}: {kind.member} are missing: {error}")
        return None

    def _refused(self, server: str, kind: ListKind, answer: bytes) -> Offer | None:
        """A server that has no such list has an empty one."""
        if f'"code":{METHOD_NOT_FOUND}' in answer.decode().replace(" ", ""):
            return self.endpoint.offer(server, kind, ())
        return None

    # Changes

    def note_change(self, *kinds: ListKind) -> None:
        """Tell the client soon, if a merged list is another one."""
        if self._is_closed:
            return
        self._changed.update(kinds)
        if self._comparing is None:
            loop = asyncio.get_running_loop()
            self._comparing = loop.call_later(_TOGETHER, self._compare_soon)

    def note_change_of_servers(self) -> None:
        """A server came, went, or shows other tools."""
        self._lists.clear()
        self.note_change(TOOLS, *self._shown)

    def _compare_soon(self) -> None:
        self._comparing = None
        changed, self._changed = self._changed, set()
        self.spawn(self._compare(changed))

    async def _compare(self, kinds: Iterable[ListKind]) -> None:
        notices: dict[str, None] = {}
        for kind in kinds:
            before = self._shown.get(kind)
            if before is not None or kind is TOOLS:
                after = self._shown[kind] = await self.list_of(kind)
                if before is not None and before.body == after.body:
                    continue
            if kind.notice and self._is_wanted(kind):
                notices[kind.notice] = None
        for method in notices:
            self._tell(f'{{"jsonrpc":"2.0","method":"{method}"}}'.encode())

    def _is_wanted(self, kind: ListKind) -> bool:
        return self._wanted is None or f'"{kind.capability}ListChanged":true' in self._wanted

    def remember_shown(self) -> None:
        """Note the tools as they are: later changes are told."""
        if (known := self._list_at_once(TOOLS)) is not None:
            self._shown.setdefault(TOOLS, known)

    def _tell(self, raw: bytes) -> None:
        """Send what answers no request."""
        if self.subscription is not None:
            meta = f'{{"{_SUBSCRIPTION}":{self.subscription}}}'
            raw = raw[:-1] + f',"params":{{"_meta":{meta}}}}}'.encode()
        self.stream.tell(raw)

    # Answers and notifications of the client

    def _take_answer(self, message: Response) -> None:
        if message.id is None:
            return
        found = self._asked.pop(id_value(message.id), None)
        raw = message.place.raw
        if isinstance(found, asyncio.Future):
            if not found.done():
                found.set_result(raw)
        elif found is not None and found[0].is_open:
            found[0].send(with_id(raw, found[1]))

    def _take_notification(self, message: Notification) -> None:
        raw = message.place.raw
        match message.method:
            case "notifications/cancelled":
                self._cancel(raw)
            case "notifications/progress":
                token = written_at(raw, "params", "progressToken")
                if token is not None and (found := self._tokens.get(id_value(token))):
                    leg, own = found
                    if leg.is_open:
                        leg.send(with_value(raw, own, "params", "progressToken"))
            case "notifications/roots/list_changed":
                for leg in self._legs.values():
                    if leg.is_open and not leg.is_stateless:
                        leg.send(raw)

    def _cancel(self, raw: bytes) -> None:
        id = written_at(raw, "params", "requestId")
        pending = self.waiting.pop(id_value(id), None) if id else None
        if pending is None:
            return
        leg = pending.leg
        if leg is not None and leg.is_open and not leg.is_stateless:
            leg.send(raw)
        if pending.ask is not None and (leg is None or not leg.is_legacy):
            pending.ask.leave()
        pending.outlet.pause()

    # Messages of servers

    def from_server(
        self, leg: ServerSession, raw: bytes, outlet: Outlet, others: bytes = b""
    ) -> None:
        """Take a message that a server's listener has let through."""
        if (envelope := find_result_envelope(raw)) is not None:
            return self._answer(leg, envelope.id, raw, outlet, others)
        for one in singles(parse_message(raw, self.limits)):
            text = one.place.raw
            if isinstance(one, Response):
                if one.id is not None:
                    self._answer(leg, one.id, text, outlet, others)
            elif isinstance(one, Request):
                self._ask_client(leg, one, text, outlet, others)
            else:
                self._notify(leg, one, text, outlet, others)
        return None

    def _answer(
        self, leg: ServerSession, id: str, raw: bytes, outlet: Outlet, others: bytes
    ) -> None:
        pending = self.waiting.get(id_value(id))
        if pending is None or pending.leg is not leg:
            return
        self._named.learn(leg.name, raw)
        if pending.raw and (questions := questions_in(raw)) is not None:
            pending.is_asking = True
            self._work_for(pending, self._ask_for_input(pending, questions))
            return
        if pending.called and len(raw) < 1024 and b'"error"' in raw:
            raw = self._as_called(pending, raw)
        if not pending.outlet.is_open and outlet.is_open:
            pending.outlet = outlet  # a stream that was resumed
        self.settle(pending, raw, others)

    def _as_called(self, pending: Pending, raw: bytes) -> bytes:
        """Let the error for a tool that is gone name the tool as the client does."""
        known = self._lists.get(TOOLS)
        owner = known.owner(pending.called) if known else None
        is_ours = owner is not None and raw == tool_not_found(pending.id, owner[1])
        return tool_not_found(pending.id, pending.called) if is_ours else raw

    def _ask_client(
        self, leg: ServerSession, message: Request, raw: bytes, outlet: Outlet, others: bytes
    ) -> None:
        if message.method == "ping":
            return leg.send(render_result(message.id, b"{}"))
        asked = for_client(leg.name, raw)
        self._remember_asked(asked.id, (leg, asked.own_id))
        if asked.token is not None:
            self._tokens[id_value(asked.token[0])] = leg, asked.token[1]
            if len(self._tokens) > _MOST_ASKED:
                del self._tokens[next(iter(self._tokens))]
        self._say(asked.raw, outlet, others)
        return None

    def _remember_asked(
        self, id: str, asker: tuple[ServerSession, str] | asyncio.Future[bytes]
    ) -> None:
        self._asked[id_value(id)] = asker
        if len(self._asked) > _MOST_ASKED:
            self._asked.popitem(last=False)

    def _say(self, raw: bytes, outlet: Outlet, others: bytes = b"") -> None:
        """Send what is no answer where the server has sent it, or on the client's stream."""
        if not outlet.is_open or not outlet.tell(raw, others):
            self.stream.tell(raw)

    def _notify(
        self, leg: ServerSession, message: Notification, raw: bytes, outlet: Outlet, others: bytes
    ) -> None:
        method = message.method
        if (kind := _NOTICES.get(method)) is not None:
            both = (RESOURCES, TEMPLATES) if kind.capability == "resources" else (kind,)
            return self.note_change(*both)
        if method == "notifications/cancelled":
            id = written_at(raw, "params", "requestId")
            exposed = id_for_client(leg.name, id) if id else ""
            if not exposed or self._asked.pop(id_value(exposed), None) is None:
                return None
            raw = with_value(raw, exposed, "params", "requestId")
        elif method == "notifications/progress" and not self._is_progress_of(leg, raw):
            return None
        elif method == "notifications/resources/updated":
            self._named.learn(leg.name, raw)
            uri = text_of_uri(message)
            if uri is None or self._subscribed.get(uri, leg.name) != leg.name:
                return None
        elif method == "notifications/subscriptions/acknowledged":
            return self.note_change(TOOLS)  # it may have changed until now
        elif method.startswith("notifications/tasks/"):
            return None
        if self.subscription is not None and written_at(raw, "params", "_meta", _SUBSCRIPTION):
            raw = with_value(raw, self.subscription, "params", "_meta", _SUBSCRIPTION)
        return self._say(raw, outlet, others)

    def _is_progress_of(self, leg: ServerSession, raw: bytes) -> bool:
        """Tell whether a server's progress is about a request that it has, or has just answered:
        the answer may come sooner on another stream."""
        token = written_at(raw, "params", "progressToken")
        return token is not None and self._progress.get(id_value(token)) is leg

    # A stateless server that asks its client something

    async def _ask_for_input(self, pending: Pending, questions: Questions) -> None:
        pending.rounds += 1
        leg = pending.leg
        if leg is None or pending.rounds > _MOST_ROUNDS:
            text = f"The server asked for input more than {_MOST_ROUNDS} times"
            return self._refuse(pending, INTERNAL_ERROR, text)
        loop = asyncio.get_running_loop()
        came: dict[str, asyncio.Future[bytes]] = {}
        for key, request in questions.requests.items():
            id = id_for_client(leg.name, quoted(key))
            came[key] = loop.create_future()
            self._remember_asked(id, came[key])
            self._say(render_question(id, request), pending.outlet)
        results: dict[str, str] = {}
        for key, answer in came.items():
            result = written_at(await answer, "result")
            if result is None:
                error = written_at(answer.result(), "error")
                said = f'{{"jsonrpc":"2.0","id":{pending.id},"error":{error}}}'
                return self.settle(pending, said.encode())
            results[key] = result
        if self.waits_for(pending):
            pending.is_asking = False
            leg.send(stateless(pending.raw, {}, answers_to(questions, results)), pending)
        return None

    # Subscriptions of 2026-07-28

    def _listen(self, message: Request, pending: Pending) -> None:
        if not self.is_stateless:
            return self._refuse(pending, METHOD_NOT_FOUND, "Method not found")
        self.subscription, self.stream, self.is_listening = pending.id, pending.outlet, True
        self.endpoint.join(self)
        self._work_for(pending, self._open_subscription(message, pending))
        return None

    async def _open_subscription(self, message: Request, pending: Pending) -> None:
        wanted = value_at(message, "notifications")
        uris = value_at(message, "notifications", "resourceSubscriptions")
        agreed = [
            f'"{name}":true'
            for name in ("toolsListChanged", "promptsListChanged", "resourcesListChanged")
            if wanted is not None
            and (said := value_at(message, "notifications", name)) is not None
            and message.place.cut(said) == "true"
        ]
        self._wanted = frozenset(agreed)
        known: list[str] = []
        for uri in texts_in(message, uris):
            server = await self._server_of(uri, "resources/subscribe")
            if server is not None:
                self._subscribed[uri] = server
                known.append(quoted(uri))
        if known:
            agreed.append(f'"resourceSubscriptions":[{",".join(known)}]')
        meta = f'"_meta":{{"{_SUBSCRIPTION}":{pending.id}}}'
        params = f'{{{meta},"notifications":{{{",".join(agreed)}}}}}'
        method = "notifications/subscriptions/acknowledged"
        self._shown[TOOLS] = await self.list_of(TOOLS)
        pending.outlet.tell(f'{{"jsonrpc":"2.0","method":"{method}","params":{params}}}'.encode())
        for server in self.endpoint.able("tools"):
            leg = self.leg(server)
            if not self.endpoint.is_missing(server):
                self.spawn(leg.open())

    _ways: dict[str, Callable[[Talk, Request, Pending], None]] = {  # noqa: RUF012
        **dict.fromkeys(KINDS, _list),
        "ping": _ping,
        "tools/call": _call,
        "prompts/get": _get_prompt,
        "completion/complete": _complete,
        "resources/read": _use_uri,
        "resources/subscribe": _use_uri,
        "resources/unsubscribe": _use_uri,
        "resources/directory/read": _use_uri,
        "skills/get": _use_uri,
        "logging/setLevel": _set_level,
        "subscriptions/listen": _listen,
    }


_MISSING: Final = Offer(TOOLS, "", ())


def text_of_uri(message: Notification) -> str | None:
    """Return the URI that a notification is about."""
    uri = message.params.get("uri") if message.params else None
    return uri.text if uri is not None else None


def texts_in(message: Request, array: Value | None) -> list[str]:
    """Return the texts in an array in the params of a request."""
    opened = open_value(message.place.text, array) if array is not None else None
    return [one.text for one in (opened.elements if opened else None) or () if one.text is not None]
