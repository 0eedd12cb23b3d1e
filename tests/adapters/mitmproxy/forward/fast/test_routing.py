"""The quick HTTP layer and the one it replaces do the same, with the same bytes of both sides."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import groupby

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from mitmproxy.addons.proxyserver import Proxyserver
from mitmproxy.connection import ConnectionState, Server
from mitmproxy.http import HTTPFlow
from mitmproxy.options import Options
from mitmproxy.proxy import commands, events
from mitmproxy.proxy.context import Context
from mitmproxy.proxy.layers.http import HTTPMode
from mitmproxy.test import taddons
from mitmproxy.test.tflow import tclient_conn

from mcp_tool_filter.adapters.mitmproxy.forward.fast.routing import QuickHttpLayer
from mcp_tool_filter.adapters.mitmproxy.forward.safe.last_look import install_last_look
from mcp_tool_filter.adapters.mitmproxy.forward.safe.layers import FilteredHttpLayer

REQUESTS = [
    b"GET /a HTTP/1.1\r\nHost: a\r\n\r\n",
    b"HEAD /a HTTP/1.1\r\nHost: a\r\n\r\n",
    b"POST /b HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello",
    b"POST /c HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
    b"POST /d HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 0\r\n\r\n",
    b"POST /e HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\nhi",
    b"no request\r\n\r\n",
]
RESPONSES = [
    b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nfine",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nfine\r\n0\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"9\r\ndata: 1\n\n\r\n0\r\n\r\n",
    b"HTTP/1.1 204 No Content\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nto the end",
    b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nshort",
    b"no response\r\n\r\n",
]

type Said = list[tuple[str, bytes]]


@pytest.fixture(scope="module")
def options() -> Iterator[Options]:
    install_last_look(None)  # a filter that has run in this process would judge all of it again
    with taddons.context(Proxyserver()) as context:
        yield context.options


class Connected:
    """A client's connection, which a layer reads, and an upstream that answers in order."""

    def __init__(
        self, kind: type[FilteredHttpLayer], options: Options, answers: list[list[bytes]]
    ) -> None:
        self.context = Context(tclient_conn(), options)
        self.context.client.alpn = None
        self.context.server.address = ("localhost", 3000)
        self.layer = kind(self.context, HTTPMode.transparent)
        self.said: Said = []
        self._answers = deque(answers)
        self._asked = b""
        self._waiting = deque[events.Event]([events.Start()])

    def play(self, pieces: list[bytes]) -> Said:
        self._settle()
        for piece in pieces:
            self.hear(events.DataReceived(self.context.client, piece))
        self.said.append((f"streams: {[*self.layer.streams]}", b""))
        self.hear(events.ConnectionClosed(self.context.client))
        return [
            (what, b"".join(data for _, data in several))
            for what, several in groupby(self.said, key=lambda one: one[0])
        ]

    def hear(self, event: events.Event) -> None:
        self._waiting.append(event)
        self._settle()

    def _settle(self) -> None:
        while self._waiting:
            for command in self.layer.handle_event(self._waiting.popleft()):
                self._do(command)

    def _do(self, command: commands.Command) -> None:
        match command:
            case commands.SendData(connection=to, data=data):
                self.said.append((f"to {type(to).__name__}", data))
                if isinstance(to, Server):
                    self._upstream_hears(to, data)
            case commands.OpenConnection(connection=to):
                to.state = ConnectionState.OPEN
                self.said.append(("open", b""))
                self._waiting.appendleft(events.OpenConnectionCompleted(command, None))
            case commands.CloseConnection(connection=to):
                to.state = ConnectionState.CLOSED
                self.said.append((f"close {type(to).__name__}", b""))
            case commands.StartHook():
                self._stream(command)
                self.said.append((f"hook {command.name}", b""))
                if command.blocking:
                    self._waiting.appendleft(events.HookCompleted(command, None))

    def _stream(self, hook: commands.StartHook) -> None:
        flow = next(iter(hook.args()), None)
        if hook.name != "responseheaders" or not isinstance(flow, HTTPFlow) or not flow.response:
            return
        if "event-stream" in flow.response.headers.get("content-type", ""):
            flow.response.stream = lambda data: [data] if data else []

    def _upstream_hears(self, server: Server, data: bytes) -> None:
        """Answer each request when its head is there."""
        before = self._asked.count(b" HTTP/1.1\r\n")
        self._asked += data
        for _ in range(self._asked.count(b" HTTP/1.1\r\n") - before):
            for piece in self._answers.popleft() if self._answers else ():
                self._waiting.append(events.DataReceived(server, piece))


def cut(data: bytes, sizes: list[int]) -> list[bytes]:
    """Cut bytes into pieces of these sizes, the last one as often as it takes."""
    pieces = []
    while data:
        size = sizes.pop(0) if len(sizes) > 1 else sizes[0]
        pieces.append(data[:size])
        data = data[size:]
    return pieces


sizes = st.lists(st.integers(1, 60), min_size=1, max_size=4)


@settings(max_examples=150)
@given(
    requests=st.lists(st.sampled_from(REQUESTS), min_size=1, max_size=4),
    responses=st.lists(st.tuples(st.sampled_from(RESPONSES), sizes), min_size=4, max_size=4),
    cuts=sizes,
)
@example(requests=REQUESTS[:6], responses=[(RESPONSES[0], [99])] * 6, cuts=[9999])
@example(requests=REQUESTS[:3], responses=[(RESPONSES[2], [5])] * 3, cuts=[1])
def test_both_layers_send_the_same_to_both_sides(
    options: Options,
    requests: list[bytes],
    responses: list[tuple[bytes, list[int]]],
    cuts: list[int],
) -> None:
    def said_by(kind: type[FilteredHttpLayer]) -> Said:
        answers = [cut(raw, list(several)) for raw, several in responses]
        return Connected(kind, options, answers).play(cut(b"".join(requests), list(cuts)))

    assert said_by(QuickHttpLayer) == said_by(FilteredHttpLayer)


def test_the_generated_sessions_contain_answered_requests(options: Options) -> None:
    """Else the test above could compare silence with silence."""
    pieces = [REQUESTS[2], REQUESTS[0]]
    said = Connected(QuickHttpLayer, options, [[RESPONSES[1]], [RESPONSES[0]]]).play(pieces)
    hooks = [what.removeprefix("hook ") for what, _ in said if what.startswith("hook ")]
    assert hooks[:4] == ["requestheaders", "request", "responseheaders", "response"]
    assert [data for what, data in said if what == "to Client"][-1].endswith(b"\r\n\r\nfine")
    assert b"hello" in b"".join(data for what, data in said if what == "to Server")
