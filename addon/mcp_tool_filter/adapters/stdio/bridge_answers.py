"""Turn a command's messages into HTTP: JSON if only answers come, and soon; else an event
stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Final

from mcp_tool_filter.adapters.http_server import ServedRequest, ServedResponse
from mcp_tool_filter.adapters.stdio.child_session import ChildSession
from mcp_tool_filter.adapters.stdio.outbox import Outbox
from mcp_tool_filter.errors import ProtocolError
from mcp_tool_filter.protocol.limits import Limits
from mcp_tool_filter.protocol.messages import (
    INTERNAL_ERROR,
    Notification,
    Request,
    parse_message,
    render_batch,
    render_error,
    singles,
)
from mcp_tool_filter.protocol.sse import render_event

_JSON_SOON: Final = 1.0  # seconds; a later answer is an event stream, which shows that we live
_HEARTBEAT: Final = 25.0  # seconds between two comments on a quiet stream
JSON = ((b"content-type", b"application/json"),)
EVENTS = ((b"content-type", b"text/event-stream"), (b"cache-control", b"no-store"))


async def answer_from(
    outbox: Outbox,
    request: ServedRequest,
    count: int,
    headers: Sequence[tuple[bytes, bytes]],
    leave: Callable[[], object],
    *,
    as_batch: bool = False,
) -> ServedResponse:
    """Answer with JSON if only the answers come, and soon; else with events."""
    accept = request.header(b"accept") or "*/*"
    takes_events = "text/event-stream" in accept
    answers: list[bytes] = []
    try:
        async with asyncio.timeout(_JSON_SOON if takes_events else None):
            while (said := await outbox.get()) is not None:
                answers.append(said)
    except TimeoutError:
        return ServedResponse(200, [*EVENTS, *headers], _sent_on(answers, outbox, leave))
    responses = [one for one in answers if b'"method"' not in one or _is_response(one)]
    if takes_events and len(responses) != len(answers):
        return ServedResponse(200, [*EVENTS, *headers], _sent_on(answers, outbox, leave))
    if not responses and takes_events:  # the request was cancelled
        return ServedResponse(200, [*EVENTS, *headers])
    if not responses:
        error = render_error(None, INTERNAL_ERROR, "The server sent no answer")
        return ServedResponse(200, [*JSON, *headers], error)
    body = render_batch(responses) if as_batch or count > 1 else responses[-1]
    return ServedResponse(200, [*JSON, *headers], body)


def _is_response(raw: bytes) -> bool:
    try:
        message = parse_message(raw, Limits(message=len(raw)))
    except ProtocolError:
        return False
    return not any(isinstance(one, Request | Notification) for one in singles(message))


async def _sent_on(
    first: Sequence[bytes], outbox: Outbox, leave: Callable[[], object]
) -> AsyncIterator[bytes]:
    try:
        for message in first:
            yield render_event(message)
        async for event in events_from(outbox):
            yield event
    finally:
        outbox.end()
        leave()


async def stream_from(
    stream: Outbox, kept: Sequence[bytes], session: ChildSession
) -> AsyncIterator[bytes]:
    try:
        yield b": open\n\n"
        for message in kept:
            yield render_event(message)
        async for event in events_from(stream):
            yield event
    finally:
        session.stop_listening(stream)


async def events_from(outbox: Outbox) -> AsyncIterator[bytes]:
    """Yield the messages as events, and a comment from time to time."""
    getting = asyncio.ensure_future(outbox.get())
    try:
        while True:
            done, _ = await asyncio.wait([getting], timeout=_HEARTBEAT)
            if not done:
                yield b": alive\n\n"
                continue
            said = getting.result()
            if said is None:
                return
            yield render_event(said)
            getting = asyncio.ensure_future(outbox.get())
    finally:
        getting.cancel()


def error_response(status: int, id: str | None, code: int, text: str) -> ServedResponse:
    return ServedResponse(status, JSON, render_error(id, code, text))
