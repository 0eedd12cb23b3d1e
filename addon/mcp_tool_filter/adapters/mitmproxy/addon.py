"""The hooks: flows to messages, verdicts to flows. They decide nothing.

Whatever is raised here ends closed: mitmproxy would log it and send the flow on.

It is one module because mitmproxy wants all hooks in one class, and a start needs all its parts.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from typing import TYPE_CHECKING

from mitmproxy import ctx
from mitmproxy.addonmanager import Loader
from mitmproxy.connection import Client
from mitmproxy.exceptions import OptionsError
from mitmproxy.http import HTTPFlow
from mitmproxy.proxy.layer import NextLayer
from mitmproxy.proxy.mode_specs import ReverseMode
from mitmproxy.proxy.server_hooks import ServerConnectionHookData

from mcp_tool_filter.adapters.effects.carry_out import Effects
from mcp_tool_filter.adapters.fetch.login_documents import fetch_login_documents
from mcp_tool_filter.adapters.fetch.upstream import fetch
from mcp_tool_filter.adapters.mitmproxy.answers import Answers
from mcp_tool_filter.adapters.mitmproxy.budget import Budget
from mcp_tool_filter.adapters.mitmproxy.crowd import Crowd
from mcp_tool_filter.adapters.mitmproxy.errors import (
    error_answer,
)
from mcp_tool_filter.adapters.mitmproxy.exit import Ending
from mcp_tool_filter.adapters.mitmproxy.fast.malloc import give_back
from mcp_tool_filter.adapters.mitmproxy.fast.switch import speed_up
from mcp_tool_filter.adapters.mitmproxy.flows import (
    add_cors,
)
from mcp_tool_filter.adapters.mitmproxy.hidden import Hidden
from mcp_tool_filter.adapters.mitmproxy.known import KnownFlows
from mcp_tool_filter.adapters.mitmproxy.list_changes import tell_list_changed
from mcp_tool_filter.adapters.mitmproxy.listeners import (
    Fetcher,
    Listeners,
    introduce_to,
    is_forward,
    parse_modes,
    target_of,
)
from mcp_tool_filter.adapters.mitmproxy.login_through import LoginsThrough
from mcp_tool_filter.adapters.mitmproxy.logins import (
    Logins,
)
from mcp_tool_filter.adapters.mitmproxy.lost_upstream import LossGuard
from mcp_tool_filter.adapters.mitmproxy.new_lists import NewLists
from mcp_tool_filter.adapters.mitmproxy.on_demand import OnHangup
from mcp_tool_filter.adapters.mitmproxy.options import (
    NAMES,
    ConfigReader,
    declare_options,
    overruled_option,
    unknown_option,
)
from mcp_tool_filter.adapters.mitmproxy.requests import Requests
from mcp_tool_filter.adapters.mitmproxy.rules import Rules
from mcp_tool_filter.adapters.mitmproxy.safe.failures import (
    ErrorAnswer,
    Failure,
    install_error_answers,
)
from mcp_tool_filter.adapters.mitmproxy.safe.installed import (
    install_meter,
    install_resume,
)
from mcp_tool_filter.adapters.mitmproxy.safe.last_look import install_last_look
from mcp_tool_filter.adapters.mitmproxy.safe.reverse_proxy import (
    choose_layer,
    guard_connections,
)
from mcp_tool_filter.adapters.mitmproxy.second_look import SecondLook
from mcp_tool_filter.adapters.mitmproxy.settings import (
    Loopback,
    bound_messages,
    keep_quiet_streams_alive,
    refuse_dangerous_options,
    refuse_no_mode,
)
from mcp_tool_filter.adapters.mitmproxy.streams import (
    close_client,
    close_leftover,
    close_unguarded,
    connect_failed,
    open_flows,
    resume,
    settle_message,
    upstream_failed,
)
from mcp_tool_filter.adapters.mitmproxy.watchers import Watchers, serve_dashboard
from mcp_tool_filter.adapters.mitmproxy.web.views import FlowObserver
from mcp_tool_filter.adapters.mitmproxy.websocket import judge_or_drop, newest_message
from mcp_tool_filter.conversation.judged import Judged
from mcp_tool_filter.errors import InvalidOption, StartError
from mcp_tool_filter.http.listener import Listener
from mcp_tool_filter.observers.report import render_report, warnings_about
from mcp_tool_filter.policy.chain import Link
from mcp_tool_filter.policy.config import Config, refuse_to_open, refuse_unmatched

if TYPE_CHECKING:
    from mitmproxy.tls import TlsData

    from mcp_tool_filter.adapters.mitmproxy.interception import Interception
    from mcp_tool_filter.adapters.watching import Sink

log = logging.getLogger(__name__)

_FIXED = (
    ("audit_log", "audit"),
    ("metrics_port", "metrics_port"),
    ("dashboard", "dashboard"),
    ("otel", "otel"),
)
"""Options that can only be set at start, and what ``Config`` calls them."""


class ToolFilter:
    """The addon. One listener for each ``--mode reverse:URL``."""

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
        """``fetch`` asks for the tools; ``report`` is told who is served once they are known.

        ``warn`` is told what everybody should read, also those who want no report.

        ``sinks`` get an entry for each message that matters; ``on_end`` is called after the last.

        ``argv`` is what the user typed, where mitmproxy may have let a file overrule it.
        A ``config_reader`` may know already what the options mean.
        ``links`` are the chain after the tool filter.
        """
        self._config_reader = config_reader or ConfigReader()
        self._argv = argv
        self._report = report or say
        self._warn = warn or say
        self._listeners = Listeners(self._observe, fetch, links)
        self._logins = Logins()
        self._through = LoginsThrough()
        self._crowd = Crowd()
        self._budget = Budget()
        self._known = KnownFlows(self._listeners)
        self._effects = Effects()
        self._ready = asyncio.Event()
        self._problem: StartError | None = None
        self._is_running = False
        self._has_warned = False
        self._is_fast: bool | None = None  # not chosen yet
        self._tasks: set[asyncio.Task[None]] = set()
        self.views = FlowObserver(self._listeners.by_mode)
        self._hidden = Hidden(self._listeners.by_mode)
        self._watchers = Watchers(self.views, sinks, self._warn, on_end, self._state)
        self._rules = Rules(self._listeners, self._effects, self._logins, self._watchers.enter_log)
        self._loopback = Loopback()
        self._on_hangup = OnHangup(lambda: self._in_background(self._list_on_demand()))
        self.ending = Ending()
        self._new_lists = NewLists(self._listeners, partial(tell_list_changed, self._known))
        self._loss = LossGuard(
            self._listeners,
            self._new_lists,
            self._crowd.reserve,
            self.ending,
            self._in_background,
            self._warn,
        )
        self._requests = Requests(
            self._listeners,
            self._known,
            effects=self._effects,
            logins=self._logins,
            through=self._through,
            crowd=self._crowd,
            watchers=self._watchers,
            views=self.views,
            hidden=self._hidden,
            ready=self._ready,
            ending=self.ending,
        )
        self._effects.fetch_tools = self._requests.fetch_tools
        self._answers = Answers(
            self._requests,
            self._known,
            effects=self._effects,
            logins=self._logins,
            through=self._through,
            views=self.views,
            hidden=self._hidden,
            suspect=self._suspect,
            note_end=self._loss.note_end_of_stream,
        )
        self._second_look = SecondLook(self._requests, self._answers, self._known, self._hidden)
        self.interception: Interception | None = None
        """There is one if a mode is a forward proxy."""

    # Start and end

    async def started(self) -> bool:
        """Wait until clients are served; False if the start has failed, and the process ends."""
        await self._ready.wait()
        return not self.ending.has_begun

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
        try:
            self._configure(updated)
        except StartError as error:
            if self._is_running:  # someone edits the options: mitmproxy takes the edit back
                self.views.refuse_edit(error)
                raise OptionsError(str(error)) from error
            self._problem = self._problem or error

    def running(self) -> None:
        self._problem = (
            self._problem
            or unknown_option(ctx.options.deferred)
            or overruled_option(ctx.options, self._argv)
        )
        if self._problem:
            self._stop(str(self._problem))
            return
        no_upstreams = self.interception is not None and not parse_modes(ctx.options.mode)
        keep_quiet_streams_alive(ctx.options, is_forward=no_upstreams)
        self._budget.limit = self._listeners.config.limits.unfinished
        bound_messages(ctx.options, self._listeners.config.limits.pending)
        try:
            self._watchers.begin(self._listeners.config)
        except StartError as error:
            self._stop(str(error))
            return
        self._is_running = True
        close_unguarded()
        self._crowd.running(self._listeners.config.max_clients)
        self._rules.running()
        self._on_hangup.running()
        self.views.running()
        self._hidden.configure(shows_secrets=self._listeners.config.shows_secrets)
        self._in_background(self._start())
        if self._listeners.config.dashboard is not None:
            self._in_background(self._serve_dashboard(self._listeners.config.dashboard))

    async def _serve_dashboard(self, port: int) -> None:
        try:
            await serve_dashboard(self.views.dashboard, port, self._report)
        except StartError as error:
            self._stop(str(error))

    def _state(self) -> dict[str, float]:
        """Return what the metrics show of this moment."""
        listeners = list(self._listeners.by_mode.values())
        return {
            "ready": self._ready.is_set()
            and bool(listeners or self.interception)
            and not self.ending.has_begun,
            "upstream_up": not self.ending.has_begun and not self._loss.is_lost,
            "sessions": sum(len(listener.sessions) for listener in listeners),
            "streams": len(open_flows()),
        }

    def done(self) -> None:
        self._watchers.done()
        self._effects.close()
        self._rules.done()
        self._on_hangup.done()
        self.views.done()
        self._crowd.done()
        self.ending.done()

    def _stop(self, why: str) -> None:
        """End the process; who waits for the start is answered."""
        self.ending.fatal(why)
        self._ready.set()

    def _configure(self, updated: set[str]) -> None:
        self.views.configure(updated)
        if danger := refuse_dangerous_options(ctx.options):
            raise danger
        if "mode" in updated:
            parse_modes(ctx.options.mode)
            refuse_no_mode(ctx.options)
            if is_forward(ctx.options.mode):
                self._intercept()
        if updated & NAMES:
            self._adopt(self._config_reader.read(ctx.options))
        if self.interception:
            self.interception.refuse_options(self._config_reader.read(ctx.options))
        if "keep_host_header" in updated:
            for listener in self._listeners.by_mode.values():
                listener.keeps_host = ctx.options.keep_host_header
        self._hidden.configure(shows_secrets=self._listeners.config.shows_secrets)
        if self._is_running and "mode" in updated:
            self._in_background(self._start())

    def _intercept(self) -> None:
        """Read forward proxies from now on; most users have none."""
        if self.interception is None:
            from mcp_tool_filter.adapters.mitmproxy.interception import intercept

            self.interception = intercept(
                self._listeners, self._known, self._effects, self._attach, self._hidden.hide_head
            )
            self.interception.on_end = self._stop
            self._watchers.upstream_of = self.interception.upstream_of

    def _attach(self, listener: Listener) -> None:
        """Let a new listener have all that stands behind the tool filter."""
        self._rules.attach(listener)
        self._watchers.attach(listener.policy)
        listener.policy.tell_hidden = self._watchers.log.tell_hidden

    def _adopt(self, config: Config) -> None:
        if self._is_running:
            refuse_to_open(self._listeners.config, config)
            for option, fixed in _FIXED:
                if getattr(config, fixed) != getattr(self._listeners.config, fixed):
                    raise InvalidOption(option, "…", why="It can only be set at start")
        self._choose_speed(config.fast)
        self._rules.adopt(config.rules)
        if config != self._listeners.config:  # an edit that is taken back comes by here too
            self.views.refuse_edit(None)
        if config.replaces_credentials and not self._listeners.config.replaces_credentials:
            log.warning("header_override: each client acts with the rights of upstream_headers")
        before = self._listeners.config
        self._listeners.adopt(config)
        if (before.deny, before.allow) != (config.deny, config.allow):
            for listener in self._listeners.by_mode.values():
                tell_list_changed(self._known, listener)
        self._crowd.adopt(config.max_clients)
        self._budget.limit = config.limits.unfinished

    def _choose_speed(self, fast: bool) -> None:
        """Take the shortcuts, or not, for good: connections that are open cannot change over."""
        if self._is_fast is None:
            self._is_fast = fast
            if fast:
                speed_up(ctx.master)
        elif fast is not self._is_fast:
            raise InvalidOption("fast", str(fast).lower(), why="It can only be set at start")

    async def _start(self) -> None:
        await asyncio.sleep(0)  # mitmproxy begins tasks inside the hook that makes them
        try:
            await self._loopback.rebind()
            for mode in parse_modes(ctx.options.mode):
                if mode.full_spec not in self._listeners.by_mode:
                    await self._open(mode)
            if self.interception:
                await self.interception.begin(ctx.options.mode, self._report)
            self._check_patterns()
            self._ready.set()
        except StartError as error:
            self._stop(str(error))
        except Exception:
            log.exception("cannot start")
            self._stop("Error: The tool filter cannot start\nThis is a bug of ours")

    def _check_patterns(self) -> None:
        """Say what is wrong with them, whatever else the user wants to read. Raises StartError."""
        config = self._listeners.config
        refuse_unmatched(config, self._listeners.unmatched())
        if not self._has_warned:
            self._has_warned = True
            for warning in warnings_about(config):
                self._warn(warning)

    async def _open(self, mode: ReverseMode) -> None:
        listener = await self._listeners.open(mode, ctx.options)
        self._attach(listener)
        self._listeners.adopt(self._listeners.config)  # it may have been edited meanwhile
        who = introduce_to(mode, listener, ctx.master.addons.get("proxyserver"))
        target = target_of(mode, self._listeners.config, ctx.options)
        has_login = self._logins.open(mode.full_spec, target)
        if listener.config.only_mcp:
            for document in await fetch_login_documents(target, listener.fetched.endpoint):
                listener.logins.learn_document(document)
        self._through.open(mode, listener, has_login=has_login)
        self._report(render_report(who, listener.snapshot, self._rules.names))
        if has_login:
            self._report("  Login: requests without credentials of their own use yours")
        if self._is_fast:
            give_back()

    # Requests

    def client_connected(self, client: Client) -> None:
        self._loopback.client_connected(client)
        self._crowd.client_connected(client)

    def tls_failed_client(self, data: TlsData) -> None:
        if self.interception:
            self.interception.tls_failed(data)

    def tls_failed_server(self, data: TlsData) -> None:
        if self.interception:
            self.interception.tls_failed_upstream(data)

    def next_layer(self, layer: NextLayer) -> None:
        choose_layer(layer)

    def requestheaders(self, flow: HTTPFlow) -> None:
        self._requests.judge_source(flow)

    def request(self, flow: HTTPFlow) -> Awaitable[None] | None:
        return self._requests.judge(flow)

    # Answers

    def responseheaders(self, flow: HTTPFlow) -> None:
        self._answers.judge_head(flow)

    def response(self, flow: HTTPFlow) -> Awaitable[None] | None:
        return self._answers.judge(flow)

    # Losses

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
            self._suspect(flow.client_conn)

    async def client_disconnected(self, client: Client) -> None:
        self._crowd.client_disconnected(client)
        await close_client(client)

    def server_connect(self, data: ServerConnectionHookData) -> None:
        self._crowd.server_connect(data)

    def server_connected(self, data: ServerConnectionHookData) -> None:
        self._loss.server_connected(data.client)

    async def _list_on_demand(self) -> None:
        await self._ready.wait()
        await self._new_lists.take_all(self._warn)

    def server_disconnected(self, data: ServerConnectionHookData) -> None:
        close_leftover(data)

    def server_connect_error(self, data: ServerConnectionHookData) -> None:
        if connect_failed(data):
            self._suspect(data.client)

    def _suspect(self, client: Client) -> None:
        self._loss.suspect(client)

    def _error_answer(self, flow: HTTPFlow, failure: Failure) -> ErrorAnswer:
        known = self._known.get(flow)
        if known is None:
            return error_answer(flow, failure, None, None)
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

    # All the rest

    def _observe(self, spec: str, judged: Judged) -> None:
        self._watchers.observe(spec, judged)

    def _in_background(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def say(text: str) -> None:
    """Put the report where a person reads it: the console draws over its terminal."""
    if type(ctx.master).__name__ == "ConsoleMaster":
        log.info("%s", text)
    else:
        sys.stderr.write(text + "\n")
        sys.stderr.flush()
