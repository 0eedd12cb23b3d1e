"""Ending the process with exit code 1, in mitmdump, mitmweb, the console and our own master.

``master.shutdown()`` would end it with 0, ``sys.exit`` in a hook would lose the answer that the
hook is about, and what is printed while the console draws its screen nobody sees.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import sys
from collections.abc import Callable

from mitmproxy import ctx
from mitmproxy.http import HTTPFlow

from mcp_tool_filter.adapters.mitmproxy.streams import is_streaming, lose, open_flows

GRACE = 3.0
"""Seconds that clients who wait for an answer are given."""


class Ending:
    """The addon calls ``fatal`` once it cannot go on, and ``done`` in the hook of that name."""

    def __init__(self, *, grace: float = GRACE) -> None:
        self._grace = grace
        self._reason: str | None = None
        self.has_begun = False
        self._task: asyncio.Task[None] | None = None

    def fatal(self, reason: str) -> None:
        """End the process, soon: who waits for an answer gets one. The first reason counts."""
        if self._reason is None:
            self._reason = reason
            self.has_begun = True
            self._task = asyncio.get_running_loop().create_task(self._end())

    def done(self) -> None:
        """Say why, on stderr, now that the console has left the screen."""
        if self._reason is not None:
            sys.stderr.write(f"{self._reason}\n")
            sys.stderr.flush()

    async def _end(self) -> None:
        await asyncio.sleep(0)  # mitmproxy begins tasks inside the hook that makes them
        await _until(lambda: not any(map(_is_waited_for, open_flows())), seconds=self._grace)
        for flow in open_flows():
            lose(flow)
        await hang_up()
        # Not from here: asyncio would remember the exception of a task and complain of it.
        asyncio.get_running_loop().call_soon(_exit)


def _exit() -> None:
    atexit.register(end_at_once, 1)
    sys.exit(1)


def end_at_once(status: int) -> None:
    """End the process when all is done, without taking Python apart.

    mitmproxy_rs has threads for the UDP port of an https upstream. They may still run while Python
    takes itself apart, and then the process crashes: every second time on 3.12.1.
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
    """Is it anything but a stream on which the upstream says something when it likes?"""
    return not (flow.request.method == "GET" and is_streaming(flow))


async def hang_up() -> None:
    """Let no new client in, and close every connection when its last bytes are sent."""
    server = ctx.master.addons.get("proxyserver")
    if server is None:
        return
    await server.servers.update([])
    for handler in list(server.connections.values()):
        if handler.client in handler.transports:
            handler.close_connection(handler.client)
    # asyncio in Python 3.12 complains of connections that it has to break off.
    await _until(lambda: not server.connections, seconds=1)
