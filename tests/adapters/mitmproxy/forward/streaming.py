"""An addon that streams every event stream as it comes, and remembers what happened."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mitmproxy.http import HTTPFlow
from mitmproxy.proxy.layer import NextLayer
from mitmproxy.proxy.server_hooks import ServerConnectionHookData

from mcp_tool_filter.adapters.mitmproxy.forward.connections import close_leftover, connect_failed
from mcp_tool_filter.adapters.mitmproxy.forward.safe.reverse_proxy import (
    choose_layer,
)
from mcp_tool_filter.adapters.mitmproxy.forward.streams import upstream_failed
from tests.proxy import RunningProxy, proxy
from tests.raw_upstream import Script, raw_upstream

type Chunks = list[bytes]

FIRST = b"data: first\n\n"


async def until(true: Callable[[], bool]) -> None:
    """Wait until something holds."""
    async with asyncio.timeout(20):
        while not true():
            await asyncio.sleep(0.002)


@dataclass
class Streaming:
    """Flows, what their stream callables got, and how they ended."""

    requests: list[HTTPFlow] = field(default_factory=list)
    flows: list[HTTPFlow] = field(default_factory=list)  # those whose response has begun
    connects: int = 0
    chunks: dict[str, Chunks] = field(default_factory=dict)
    failures: list[HTTPFlow] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    blamed: list[bool] = field(default_factory=list)  # was it the upstream's fault?
    blamed_connects: list[bool] = field(default_factory=list)
    responses: list[HTTPFlow] = field(default_factory=list)
    on_chunk: Callable[[HTTPFlow, bytes], Any] = lambda _, data: [data] if data else []

    def next_layer(self, layer: NextLayer) -> None:
        choose_layer(layer)

    async def asked(self, count: int) -> None:
        """Wait until as many requests have come."""
        await until(lambda: len(self.requests) >= count)

    async def failed(self, count: int) -> None:
        """Wait until as many flows have failed."""
        await until(lambda: len(self.errors) >= count)

    async def connecting(self, count: int) -> None:
        """Wait until as many connections to the upstream have been tried."""
        await until(lambda: self.connects >= count)

    def server_connect(self, _: ServerConnectionHookData) -> None:
        self.connects += 1

    def request(self, flow: HTTPFlow) -> None:
        self.requests.append(flow)

    def responseheaders(self, flow: HTTPFlow) -> None:
        assert flow.response
        self.flows.append(flow)
        if "event-stream" in flow.response.headers.get("content-type", ""):
            if flow.request.http_version == "HTTP/1.0":
                flow.response.headers.pop("transfer-encoding", None)
            flow.response.stream = lambda data: self._take(flow, data)

    def _take(self, flow: HTTPFlow, data: bytes) -> Any:
        self.chunks.setdefault(flow.id, []).append(data)
        return self.on_chunk(flow, data)

    def response(self, flow: HTTPFlow) -> None:
        self.responses.append(flow)

    def error(self, flow: HTTPFlow) -> None:
        assert flow.error
        self.failures.append(flow)
        self.errors.append(flow.error.msg)
        self.blamed.append(upstream_failed(flow))

    def server_disconnected(self, data: ServerConnectionHookData) -> None:
        close_leftover(data)

    def server_connect_error(self, data: ServerConnectionHookData) -> None:
        self.blamed_connects.append(connect_failed(data))


@asynccontextmanager
async def before(
    script: Script, addon: Streaming, home: Path, **options: object
) -> AsyncIterator[RunningProxy]:
    """Open a proxy with this addon in front of an upstream that follows the script."""
    async with (
        raw_upstream(script) as upstream,
        proxy(addon, to=upstream.url, home=home, **options) as running,
    ):
        yield running
