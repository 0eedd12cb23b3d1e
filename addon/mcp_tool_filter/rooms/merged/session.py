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
import json
import logging
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final

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
from mcp_tool_filter.core.policy.tool_filter import tool_not_found
from mcp_tool_filter.core.process.background import look_at, start_later
from mcp_tool_filter.rooms.merged.client_lists import ClientLists
from mcp_tool_filter.rooms.merged.client_requests import ClientRequests
from mcp_tool_filter.rooms.merged.endpoint import Kept
from mcp_tool_filter.rooms.merged.lists import KINDS, RESOURCES, TEMPLATES, TOOLS
from mcp_tool_filter.rooms.merged.messages import (
    META,
    SUBSCRIPTION,
    for_client,
    id_for_client,
    questions_in,
    quoted,
    render_result,
    stateless,
    value_at,
    with_id,
    with_value,
    written_at,
)
from mcp_tool_filter.rooms.merged.server_session import Missing, Outlet, Pending, ServerSession
from mcp_tool_filter.rooms.merged.uris import Named

if TYPE_CHECKING:
    from mcp_tool_filter.core.messages.limits import Limits
    from mcp_tool_filter.rooms.merged.endpoint import MergedEndpoint
    from mcp_tool_filter.rooms.merged.visits import Route, Visitor

log = logging.getLogger(__name__)

_MOST_ASKED: Final = 1000
"""Requests of servers that we remember, and subscriptions."""
_LOST: Final = "Upstream connection lost"
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
        self.stream: Outlet = Kept()
        self.is_listening = False
        self.used_at = 0.0
        self.legs: dict[str, ServerSession] = {}
        self._asked: OrderedDict[str, tuple[ServerSession, str] | asyncio.Future[bytes]] = (
            OrderedDict()
        )
        self._tokens: dict[str, tuple[ServerSession, str]] = {}
        self._progress: OrderedDict[str, ServerSession] = OrderedDict()
        """The server of each progress token of the client."""
        self.named = Named()
        self.subscribed: OrderedDict[str, str] = OrderedDict()
        self.lists = ClientLists(self)
        self._requests = ClientRequests(self)
        self._tasks: set[asyncio.Task[Any]] = set()
        self.is_closed = False

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

    def work_for(self, pending: Pending, work: Coroutine[Any, Any, None]) -> None:
        """Run work for a request, which gets an error if that raises."""
        self.spawn(self._guarded(pending, work))

    async def _guarded(self, pending: Pending, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Exception:
            log.exception("internal error; a request was refused")
            self.refuse(pending, INTERNAL_ERROR, "Internal error")

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        look_at(task)

    def waits_for(self, pending: Pending) -> bool:
        return self.waiting.get(id_value(pending.id)) is pending

    def subscriptions(self, leg: ServerSession) -> list[str]:
        """Return the URIs of a server to which the client has subscribed."""
        return [uri for uri, server in self.subscribed.items() if server == leg.name]

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
        self.is_closed = True
        self.lists.close()
        for pending in list(self.waiting.values()):
            if pending.ask is not None:
                pending.ask.leave()
        self.waiting.clear()
        for task in list(self._tasks):
            task.cancel()
        for leg in self.legs.values():
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
            self.stream = Kept()

    def slow_down(self, outlet: Outlet, on: bool) -> None:
        """Let the servers wait whose answers go to a client that reads slowly."""
        for pending in self.waiting.values():
            if pending.outlet is outlet and pending.ask is not None:
                pending.ask.slow_down(on)

    def start_listening(self) -> None:
        """Open the streams of all servers: the client reads one now."""
        self.is_listening = True
        for leg in self.legs.values():
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
            self.refuse(oldest, INTERNAL_ERROR, "Too many requests")
        token = value_at(message, "_meta", "progressToken")
        pending.token = message.place.cut(token) if token is not None else None
        take = self._requests.way_of(message.method)
        if take is None:
            error = render_error(message.id, METHOD_NOT_FOUND, "Method not found")
            return outlet.answer(error)
        self.waiting[key] = pending
        try:
            return take(message, pending)
        except BaseException:
            self.waiting.pop(key, None)
            raise

    def passing(self, id: bytes, tool: str) -> Callable[[bytes, Outlet], None] | None:
        """Return what passes a plain call on at once; None if it must be taken as usual."""
        known = self.lists.known.get(TOOLS)
        owner = known.owner(tool) if known is not None else None
        leg = self.leg(owner[0]) if owner is not None else None
        if owner is None or leg is None or not leg.is_open or leg.is_stateless or leg.site is None:
            return None
        pending = Pending(id.decode(), "tools/call", self.stream, called=tool)
        key = id_value(pending.id)
        if key in self.waiting or len(self.waiting) >= self.limits.exchanges:
            return None

        def pass_on(raw: bytes, outlet: Outlet) -> None:
            pending.outlet, self.waiting[key] = outlet, pending
            at = raw.index(b'"name"')
            old, new = json.dumps(tool).encode(), json.dumps(owner[1]).encode()
            self.forward(leg, raw[:at] + raw[at:].replace(old, new, 1), pending)

        return pass_on

    def settle(self, pending: Pending, raw: bytes, others: bytes = b"") -> None:
        """Answer a request, unless it was answered."""
        if self.waits_for(pending):
            del self.waiting[id_value(pending.id)]
            pending.outlet.answer(raw, others)

    def refuse(self, pending: Pending, code: int, text: str) -> None:
        self.settle(pending, render_error(pending.id, code, text))

    # Passing requests on

    def leg(self, server: str) -> ServerSession:
        """Return our session with a server, which may not be open yet."""
        leg, running = self.legs.get(server), self.endpoint.running(server)
        if leg is None or leg.running is not running:
            if leg is not None:
                leg.close()
            leg = self.legs[server] = ServerSession(self, running)
        return leg

    def forward(self, leg: ServerSession, raw: bytes, pending: Pending) -> None:
        """Pass a request on, at once if the session is open."""
        pending.leg = leg
        if pending.token is not None:
            self._progress[id_value(pending.token)] = leg
            if len(self._progress) > _MOST_ASKED:
                self._progress.popitem(last=False)
        if leg.is_open and leg.running.site is not None:
            self._send(leg, raw, pending)
        else:
            self.work_for(pending, self._open_and_send(leg, raw, pending))

    async def _open_and_send(self, leg: ServerSession, raw: bytes, pending: Pending) -> None:
        if await self.is_open_for(leg, pending):
            self._send(leg, raw, pending)

    async def is_open_for(self, leg: ServerSession, pending: Pending) -> bool:
        """Open a session for a request; tell whether it still waits, and can be sent."""
        try:
            await leg.open()
        except Missing as missing:
            self.refuse(pending, UPSTREAM_LOST, str(missing))
        return self.waits_for(pending)

    def _send(self, leg: ServerSession, raw: bytes, pending: Pending) -> None:
        if leg.is_stateless and not self.is_stateless:
            raw = pending.raw = self.as_stateless(raw)
        leg.send(raw, pending)

    # Changes

    def tell(self, raw: bytes) -> None:
        """Send what answers no request."""
        if self.subscription is not None:
            meta = f'{{"{SUBSCRIPTION}":{self.subscription}}}'
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
                for leg in self.legs.values():
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
        self.named.learn(leg.name, raw)
        if pending.raw and (questions := questions_in(raw)) is not None:
            pending.is_asking = True
            self.work_for(pending, self._requests.ask_for_input(pending, questions))
            return
        if pending.called and len(raw) < 1024 and b'"error"' in raw:
            raw = self._as_called(pending, raw)
        if not pending.outlet.is_open and outlet.is_open:
            pending.outlet = outlet  # a stream that was resumed
        self.settle(pending, raw, others)

    def _as_called(self, pending: Pending, raw: bytes) -> bytes:
        """Let the error for a tool that is gone name the tool as the client does."""
        known = self.lists.known.get(TOOLS)
        owner = known.owner(pending.called) if known else None
        is_ours = owner is not None and raw == tool_not_found(pending.id, owner[1])
        return tool_not_found(pending.id, pending.called) if is_ours else raw

    def _ask_client(
        self, leg: ServerSession, message: Request, raw: bytes, outlet: Outlet, others: bytes
    ) -> None:
        if message.method == "ping":
            return leg.send(render_result(message.id, b"{}"))
        asked = for_client(leg.name, raw)
        self.remember_asked(asked.id, (leg, asked.own_id))
        if asked.token is not None:
            self._tokens[id_value(asked.token[0])] = leg, asked.token[1]
            if len(self._tokens) > _MOST_ASKED:
                del self._tokens[next(iter(self._tokens))]
        self.say(asked.raw, outlet, others)
        return None

    def remember_asked(
        self, id: str, asker: tuple[ServerSession, str] | asyncio.Future[bytes]
    ) -> None:
        self._asked[id_value(id)] = asker
        if len(self._asked) > _MOST_ASKED:
            self._asked.popitem(last=False)

    def say(self, raw: bytes, outlet: Outlet, others: bytes = b"") -> None:
        """Send what is no answer where the server has sent it, or on the client's stream."""
        if not outlet.is_open or not outlet.tell(raw, others):
            self.stream.tell(raw)

    def _notify(
        self, leg: ServerSession, message: Notification, raw: bytes, outlet: Outlet, others: bytes
    ) -> None:
        method = message.method
        if (kind := _NOTICES.get(method)) is not None:
            both = (RESOURCES, TEMPLATES) if kind.capability == "resources" else (kind,)
            return self.lists.note_change(*both)
        if method == "notifications/cancelled":
            id = written_at(raw, "params", "requestId")
            exposed = id_for_client(leg.name, id) if id else ""
            if not exposed or self._asked.pop(id_value(exposed), None) is None:
                return None
            raw = with_value(raw, exposed, "params", "requestId")
        elif method == "notifications/progress" and not self._is_progress_of(leg, raw):
            return None
        elif method == "notifications/resources/updated":
            self.named.learn(leg.name, raw)
            uri = text_of_uri(message)
            if uri is None or self.subscribed.get(uri, leg.name) != leg.name:
                return None
        elif method == "notifications/subscriptions/acknowledged":
            return self.lists.note_change(TOOLS)  # it may have changed until now
        elif method.startswith("notifications/tasks/"):
            return None
        if self.subscription is not None and written_at(raw, "params", "_meta", SUBSCRIPTION):
            raw = with_value(raw, self.subscription, "params", "_meta", SUBSCRIPTION)
        return self.say(raw, outlet, others)

    def _is_progress_of(self, leg: ServerSession, raw: bytes) -> bool:
        """Tell whether a server's progress is about a request that it has, or has just answered:
        the answer may come sooner on another stream."""
        token = written_at(raw, "params", "progressToken")
        return token is not None and self._progress.get(id_value(token)) is leg


def text_of_uri(message: Notification) -> str | None:
    """Return the URI that a notification is about."""
    uri = message.params.get("uri") if message.params else None
    return uri.text if uri is not None else None
