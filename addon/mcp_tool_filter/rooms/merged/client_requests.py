"""What a client may ask of all servers, by method: which server a request is for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from mcp_tool_filter.core.messages.messages import INTERNAL_ERROR, METHOD_NOT_FOUND, Request
from mcp_tool_filter.core.messages.scan import Value, open_value
from mcp_tool_filter.core.messages.tool_requests import parse_tool_call
from mcp_tool_filter.rooms.merged.lists import (
    KINDS,
    PROMPTS,
    RESOURCES,
    SKILLS,
    TEMPLATES,
    TOOLS,
    ListKind,
    MergedList,
)
from mcp_tool_filter.rooms.merged.messages import (
    INVALID_PARAMS,
    SUBSCRIPTION,
    Questions,
    answers_to,
    id_for_client,
    quoted,
    render_question,
    render_result,
    stateless,
    text_at,
    unknown_thing,
    value_at,
    with_params,
    written_at,
)
from mcp_tool_filter.rooms.merged.server_session import Pending, ServerSession
from mcp_tool_filter.rooms.merged.uris import server_of

if TYPE_CHECKING:
    from mcp_tool_filter.rooms.merged.session import Talk

_MOST_ASKED: Final = 1000
"""Requests of servers that we remember, and subscriptions."""
_MOST_ROUNDS: Final = 10


class ClientRequests:
    """The ways of all requests."""

    def __init__(self, talk: Talk) -> None:
        self._talk, self._endpoint = talk, talk.endpoint

    def way_of(self, method: str) -> Callable[[Request, Pending], None] | None:
        """Return what takes a request; None if nobody does."""
        if method in KINDS:
            return self._talk.lists.ask
        name = self._ways.get(method)
        return getattr(self, name) if name else None

    def _ping(self, _message: Request, pending: Pending) -> None:
        self._talk.settle(pending, render_result(pending.id, b"{}"))

    def _set_level(self, message: Request, pending: Pending) -> None:
        level = value_at(message, "level")
        if level is None or level.text is None:
            return self._talk.refuse(pending, INVALID_PARAMS, "Invalid params: level")
        self._talk.level = message.place.cut(level)
        for leg in self._talk.legs.values():
            if leg.is_open and not leg.is_stateless and "logging" in leg.offered:
                self._talk.spawn(leg.request("logging/setLevel", f'{{"level":{self._talk.level}}}'))
        return self._talk.settle(pending, render_result(pending.id, b"{}"))

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
            return self._talk.refuse(pending, INVALID_PARAMS, "Invalid params: name")
        known = self._talk.lists.known.get(kind) or self._talk.lists.at_once(kind)
        owner = known.owner(name.text) if known else None
        if owner is None:
            self._talk.work_for(pending, self._look_up(kind, message, pending, name))
            return None
        return self._forward_named(owner, message, pending, name)

    async def _look_up(
        self, kind: ListKind, message: Request, pending: Pending, name: Value
    ) -> None:
        """Find a name in the present lists."""
        assert name.text is not None
        lists, prefixes = self._talk.lists, self._endpoint.merging.prefixes
        # No other server can have it, so none of them is waited for.
        able = self._endpoint.able(kind.capability)
        having = [one for one in able if name.text.startswith(prefixes[one])]
        owner = (await lists.list_of(kind, having)).owner(name.text)
        owner = owner or self._endpoint.last_owner(kind, name.text)
        if owner is None and (server := self._endpoint.missing_with_prefix_of(name.text)):
            if not await self._talk.is_open_for(self._talk.leg(server), pending):
                return None
            owner = (await lists.list_of(kind, having)).owner(name.text)
        if owner is not None:
            return self._forward_named(owner, message, pending, name)
        if kind is TOOLS:
            raw, origin = message.place.raw, pending.outlet.origin
            return self._talk.settle(pending, self._endpoint.not_found(raw, origin))
        return self._unknown(message, pending, name.text)

    def _unknown(self, message: Request, pending: Pending, name: str) -> None:
        method = (
            "prompts/get" if text_at(message, "ref", "type") == "ref/prompt" else pending.method
        )
        raw = unknown_thing(pending.id, method, name, is_stateless=self._talk.is_stateless)
        self._talk.settle(pending, raw)

    def _forward_named(
        self, owner: tuple[str, str], message: Request, pending: Pending, name: Value
    ) -> None:
        raw = with_params(message, (name, quoted(owner[1])))
        self._talk.forward(self._talk.leg(owner[0]), raw, pending)

    def _use_uri(self, message: Request, pending: Pending) -> None:
        self._by_uri(message, pending, value_at(message, "uri"))

    def _by_uri(self, message: Request, pending: Pending, uri: Value | None) -> None:
        if uri is None or uri.text is None:
            return self._talk.refuse(pending, INVALID_PARAMS, "Invalid params: uri")
        self._talk.work_for(pending, self._forward_by_uri(message, pending, uri.text))
        return None

    async def _forward_by_uri(self, message: Request, pending: Pending, uri: str) -> None:
        server = await self._server_of(uri, pending.method)
        if server is None:
            return self._unknown(message, pending, uri)
        leg = self._talk.leg(server)
        if pending.method == "resources/subscribe":
            self._talk.subscribed[uri] = server
            if len(self._talk.subscribed) > _MOST_ASKED:
                self._talk.subscribed.popitem(last=False)
        elif pending.method == "resources/unsubscribe":
            self._talk.subscribed.pop(uri, None)
        else:
            return self._talk.forward(leg, message.place.raw, pending)
        return await self._subscribe(leg, message, pending)

    async def _subscribe(self, leg: ServerSession, message: Request, pending: Pending) -> None:
        if await self._talk.is_open_for(leg, pending):
            if not leg.is_stateless:
                return self._talk.forward(leg, message.place.raw, pending)
            leg.subscribe_again()
            self._talk.settle(pending, render_result(pending.id, b"{}"))
        return None

    async def _server_of(self, uri: str, method: str) -> str | None:
        able = self._endpoint.able("resources")
        if method == "skills/get":
            owner = (await self._talk.lists.list_of(SKILLS)).owner(uri)
            return owner[0] if owner else None
        if len(able) == 1:
            return able[0]
        listed, templates = await asyncio.gather(
            self._known_list(RESOURCES, uri), self._known_list(TEMPLATES, uri)
        )
        if method == "completion/complete" and (owner := templates.owner(uri)) is not None:
            return owner[0]
        return server_of(uri, listed, self._talk.named, templates, able)

    async def _known_list(self, kind: ListKind, uri: str) -> MergedList:
        known = self._talk.lists.known.get(kind)
        if known is None or (kind is RESOURCES and known.owner(uri) is None):
            known = await self._talk.lists.list_of(kind)
        return known

    async def ask_for_input(self, pending: Pending, questions: Questions) -> None:
        pending.rounds += 1
        leg = pending.leg
        if leg is None or pending.rounds > _MOST_ROUNDS:
            text = f"The server asked for input more than {_MOST_ROUNDS} times"
            return self._talk.refuse(pending, INTERNAL_ERROR, text)
        loop = asyncio.get_running_loop()
        came: dict[str, asyncio.Future[bytes]] = {}
        for key, request in questions.requests.items():
            id = id_for_client(leg.name, quoted(key))
            came[key] = loop.create_future()
            self._talk.remember_asked(id, came[key])
            self._talk.say(render_question(id, request), pending.outlet)
        results: dict[str, str] = {}
        for key, answer in came.items():
            result = written_at(await answer, "result")
            if result is None:
                error = written_at(answer.result(), "error")
                said = f'{{"jsonrpc":"2.0","id":{pending.id},"error":{error}}}'
                return self._talk.settle(pending, said.encode())
            results[key] = result
        if self._talk.waits_for(pending):
            pending.is_asking = False
            leg.send(stateless(pending.raw, {}, answers_to(questions, results)), pending)
        return None

    def _listen(self, message: Request, pending: Pending) -> None:
        if not self._talk.is_stateless:
            return self._talk.refuse(pending, METHOD_NOT_FOUND, "Method not found")
        self._talk.subscription, self._talk.stream, self._talk.is_listening = (
            pending.id,
            pending.outlet,
            True,
        )
        self._endpoint.join(self._talk)
        self._talk.work_for(pending, self._open_subscription(message, pending))
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
        self._talk.lists.wanted = frozenset(agreed)
        known: list[str] = []
        for uri in texts_in(message, uris):
            server = await self._server_of(uri, "resources/subscribe")
            if server is not None:
                self._talk.subscribed[uri] = server
                known.append(quoted(uri))
        if known:
            agreed.append(f'"resourceSubscriptions":[{",".join(known)}]')
        meta = f'"_meta":{{"{SUBSCRIPTION}":{pending.id}}}'
        params = f'{{{meta},"notifications":{{{",".join(agreed)}}}}}'
        method = "notifications/subscriptions/acknowledged"
        self._talk.lists.shown[TOOLS] = await self._talk.lists.list_of(TOOLS)
        pending.outlet.tell(f'{{"jsonrpc":"2.0","method":"{method}","params":{params}}}'.encode())
        for server in self._endpoint.able("tools"):
            leg = self._talk.leg(server)
            if not self._endpoint.is_missing(server):
                self._talk.spawn(leg.open())

    _ways: Final = {
        "ping": "_ping",
        "tools/call": "_call",
        "prompts/get": "_get_prompt",
        "completion/complete": "_complete",
        **dict.fromkeys(
            ("resources/read", "resources/subscribe", "resources/unsubscribe", "skills/get",
             "resources/directory/read"), "_use_uri",
        ),
        "logging/setLevel": "_set_level",
        "subscriptions/listen": "_listen",
    }  # fmt: skip


def texts_in(message: Request, array: Value | None) -> list[str]:
    """Return the texts in an array in the params of a request."""
    opened = open_value(message.place.text, array) if array is not None else None
    return [one.text for one in (opened.elements if opened else None) or () if one.text is not None]
