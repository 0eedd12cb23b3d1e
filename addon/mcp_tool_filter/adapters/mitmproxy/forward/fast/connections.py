"""Serve connections with fewer turns of the event loop and fewer packets per request.

mitmproxy runs each hook in its own task and continues with the connection in a later turn of the
event loop, although most hooks finish at once; and it sends a head and its body separately. Here we
continue immediately after a hook that has finished, and send all bytes for one peer together.

A stream may run its hooks itself (``hook_runner``), and we read all available bytes at once.

We use these internals of mitmproxy: a connection asks its ``layer`` for commands under a lock and
carries them out without waiting, it keeps its reader in ``transports``, and a listener looks up
``ProxyConnectionHandler`` in its module.
"""

from __future__ import annotations

import logging
from asyncio import StreamReader, sleep
from collections import deque
from collections.abc import Awaitable
from time import thread_time
from typing import Any, cast
from weakref import WeakValueDictionary

from mitmproxy.connection import Client, Connection
from mitmproxy.flow import Flow
from mitmproxy.proxy import commands, events, mode_servers
from mitmproxy.proxy.layer import Layer
from mitmproxy.proxy.layers.websocket import WebsocketStartHook
from mitmproxy.proxy.mode_servers import ProxyConnectionHandler
from mitmproxy.utils.asyncio_utils import create_task

from mcp_tool_filter.adapters.mitmproxy.forward.fast.hooks import QuickAddonManager, args_of
from mcp_tool_filter.adapters.mitmproxy.forward.safe.installed import (
    RunHook,
)
from mcp_tool_filter.adapters.mitmproxy.forward.safe.orders import Steps
from mcp_tool_filter.adapters.mitmproxy.forward.safe.outermost import close_after_error

log = logging.getLogger(__name__)

_MOST_READ = 256 * 1024  # bytes, as many as asyncio reads from a socket
LEAST_READ = 8 * 1024  # bytes; fewer never take long
_LONGEST_TURN = 0.02  # seconds of computing; waiting for a slow peer does not count
_LARGE = 64 * 1024  # bytes; copying so many would cost more than sending them separately

_serving: WeakValueDictionary[str, QuickConnectionHandler] = WeakValueDictionary()  # by client


def hook_runner(client: Client) -> RunHook | None:
    """Return a function that runs a client's hooks directly, without a detour through the
    connection."""
    handler = _serving.get(client.id)
    return handler.run_hook if handler else None


def install_quick_connections() -> None:
    """Serve all new clients this way."""
    # mode_servers looks up this name for each new client.
    mode_servers.ProxyConnectionHandler = QuickConnectionHandler  # type: ignore[misc]  # a subclass in its place


class QuickConnectionHandler(ProxyConnectionHandler):
    """Serves one client."""

    async def handle_client(self) -> None:
        if isinstance(self.master.addons, QuickAddonManager):
            self.layer = self.shortened()
            _serving[self.client.id] = self
        await super().handle_client()

    async def handle_connection(self, connection: Connection) -> None:
        reader = self.transports[connection].reader
        if type(reader) is StreamReader:
            reader.__class__ = GreedyReader
        await super().handle_connection(connection)

    def shortened(self) -> Layer:
        """Return the wrapper around the outermost layer, which is only asked for commands."""
        shortened: Layer = cast(Any, _Shortened(self.layer, self))  # not a Layer, but used like one
        return shortened

    def run_hook(self, hook: commands.StartHook) -> bool:
        """Run a hook once; return False if an addon has to wait: the connection continues later."""
        if getattr(hook, "has_begun", False):
            return False
        hook.has_begun = True  # type: ignore[attr-defined]  # our own mark
        if type(hook) is WebsocketStartHook:
            self._read_less()
        assert isinstance(self.master.addons, QuickAddonManager)
        args = args_of(hook)
        rest = self.master.addons.begin_lifecycle(hook, args)
        (data,) = args
        if rest is None and not (isinstance(data, Flow) and data.intercepted):
            return True
        waiting = self._wait(rest, data, hook)
        create_task(waiting, name=f"wait({hook.name})", keep_ref=True, client=self.client.peername)
        return False

    def _read_less(self) -> None:
        """Begin with few bytes: each frame of a WebSocket runs a hook, and may be one byte long."""
        for one in self.transports.values():
            if type(one.reader) is GreedyReader:
                one.reader.most = LEAST_READ

    async def _wait(
        self, rest: Awaitable[None] | None, data: object, hook: commands.StartHook
    ) -> None:
        try:
            with self.timeout_watchdog.disarm():
                if rest is not None:
                    await rest
                if isinstance(data, Flow):
                    await data.wait_for_resume()
            if hook.blocking:
                await self.server_event(events.HookCompleted(hook))
        except Exception:
            log.exception("internal error; connection closed")
            self.close_connection(self.client)


class GreedyReader(StreamReader):
    """Returns all available bytes at once: mitmproxy would read 64 KB at a time, at a high cost
    each. If they take long (thousands of tiny frames), it lets other connections go first and then
    returns fewer."""

    most = _MOST_READ
    _given_at = 0.0  # when it returned the last bytes, if they were many

    async def read(self, n: int = -1) -> bytes:
        if self._given_at:
            if thread_time() - self._given_at > _LONGEST_TURN:
                self.most = max(LEAST_READ, self.most // 4)
                await sleep(0)
            elif self.most < _MOST_READ:
                self.most *= 2
        data = await super().read(n if n < 0 else self.most)
        if n >= 0 and len(data) > self.most:  # it was lowered while we waited
            kept: Any = self  # StreamReader keeps what it has not returned in its _buffer
            kept._buffer[:0] = data[self.most :]
            data = data[: self.most]
        self._given_at = thread_time() if len(data) >= LEAST_READ else 0.0
        return data


class _Shortened:
    """Wraps a client's outermost layer, and yields fewer commands."""

    def __init__(self, layer: Layer, handler: QuickConnectionHandler) -> None:
        self._layer = layer
        self._handler = handler

    def handle_event(self, event: events.Event) -> Steps:
        """Handle an event and everything that follows from it immediately."""
        due = deque([event])
        held: commands.SendData | None = None
        try:
            while due:
                for command in self._layer.handle_event(due.popleft()):
                    if isinstance(command, commands.SendData):
                        if held is not None and not _is_one_piece(held, command):
                            yield held
                            held = None
                        held = _joined(held, command)
                        continue
                    if held is not None and not isinstance(command, commands.Log):
                        yield held
                        held = None
                    if not isinstance(command, commands.StartHook):
                        yield command
                    elif self._handler.run_hook(command) and command.blocking:
                        due.append(events.HookCompleted(command))
        except Exception:
            if held is not None:  # it was to be sent before the error
                yield held
            yield close_after_error(self._handler.client)
            return
        if held is not None:
            yield held


def _is_one_piece(held: commands.SendData, more: commands.SendData) -> bool:
    return held.connection is more.connection and len(held.data) + len(more.data) <= _LARGE


def _joined(held: commands.SendData | None, more: commands.SendData) -> commands.SendData:
    return more if held is None else commands.SendData(held.connection, held.data + more.data)
