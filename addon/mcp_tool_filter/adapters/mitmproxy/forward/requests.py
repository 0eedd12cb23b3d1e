"""Judge requests: who may send them, what they contain, and with which login we forward them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TYPE_CHECKING
from weakref import WeakSet

from mitmproxy.http import HTTPFlow, Response

from mcp_tool_filter.adapters.effects.carry_out import Effects
from mcp_tool_filter.adapters.mitmproxy.forward.crowd import Crowd
from mcp_tool_filter.adapters.mitmproxy.forward.errors import (
    FORBIDDEN,
    FORBIDDEN_SITE,
    INTERNAL,
    full_response,
)
from mcp_tool_filter.adapters.mitmproxy.forward.exit import Ending
from mcp_tool_filter.adapters.mitmproxy.forward.failing_closed import fail_closed
from mcp_tool_filter.adapters.mitmproxy.forward.flows import (
    OF_UPGRADES,
    head_of,
    json_response,
    lost_to,
    our_response,
    prepare_for_upstream,
    remove_upgrade,
    replace_body,
)
from mcp_tool_filter.adapters.mitmproxy.forward.hidden import Hidden, real_request
from mcp_tool_filter.adapters.mitmproxy.forward.known import Known, KnownFlows
from mcp_tool_filter.adapters.mitmproxy.forward.listeners import (
    FORWARD_MODES,
    Listeners,
)
from mcp_tool_filter.adapters.mitmproxy.forward.login_through import LoginsThrough
from mcp_tool_filter.adapters.mitmproxy.forward.logins import (
    Logins,
    Sent,
    answer_without_login,
)
from mcp_tool_filter.adapters.mitmproxy.forward.safe.stream import SafeStream, stream_of
from mcp_tool_filter.adapters.mitmproxy.forward.streams import refuse_now, settle_answer
from mcp_tool_filter.adapters.mitmproxy.forward.views import FlowObserver
from mcp_tool_filter.adapters.mitmproxy.forward.watchers import Watchers
from mcp_tool_filter.adapters.mitmproxy.forward.websocket import Socket
from mcp_tool_filter.errors import ProtocolError, StartError
from mcp_tool_filter.http.exchange import Answered, HttpExchange, Passed
from mcp_tool_filter.http.gate import problem_in_source
from mcp_tool_filter.http.head import Head, is_websocket
from mcp_tool_filter.http.listener import Listener
from mcp_tool_filter.policy.effects import Deciding, FetchTools
from mcp_tool_filter.policy.verdict import Reason, Reply, Why
from mcp_tool_filter.protocol.messages import Notification, Request
from mcp_tool_filter.protocol.sse import render_event

if TYPE_CHECKING:
    from mcp_tool_filter.adapters.oauth.through import Through


type _Asked = tuple[bytes, bytes, bytes | None]
"""A request's method, path and body."""


class Requests:
    """Judges each request, and forwards or answers it."""

    def __init__(
        self,
        listeners: Listeners,
        known: KnownFlows,
        *,
        effects: Effects,
        logins: Logins,
        through: LoginsThrough,
        crowd: Crowd,
        watchers: Watchers,
        views: FlowObserver,
        hidden: Hidden,
        ready: asyncio.Event,
        ending: Ending,
    ) -> None:
        self._listeners = listeners
        self._known = known
        self._effects = effects
        self._logins = logins
        self._through = through
        self._crowd = crowd
        self._watchers = watchers
        self._views = views
        self._hidden = hidden
        self._ready = ready
        self._ending = ending
        self._admitted: WeakSet[HTTPFlow] = WeakSet()  # flows whose source was admitted

    def judge_source(self, flow: HTTPFlow) -> None:
        """Judge a request's source before reading its body, so that refused ones cost no memory."""
        try:
            if self._hidden.is_on:
                self._hidden.hide_head(flow)
            if flow.client_conn.id in self._crowd.surplus:
                self._refuse_now(flow, full_response(), Reason(Why.FORBIDDEN, detail="max_clients"))
            elif problem := self._problem_in_source(flow, stream_of(flow)):
                said = FORBIDDEN_SITE if problem == "Sec-Fetch-Site" else FORBIDDEN
                reason = Reason(Why.FORBIDDEN, detail=problem)
                self._refuse_now(flow, json_response(403, said), reason)
            else:
                self._admitted.add(flow)
        except Exception as error:
            fail_closed(flow, error, self._refuse_source)

    def _refuse_source(self, flow: HTTPFlow) -> None:
        refuse_now(flow, json_response(500, INTERNAL))

    def _refuse_now(self, flow: HTTPFlow, response: Response, reason: Reason) -> None:
        refuse_now(flow, response)
        self.tell_refused(flow, response, reason)

    def tell_refused(self, flow: HTTPFlow, response: Response, reason: Reason) -> None:
        """Tell the observers about a request that was refused before it could be judged."""
        if self._views.is_watched:
            self._views.meet(flow)
        verdict = Reply(response.content or b"", reason)
        listener = self._listeners.by_mode.get(flow.client_conn.proxy_mode.full_spec)
        if listener:
            listener.tell_refused(verdict, flow)
        else:  # we are still starting
            self._watchers.tell_refused(verdict, flow)

    def judge(self, flow: HTTPFlow) -> Awaitable[None] | None:
        try:
            if self._hidden.is_on:
                self._hidden.hide_body(flow)
            if self._views.is_watched:
                self._views.meet(flow)
            if flow not in self._admitted:
                raise ProtocolError("a request whose head was not judged")
            if not self._ready.is_set():
                return self._judge_later(flow)
            return self._judge_or_lose(flow)
        except Exception as error:
            fail_closed(flow, error, self.refuse)
            return None

    async def _judge_later(self, flow: HTTPFlow) -> None:
        await self._ready.wait()
        try:
            if waiting := self._judge_or_lose(flow):
                await waiting
        except Exception as error:
            fail_closed(flow, error, self.refuse)

    def _judge_or_lose(self, flow: HTTPFlow) -> Awaitable[None] | None:
        if not self._ending.has_begun:
            return self.judge_admitted(flow)
        self._answer(flow, Answered(200, lost_to(flow.request)))
        return None

    def _problem_in_source(
        self, flow: HTTPFlow, stream: SafeStream | None, *, with_visits: bool = True
    ) -> str | None:
        """Return the problem of a request's source. (mitmproxy has replaced the client's Host.)"""
        if flow.is_replay:  # replayed by the user in mitmweb or the console
            return None
        headers = flow.request.headers
        problem = problem_in_source(
            self._listeners.config.allowed_hosts,
            own=flow.client_conn.sockname[0],
            host=stream.client_host if stream is not None else None,
            origins=headers.get_all("origin"),
            sites=headers.get_all("sec-fetch-site"),
        )
        if problem and isinstance(flow.client_conn.proxy_mode, FORWARD_MODES):
            return None  # the client names the upstream, which can check both
        may_visit = with_visits and problem == "Sec-Fetch-Site" and self._through.is_visit(flow)
        return None if may_visit else problem

    def judge_admitted(self, flow: HTTPFlow) -> Awaitable[None] | None:
        name = flow.client_conn.proxy_mode.full_spec
        listener = self._listeners.by_mode.get(name) or self._listeners.listener_of(flow)
        request = real_request(flow) if self._hidden.was_on else flow.request
        raw = request.raw_content
        if request.stream or raw is None:
            raise ProtocolError("a body passed before it could be judged")
        head = head_of(request, flow.client_conn)
        if through := self._through.asked(flow, head):
            return self._log_in_through(flow, through, listener, head, raw, _asked_in(flow))
        return self._judge_message(flow, listener, head, raw)

    async def _log_in_through(
        self,
        flow: HTTPFlow,
        through: Through,
        listener: Listener,
        head: Head,
        raw: bytes,
        asked: _Asked,
    ) -> None:
        try:
            response = await self._through.answer(flow, through, head, raw)
            _refuse_changed(flow, asked)
            if response:
                self._known.of(flow).login_at = response.headers.get("location")
                flow.response = response
                self._hidden.hide_answer(flow)
                settle_answer(flow)
            elif problem := self._problem_in_source(flow, stream_of(flow), with_visits=False):
                raise ProtocolError(f"{problem} forbids everything except logins")
            elif changed := self._through.translate(flow, through, head, raw):
                raw = flow.request.raw_content or b""
                self._hidden.hide_head(flow)
                self._hidden.hide_body(flow)
                if waiting := self._judge_message(flow, listener, changed, raw):
                    await waiting
            elif waiting := self._judge_message(flow, listener, head, raw):
                await waiting
        except Exception as error:
            fail_closed(flow, error, self.refuse)

    def _judge_message(
        self, flow: HTTPFlow, listener: Listener, head: Head, raw: bytes
    ) -> Awaitable[None] | None:
        outcome = listener.judge_request(head, raw, flow)
        if isinstance(outcome, Passed | Answered):
            return self._send_on(flow, listener, head, outcome)
        return self._send_on_later(flow, listener, head, outcome, _asked_in(flow))

    async def _send_on_later(
        self,
        flow: HTTPFlow,
        listener: Listener,
        head: Head,
        outcome: Deciding[Passed | Answered],
        asked: _Asked,
    ) -> None:
        try:
            decided = await self._effects.outcome_of(outcome)
            _refuse_changed(flow, asked)
            if self._ending.has_begun:
                decided = Answered(200, lost_to(flow.request))
            if waiting := self._send_on(flow, listener, head, decided):
                await waiting
        except Exception as error:
            fail_closed(flow, error, self.refuse)

    async def fetch_tools(self, effect: FetchTools) -> tuple[bytes, ...]:
        """Fetch the list that the client of a message would get."""
        exchange, message = effect.arrival, effect.message
        assert isinstance(exchange, HttpExchange)
        assert isinstance(message, Request | Notification)
        return await self._listeners.fetch_as_client(exchange, message)

    def _send_on(
        self, flow: HTTPFlow, listener: Listener, head: Head, outcome: Passed | Answered
    ) -> Awaitable[None] | None:
        if isinstance(outcome, Answered):
            self._answer(flow, outcome)
            return None
        known = self._known[flow] = Known(listener, outcome.exchange)
        if not OF_UPGRADES.isdisjoint(head.names.places):
            if is_websocket(head):
                conversation = listener.open_socket(outcome.exchange)
                known.socket = Socket(flow, conversation, self._effects.carry_out)
            else:
                remove_upgrade(flow.request)
        if outcome.body is not None:
            replace_body(flow.request, outcome.body, outcome.headers)
        prepare_for_upstream(flow.request, head, listener.headers_for(head))
        if self._hidden.is_on:
            self._hidden.hide_added(flow)
        if (stream := stream_of(flow)) is not None:
            stream.settle_request()
        if self._logins.is_on and (sent := self._logins.needed_for(flow, listener, head)):
            return self._log_in(flow, known, sent)
        return None

    def _log_in(self, flow: HTTPFlow, known: Known, sent: Sent) -> Awaitable[None] | None:
        """Forward a request with the token of the login, once we have one."""
        try:
            if value := sent.login.value():
                self._logins.add(flow, sent, value)
                return None
        except StartError as error:
            self.answer_without_login(flow, known, error)
            return None
        return self._log_in_later(flow, known, sent)

    async def _log_in_later(self, flow: HTTPFlow, known: Known, sent: Sent) -> None:
        try:
            try:
                self._logins.add(flow, sent, await sent.login.renewed())
            except StartError as error:
                self.answer_without_login(flow, known, error)
        except Exception as error:
            fail_closed(flow, error, self.refuse)

    def answer_without_login(self, flow: HTTPFlow, known: Known, error: StartError) -> None:
        self._logins.warn_once(f"{error.what}. {error.why}")
        self._answer(flow, answer_without_login(flow, known.listener, known.exchange, error))

    def _answer(self, flow: HTTPFlow, answered: Answered) -> None:
        """Answer instead of the upstream, on the stream where the client waits."""
        elsewhere = answered.stream
        if elsewhere and answered.body and elsewhere.send(render_event(answered.body)):
            answered = Answered(202)
        listener = self._listeners.by_mode.get(flow.client_conn.proxy_mode.full_spec)
        cors = listener.cors if listener else None
        flow.response = our_response(flow.request, answered, cors)
        if (stream := stream_of(flow)) is not None:
            stream.settle_answer()

    def refuse(self, flow: HTTPFlow) -> None:
        self._answer(flow, Answered(500, INTERNAL))

    def is_admitted(self, flow: HTTPFlow) -> bool:
        """Tell whether a flow's head was judged and the listeners are ready."""
        return flow in self._admitted and self._ready.is_set()


def _asked_in(flow: HTTPFlow) -> _Asked:
    data = flow.request.data
    return data.method, data.path, data.content


def _refuse_changed(flow: HTTPFlow, asked: _Asked) -> None:
    """Raise ProtocolError if another script has changed the request while it waited."""
    if _asked_in(flow) != asked:
        raise ProtocolError("a request that was changed while it waited")
