"""Which requests will not be answered any more, for the audit log and the terminal.

Looked at once a second, beside the messages: to be told of each flow's end would cost each of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from mitmproxy import ctx
from mitmproxy.http import HTTPFlow

from mcp_tool_filter.adapters.mitmproxy.forward.known import KnownFlows
from mcp_tool_filter.adapters.mitmproxy.forward.streams import open_flows
from mcp_tool_filter.http.media_type import may_be_event_stream
from mcp_tool_filter.observers.audit.entries import EndOf, Unanswered
from mcp_tool_filter.policy.exchange import Client, Via

_PAUSE = 1.0  # seconds
_LONGEST_WAIT = 3600.0  # seconds for an answer that may come with another flow
_ACCEPTED = 202
_BAD_REQUEST = 400


class UnansweredRequests:
    """Looks for them until closed; ``give_up`` gets the function that recognises one."""

    def __init__(self, known: KnownFlows, give_up: Callable[[EndOf], None]) -> None:
        self._known = known
        self._give_up = give_up
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(_PAUSE, self._look_again)

    def close(self) -> None:
        """Note what a lost upstream has left; the other clients are left by ourselves."""
        self._timer.cancel()
        self._give_up(self._failure_of)

    def _failure_of(self, origin: object, _client: Client, _age: float) -> Unanswered | None:
        is_failed = isinstance(origin, HTTPFlow) and origin in self._known.failed
        return Unanswered("upstream_failed") if is_failed else None

    def _look_again(self) -> None:
        self._timer = self._loop.call_later(_PAUSE, self._look_again)
        if not _are_we_leaving():
            self._look()

    def _look(self) -> None:
        open_: set[int] | None = None

        def end_of(origin: object, client: Client, age: float) -> Unanswered | None:
            nonlocal open_
            if not isinstance(origin, HTTPFlow):
                return None
            if open_ is None:
                open_ = {id(flow) for flow in open_flows()}
            return None if id(origin) in open_ else self._end_of(origin, client, age)

        self._give_up(end_of)

    def _end_of(self, flow: HTTPFlow, client: Client, age: float) -> Unanswered | None:
        if client.via is Via.LEGACY_SSE:
            return None if self._has_stream(flow, client) else Unanswered("client_left")
        if flow.websocket:
            return Unanswered("client_left") if flow.websocket.timestamp_end else None
        response = flow.response
        if flow.error:
            end = Unanswered("upstream_failed" if flow in self._known.failed else "client_left")
        else:
            status = response.status_code if response else None
            end = Unanswered("", status if status and status >= _BAD_REQUEST else None)
        # A stream may be resumed, and what was only accepted may be answered on another one.
        may_come = response is not None and (
            response.status_code == _ACCEPTED
            or may_be_event_stream(response.headers.get("content-type", ""))
        )
        return None if may_come and age < _LONGEST_WAIT else end

    def _has_stream(self, flow: HTTPFlow, client: Client) -> bool:
        known = self._known.get(flow)
        streams = known.listener.legacy if known else ()
        return any(one.conversation.client is client for one in streams)


def _are_we_leaving() -> bool:
    """Tell whether we listen no more, and so hang up on our clients ourselves."""
    master = getattr(ctx, "master", None)
    server = master.addons.get("proxyserver") if master else None
    return server is not None and not len(server.servers)
