"""Connect the audit log, the metrics, the traces and the terminal to all messages.

Each message comes with its ``Exchange`` as origin. Optional observers are imported only if they are
used.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING

from mcp_tool_filter.core.conversation.policy_in_force import Judged, Watch
from mcp_tool_filter.core.engine.exchange import Exchange
from mcp_tool_filter.core.engine.steps import Outcome
from mcp_tool_filter.core.http.bodies import may_be_event_stream
from mcp_tool_filter.core.http.urls import parse_origin
from mcp_tool_filter.core.policy.config import Config
from mcp_tool_filter.core.policy.effects import WriteLog
from mcp_tool_filter.core.policy.situation import Client, Direction, Via
from mcp_tool_filter.core.process.plugs import Plug
from mcp_tool_filter.core.process.site import Site, client_of, site_of
from mcp_tool_filter.rooms.lane.lane import Lane

if TYPE_CHECKING:
    from mcp_tool_filter.core.process.proxy import Proxy
    from mcp_tool_filter.rooms.audit.entries import Unanswered
    from mcp_tool_filter.rooms.telemetry.tracing import Tracer
    from mcp_tool_filter.rooms.telemetry.watching import Watching

_MOMENT = 0.05  # seconds until the audit log's entries are made, for several messages together
_PAUSE = 1.0  # seconds between two looks for unanswered requests
_LONGEST_WAIT = 3600.0  # seconds for an answer that may come with another exchange
_ACCEPTED = 202
_BAD_REQUEST = 400


class Watchers(Plug):
    """Watches all sites of a process."""

    def __init__(self, proxy: Proxy) -> None:
        super().__init__(proxy)
        self._watching: Watching | None = None
        self._of_page: Watching | None = None
        """For a page that was opened after the start."""
        self._tracer: Tracer | None = None
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """Open the audit log and serve the metrics, if configured. Raises StartError."""
        proxy, config = self.proxy, self.proxy.config
        if config.otel:
            from mcp_tool_filter.rooms.telemetry.tracing import Tracer

            self._tracer = Tracer()
        sinks, page = proxy.around.sinks, proxy.page
        is_wanted = config.audit or config.metrics or config.otel or sinks or page
        if not is_wanted:
            return
        from mcp_tool_filter.rooms.telemetry.watching import Surveyed, Watching  # seldom used

        self._watching = Watching(
            config,
            sinks,
            surveyed=Surveyed(proxy.state, proxy.around.warn, proxy.runs is not None),
            keep=[self._tracer.show] if self._tracer else [],
            page=page,
            origin_of=self._origin_of,
            soon=_in_a_moment,
        )
        self._timer = asyncio.get_running_loop().call_later(_PAUSE, self._look_again)

    def show_page(self) -> None:
        """Begin to show the messages of all sites to the page, or end it if there is none."""
        from mcp_tool_filter.rooms.telemetry.watching import Watching

        proxy, page = self.proxy, self.proxy.page
        if (page is None) is (self._of_page is None):
            return
        origin_of = self._origin_of
        self._of_page = Watching(Config(), page=page, origin_of=origin_of) if page else None
        for name, site in proxy.sites.items():
            (proxy.parts.get(name) or proxy).observe(site.listener.policy, name)
        if self._timer is None:
            self._look_again()

    def facts(self) -> Mapping[str, str | None]:
        return {"audit_log": self._watching.audit_log if self._watching else None}

    def attach(self, site: Site) -> None:
        if self._tracer:
            site.listener.policy.propagate = self._tracer.propagate
            site.note_over = partial(_end_spans, self._tracer)

    def observers(self, _name: str) -> Iterator[Watch]:
        if self._watching is not None:
            yield Watch(self._watching.observe, self._watching.of_plain_calls)
        if self._of_page is not None:
            yield Watch(self._of_page.observe, self._of_page.of_plain_calls)
        if self._tracer is not None:
            yield Watch(partial(_trace, self._tracer), of_plain_calls=None)

    def note(self, said: object) -> None:
        """Add a rule's log entry to the audit log, if there is one."""
        if self._watching and isinstance(said, WriteLog):
            self._watching.enter_log(said)

    async def close(self) -> None:
        if self._timer:
            self._timer.cancel()
        if self._watching:
            self._watching.give_up(_failure_of)
            self._watching.close()
            self.proxy.around.on_end()
        if self._tracer:  # it gets the last entries, too
            self._tracer.close()

    def _origin_of(self, origin: object) -> dict[str, str]:
        if not isinstance(origin, Exchange | Lane):
            return {}
        facts = {"client": peer_of(origin), "flow": self.proxy.around.name_flow(origin)}
        if self.proxy.names_upstreams:
            facts["upstream"] = site_of(origin).url
        if self.proxy.runs is not None:
            facts["server"] = origin.service.name
            facts["exposed"] = origin.called
        return facts

    def _look_again(self) -> None:
        """Tell which requests will not be answered any more.

        Looked at once a second, beside the messages: to be told of each end would cost each of
        them.
        """
        self._timer = asyncio.get_running_loop().call_later(_PAUSE, self._look_again)
        for one in (self._watching, self._of_page):
            if one and not self.proxy.has_ended:
                one.give_up(_end_of)


def _in_a_moment(call: Callable[[], None]) -> None:
    asyncio.get_running_loop().call_later(_MOMENT, call)


# Requests without an answer


def _failure_of(origin: object, _client: Client, _age: float) -> Unanswered | None:
    """Report at the end what a lost upstream left unanswered; we left the others ourselves."""
    from mcp_tool_filter.rooms.audit.entries import Unanswered

    has_failed = isinstance(origin, Exchange) and origin.outcome is Outcome.UPSTREAM_FAILED
    return Unanswered("upstream_failed") if has_failed else None


def _end_of(origin: object, client: Client, age: float) -> Unanswered | None:
    from mcp_tool_filter.rooms.audit.entries import Unanswered

    if not isinstance(origin, Exchange) or not origin.is_over:
        return None
    if client.via is Via.LEGACY_SSE:
        streams = origin.service.listener.legacy
        is_open = any(stream.conversation.client is client for stream in streams)
        return None if is_open else Unanswered("client_left")
    answer, end = origin.answer, Unanswered(*_ending_of(origin))
    if answer is None:
        return end
    # A stream may be resumed, and what was only accepted may be answered on another one.
    may_come = answer.status == _ACCEPTED or may_be_event_stream(answer.get(b"content-type"))
    return None if may_come and age < _LONGEST_WAIT else end


def _ending_of(exchange: Exchange) -> tuple[str, int | None]:
    """Return why no answer comes any more, or the status of an answer that refuses."""
    if exchange.outcome is Outcome.UPSTREAM_FAILED:
        return "upstream_failed", None
    if exchange.outcome is not Outcome.ANSWERED:
        return "client_left", None
    status = exchange.answer.status if exchange.answer is not None else 0
    return "", status if status >= _BAD_REQUEST else None


# Traces


def _trace(tracer: Tracer, judged: Judged) -> None:
    exchange = judged.origin
    if judged.direction is not Direction.FROM_CLIENT or not isinstance(exchange, Exchange):
        tracer.observe(judged)
        return
    address = (exchange.down.host.peer, exchange.down.host.port)
    tracer.observe(judged, _trace_headers(exchange), address, _server_at(exchange))
    for name, value in tracer.headers_for(judged).items():
        exchange.added = (*exchange.added, (name.lower().encode(), value.encode()))


def _server_at(exchange: Exchange) -> dict[str, str | int]:
    """Return the address of the upstream as attributes; none for a command."""
    service = exchange.service
    if not isinstance(service, Site) or service.listener.called:
        return {}
    origin = parse_origin(service.listener.upstream)
    return {"server.address": origin.host, "server.port": origin.port}


def _trace_headers(exchange: Exchange) -> dict[str, str]:
    """Return the trace context of an HTTP request; none if it names two parents."""
    fields = exchange.head.fields
    parents = [value for name, value in fields if name.lower() == b"traceparent"]
    if len(parents) != 1:
        return {}
    states = [value.decode("latin-1") for name, value in fields if name.lower() == b"tracestate"]
    return {"traceparent": parents[0].decode("latin-1"), "tracestate": ",".join(states)}


def _end_spans(tracer: Tracer, exchange: Exchange) -> None:
    """End the spans that no answer will end. (A stream that closes early is not an error.)"""
    if (client := client_of(exchange)) is None:
        return
    why, status = _ending_of(exchange)
    tracer.leave(client, why or (str(status) if status else None))


def peer_of(exchange: Exchange | Lane) -> str:
    """Return the client's address and port, for people."""
    host, port = exchange.down.host.peer, exchange.down.host.port
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
