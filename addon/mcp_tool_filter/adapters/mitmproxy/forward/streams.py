"""Act on responses under way: inject bytes, end or cut them, and find out who broke them.

The hooks call these functions with a flow. They work for HTTP/1 and HTTP/2, with and without TLS,
inside any hook or stream callable, but only in the event loop's thread. An order reaches its stream
when mitmproxy has finished the current event of that connection, usually at once.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable

from mitmproxy.http import HTTPFlow, Response
from mitmproxy.websocket import WebSocketMessage

from mcp_tool_filter.adapters.mitmproxy.forward.connections import (
    handler_of,
    hang_up_on,
    reset_when_closed,
)
from mcp_tool_filter.adapters.mitmproxy.forward.safe.failures import (
    Failure,
)
from mcp_tool_filter.adapters.mitmproxy.forward.safe.orders import (
    GiveUp,
    Inject,
    Injected,
    Lose,
    Notice,
    Order,
)
from mcp_tool_filter.adapters.mitmproxy.forward.safe.stream import (
    SafeStream,
    open_streams,
    stream_of,
)
from mcp_tool_filter.adapters.serving.background import in_background
from mcp_tool_filter.errors import ProtocolError


def inject(flow: HTTPFlow, chunk: bytes) -> bool:
    """Inject bytes into the open response of this flow; False if there is none.

    ``flow.response.stream`` gets them as an ``Injected``, as if the upstream had sent them. (If the
    response ends first, they are lost.)
    """
    stream = stream_of(flow)
    if stream is None or not stream.takes_bytes:
        return False
    injected = Injected(chunk)
    injected.flow_id = flow.id
    return _give(Inject(stream, injected))


def injector(flow: HTTPFlow) -> Callable[[bytes], bool]:
    """Return ``inject`` for one flow, without keeping the flow alive.

    (A WeakKeyDictionary never drops an entry whose value refers to its key.)
    """
    kept = weakref.ref(flow)

    def inject_into(chunk: bytes) -> bool:
        there = kept()
        return there is not None and inject(there, chunk)

    return inject_into


def end(flow: HTTPFlow, last: bytes = b"") -> bool:
    """End the open response of this flow cleanly; False if there is none.

    ``flow.response.stream`` is called for the end as usual; then ``last`` is sent unchanged. This
    also works in the ``responseheaders`` hook. A response with an announced length cannot be ended:
    cut it.
    """
    stream = stream_of(flow)
    if stream is None or not stream.takes_bytes or stream.has_length:
        return False
    stream.last = last
    return _give(Notice(stream))


def cut(flow: HTTPFlow, why: str = "cut by the tool filter") -> None:
    """Cut the response of this flow so that the client notices. Nothing more is sent."""
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
    """Fail this flow as if the upstream had disconnected; its client gets the matching error."""
    stream = stream_of(flow)
    if stream is None or stream.over:
        return False
    return _give(Lose(stream, why))


def give_up(stream: SafeStream) -> None:
    """Fail a stream because it holds too much memory."""
    if not stream.over:
        _give(GiveUp(stream, Failure.OVER_BUDGET))


def open_flows() -> list[HTTPFlow]:
    """Return all flows whose client has not received the last byte."""
    return [stream.flow for stream in open_streams()]


def is_made_here(flow: HTTPFlow) -> bool:
    """Tell whether another addon has made the response."""
    stream = stream_of(flow)
    return stream is not None and stream.is_made_here


def settle_answer(flow: HTTPFlow) -> None:
    """Note that the response is final as it is now: it is ours, or was judged."""
    if stream := stream_of(flow):
        stream.settle_answer()


def settle_message(flow: HTTPFlow, message: WebSocketMessage) -> None:
    if stream := stream_of(flow):
        stream.settled_message = message, message.content


def add_secretly(flow: HTTPFlow, name: str, value: str) -> None:
    """Send the request with an extra header that does not become part of the flow.

    Raises ProtocolError if the request is not sent by us.
    """
    stream = stream_of(flow)
    if stream is None:
        raise ProtocolError("a request needs a login, but another script sends it")
    stream.added_header = name, value


def send_again(flow: HTTPFlow) -> None:
    """In the ``response`` hook: drop the response, and send the request once more."""
    if stream := stream_of(flow):
        stream.is_to_repeat = True


def refuse_now(flow: HTTPFlow, response: Response) -> None:
    """In the ``requestheaders`` hook: answer at once, without keeping the request's body."""
    stream = stream_of(flow)
    if stream is None:
        flow.response = response
    else:
        stream.refusal = response


def is_streaming(flow: HTTPFlow) -> bool:
    """Tell whether the response of this flow is under way."""
    stream = stream_of(flow)
    return stream is not None and stream.is_streaming


def upstream_failed(flow: HTTPFlow) -> bool:
    """In the ``error`` hook: tell whether the upstream could not be reached, or disconnected.

    False if the client left, if we cut the stream, and if a message was malformed or too large.
    """
    stream = stream_of(flow)
    return stream is not None and stream.failure in (Failure.CONNECT_FAILED, Failure.LOST)


def asked_hosts(flow: HTTPFlow) -> tuple[str, ...]:
    """Return every host that the client named in this request, before mitmproxy overwrote them.

    First the host of the target (``:authority`` in HTTP/2, an absolute URL in HTTP/1), then those
    of all Host headers.
    """
    stream = stream_of(flow)
    return stream.asked_hosts if stream else ()


def client_host(flow: HTTPFlow) -> str | None:
    """Return the host that the client named; None if it named none, or more than one."""
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
