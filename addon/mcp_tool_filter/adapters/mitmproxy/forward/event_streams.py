"""Filter event streams: connect mitmproxy's responses to an ``EventStream``."""

from __future__ import annotations

import asyncio
import logging

from mitmproxy.http import HTTPFlow, Response

from mcp_tool_filter.adapters.effects.carry_out import Effects
from mcp_tool_filter.adapters.mitmproxy.forward.safe.interceptor import Chunks
from mcp_tool_filter.adapters.mitmproxy.forward.safe.orders import Injected
from mcp_tool_filter.adapters.mitmproxy.forward.safe.stream import stream_of
from mcp_tool_filter.adapters.mitmproxy.forward.streams import cut, injector
from mcp_tool_filter.http.event_stream import EventStream
from mcp_tool_filter.observers.redaction.shown import shown_url

log = logging.getLogger(__name__)

_WAKE = b":wake"
"""Injected into a stream, it releases events that are decided by now; it is never sent."""

"""What ``flow.response.stream`` expects."""


def frame_as_stream(flow: HTTPFlow, response: Response) -> None:
    """Prepare the head of a response whose length is unknown now."""
    response.headers.pop("content-length", None)
    if flow.request.http_version == "HTTP/1.0":  # its clients cannot read chunks
        response.headers.pop("transfer-encoding", None)
        response.headers["connection"] = "close"
    elif not response.is_http2:
        response.headers["transfer-encoding"] = "chunked"


def through_stream(flow: HTTPFlow, stream: EventStream, effects: Effects) -> Chunks:
    """Return the stream callable that filters a response. (An EventStream closes, never raises.)

    The response does not end before all held-back events are released.
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


async def filter_whole_stream(response: Response, stream: EventStream, effects: Effects) -> None:
    """Filter a stream that is already complete, for which mitmproxy calls no stream callable."""
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
