"""Shorter ways through a connection lead to the same place."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from unittest.mock import Mock

from mitmproxy.connection import Client
from mitmproxy.http import HTTPFlow
from mitmproxy.master import Master
from mitmproxy.options import Options
from mitmproxy.proxy import commands, events
from mitmproxy.proxy.layers.http._hooks import HttpRequestHook
from mitmproxy.proxy.layers.websocket import WebsocketStartHook
from mitmproxy.proxy.mode_specs import ProxyMode
from mitmproxy.test.tflow import tclient_conn, tflow

from mcp_tool_filter.adapters.mitmproxy.forward.fast.connections import (
    LEAST_READ,
    GreedyReader,
    QuickConnectionHandler,
    hook_runner,
)
from mcp_tool_filter.adapters.mitmproxy.forward.fast.hooks import QuickAddonManager
from mcp_tool_filter.adapters.mitmproxy.forward.safe.installed import (
    RunHook,
)
from mcp_tool_filter.adapters.mitmproxy.forward.safe.orders import Steps

PEER, OTHER = tclient_conn(), tclient_conn()

type Step = commands.Command | Exception


@dataclass
class Scripted:
    """A layer: says some commands for each kind of event."""

    says: dict[type[events.Event], list[Step]]
    heard: list[type[events.Event]] = field(default_factory=list)

    def handle_event(self, event: events.Event) -> Steps:
        self.heard.append(type(event))
        for step in self.says.get(type(event), []):
            if isinstance(step, Exception):
                raise step
            yield step


async def served(layer: Scripted, addon: object) -> QuickConnectionHandler:
    """Make a handler whose master has one addon."""
    master = Master(Options())
    master._legacy_log_events.uninstall()
    master.addons = QuickAddonManager(master)
    master.addons.chain[:] = [addon]
    info = {"transport_protocol": "tcp", "peername": ("127.0.0.1", 1), "sockname": ("::1", 2)}
    writer = Mock(get_extra_info=lambda name, _default=None: info[name])
    mode = ProxyMode.parse("reverse:http://127.0.0.1:1")
    handler = QuickConnectionHandler(  # type: ignore[no-untyped-call]  # mitmproxy's
        master, Mock(), writer, Mock(tcp_timeout=60), mode
    )
    handler.layer = layer  # type: ignore[assignment]  # a layer without a context
    handler.layer = handler.shortened()
    return handler


def sends(*data: bytes, to: Client = PEER) -> list[Step]:
    return [commands.SendData(to, one) for one in data]


async def sent(layer: Scripted) -> list[bytes]:
    """Let the layer begin; return what is sent, piece by piece."""
    handler = await served(layer, object())
    return [
        getattr(command, "data", b"other") for command in handler.layer.handle_event(events.Start())
    ]


async def test_data_for_one_peer_is_sent_in_one_write() -> None:
    assert await sent(Scripted({events.Start: sends(b"head ", b"body")})) == [b"head body"]


async def test_data_for_two_peers_keeps_its_order() -> None:
    steps = [*sends(b"a"), *sends(b"b", to=OTHER), *sends(b"c")]
    assert await sent(Scripted({events.Start: steps})) == [b"a", b"b", b"c"]


async def test_a_log_command_does_not_split_a_write() -> None:
    """mitmproxy writes one between the head of a stream and its beginning."""
    steps = [*sends(b"a"), commands.Log("streaming"), *sends(b"b")]
    assert await sent(Scripted({events.Start: steps})) == [b"other", b"ab"]


async def test_a_close_command_splits_a_write() -> None:
    steps = [*sends(b"a"), commands.CloseConnection(PEER), *sends(b"b")]
    assert await sent(Scripted({events.Start: steps})) == [b"a", b"other", b"b"]


async def test_large_data_is_not_copied() -> None:
    large = b"x" * 100_000
    assert await sent(Scripted({events.Start: sends(b"head", large)})) == [b"head", large]


async def test_data_before_an_error_is_sent_and_the_connection_closed() -> None:
    handler = await served(Scripted({events.Start: [*sends(b"a"), ValueError()]}), object())

    said, closed = handler.layer.handle_event(events.Start())

    assert isinstance(said, commands.SendData)
    assert said.data == b"a"
    assert isinstance(closed, commands.CloseConnection)
    assert closed.connection is handler.client


async def heard(addon: object, flow: HTTPFlow, meanwhile: Callable[[Scripted], None]) -> list[str]:
    """Let a hook be asked; return what the layer heard, in the end."""
    layer = Scripted({events.Start: [HttpRequestHook(flow)]})

    handler = await served(layer, addon)
    await handler.server_event(events.Start())
    meanwhile(layer)
    for _ in range(5):
        await asyncio.sleep(0)
    return [event.__name__ for event in layer.heard]


async def test_a_finished_hook_continues_at_once() -> None:
    seen: list[int] = []
    log = await heard(object(), tflow(), lambda layer: seen.append(len(layer.heard)))
    assert (seen, log) == ([2], ["Start", "HookCompleted"])


class Slow:
    async def request(self, _flow: HTTPFlow) -> None:
        await asyncio.sleep(0)


async def test_a_slow_hook_is_awaited() -> None:
    seen: list[int] = []
    log = await heard(Slow(), tflow(), lambda layer: seen.append(len(layer.heard)))
    assert (seen, log) == ([1], ["Start", "HookCompleted"])


class Intercepting:
    def request(self, flow: HTTPFlow) -> None:
        flow.intercept()


async def test_an_intercepted_flow_waits_until_it_is_resumed() -> None:
    """In mitmweb, for example."""
    flow = tflow()
    assert await heard(Intercepting(), flow, lambda _: None) == ["Start"]
    assert await heard(Intercepting(), flow, lambda _: flow.resume()) == ["Start", "HookCompleted"]


@dataclass
class Counting:
    """Asked by a layer before it passes the hook on, as a stream does."""

    is_slow: bool
    asked: int = 0

    def request(self, _flow: HTTPFlow) -> object:
        self.asked += 1
        return asyncio.sleep(0) if self.is_slow else None


@dataclass
class Asking(Scripted):
    """Asks its hook where it stands, and passes it on only if it has to wait."""

    ask: RunHook | None = None

    def handle_event(self, event: events.Event) -> Steps:
        self.heard.append(type(event))
        hook = HttpRequestHook(tflow())
        if isinstance(event, events.Start) and self.ask and not self.ask(hook):
            yield hook


async def asked_below(addon: Counting) -> list[str]:
    layer = Asking({})
    handler = await served(layer, addon)
    layer.ask = handler.run_hook
    await handler.server_event(events.Start())
    for _ in range(5):
        await asyncio.sleep(0)
    return [event.__name__ for event in layer.heard]


async def test_a_hook_that_a_layer_has_run_itself_runs_once() -> None:
    quick, slow = Counting(is_slow=False), Counting(is_slow=True)
    assert await asked_below(quick) == ["Start"]
    assert await asked_below(slow) == ["Start", "HookCompleted"]
    assert (quick.asked, slow.asked) == (1, 1)


def test_a_client_without_a_handler_has_no_hook_runner() -> None:
    assert hook_runner(tclient_conn()) is None


async def test_all_received_data_is_read_at_once() -> None:
    reader = GreedyReader()
    reader.feed_data(b"x" * 200_000)
    first = len(await reader.read(65535))
    reader.feed_data(b"x" * 10)
    reader.feed_eof()
    found = first, len(await reader.read(-1)), len(await reader.read(65535))
    assert found == (200_000, 10, 0)


async def test_a_costly_connection_yields_to_others_and_is_read_in_smaller_pieces() -> None:
    """A client could send thousands of tiny frames, which take a second for each 256 KB."""
    turns: list[int] = []
    reader = GreedyReader()
    reader.feed_data(b"x" * 1_000_000)
    sizes = [len(await reader.read(65535))]
    asyncio.get_running_loop().call_soon(turns.append, 1)
    for _ in range(4):
        begun = time.thread_time()
        while time.thread_time() - begun < 0.03:
            pass  # work
        sizes.append(len(await reader.read(65535)))
    assert sizes == [256 * 1024, 64 * 1024, 16 * 1024, 8 * 1024, 8 * 1024]
    assert turns == [1]


async def test_a_websocket_is_read_in_small_pieces_from_the_start() -> None:
    """Each frame runs a hook: 256 KB of tiny ones would keep others waiting for seconds."""
    handler = await served(Scripted({}), object())
    reader = GreedyReader()
    handler.transports[handler.client].reader = reader
    waiting = asyncio.create_task(reader.read(65535))
    await asyncio.sleep(0)
    assert handler.run_hook(WebsocketStartHook(tflow()))
    sent = bytes(range(250)) * 400
    reader.feed_data(sent)
    reader.feed_eof()
    pieces = [await waiting]
    assert len(pieces[0]) == LEAST_READ
    while piece := await reader.read(65535):
        pieces.append(piece)
    assert b"".join(pieces) == sent
