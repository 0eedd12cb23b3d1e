"""The start, from the options to the first client, and later edits of the options.

``load`` and ``configure`` come first, before mitmproxy listens. ``running`` starts the fetch of the
upstreams' tools; when all have answered, ``ready`` is set and clients are served.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from mitmproxy import ctx
from mitmproxy.exceptions import OptionsError
from mitmproxy.proxy.mode_specs import ReverseMode

from mcp_tool_filter.adapters.effects.carry_out import Effects
from mcp_tool_filter.adapters.fetch.login_documents import fetch_login_documents
from mcp_tool_filter.adapters.mitmproxy.forward.budget import MemoryBudget
from mcp_tool_filter.adapters.mitmproxy.forward.connections import close_unguarded
from mcp_tool_filter.adapters.mitmproxy.forward.crowd import Crowd
from mcp_tool_filter.adapters.mitmproxy.forward.exit import Ending
from mcp_tool_filter.adapters.mitmproxy.forward.fast.switch import speed_up
from mcp_tool_filter.adapters.mitmproxy.forward.hidden import Hidden
from mcp_tool_filter.adapters.mitmproxy.forward.known import KnownFlows
from mcp_tool_filter.adapters.mitmproxy.forward.list_changes import tell_list_changed
from mcp_tool_filter.adapters.mitmproxy.forward.listeners import (
    Listeners,
    introduce_to,
    is_forward,
    parse_modes,
    target_of,
)
from mcp_tool_filter.adapters.mitmproxy.forward.login_through import LoginsThrough
from mcp_tool_filter.adapters.mitmproxy.forward.logins import Logins
from mcp_tool_filter.adapters.mitmproxy.forward.lost_upstream import Say
from mcp_tool_filter.adapters.mitmproxy.forward.rules import Rules
from mcp_tool_filter.adapters.mitmproxy.forward.views import FlowObserver
from mcp_tool_filter.adapters.mitmproxy.forward.watchers import Watchers
from mcp_tool_filter.adapters.mitmproxy.options import (
    NAMES,
    ConfigReader,
    overruled_option,
    unknown_option,
)
from mcp_tool_filter.adapters.mitmproxy.settings import (
    Loopback,
    bound_messages,
    keep_quiet_streams_alive,
    problem_in_options,
    refuse_no_mode,
)
from mcp_tool_filter.adapters.serving.background import in_background
from mcp_tool_filter.adapters.serving.malloc import return_free_memory
from mcp_tool_filter.errors import InvalidOption, StartError
from mcp_tool_filter.http.listener import Listener
from mcp_tool_filter.observers.report import render_report, warnings_about
from mcp_tool_filter.policy.config import Config, refuse_to_open, refuse_unmatched

if TYPE_CHECKING:
    from mcp_tool_filter.adapters.mitmproxy.forward.interception import Interception

log = logging.getLogger(__name__)

_FIXED = (
    ("audit_log", "audit"),
    ("metrics_port", "metrics_port"),
    ("dashboard", "dashboard"),
    ("otel", "otel"),
)
"""Options that can only be set at start, and their names in ``Config``."""


class Startup:
    """Starts all parts of the tool filter."""

    def __init__(
        self,
        listeners: Listeners,
        *,
        known: KnownFlows,
        effects: Effects,
        logins: Logins,
        through: LoginsThrough,
        crowd: Crowd,
        budget: MemoryBudget,
        rules: Rules,
        views: FlowObserver,
        hidden: Hidden,
        watchers: Watchers,
        loopback: Loopback,
        ready: asyncio.Event,
        ending: Ending,
        config_reader: ConfigReader | None,
        argv: Sequence[str],
        report: Say | None,
        warn: Say,
    ) -> None:
        self._listeners = listeners
        self._known = known
        self._effects = effects
        self._logins = logins
        self._through = through
        self._crowd = crowd
        self._budget = budget
        self._rules = rules
        self._views = views
        self._hidden = hidden
        self._watchers = watchers
        self._loopback = loopback
        self._ready = ready
        self._ending = ending
        self._config_reader = config_reader or ConfigReader()
        self._argv = argv
        self._report = report or say
        self._warn = warn
        self._is_running = False
        self._has_warned = False
        self._is_fast: bool | None = None  # not chosen yet
        self.problem: StartError | None = None
        """The reason why the filter cannot start, or None."""
        self.interception: Interception | None = None
        """The interception, if a mode is a forward proxy."""

    # Options

    def configure(self, updated: set[str]) -> None:
        """Apply the options. At start, a wrong one becomes the ``problem``; later it is refused."""
        try:
            self._configure(updated)
        except StartError as error:
            if self._is_running:  # the user edits the options: mitmproxy reverts the edit
                self._views.note_refused_edit(error)
                raise OptionsError(str(error)) from error
            self.problem = self.problem or error

    def _configure(self, updated: set[str]) -> None:
        self._views.configure(updated)
        if danger := problem_in_options(ctx.options, is_forward=True):
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
            in_background(self._start())

    def _intercept(self) -> None:
        """Intercept forward proxies from now on. (Imported late: most users have none.)"""
        if self.interception is None:
            from mcp_tool_filter.adapters.mitmproxy.forward.interception import intercept

            self.interception = intercept(
                self._listeners, self._known, self._effects, self._attach, self._hidden.hide_head
            )
            self.interception.on_end = self.stop
            self._watchers.upstream_of = self.interception.upstream_of

    def _adopt(self, config: Config) -> None:
        before = self._listeners.config
        if self._is_running:
            refuse_to_open(before, config)
            for option, fixed in _FIXED:
                if getattr(config, fixed) != getattr(before, fixed):
                    raise InvalidOption(option, "…", why="It can only be set at start")
        self._choose_speed(config.fast)
        self._rules.adopt(config.rules)
        if config != before:  # a reverted edit also comes here
            self._views.note_refused_edit(None)
        if config.replaces_credentials and not before.replaces_credentials:
            log.warning("header_override: each client acts with the rights of upstream_headers")
        self._listeners.adopt(config)
        if (before.deny, before.allow) != (config.deny, config.allow):
            for listener in self._listeners.by_mode.values():
                tell_list_changed(self._known, listener)
        self._crowd.adopt(config.max_clients)
        self._budget.limit = config.limits.unfinished

    def _choose_speed(self, fast: bool) -> None:
        """Decide once whether to use the shortcuts: open connections cannot switch."""
        if self._is_fast is None:
            self._is_fast = fast
            if fast:
                speed_up(ctx.master)
        elif fast is not self._is_fast:
            raise InvalidOption("fast", str(fast).lower(), why="It can only be set at start")

    # Start

    def running(self) -> None:
        """Start everything, and fetch the upstreams' tools."""
        self.problem = (
            self.problem
            or unknown_option(ctx.options.deferred)
            or overruled_option(ctx.options, self._argv)
        )
        config = self._listeners.config
        try:
            if self.problem:
                raise self.problem
            no_upstreams = self.interception is not None and not parse_modes(ctx.options.mode)
            keep_quiet_streams_alive(ctx.options, is_forward=no_upstreams)
            self._budget.limit = config.limits.unfinished
            bound_messages(ctx.options, config.limits.pending)
            if self.interception is None and len(parse_modes(ctx.options.mode)) > 1:
                self._watchers.upstream_of = self._listeners.upstream_of
            self._watchers.begin(config, self._known)
        except StartError as error:
            self.stop(str(error))
            return
        self._is_running = True
        close_unguarded()
        self._crowd.running(config.max_clients)
        self._rules.running()
        self._views.running()
        self._hidden.configure(shows_secrets=config.shows_secrets)
        in_background(self._start())
        if config.dashboard is not None:
            in_background(self._serve_dashboard(config.dashboard))

    async def _serve_dashboard(self, port: int) -> None:
        from mcp_tool_filter.adapters.watch.dashboard_server import serve_dashboard

        try:
            await serve_dashboard(self._views.dashboard, port, self._report)
        except StartError as error:
            self.stop(str(error))

    async def _start(self) -> None:
        await asyncio.sleep(0)  # mitmproxy starts tasks eagerly, inside the hook
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
            self.stop(str(error))
        except Exception:
            log.exception("cannot start")
            self.stop("Error: The tool filter cannot start\nThis is a bug in mcp-tool-filter")

    async def _open(self, mode: ReverseMode) -> None:
        listener = await self._listeners.open(mode, ctx.options)
        self._attach(listener)
        self._listeners.adopt(self._listeners.config)  # the options may have been edited meanwhile
        who = introduce_to(mode, listener, ctx.master.addons.get("proxyserver"))
        target = target_of(mode, self._listeners.config, ctx.options)
        has_login = self._logins.open(mode.full_spec, target)
        if listener.config.only_mcp:
            for document in await fetch_login_documents(target, listener.fetched.endpoint):
                listener.logins.learn_document(document)
        self._through.open(mode, listener, has_login=has_login)
        self._report(render_report(who, listener.snapshot, self._rules.names))
        if has_login:
            self._report("  Login: requests without their own credentials use yours")
        if self._is_fast:
            return_free_memory()

    def _attach(self, listener: Listener) -> None:
        """Attach rules and observers to a new listener."""
        self._rules.attach(listener)
        self._watchers.attach(listener.policy)
        listener.policy.tell_hidden = self._watchers.log.tell_hidden

    def _check_patterns(self) -> None:
        """Warn about the patterns, even if no report is wanted. Raises StartError."""
        config = self._listeners.config
        refuse_unmatched(config, self._listeners.unmatched())
        if not self._has_warned:
            self._has_warned = True
            for warning in warnings_about(config):
                self._warn(warning)

    def stop(self, why: str) -> None:
        """End the process; clients that wait for the start are answered."""
        self._ending.fatal(why)
        self._ready.set()


def say(text: str) -> None:
    """Show a text where people read it: the console draws over its terminal."""
    if type(ctx.master).__name__ == "ConsoleMaster":
        log.info("%s", text)
    else:
        sys.stderr.write(text + "\n")
        sys.stderr.flush()
