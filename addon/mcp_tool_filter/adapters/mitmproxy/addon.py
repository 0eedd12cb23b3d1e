"""The hooks: flows to messages, verdicts to flows. They decide nothing.

Whatever is raised here ends closed: mitmproxy would log it and send the flow on.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from typing import TYPE_CHECKING
from weakref import WeakSet

from mitmproxy import ctx
from mitmproxy.addonmanager import Loader
from mitmproxy.connection import Client
from mitmproxy.exceptions import AddonHalt, OptionsError
from mitmproxy.http import HTTPFlow, Response
from mitmproxy.proxy.layer import NextLayer
from mitmproxy.proxy.mode_specs import ReverseMode
from mitmproxy.proxy.server_hooks import ServerConnectionHookData
from mitmproxy.websocket import WebSocketMessage

from mcp_tool_filter.adapters.effects.carry_out import Effects
from mcp_tool_filter.adapters.fetch.login_documents import fetch_login_documents
from mcp_tool_filter.adapters.fetch.upstream import fetch
from mcp_tool_filter.adapters.mitmproxy.budget import Budget
from mcp_tool_filter.adapters.mitmproxy.crowd import Crowd
from mcp_tool_filter.adapters.mitmproxy.errors import (
    FORBIDDEN,
    FORBIDDEN_SITE,
    INTERNAL,
    error_answer,
    full_response,
    invalid_answer,
)
from mcp_tool_filter.adapters.mitmproxy.exit import Ending
from mcp_tool_filter.adapters.mitmproxy.failing_closed import FailingClosed, once
from mcp_tool_filter.adapters.mitmproxy.fast.malloc import give_back
from mcp_tool_filter.adapters.mitmproxy.fast.switch import speed_up
from mcp_tool_filter.adapters.mitmproxy.flows import (
    add_cors,
    address_of,
    check_answer_head,
    correct_length,
    frame_as_stream,
    head_of,
    is_head,
    json_response,
    keep_with_us,
    learn_cors,
    learn_login,
    learn_login_document,
    lost_to,
    pass_through_stream,
    prepare_for_upstream,
    refuse_upgrade,
    replace_answer,
    replace_body,
    stream_through,
)
from mcp_tool_filter.adapters.mitmproxy.known import Known, KnownFlows
from mcp_tool_filter.adapters.mitmproxy.list_changes import tell_list_changed
from mcp_tool_filter.adapters.mitmproxy.listeners import (
    Fetcher,
    Listeners,
    introduce_to,
    parse_modes,
    target_of,
)
from mcp_tool_filter.adapters.mitmproxy.login_through import LoginsThrough
from mcp_tool_filter.adapters.mitmproxy.logins import (
    Logins,
    Sent,
    answer_without_login,
    renew,
)
from mcp_tool_filter.adapters.mitmproxy.lost_upstream import LossGuard
from mcp_tool_filter.adapters.mitmproxy.on_demand import OnHangup, named
from mcp_tool_filter.adapters.mitmproxy.options import (
    NAMES,
    ConfigReader,
    declare_options,
    overruled_option,
    unknown_option,
)
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
from mcp_tool_filter.adapters.mitmproxy.settings import (
    Loopback,
    bound_messages,
    keep_quiet_streams_alive,
    refuse_dangerous_options,
)
from mcp_tool_filter.adapters.mitmproxy.streams import (
    client_host,
    close_client,
    close_leftover,
    close_unguarded,
    connect_failed,
    cut,
    end,
    has_begun,
    has_left,
    hold,
    hold_end,
    injector,
    is_answer_settled,
    is_head_settled,
    is_made_here,
    open_flows,
    refuse_now,
    resume,
    send_again,
    settle_answer,
    settle_head,
    settle_message,
    settle_request,
    upstream_failed,
    waker,
)
from mcp_tool_filter.adapters.mitmproxy.watchers import Watchers, serve_dashboard
from mcp_tool_filter.adapters.mitmproxy.web.views import FlowObserver
from mcp_tool_filter.adapters.mitmproxy.websocket import Socket, newest_message
from mcp_tool_filter.conversation.conversation import Conversation, Judged
from mcp_tool_filter.errors import InvalidOption, ProtocolError, StartError
from mcp_tool_filter.http.event_stream import EventStream
from mcp_tool_filter.http.exchange import Answered, HttpExchange, Passed
from mcp_tool_filter.http.gate import problem_in_source
from mcp_tool_filter.http.head import Head, is_websocket
from mcp_tool_filter.http.listener import Listener
from mcp_tool_filter.http.media_type import is_event_stream
from mcp_tool_filter.http.other_answers import refuse_partial
from mcp_tool_filter.observers.report import render_report, shown_url, warnings_about
from mcp_tool_filter.policy.chain import Link
from mcp_tool_filter.policy.config import Config, refuse_to_open, refuse_unmatched
from mcp_tool_filter.policy.effects import Deciding, Decision, FetchTools, waits
from mcp_tool_filter.policy.verdict import Reason, Reply, Why
from mcp_tool_filter.protocol.messages import Notification, Request
from mcp_tool_filter.protocol.sse import render_event

if TYPE_CHECKING:
    from mcp_tool_filter.adapters.oauth.through import Through
    from mcp_tool_filter.adapters.watching import Sink

log = logging.getLogger(__name__)

_FIXED = (("audit_log", "audit"), ("metrics_port", "metrics_port"), ("dashboard", "dashboard"))
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
        self._effects.fetch_tools = self._fetch_tools
        self._rules = Rules(self._listeners.by_mode, self._effects, self._logins)
        self._admitted: WeakSet[HTTPFlow] = WeakSet()  # who asks may ask
        self._ready = asyncio.Event()
        self._problem: StartError | None = None
        self._is_running = False
        self._has_warned = False
        self._is_fast: bool | None = None  # not chosen yet
        self._tasks: set[asyncio.Task[None]] = set()
        self.views = FlowObserver(self._listeners.by_mode)
        self._watchers = Watchers(self.views, sinks, self._warn, on_end, self._state)
        self._loopback = Loopback()
        self._on_hangup = OnHangup(lambda: self._in_background(self._list_on_demand()))
        self.ending = Ending()
        self._loss = LossGuard(
            self._listeners, self._crowd.reserve, self.ending, self._in_background
        )

    # Start and end

    def load(self, loader: Loader) -> None:
        declare_options(loader)
        self._loopback.load(ctx.options)
        self.views.load(ctx.master)
        install_error_answers(self._error_answer)
        install_last_look(self)
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
        keep_quiet_streams_alive(ctx.options)
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
            "ready": self._ready.is_set() and bool(listeners) and not self.ending.has_begun,
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
        if updated & NAMES:
            self._adopt(self._config_reader.read(ctx.options))
        if "keep_host_header" in updated:
            for listener in self._listeners.by_mode.values():
                listener.keeps_host = ctx.options.keep_host_header
        if self._is_running and "mode" in updated:
            self._in_background(self._start())

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
        tell_list_changed(before, config, self._conversation_on)
        self._crowd.adopt(config.max_clients)
        self._budget.limit = config.limits.unfinished

    def _conversation_on(self, flow: HTTPFlow) -> Conversation | None:
        known = self._known.get(flow)
        return known.exchange.conversation if known and known.stream else None

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
        self._rules.attach(listener)
        listener.policy.tell_hidden = self._watchers.log.tell_hidden
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

    def next_layer(self, layer: NextLayer) -> None:
        choose_layer(layer)

    def requestheaders(self, flow: HTTPFlow) -> None:
        """Judge who asks before any of the body is read: nobody else costs memory."""
        with FailingClosed(flow, self._refuse_source):
            if not self._crowd.has_room_for(flow.client_conn):
                self._refuse_now(flow, full_response(), Reason(Why.FORBIDDEN, detail="max_clients"))
            elif problem := self._problem_in_source(flow):
                said = FORBIDDEN_SITE if problem == "Sec-Fetch-Site" else FORBIDDEN
                reason = Reason(Why.FORBIDDEN, detail=problem)
                self._refuse_now(flow, json_response(403, said), reason)
            else:
                self._admitted.add(flow)

    def _refuse_source(self, flow: HTTPFlow) -> None:
        refuse_now(flow, json_response(500, INTERNAL))

    def _refuse_now(self, flow: HTTPFlow, response: Response, reason: Reason) -> None:
        refuse_now(flow, response)
        self.views.meet(flow)
        verdict = Reply(response.content or b"", reason)
        listener = self._listeners.by_mode.get(flow.client_conn.proxy_mode.full_spec)
        if listener:
            listener.tell_refused(verdict, flow)
        else:  # while we start
            self._watchers.log.tell(verdict)

    def request(self, flow: HTTPFlow) -> Awaitable[None] | None:
        with FailingClosed(flow, self._refuse_request):
            self.views.meet(flow)
            if flow not in self._admitted:
                raise ProtocolError("a request whose head was not judged")
            if not self._ready.is_set():
                return self._request_later(flow)
            return self._judge_or_lose(flow)
        return None

    async def _request_later(self, flow: HTTPFlow) -> None:
        await self._ready.wait()
        with FailingClosed(flow, self._refuse_request):
            if waiting := self._judge_or_lose(flow):
                await waiting

    def _judge_or_lose(self, flow: HTTPFlow) -> Awaitable[None] | None:
        if not self.ending.has_begun:
            return self._judge_request(flow)
        self._answer(flow, Answered(200, lost_to(flow.request)))
        return None

    def _problem_in_source(self, flow: HTTPFlow, *, with_visits: bool = True) -> str | None:
        """Judge who asks; mitmproxy has replaced the client's Host with the upstream's."""
        if flow.is_replay:  # from mitmweb or the console, by the user
            return None
        headers = flow.request.headers
        problem = problem_in_source(
            self._listeners.config.allowed_hosts,
            own=flow.client_conn.sockname[0],
            host=client_host(flow),
            origins=headers.get_all("origin"),
            sites=headers.get_all("sec-fetch-site"),
        )
        may_visit = with_visits and problem == "Sec-Fetch-Site" and self._through.is_visit(flow)
        return None if may_visit else problem

    def _judge_request(self, flow: HTTPFlow) -> Awaitable[None] | None:
        listener = self._listeners.listener_of(flow)
        raw = flow.request.raw_content
        if flow.request.stream or raw is None:
            raise ProtocolError("a body went by before it could be judged")
        head = head_of(flow.request, address_of(flow))
        if through := self._through.asked(flow, head):
            return self._log_in_through(flow, through, listener, head, raw)
        return self._judge_message(flow, listener, head, raw)

    async def _log_in_through(
        self, flow: HTTPFlow, through: Through, listener: Listener, head: Head, raw: bytes
    ) -> None:
        with FailingClosed(flow, self._refuse_request):
            if response := await self._through.answer(flow, through, head):
                flow.response = response
                settle_answer(flow)
            elif problem := self._problem_in_source(flow, with_visits=False):
                raise ProtocolError(f"{problem} forbids what is no login")
            elif waiting := self._judge_message(flow, listener, head, raw):
                await waiting

    def _judge_message(
        self, flow: HTTPFlow, listener: Listener, head: Head, raw: bytes
    ) -> Awaitable[None] | None:
        outcome = listener.judge_request(head, raw, flow)
        if isinstance(outcome, Passed | Answered):
            return self._send_on(flow, listener, head, outcome)
        return self._send_on_later(flow, listener, head, outcome)

    async def _send_on_later(
        self, flow: HTTPFlow, listener: Listener, head: Head, outcome: Deciding[Passed | Answered]
    ) -> None:
        with FailingClosed(flow, self._refuse_request):
            decided = await self._effects.outcome_of(outcome)
            if self.ending.has_begun:
                decided = Answered(200, lost_to(flow.request))
            if waiting := self._send_on(flow, listener, head, decided):
                await waiting

    async def _fetch_tools(self, effect: FetchTools) -> tuple[bytes, ...]:
        """Ask for the list that the client of a message would get."""
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
        if is_websocket(head):
            conversation = listener.open_socket(outcome.exchange)
            known.socket = Socket(flow, conversation, self._effects.carry_out)
        else:
            refuse_upgrade(flow.request)
        if outcome.body is not None:
            replace_body(flow.request, outcome.body, outcome.headers)
        prepare_for_upstream(flow.request, listener.headers_for(head))
        settle_request(flow)
        sent = self._logins.needed_for(flow, listener, head)
        return self._log_in(flow, known, sent) if sent else None

    def _log_in(self, flow: HTTPFlow, known: Known, sent: Sent) -> Awaitable[None] | None:
        """Send a request with the token of the login, once it is there."""
        try:
            if value := sent.login.value():
                self._logins.add(flow, sent, value)
                return None
        except StartError as error:
            self._answer_without_login(flow, known, error)
            return None
        return self._log_in_later(flow, known, sent)

    async def _log_in_later(self, flow: HTTPFlow, known: Known, sent: Sent) -> None:
        with FailingClosed(flow, self._refuse_request):
            try:
                self._logins.add(flow, sent, await sent.login.renewed())
            except StartError as error:
                self._answer_without_login(flow, known, error)

    def _answer_without_login(self, flow: HTTPFlow, known: Known, error: StartError) -> None:
        self._logins.warn_once(f"{error.what}. {error.why}")
        self._answer(flow, answer_without_login(flow, known.listener, known.exchange, error))

    def _answer(self, flow: HTTPFlow, answered: Answered) -> None:
        """Answer in the upstream's place, on the stream where the client waits for it."""
        stream = answered.stream
        if stream and answered.body and stream.send(render_event(answered.body)):
            answered = Answered(202)
        body = b"" if is_head(flow.request) else answered.body
        flow.response = json_response(answered.status, body)
        self._add_cors(flow, flow.response)
        settle_answer(flow)

    def _add_cors(self, flow: HTTPFlow, response: Response) -> None:
        listener = self._listeners.by_mode.get(flow.client_conn.proxy_mode.full_spec)
        if listener:
            add_cors(listener.cors, flow.request, response)

    def _refuse_request(self, flow: HTTPFlow) -> None:
        self._answer(flow, Answered(500, INTERNAL))

    # Answers

    def responseheaders(self, flow: HTTPFlow) -> None:
        with FailingClosed(flow, self._refuse_head):
            if flow.response and self._logins.note_refusal(flow, flow.response):
                flow.response.stream = False
            elif flow.response and not is_answer_settled(flow):
                self.views.note_head(flow, flow.response)
                self._judge_head(flow, flow.response, self._known.of(flow))
        self.views.follow_stream(flow)
        hold(flow)
        settle_head(flow)

    def _judge_head(self, flow: HTTPFlow, response: Response, known: Known) -> None:
        if response.status_code == 101 and not is_websocket(head_of(flow.request)):
            raise ProtocolError("an upgrade that nobody asked for")
        response.stream = False  # as another addon may have wanted it
        check_answer_head(response)
        listener, exchange = known.listener, known.exchange
        session_id = response.headers.get("mcp-session-id")
        learn_cors(listener.cors, flow.request, response)
        self._through.rewrite_head(flow, response)
        listener.note_answer_head(exchange, response.status_code, session_id)
        if not keep_with_us(response, listener.names) and exchange.waits:
            raise ProtocolError("a redirect that leads away from us")
        if listener.config.only_mcp:
            learn_login(listener.logins, flow.request, response)
        may_have_body = not is_head(flow.request) and response.status_code not in (204, 304)
        if may_have_body and is_event_stream(response.headers.get("content-type", "")):
            self._open_stream(flow, response, known)

    def _open_stream(self, flow: HTTPFlow, response: Response, known: Known) -> None:
        if response.headers.get("content-encoding", "identity").strip().lower() != "identity":
            raise ProtocolError("an event stream in a coding that nobody asked for")
        refuse_partial(response.status_code, response.headers.get("content-type", ""))
        frame_as_stream(flow, response)
        send = injector(flow) if flow.request.method == "GET" else None
        stream = known.listener.open_stream(known.exchange, flow.request.path, send)
        known.stream = stream
        stream.carry_out_with(self._effects.carry_out, waker(flow))
        hold_end(flow, stream)
        response.stream = stream_through(flow, stream, partial(self._shut, flow, stream))

    def _shut(self, flow: HTTPFlow, stream: EventStream) -> None:
        log.error("cannot judge %s", shown_url(flow.request.path), exc_info=stream.failure)
        cut(flow)

    def _refuse_head(self, flow: HTTPFlow) -> None:
        """Answer instead, and hear no more of what the upstream says."""
        assert flow.response
        status, body = self._invalid(flow)
        if is_made_here(flow):
            replace_answer(flow.response, status, body)
            settle_answer(flow)
            return
        replace_answer(flow.response, status, b"")
        frame_as_stream(flow, flow.response)
        flow.response.stream = lambda _chunk: []
        if not end(flow, body):
            cut(flow)

    def response(self, flow: HTTPFlow) -> Awaitable[None] | None:
        with FailingClosed(flow, self._refuse_body):
            if flow.websocket and is_head_settled(flow):
                settle_answer(flow)
            if flow.response is None or flow.websocket or is_answer_settled(flow):
                return None
            if sent := self._logins.take_refused(flow):
                return self._ask_again(flow, flow.response, sent)
            self.views.note_body(flow)
            known = self._known.of(flow)
            if not has_left(flow) and not is_head_settled(flow):
                self._judge_changed_head(flow.response, known)
            if known.stream:
                if not has_begun(flow):
                    return self._pass_whole_stream(flow, flow.response, known, known.stream)
                self._end_stream(flow, known)
            elif is_head(flow.request):
                flow.response.data.content = b""
            elif not has_left(flow):
                answered = self._judge_body(flow, flow.response, known)
                if waits(answered):
                    return self._answer_later(flow, flow.response, known, answered)
                self._replace(flow, flow.response, known, answered)
        settle_answer(flow)
        self.views.finish(flow)
        return None

    async def _ask_again(self, flow: HTTPFlow, refusal: Response, sent: Sent) -> None:
        """Send a request again that the upstream refused for its token, or say what to do."""
        with FailingClosed(flow, self._refuse_request):
            try:
                self._logins.add(flow, sent, await renew(sent, refusal))
                # Let mitmproxy be through with the refusal, even if we have not waited.
                await asyncio.sleep(0)
                send_again(flow)
            except StartError as error:
                self._answer_without_login(flow, self._known.of(flow), error)
        if is_answer_settled(flow):
            self.views.finish(flow)
        else:
            raise AddonHalt  # nobody else need know of this answer

    async def _pass_whole_stream(
        self, flow: HTTPFlow, response: Response, known: Known, stream: EventStream
    ) -> None:
        with FailingClosed(flow, self._refuse_body):
            await pass_through_stream(response, stream, self._effects)
            self._end_stream(flow, known)
        settle_answer(flow)
        self.views.finish(flow)

    def _judge_body(
        self, flow: HTTPFlow, response: Response, known: Known
    ) -> Decision[Answered | None]:
        raw = response.raw_content
        if response.stream or raw is None:
            raise ProtocolError("an answer went by before it could be judged")
        return known.listener.judge_answer(
            known.exchange,
            response.status_code,
            response.headers.get("content-type", ""),
            ", ".join(response.headers.get_all("content-encoding")),
            raw,
            flow,
        )

    async def _answer_later(
        self,
        flow: HTTPFlow,
        response: Response,
        known: Known,
        answered: Deciding[Answered | None],
    ) -> None:
        with FailingClosed(flow, self._refuse_body):
            self._replace(flow, response, known, await self._effects.outcome_of(answered))
        settle_answer(flow)
        self.views.finish(flow)

    def _replace(
        self, flow: HTTPFlow, response: Response, known: Known, answered: Answered | None
    ) -> None:
        if answered:
            replace_answer(response, answered.status, answered.body, answered.content_type)
        self._through.rewrite_body(flow, response)
        correct_length(response)
        if known.listener.config.only_mcp:
            learn_login_document(known.listener.logins, flow.request, response)

    def _end_stream(self, flow: HTTPFlow, known: Known) -> None:
        known.listener.close_stream(known.exchange)
        known.stream = None
        if known.exchange.is_legacy:
            self._suspect(flow.client_conn)

    def _refuse_body(self, flow: HTTPFlow) -> None:
        if flow.response:
            replace_answer(flow.response, *self._invalid(flow))

    def _invalid(self, flow: HTTPFlow) -> tuple[int, bytes]:
        known = self._known.get(flow)
        if known is None:
            return invalid_answer(flow, None, None)
        return invalid_answer(flow, known.listener, known.exchange)

    # What another script has changed since (see safe/last_look.py)

    def judge_request_again(self, flow: HTTPFlow) -> None:
        with FailingClosed(flow, self._refuse_request):
            if flow not in self._admitted or not self._ready.is_set():
                raise ProtocolError("a request that was kept from us")
            flow.response = None
            if self._judge_request(flow) is not None:
                raise ProtocolError("a changed request that has to wait for a decision")

    def judge_head_again(self, flow: HTTPFlow) -> bool:
        try:
            assert flow.response
            known = self._known.of(flow)
            self._judge_changed_head(flow.response, known)
            kind = flow.response.headers.get("content-type", "")
            if known.stream and not is_event_stream(kind):
                raise ProtocolError("an event stream by another name")
            frame_as_stream(flow, flow.response)
        except Exception as error:
            once.log(log, logging.WARNING, "Refused %s: %s", shown_url(flow.request.path), error)
            return False
        settle_head(flow)
        return True

    def judge_answer_again(self, flow: HTTPFlow) -> None:
        with FailingClosed(flow, self._refuse_body):
            assert flow.response
            response, known = flow.response, self._known.of(flow)
            self._judge_changed_head(response, known)
            response.stream = False
            again = Known(known.listener, known.listener.unasked())
            if is_head(flow.request):
                response.data.content = b""
            elif is_event_stream(response.headers.get("content-type", "")):
                raise ProtocolError("an event stream that came too late to be judged")
            else:
                answered = self._judge_body(flow, response, again)
                if waits(answered):
                    raise ProtocolError("a changed answer that has to wait for a decision")
                self._replace(flow, response, again, answered)
        settle_answer(flow)

    def _judge_changed_head(self, response: Response, known: Known) -> None:
        if response.status_code == 101:
            raise ProtocolError("an upgrade that nobody asked for")
        coding = response.headers.get("content-encoding", "identity")
        if known.stream and coding.strip().lower() != "identity":
            raise ProtocolError("an event stream in a coding that nobody asked for")
        check_answer_head(response)
        if not keep_with_us(response, known.listener.names) and known.exchange.waits:
            raise ProtocolError("a redirect that leads away from us")

    def may_say(self, flow: HTTPFlow, message: WebSocketMessage) -> bool:
        before = message.content
        self._judge_spoken(flow, message)
        return not message.dropped and message.content is before

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

    def server_connected(self, _data: ServerConnectionHookData) -> None:
        self._loss.server_connected()

    async def _list_on_demand(self) -> None:
        await self._ready.wait()
        try:
            news = named(await self._listeners.fetch_again(ctx.options))
        except StartError as error:
            self._warn(f"Warning: SIGHUP: the old list stays: {error.why}")
        else:
            self._warn(f"SIGHUP: took a new list: {news}")

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
            self._judge_spoken(flow, message)
        if not message.dropped:
            settle_message(flow, message)

    def _judge_spoken(self, flow: HTTPFlow, message: WebSocketMessage) -> None:
        try:
            socket = self._known[flow].socket
            if socket is None:
                raise ProtocolError("a WebSocket that nobody asked for")
            socket.judge(flow, message)
        except Exception:
            log.exception("cannot judge a WebSocket message")
            message.drop()

    def websocket_end(self, flow: HTTPFlow) -> None:
        if (known := self._known.get(flow)) and known.socket:
            known.socket.close()

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
