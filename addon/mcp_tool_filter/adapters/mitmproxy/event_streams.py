"""Event streams: a response goes through an ``EventStream`` on its way to the client."""

from __future__ import annotations

import asyncio
import logging

from mitmproxy.http import HTTPFlow, Response

from mcp_tool_filter.adapters.effects.carry_out import Effects
from mcp_tool_filter.adapters.mitmproxy.safe.interceptor import Chunks
from mcp_tool_filter.adapters.mitmproxy.safe.orders import Injected
from mcp_tool_filter.adapters.mitmproxy.safe.stream import stream_of
from mcp_tool_filter.adapters.mitmproxy.streams import cut, injector
from mcp_tool_filter.http.event_stream import EventStream
from mcp_tool_filter.observers.report import shown_url

log = logging.getLogger(__name__)

_WAKE = b":wake"
"""Put into a stream, it asks for what was held back and is decided by now; it never leaves."""

"""What ``flow.response.stream`` expects."""


def frame_as_stream(flow: HTTPFlow, response: Response) -> None:
    """Prepare the head of a response whose length nobody knows any more."""
    response.headers.pop("content-length", None)
    if flow.request.http_version == "HTTP/1.0":  # it cannot read chunks
        response.headers.pop("transfer-encoding", None)
        response.headers["connection"] = "close"
    elif not response.is_http2:
        response.headers["transfer-encoding"] = "chunked"


def through_stream(flow: HTTPFlow, stream: EventStream, effects: Effects) -> Chunks:
    """Return what lets a response through that is under way. (An EventStream closes, never raises.)

    It ends no sooner than it has given out what it holds back.
    """
    inject_into = injector(flow)

    def wake() -> None:
        inject_into(_WAKE)

    def on_chunk(chunk: bytes) -> list[bytes]:
        if isinstance(chunk, Injected):
            if chunk.flow_id != flow.id or stream.failure:
                return []
            filtered = stream.take() if chunk == _WAKE else bytes(chunk)
        else:
            # b"" from mitmproxy is the end; b"" to mitmproxy would end an HTTP/1.1 response.
            filtered = stream.feed(chunk, flow) if chunk else stream.finish(flow)
        if stream.failure:
            log.error("cannot judge %s", shown_url(flow.request.path), exc_info=stream.failure)
            cut(flow)
            return []
        return [filtered] if filtered else []

    stream.carry_out_with(effects.carry_out, wake)
    if (safe := stream_of(flow)) is not None:
        safe.holds = stream
    return on_chunk


async def pass_through_stream(response: Response, stream: EventStream, effects: Effects) -> None:
    """Filter a stream that is there as a whole: mitmproxy calls nobody for it."""
    through = response.stream
    assert callable(through)
    woken = asyncio.Event()
    stream.carry_out_with(effects.carry_out, woken.set)
    content = response.raw_content
    pieces = [*through(content)] if content else []
    while stream.is_waiting:
        await woken.wait()
        woken.clear()
        pieces.append(stream.take())
    response.data.content = b"".join([*pieces, *through(b"")])
