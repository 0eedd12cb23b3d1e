"""End the process with exit code 1, in mitmdump, mitmweb, the console and our own master.

``master.shutdown()`` would exit with 0, ``sys.exit`` in a hook would lose the current answer, and
text printed while the console draws its screen would be invisible.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import sys
from collections.abc import Callable

from mitmproxy import ctx
from mitmproxy.http import HTTPFlow

from mcp_tool_filter.adapters.mitmproxy.forward.streams import is_streaming, lose, open_flows

GRACE = 3.0
"""Seconds for waiting clients to get their answers."""


class Ending:
    """Ends the process.

    The addon calls ``fatal`` if it cannot continue, and ``done`` in that hook.
    """

    def __init__(self, *, grace: float = GRACE) -> None:
        self._grace = grace
        self._reason: str | None = None
        self.has_begun = False
        self._task: asyncio.Task[None] | None = None

    def fatal(self, reason: str) -> None:
        """End the process soon; waiting clients still get their answers.

        Only the first reason counts.
        """
        if self._reason is None:
            self._reason = reason
            self.has_begun = True
            self._task = asyncio.get_running_loop().create_task(self._end())

    def done(self) -> None:
        """Print the reason to stderr, now that the console has left the screen."""
        if self._reason is not None:
            sys.stderr.write(f"{self._reason}\n")
            sys.stderr.flush()

    async def _end(self) -> None:
        await asyncio.sleep(0)  # mitmproxy starts tasks eagerly, inside the hook
        await _until(lambda: not any(map(_is_waited_for, open_flows())), seconds=self._grace)
        for flow in open_flows():
            lose(flow)
        await hang_up()
        # Not in this task: asyncio would log its exception.
        asyncio.get_running_loop().call_soon(_exit)


def _exit() -> None:
    atexit.register(end_at_once, 1)
    sys.exit(1)


def end_at_once(status: int) -> None:
    """Exit the process without Python's usual teardown.

    mitmproxy_rs has threads for the UDP port of an https upstream. If they still run during the
    teardown, the process crashes: every second time on 3.12.1.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


async def _until(true: Callable[[], bool], *, seconds: float) -> None:
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    while not true() and loop.time() < end:
        await asyncio.sleep(0.01)


def _is_waited_for(flow: HTTPFlow) -> bool:
    """Tell whether a client waits for this answer: it is not an open GET stream."""
    return not (flow.request.method == "GET" and is_streaming(flow))


async def hang_up() -> None:
    """Accept no new clients, and close every connection when its last bytes are sent."""
    server = ctx.master.addons.get("proxyserver")
    if server is None:
        return
    await server.servers.update([])
    for handler in list(server.connections.values()):
        if handler.client in handler.transports:
            handler.close_connection(handler.client)
    # asyncio in Python 3.12 logs connections that it has to abort.
    await _until(lambda: not server.connections, seconds=1)
