"""mitmproxy's flows in our terms: a head, a body, an answer."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from operator import itemgetter

from mitmproxy.connection import Client
from mitmproxy.http import HTTPFlow, Request, Response

from mcp_tool_filter.adapters.effects.carry_out import Effects
from mcp_tool_filter.adapters.mitmproxy.safe.orders import (
    Injected,
)
from mcp_tool_filter.conversation.judged import LOST_ANSWER
from mcp_tool_filter.errors import ProtocolError
from mcp_tool_filter.http.cors import CorsMemory, Page, page_of
from mcp_tool_filter.http.event_stream import EventStream
from mcp_tool_filter.http.exchange import JSON, Answered
from mcp_tool_filter.http.guard import UpstreamNames
from mcp_tool_filter.http.head import LONGEST_VALUE, MOST_HEADERS, Head
from mcp_tool_filter.http.links import WITH_URLS, keep_links, leads_away
from mcp_tool_filter.http.login_paths import LoginPaths, is_login_document
from mcp_tool_filter.http.operator_headers import HeaderPairs
from mcp_tool_filter.protocol.messages import (
    UPSTREAM_LOST,
    ids_in,
    render_batch,
    render_error,
)

_CONTROL = re.compile(rb"[\r\n\0]")
_HOP_BY_HOP = ("upgrade", "http2-settings", "sec-websocket-key", "sec-websocket-version")
_PARTIAL = frozenset({b"range", b"if-range"})
_NAME = itemgetter(0)  # of a field
OF_UPGRADES = frozenset({b"connection", *(name.encode() for name in _HOP_BY_HOP)})
WAKE = b":wake"
"""Put into a stream, it asks for what was held back and is decided by now; it never leaves."""
_SCHEMA = b"inputschema"  # every tool has one


def head_of(request: Request, client: Client | None = None) -> Head:
    """Return the head of a request; with its ``client``, it says where that one connects from."""
    address = str(client.peername[0]) if client is not None and client.peername else ""
    return Head(request.method.upper(), request.path, request.headers.fields, address)


def is_head(request: Request) -> bool:
    """Tell whether an answer to it has no body, as mitmproxy looks at it."""
    return request.method.upper() == "HEAD"


def json_response(status: int, body: bytes) -> Response:
    if not body:
        return Response.make(status)
    return Response.make(status, body, {"content-type": "application/json"})


def lost_to(request: Request) -> bytes:
    """Answer a request whose upstream is gone, or was never found."""
    ids = ids_in(request.raw_content or b"")
    replies = [render_error(id, UPSTREAM_LOST, LOST_ANSWER) for id in (*ids,) or (None,)]
    return replies[0] if len(replies) == 1 else render_batch(replies)


def our_response(request: Request, answered: Answered, cors: CorsMemory | None) -> Response:
    """Make an answer that is sent in the upstream's place, for a page to read as the upstream's."""
    response = json_response(answered.status, b"" if is_head(request) else answered.body)
    if cors is not None:
        add_cors(cors, request, response)
    return response


def prepare_for_upstream(request: Request, head: Head, headers: HeaderPairs) -> None:
    """Ask for an answer that we can read, and add the headers of the user who started us."""
    request.headers["accept-encoding"] = "identity"
    if not _PARTIAL.isdisjoint(head.names.places):
        for name in ("range", "if-range"):
            request.headers.pop(name, None)
    request.trailers = None  # some servers read them as headers
    if request.data.authority and not request.is_http2:
        request.authority = ""  # an absolute target would ask it to be a proxy
    for name, value in headers:
        request.headers[name] = value
    said_length = bool(request.raw_content) or "content-length" in request.headers
    if said_length and "transfer-encoding" not in request.headers:
        # From HTTP/2 it may come without a length, or with a wrong one.
        request.headers["content-length"] = str(len(request.raw_content or b""))


def page_behind(request: Request) -> Page | None:
    """Return the web page that a browser sends this for, if it is one of another origin."""
    headers = request.headers
    if (origin := headers.get("origin")) is None:
        return None
    return page_of(origin, request.path, has_cookie="cookie" in headers)


def learn_cors(memory: CorsMemory, request: Request, response: Response) -> None:
    """Note what the upstream lets the page read that asked."""
    if page := page_behind(request):
        asks_first = "access-control-request-method" in request.headers
        is_preflight = request.method.upper() == "OPTIONS" and asks_first
        fields = response.headers.fields
        memory.learn(page, response.status_code, fields, is_preflight=is_preflight)


def add_cors(memory: CorsMemory, request: Request, response: Response) -> None:
    """Let the page that asked read our own answer as it may read the upstream's."""
    if page := page_behind(request):
        response.headers.fields = (*response.headers.fields, *memory.headers_for(page))


def learn_login(paths: LoginPaths, request: Request, response: Response) -> None:
    """Note where the upstream says that logins go on. Call this once its URLs lead to us."""
    headers = response.headers
    paths.learn_head(request.path, headers.get_all("location"), headers.get_all("www-authenticate"))


def learn_login_document(paths: LoginPaths, request: Request, response: Response) -> None:
    """Note the paths in a metadata document that has been judged."""
    if response.status_code == 200 and is_login_document(request.path):
        paths.learn_document(response.raw_content or b"")


def replace_body(
    request: Request, body: bytes, headers: Sequence[tuple[str, str | None]] = ()
) -> None:
    """Send another body, and what its headers say of it; None takes a header away."""
    for name, value in headers:
        if value is None:
            request.headers.pop(name, None)
        else:
            request.headers[name] = value
    request.headers.pop("content-encoding", None)
    request.headers.pop("transfer-encoding", None)
    request.content = body


def refuse_upgrade(request: Request) -> None:
    """Take an upgrade away; a server may always go on without, and a tunnel cannot be judged."""
    for name in _HOP_BY_HOP:
        request.headers.pop(name, None)
    tokens = [token.strip() for token in request.headers.get("connection", "").split(",")]
    kept = [token for token in tokens if token.lower() not in ("upgrade", "http2-settings", "")]
    if kept:
        request.headers["connection"] = ", ".join(kept)
    else:
        request.headers.pop("connection", None)


def replace_answer(response: Response, status: int, body: bytes, content_type: str = JSON) -> None:
    """Give an answer another body; its further headers (a session's id) stay."""
    for name in ("content-encoding", "transfer-encoding", "etag", "content-range", "upgrade"):
        response.headers.pop(name, None)
    if "upgrade" in response.headers.get("connection", "").lower():
        del response.headers["connection"]
    response.status_code = status
    response.reason = ""
    response.headers["content-type"] = content_type
    response.content = body  # which also says its length


def put_answer(response: Response, answered: Answered | None) -> None:
    """Put another answer in the place of one, if there is another; say how long the body is.

    Another script may have changed the head or the body.
    """
    if answered:
        replace_answer(response, answered.status, answered.body, answered.content_type)
        return
    said, actual = response.headers.get("content-length"), str(len(response.raw_content or b""))
    has_body = response.status_code not in (204, 304)
    if said is not None and said != actual and has_body:
        response.headers["content-length"] = actual


def check_answer_head(response: Response) -> None:
    """Raise ProtocolError where clients could find another answer; take definitions out."""
    coding = response.headers.get("transfer-encoding", "").lower()
    if coding not in ("", "chunked", "identity"):
        raise ProtocolError("a transfer coding that nobody asked for")
    fields = response.headers.fields
    values = [value for _, value in fields]
    if max(map(len, values), default=0) > LONGEST_VALUE or len(values) > MOST_HEADERS:
        raise ProtocolError("a header that is too long, or too many of them")
    all_values = b"".join(values)
    if _CONTROL.search(all_values):
        raise ProtocolError("a control character in a header")
    if _SCHEMA in all_values.lower():
        response.headers.fields = tuple(
            (name, value) for name, value in fields if _SCHEMA not in value.lower()
        )
    if _SCHEMA in response.data.reason.lower():
        response.reason = ""


def keep_with_us(response: Response, upstream: UpstreamNames) -> bool:
    """Let no URL in the head lead past us; tell whether the answer then leads nowhere else."""
    if WITH_URLS.isdisjoint(map(bytes.lower, map(_NAME, response.headers.fields))):
        return True
    response.headers.fields = tuple(keep_links(response.headers.fields, upstream))
    is_redirect: bool = 300 <= response.status_code < 400
    return not is_redirect or not leads_away(response.headers.fields)


def frame_as_stream(flow: HTTPFlow, response: Response) -> None:
    """Prepare the head of a response whose length nobody knows any more."""
    response.headers.pop("content-length", None)
    if flow.request.http_version == "HTTP/1.0":  # it cannot read chunks
        response.headers.pop("transfer-encoding", None)
        response.headers["connection"] = "close"
    elif not response.is_http2:
        response.headers["transfer-encoding"] = "chunked"


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


def stream_through(
    flow: HTTPFlow, stream: EventStream, shut: Callable[[], None]
) -> Callable[[bytes], list[bytes]]:
    """Make what ``flow.response.stream`` expects. (An EventStream does not raise: it closes.)"""

    def on_chunk(chunk: bytes) -> list[bytes]:
        if isinstance(chunk, Injected):
            if chunk.flow_id != flow.id or stream.failure:
                return []
            filtered = stream.take() if chunk == WAKE else bytes(chunk)
        else:
            # b"" from mitmproxy is the end; b"" to mitmproxy would end an HTTP/1.1 response.
            filtered = stream.feed(chunk, flow) if chunk else stream.finish(flow)
        if stream.failure:
            shut()
            return []
        return [filtered] if filtered else []

    return on_chunk


def client_address(flow: object) -> str:
    """Return where the client of a flow connected from, such as 127.0.0.1:50000."""
    if not isinstance(flow, HTTPFlow) or flow.client_conn.peername is None:
        return ""
    host, port = flow.client_conn.peername[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def names_of(flow: object) -> tuple[str, str]:
    """Return the client's address, and what mitmproxy calls a flow in its pages and recordings."""
    return (client_address(flow), flow.id) if isinstance(flow, HTTPFlow) else ("", "")
