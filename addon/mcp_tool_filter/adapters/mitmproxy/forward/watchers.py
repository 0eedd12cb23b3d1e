"""Connect all observers of messages: the views, the log, the audit, the metrics.

Optional observers are imported only if they are used.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from mitmproxy import ctx
from mitmproxy.http import HTTPFlow

from mcp_tool_filter.adapters.mitmproxy.forward.flows import names_of
from mcp_tool_filter.conversation.judged import Judged
from mcp_tool_filter.conversation.policy_in_force import Observer, PolicyInForce
from mcp_tool_filter.observers.statistics import Statistics
from mcp_tool_filter.observers.verdict_log import VerdictLog
from mcp_tool_filter.policy.config import Config
from mcp_tool_filter.policy.exchange import Client, Direction
from mcp_tool_filter.policy.snapshot import take_snapshot
from mcp_tool_filter.policy.verdict import Forward, Reply

if TYPE_CHECKING:
    from mcp_tool_filter.adapters.mitmproxy.forward.known import KnownFlows
    from mcp_tool_filter.adapters.mitmproxy.forward.unanswered import UnansweredRequests
    from mcp_tool_filter.adapters.mitmproxy.forward.views import FlowObserver
    from mcp_tool_filter.adapters.watch.tracing import Tracer
    from mcp_tool_filter.adapters.watch.watching import Sink, Watching
    from mcp_tool_filter.policy.rule_effects import WriteLog

_MOMENT = 0.05  # seconds until the audit log's entries are made, for several messages together


class Watchers:
    """The observers; ``on_end`` is called after the last message, if anything gets entries."""

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
        self._warn = warn
        self._watching: Watching | None = None
        self._unanswered: UnansweredRequests | None = None
        self.upstream_of: Callable[[object], str] | None = None
        """Names the upstream of a flow. Set it before ``begin`` if there are several upstreams."""
        self._tracer: Tracer | None = None
        self.log = VerdictLog(warn)

    def begin(self, config: Config, known: KnownFlows) -> None:
        """Open the audit log and serve the metrics, if configured. Raises StartError."""
        if config.otel:
            from mcp_tool_filter.adapters.mitmproxy.forward.span_ends import SpanEnds
            from mcp_tool_filter.adapters.watch.tracing import Tracer

            self._tracer = Tracer()
            ctx.master.addons.add(SpanEnds(self._tracer, known))
        sinks = list(self._sinks)
        if ctx.master.addons.get("view") is not None or config.dashboard is not None:
            sinks.append(self._views.dashboard.timeline.note)
        if config.audit is None and config.metrics_port is None and not sinks:
            return
        from mcp_tool_filter.adapters.watch.watching import Watching  # of no use to most

        self._watching = Watching(
            config.audit,
            sinks,
            names_of=names_of,
            upstream_of=self.upstream_of,
            metrics_port=config.metrics_port,
            hosts=config.allowed_hosts,
            state=self._state,
            say=self._warn,
            soon=_in_a_moment,
        )
        from mcp_tool_filter.adapters.mitmproxy.forward.unanswered import UnansweredRequests

        self._unanswered = UnansweredRequests(known, self._watching.give_up)

    def attach(self, policy: PolicyInForce) -> None:
        """Pass our spans on to the upstream of a listener, if requests are traced."""
        if self._tracer:
            policy.propagate = self._tracer.propagate

    def observer_for(self, name: str) -> Observer:
        """Return the observer of a listener's messages."""
        return partial(self._observe, name, self._views.statistics_of(name))

    def tell_refused(self, verdict: Reply, flow: HTTPFlow) -> None:
        """Tell of a request that is refused by its head while no tool is known yet."""
        self.log.tell(verdict)
        if self._watching:
            nothing = take_snapshot([], deny=[])
            client = Client()
            self._watching.observe(
                Judged(Direction.FROM_CLIENT, None, verdict, client, nothing, origin=flow)
            )

    def _observe(self, name: str, counted: Statistics, judged: Judged) -> None:
        counted.note(judged, self._views.clock())
        if self._views.is_watched:
            self._views.tell(name, judged)
        if not isinstance(judged.verdict, Forward):
            self.log.tell_of(judged)
        if self._watching:
            self._watching.observe(judged)
        if self._tracer:
            self._trace(self._tracer, judged)

    def _trace(self, tracer: Tracer, judged: Judged) -> None:
        flow = judged.origin
        if judged.direction is not Direction.FROM_CLIENT or not isinstance(flow, HTTPFlow):
            tracer.observe(judged)
            return
        peer = flow.client_conn.peername
        address = (str(peer[0]), int(peer[1])) if peer else None
        if flow.websocket:  # its headers belong to the connection, not to a message
            tracer.observe(judged, peer=address)
            return
        tracer.observe(judged, _trace_headers(flow), address)
        for name, value in tracer.headers_for(judged).items():
            flow.request.headers[name] = value

    def enter_log(self, effect: WriteLog) -> None:
        """Add a rule's log entry to the audit log, if there is one."""
        if self._watching:
            self._watching.enter_log(effect)

    def done(self) -> None:
        if self._tracer:
            self._tracer.close()
        if self._unanswered:
            self._unanswered.close()
        if self._watching:
            self._watching.close()
            self._on_end()


def _in_a_moment(call: Callable[[], None]) -> None:
    asyncio.get_running_loop().call_later(_MOMENT, call)


def _trace_headers(flow: HTTPFlow) -> dict[str, str]:
    """Return the trace context of an HTTP request; none if it names two parents."""
    headers = flow.request.headers
    parents = headers.get_all("traceparent")
    if len(parents) != 1:
        return {}
    return {"traceparent": parents[0], "tracestate": ",".join(headers.get_all("tracestate"))}
