"""The mitmproxy addon: connects the parts of the tool filter to mitmproxy's hooks.

Any error in a hook fails closed: mitmproxy would log it and forward the flow.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from mitmproxy import ctx
from mitmproxy.addonmanager import Loader
from mitmproxy.connection import Client
from mitmproxy.http import HTTPFlow
from mitmproxy.proxy.layer import NextLayer
from mitmproxy.proxy.server_hooks import ServerConnectionHookData

from mcp_tool_filter.adapters.effects.carry_out import Effects
from mcp_tool_filter.adapters.fetch.upstream import fetch
from mcp_tool_filter.adapters.mitmproxy.forward.answers import Answers
from mcp_tool_filter.adapters.mitmproxy.forward.budget import MemoryBudget
from mcp_tool_filter.adapters.mitmproxy.forward.connections import (
    close_client,
    close_leftover,
    connect_failed,
    resume,
)
from mcp_tool_filter.adapters.mitmproxy.forward.crowd import Crowd
from mcp_tool_filter.adapters.mitmproxy.forward.errors import error_answer, reason_of
from mcp_tool_filter.adapters.mitmproxy.forward.exit import Ending
from mcp_tool_filter.adapters.mitmproxy.forward.flows import add_cors
from mcp_tool_filter.adapters.mitmproxy.forward.hidden import Hidden
from mcp_tool_filter.adapters.mitmproxy.forward.known import KnownFlows
from mcp_tool_filter.adapters.mitmproxy.forward.list_changes import tell_list_changed
from mcp_tool_filter.adapters.mitmproxy.forward.listeners import Fetcher, Listeners
from mcp_tool_filter.adapters.mitmproxy.forward.login_through import LoginsThrough
from mcp_tool_filter.adapters.mitmproxy.forward.logins import Logins
from mcp_tool_filter.adapters.mitmproxy.forward.lost_upstream import LossGuard
from mcp_tool_filter.adapters.mitmproxy.forward.new_lists import NewLists
from mcp_tool_filter.adapters.mitmproxy.forward.requests import Requests
from mcp_tool_filter.adapters.mitmproxy.forward.rules import Rules
from mcp_tool_filter.adapters.mitmproxy.forward.safe.failures import (
    ErrorAnswer,
    Failure,
    install_error_answers,
)
from mcp_tool_filter.adapters.mitmproxy.forward.safe.installed import install_meter, install_resume
from mcp_tool_filter.adapters.mitmproxy.forward.safe.last_look import install_last_look
from mcp_tool_filter.adapters.mitmproxy.forward.safe.reverse_proxy import (
    choose_layer,
    guard_connections,
)
from mcp_tool_filter.adapters.mitmproxy.forward.second_look import SecondLook
from mcp_tool_filter.adapters.mitmproxy.forward.startup import Startup, say
from mcp_tool_filter.adapters.mitmproxy.forward.streams import (
    open_flows,
    settle_message,
    upstream_failed,
)
from mcp_tool_filter.adapters.mitmproxy.forward.views import FlowObserver
from mcp_tool_filter.adapters.mitmproxy.forward.watchers import Watchers
from mcp_tool_filter.adapters.mitmproxy.forward.websocket import judge_or_drop, newest_message
from mcp_tool_filter.adapters.mitmproxy.options import ConfigReader, declare_options
from mcp_tool_filter.adapters.mitmproxy.settings import Loopback
from mcp_tool_filter.adapters.serving.background import in_background
from mcp_tool_filter.adapters.serving.on_demand import OnHangup
from mcp_tool_filter.errors import StartError
from mcp_tool_filter.policy.exchange import Link

if TYPE_CHECKING:
    from mitmproxy.tls import TlsData

    from mcp_tool_filter.adapters.mitmproxy.forward.interception import Interception
    from mcp_tool_filter.adapters.watch.watching import Sink


class ForwardFilter:
    """The addon if a mode is a forward proxy. Reverse proxies beside it have a listener each."""

    name = "toolfilter"

    def __init__(
        self,
        *,
        fetch: Fetcher = fetch,
        report: Callable[[str], None] | None = None,
        warn: Callable[[str], None] | None = None,
        sinks: Sequence[Sink] = (),
        on_end: Callable[[], None] = lambda: None,
        argv: Sequence[str] = (),
        config_reader: ConfigReader | None = None,
        links: tuple[Link, ...] = (),
    ) -> None:
        """``fetch`` fetches the tools; ``report`` gets the report once they are known.

        ``warn`` gets warnings that are shown even without a report.

        ``sinks`` get an entry for each message that matters; ``on_end`` is called after the last.

        ``argv`` is the command line, which a configuration file of mitmproxy may have overruled.
        A ``config_reader`` may have read the options already.
        ``links`` are the chain after the tool filter.
        """
        warn = warn or say
        self._listeners = Listeners(fetch, links)
        self._logins = Logins()
        through = LoginsThrough()
        self._crowd = Crowd()
        self._budget = MemoryBudget()
        self._known = KnownFlows(self._listeners)
        self._effects = Effects()
        self._ready = asyncio.Event()
        self.views = FlowObserver(self._listeners.by_mode)
        hidden = Hidden(self._listeners.by_mode)
        self._watchers = Watchers(self.views, sinks, warn, on_end, self._state)
        self._listeners.observer_for = self._watchers.observer_for
        self.rules = Rules(self._listeners, self._effects, self._logins, self._watchers.enter_log)
        self._loopback = Loopback()
        self.ending = Ending()
        self._new_lists = NewLists(self._listeners, partial(tell_list_changed, self._known))
        self._on_hangup = OnHangup(lambda: in_background(self._list_on_demand()))
        self._loss = LossGuard(
            self._listeners, self._new_lists, self._crowd.reserve, self.ending, warn
        )
        requests = Requests(
            self._listeners,
            self._known,
            effects=self._effects,
            logins=self._logins,
            through=through,
            crowd=self._crowd,
            watchers=self._watchers,
            views=self.views,
            hidden=hidden,
            ready=self._ready,
            ending=self.ending,
        )
        self._requests = requests
        self._effects.fetch_tools = requests.fetch_tools
        answers = Answers(
            requests,
            self._known,
            effects=self._effects,
            logins=self._logins,
            through=through,
            views=self.views,
            hidden=hidden,
            suspect=self._suspect,
            note_end=self._loss.note_end_of_stream,
        )
        self._second_look = SecondLook(requests, answers, self._known, hidden)
        self._startup = Startup(
            self._listeners,
            known=self._known,
            effects=self._effects,
            logins=self._logins,
            through=through,
            crowd=self._crowd,
            budget=self._budget,
            rules=self.rules,
            views=self.views,
            hidden=hidden,
            watchers=self._watchers,
            loopback=self._loopback,
            ready=self._ready,
            ending=self.ending,
            config_reader=config_reader,
            argv=argv,
            report=report,
            warn=warn,
        )
        self._warn = warn
        # The hooks of each message, under mitmproxy's names and without a call in between.
        self.requestheaders = requests.judge_source
        self.request = requests.judge
        self.responseheaders = answers.judge_head
        self.response = answers.judge

    # Start and end

    async def started(self) -> bool:
        """Wait until clients are served; return False if the start has failed and the process
        ends."""
        await self._ready.wait()
        return not self.ending.has_begun

    @property
    def problem(self) -> StartError | None:
        """The reason why the filter cannot start, if it is known before mitmproxy listens."""
        return self._startup.problem

    @property
    def interception(self) -> Interception | None:
        """The interception, if a mode is a forward proxy."""
        return self._startup.interception

    def load(self, loader: Loader) -> None:
        declare_options(loader)
        self._loopback.load(ctx.options)
        self.views.load(ctx.master)
        install_error_answers(self._error_answer)
        install_last_look(self._second_look)
        install_meter(self._budget.received)
        install_resume(resume)
        guard_connections()

    def configure(self, updated: set[str]) -> None:
        self._startup.configure(updated)

    def running(self) -> None:
        self._startup.running()
        if not self.ending.has_begun:
            self._on_hangup.running()

    def done(self) -> Awaitable[None] | None:
        """End; mitmproxy waits for the last webhooks."""
        self._watchers.done()
        self._effects.close()
        webhooks = self.rules.done()
        self._on_hangup.done()
        self.views.done()
        self._crowd.done()
        self.ending.done()
        return webhooks

    def _state(self) -> dict[str, float]:
        """Return the current values for the metrics."""
        listeners = list(self._listeners.by_mode.values())
        return {
            "ready": self._ready.is_set()
            and bool(listeners or self.interception)
            and not self.ending.has_begun,
            "upstream_up": not self.ending.has_begun and not self._loss.is_lost,
            "sessions": sum(len(listener.sessions) for listener in listeners),
            "streams": len(open_flows()),
        }

    async def _list_on_demand(self) -> None:
        await self._ready.wait()
        await self._new_lists.take_all(self._warn)

    # Clients

    def client_connected(self, client: Client) -> None:
        self._loopback.client_connected(client)
        self._crowd.client_connected(client)

    async def client_disconnected(self, client: Client) -> None:
        self._crowd.client_disconnected(client)
        await close_client(client)

    def tls_failed_client(self, data: TlsData) -> None:
        if self.interception:
            self.interception.tls_failed(data)

    def next_layer(self, layer: NextLayer) -> None:
        choose_layer(layer)

    # Upstreams

    def server_connect(self, data: ServerConnectionHookData) -> None:
        self._crowd.server_connect(data)

    def server_connected(self, data: ServerConnectionHookData) -> None:
        self._loss.server_connected(data.client)

    def server_disconnected(self, data: ServerConnectionHookData) -> None:
        close_leftover(data)

    def server_connect_error(self, data: ServerConnectionHookData) -> None:
        if connect_failed(data):
            self._suspect(data.client)

    def tls_failed_server(self, data: TlsData) -> None:
        if self.interception:
            self.interception.tls_failed_upstream(data)

    # Errors

    def error(self, flow: HTTPFlow) -> None:
        self.views.finish(flow)
        known = self._known.get(flow)
        if known is None:
            return
        if known.stream:
            known.stream.abandon()
            known.stream = None
            known.listener.close_stream(known.exchange)
        if upstream_failed(flow):
            self._known.failed.add(flow)
            self._suspect(flow.client_conn)

    def _suspect(self, client: Client) -> None:
        self._loss.suspect(client)

    def _error_answer(self, flow: HTTPFlow, failure: Failure) -> ErrorAnswer:
        known = self._known.get(flow)
        if known is None:
            answer = error_answer(flow, failure, None, None)
            if reason := reason_of(failure):
                self._requests.tell_refused(flow, answer.response, reason)
            return answer
        answer = error_answer(flow, failure, known.listener, known.exchange)
        add_cors(known.listener.cors, flow.request, answer.response)
        return answer

    # WebSocket

    def websocket_message(self, flow: HTTPFlow) -> None:
        message = newest_message(flow)
        if not message.injected:
            judge_or_drop(self._known.socket_of(flow), flow, message)
        if not message.dropped:
            settle_message(flow, message)

    def websocket_end(self, flow: HTTPFlow) -> None:
        if socket := self._known.socket_of(flow):
            socket.close()
