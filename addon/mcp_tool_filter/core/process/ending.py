"""How a process ends: with an error, or because it was told to; waiting clients get answers first.

An error (the upstream is lost) leaves open calls a few seconds. Without one, we drain: balancers
learn that we are not ready, each connection takes one more request, and open calls may finish for
as long as the user says. A second signal hurries.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from mcp_tool_filter.core.engine.exchange import Exchange
from mcp_tool_filter.core.errors import LostUpstream
from mcp_tool_filter.core.process.background import in_background

if TYPE_CHECKING:
    from mcp_tool_filter.core.process.proxy import Proxy

GRACE = 3.0
"""Seconds for waiting clients to get their answers when the process ends, unless the user says."""
_IN_FLIGHT = 1.0
"""Seconds in which a request may still come on an idle connection: a balancer may have sent it."""
_LEAVING = "The proxy is shutting down"
_LISTEN = "subscriptions/listen"  # answered by notifications until it ends


class Ending:
    """The end of a process, or of one server of several."""

    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy
        self.has_failed = False
        """True once the process ends with an error."""
        self.is_leaving = False
        """True once the process ends without an error."""
        self.is_hurried = False
        """True once nothing may wait for open calls any more: a second signal has come."""

    @property
    def has_begun(self) -> bool:
        return self.has_failed or self.is_leaving

    def fail(self, why: str) -> None:
        """End the process soon with an error; waiting clients still get their answers.

        Only the first reason counts.
        """
        if self.has_failed:
            return
        self.has_failed = True
        for site in self._proxy.sites.values():
            site.is_ending = True
        self._proxy.ready.set()
        in_background(self._fail(why))

    def lose_all(self) -> None:
        """End the process because an upstream is lost."""
        if not self.has_failed:
            self.fail(str(LostUpstream()))
            self._lose_exchanges()

    def _lose_exchanges(self) -> None:
        for exchange in self._proxy.exchanges:
            exchange.lose("upstream lost")
            exchange.down.host.wake()

    async def _fail(self, why: str) -> None:
        await asyncio.sleep(0)
        await self._wait_for_answers(GRACE)
        self._lose_exchanges()
        self._proxy.around.leave(why)

    async def _wait_for_answers(self, seconds: float) -> None:
        waiting = lambda: any(map(_is_waited_for, self._proxy.exchanges))  # noqa: E731
        await self._wait_while(waiting, seconds)

    async def _wait_while(self, is_needed: Callable[[], bool], seconds: float) -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while not self.is_hurried and loop.time() < end and is_needed():
            await asyncio.sleep(0.01)

    def begin_to_leave(self) -> None:
        """The process ends: we are not ready any more, and connections take one more request."""
        self.is_leaving = True
        for service in self._proxy.services:
            service.is_draining = True

    async def wait_for_requests_in_flight(self) -> None:
        """Wait for what balancers have sent on idle connections; only if the user drains."""
        await self._wait_while(lambda: True, min(_IN_FLIGHT, self._proxy.config.drain or 0.0))

    async def drain(self) -> None:
        """Let open calls finish for a while, because the process ends; then answer those that still
        wait with an error, and end all streams."""
        self.begin_to_leave()
        given = self._proxy.config.drain
        await self._wait_for_answers(GRACE if given is None else given)
        # A stream first: over HTTP+SSE it has the answers to other exchanges.
        for exchange in sorted(self._proxy.exchanges, key=lambda one: one.head.method != "GET"):
            exchange.give_up(_LEAVING)
            exchange.down.host.wake()


def _is_waited_for(exchange: Exchange) -> bool:
    """Tell whether a client waits for an answer here: an open stream may bring none, or only
    notifications."""
    if exchange.head.method != "GET" and not exchange.has_begun:
        return True
    if exchange.asked is None:
        return False
    return any(method != _LISTEN for method in exchange.asked.conversation.exchanges.methods)
