"""All who watch what becomes of the messages: the views, the log, the audit, the metrics.

What only some users want is imported only for them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from mitmproxy import ctx

from mcp_tool_filter.adapters.mitmproxy.flows import client_address, flow_id
from mcp_tool_filter.conversation.conversation import Judged
from mcp_tool_filter.errors import StartError
from mcp_tool_filter.observers.verdict_log import VerdictLog
from mcp_tool_filter.policy.config import Config

if TYPE_CHECKING:
    from mcp_tool_filter.adapters.dashboard import Dashboard
    from mcp_tool_filter.adapters.mitmproxy.web.views import FlowObserver
    from mcp_tool_filter.adapters.watching import Sink, Watching
    from mcp_tool_filter.policy.rule_effects import WriteLog


class Watchers:
    """``on_end`` is called after the last message, if there is somebody who gets entries."""

    def __init__(
        self,
        views: FlowObserver,
        sinks: Sequence[Sink],
        warn: Callable[[str], None],
        on_end: Callable[[], None],
        state: Callable[[], Mapping[str, float]],
    ) -> None:
        self._views = views
        self._sinks = sinks
        self._on_end = on_end
        self._state = state
        self._watching: Watching | None = None
        self.log = VerdictLog(warn)

    def begin(self, config: Config) -> None:
        """Open the audit log and serve the metrics, if they are wanted. Raises StartError."""
        sinks = list(self._sinks)
        if ctx.master.addons.get("view") is not None or config.dashboard is not None:
            sinks.append(self._views.dashboard.timeline.note)
        if config.audit is None and config.metrics_port is None and not sinks:
            return
        from mcp_tool_filter.adapters.watching import Watching  # of no use to most

        self._watching = Watching(
            config.audit,
            sinks,
            client_address,
            flow_id,
            metrics_port=config.metrics_port,
            state=self._state,
        )

    def observe(self, spec: str, judged: Judged) -> None:
        self._views.tell(spec, judged)
        self.log.tell_of(judged)
        if self._watching:
            self._watching.observe(judged)

    def enter_log(self, effect: WriteLog) -> None:
        """Enter what a rule has logged into the audit log, if there is one."""
        if self._watching:
            self._watching.enter_log(effect)

    def done(self) -> None:
        if self._watching:
            self._watching.close()
            self._on_end()


async def serve_dashboard(dashboard: Dashboard, port: int, say: Callable[[str], None]) -> None:
    """Serve the page until we are cancelled; ``say`` is told where. Raises StartError."""
    from mcp_tool_filter.adapters.dashboard_server import DashboardServer
    from mcp_tool_filter.adapters.http_server import http_server

    page = DashboardServer(dashboard)
    try:
        async with http_server(page.answer, port=port) as server:
            say(f"Dashboard: {page.address(server.port)}")
            await asyncio.Event().wait()
    except OSError as error:
        what = f"Cannot serve the dashboard on 127.0.0.1:{port}"
        raise StartError(what, why=error.strerror or str(error)) from error
