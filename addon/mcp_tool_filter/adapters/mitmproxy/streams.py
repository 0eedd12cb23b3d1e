"""Responses that are under way: bytes put into one, its end, its abortion, and who broke it.

The hooks call these functions with a flow. They work for all of HTTP/1 and HTTP/2, with and
without TLS, from inside any hook or stream callable, and are only for the event loop's thread.
An order reaches its stream when mitmproxy is through with what it is doing on that connection,
which mostly is at once.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable

from mitmproxy.http import HTTPFlow, Response
from mitmproxy.websocket import WebSocketMessage

from mcp_tool_filter.adapters.mitmproxy.background import in_background
from mcp_tool_filter.adapters.mitmproxy.connections import (
    handler_of,
    hang_up_on,
    reset_when_closed,
)
from mcp_tool_filter.adapters.mitmproxy.safe.failures import (
    Failure,
)
from mcp_tool_filter.adapters.mitmproxy.safe.orders import (
    GiveUp,
    Inject,
    Injected,
    Lose,
    Notice,
    Order,
)
from mcp_tool_filter.adapters.mitmproxy.safe.stream import (
    SafeStream,
    open_streams,
    stream_of,
)
from mcp_tool_filter.errors import ProtocolError


def inject(flow: HTTPFlow, chunk: bytes) -> bool:
    """Put bytes into the open response of this flow; False when there is none.

    ``flow.response.stream`` is called with them, as an ``Injected``, as if the upstream had sent
    them. (If the response ends before they are through, they are gone.)
    """
    stream = stream_of(flow)
    if stream is None or not stream.takes_bytes:
        return False
    injected = Injected(chunk)
    injected.flow_id = flow.id
    return _give(Inject(stream, injected))


def injector(flow: HTTPFlow) -> Callable[[bytes], bool]:
    """Return ``inject`` for one flow, which it does not keep: what is known of a flow goes with it.

    (A WeakKeyDictionary whose value leads back to its key never lets go of either.)
    """
    kept = weakref.ref(flow)

    def inject_into(chunk: bytes) -> bool:
        there = kept()
        return there is not None and inject(there, chunk)

    return inject_into


def end(flow: HTTPFlow, last: bytes = b"") -> bool:
    """End the open response of this flow well; False when there is none.

    ``flow.response.stream`` is called for the end, as ever; then ``last`` is sent as it is. In the
    ``responseheaders`` hook, too. A response whose length was announced cannot be ended: cut it.
    """
    stream = stream_of(flow)
    if stream is None or not stream.takes_bytes or stream.has_length:
        return False
    stream.last = last
    return _give(Notice(stream))


def cut(flow: HTTPFlow, why: str = "cut by the tool filter") -> None:
    """Break off the response of this flow so that the client notices. Nothing more is sent."""
    stream = stream_of(flow)
    if not flow.live:
        return
    if stream is None or stream.child_layer is not None:
        hang_up_on(flow.client_conn)
    elif not stream.over and stream.doomed is None:
        stream.doomed = why
        if _ends_by_closing(stream):
            reset_when_closed(flow.client_conn)
        _give(Notice(stream))


def lose(flow: HTTPFlow, why: str = "upstream lost") -> bool:
    """Let this flow fail as if the upstream had hung up: its client is answered accordingly."""
    stream = stream_of(flow)
    if stream is None or stream.over:
        return False
    return _give(Lose(stream, why))


def give_up(stream: SafeStream) -> None:
    """Let a stream fail because it holds too much."""
    if not stream.over:
        _give(GiveUp(stream, Failure.OVER_BUDGET))


def open_flows() -> list[HTTPFlow]:
    """All flows of which the client has not had the last byte."""
    return [stream.flow for stream in open_streams()]


def is_made_here(flow: HTTPFlow) -> bool:
    """Is the response one that another addon has made?"""
    stream = stream_of(flow)
    return stream is not None and stream.is_made_here


def settle_answer(flow: HTTPFlow) -> None:
    """Remember the response as it is: it is ours, or was judged."""
    if stream := stream_of(flow):
        stream.settle_answer()


def settle_message(flow: HTTPFlow, message: WebSocketMessage) -> None:
    if stream := stream_of(flow):
        stream.settled_message = message, message.content


def add_secretly(flow: HTTPFlow, name: str, value: str) -> None:
    """Send the request with a further header, which does not become part of the flow.

    Raises ProtocolError if we do not send it.
    """
    stream = stream_of(flow)
    if stream is None:
        raise ProtocolError("a request needs a login, but another script sends it")
    stream.added_header = name, value


def send_again(flow: HTTPFlow) -> None:
    """In the ``response`` hook: forget the response, and ask the upstream once more."""
    if stream := stream_of(flow):
        stream.is_to_repeat = True


def refuse_now(flow: HTTPFlow, response: Response) -> None:
    """In the ``requestheaders`` hook: answer at once; the body of the request is not kept."""
    stream = stream_of(flow)
    if stream is None:
        flow.response = response
    else:
        stream.refusal = response


def is_streaming(flow: HTTPFlow) -> bool:
    """Is the response of this flow under way?"""
    stream = stream_of(flow)
    return stream is not None and stream.is_streaming


def upstream_failed(flow: HTTPFlow) -> bool:
    """In the ``error`` hook: was it the upstream that could not be reached, or hung up?

    False when the client left, when we cut the stream, and for what is only malformed or too large.
    """
    stream = stream_of(flow)
    return stream is not None and stream.failure in (Failure.CONNECT_FAILED, Failure.LOST)


def asked_hosts(flow: HTTPFlow) -> tuple[str, ...]:
    """Every host the client named for this request, as it sent them; mitmproxy overwrites them.

    First that of the target (``:authority`` in HTTP/2, an absolute URL in HTTP/1), then those of
    all Host headers.
    """
    stream = stream_of(flow)
    return stream.asked_hosts if stream else ()


def client_host(flow: HTTPFlow) -> str | None:
    """The host the client asked for; None when it named none, or more than one."""
    stream = stream_of(flow)
    return stream.client_host if stream else None


def _give(order: Order) -> bool:
    handler = handler_of(order.stream.context.client)
    if handler is None:
        return False
    in_background(handler.server_event(order))
    return True


def _ends_by_closing(stream: SafeStream) -> bool:
    response = stream.flow.response
    return (
        stream.is_streaming
        and response is not None
        and stream.context.client.alpn != b"h2"
        and not stream.has_length
        and "chunked" not in response.headers.get("transfer-encoding", "").lower()
    )
