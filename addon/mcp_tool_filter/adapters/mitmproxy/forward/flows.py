"""Translate between mitmproxy's flows and our values: head, body, answer."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from operator import itemgetter

from mitmproxy.connection import Client
from mitmproxy.http import HTTPFlow, Request, Response

from mcp_tool_filter.conversation.judged import LOST_ANSWER
from mcp_tool_filter.errors import ProtocolError
from mcp_tool_filter.http.cors import CorsMemory, Page, page_of
from mcp_tool_filter.http.exchange import JSON, Answered
from mcp_tool_filter.http.guard import UpstreamNames
from mcp_tool_filter.http.head import (
    LONGEST_VALUE,
    MOST_HEADERS,
    Head,
    describes_body,
    without_our_cookie,
)
from mcp_tool_filter.http.identity import HeaderPairs
from mcp_tool_filter.http.links import WITH_URLS, keep_links, leads_away
from mcp_tool_filter.http.login_paths import LoginPaths, is_login_document
from mcp_tool_filter.protocol.messages import UPSTREAM_LOST, ids_in, render_batch, render_error

_CONTROL = re.compile(rb"[\r\n\0]")
_HOP_BY_HOP = ("upgrade", "http2-settings", "sec-websocket-key", "sec-websocket-version")
_PARTIAL = frozenset({b"range", b"if-range"})
_NAME = itemgetter(0)  # of a field
OF_UPGRADES = frozenset({b"connection", *(name.encode() for name in _HOP_BY_HOP)})
_SCHEMA = b"inputschema"  # every tool has one


def head_of(request: Request, client: Client | None = None) -> Head:
    """Return the head of a request, with the client's address if ``client`` is given."""
    address = str(client.peername[0]) if client is not None and client.peername else ""
    fields = without_our_cookie(request.headers.fields)
    return Head(request.method, request.path, fields, address)


def json_response(status: int, body: bytes) -> Response:
    if not body:
        return Response.make(status)
    return Response.make(status, body, {"content-type": "application/json"})


def lost_to(request: Request) -> bytes:
    """Return the error for a request whose upstream is lost or was never reached."""
    ids = ids_in(request.raw_content or b"")
    replies = [render_error(id, UPSTREAM_LOST, LOST_ANSWER) for id in (*ids,) or (None,)]
    return replies[0] if len(replies) == 1 else render_batch(replies)


def our_response(request: Request, answered: Answered, cors: CorsMemory | None) -> Response:
    """Return our own answer, with the CORS headers that the upstream would send."""
    response = json_response(answered.status, b"" if request.method == "HEAD" else answered.body)
    if cors is not None:
        add_cors(cors, request, response)
    return response


def prepare_for_upstream(request: Request, head: Head, headers: HeaderPairs) -> None:
    """Ask for an answer that we can read, and add the operator's headers."""
    if b"cookie" in head.names.places or "cookie" in request.headers:
        request.headers.fields = without_our_cookie(request.headers.fields)
    request.headers["accept-encoding"] = "identity"
    if not _PARTIAL.isdisjoint(head.names.places):
        for name in ("range", "if-range"):
            request.headers.pop(name, None)
    request.trailers = None  # some servers read them as headers
    if request.data.authority and not request.is_http2:
        request.authority = ""  # with an absolute target the upstream would act as a proxy
    for name, value in headers:
        request.headers[name] = value
    said_length = bool(request.raw_content) or "content-length" in request.headers
    if said_length and "transfer-encoding" not in request.headers:
        # An HTTP/2 request may have no length, or a wrong one.
        request.headers["content-length"] = str(len(request.raw_content or b""))


def page_behind(request: Request) -> Page | None:
    """Return the web page of another origin that sends this request, or None."""
    headers = request.headers
    if (origin := headers.get("origin")) is None:
        return None
    return page_of(origin, request.path, has_cookie="cookie" in headers)


def learn_cors(memory: CorsMemory, request: Request, response: Response) -> None:
    """Learn the CORS headers that the upstream sends to the requesting page."""
    if page := page_behind(request):
        asks_first = "access-control-request-method" in request.headers
        is_preflight = request.method == "OPTIONS" and asks_first
        fields = response.headers.fields
        memory.learn(page, response.status_code, fields, is_preflight=is_preflight)


def add_cors(memory: CorsMemory, request: Request, response: Response) -> None:
    """Let the requesting page read our own answer if it may read the upstream's."""
    if page := page_behind(request):
        response.headers.fields = (*response.headers.fields, *memory.headers_for(page))


def learn_login(paths: LoginPaths, request: Request, response: Response) -> None:
    """Learn login paths from an answer's head. Call this after its URLs were made to lead to us."""
    headers = response.headers
    paths.learn_head(request.path, headers.get_all("location"), headers.get_all("www-authenticate"))


def learn_login_document(paths: LoginPaths, request: Request, response: Response) -> None:
    """Learn the paths in a metadata document that has been judged."""
    if response.status_code == 200 and is_login_document(request.path):
        paths.learn_document(response.raw_content or b"")


def replace_body(
    request: Request, body: bytes, headers: Sequence[tuple[str, str | None]] = ()
) -> None:
    """Replace the body and the headers that describe it; None removes a header."""
    for name, value in headers:
        if value is None:
            request.headers.pop(name, None)
        else:
            request.headers[name] = value
    request.headers.pop("content-encoding", None)
    request.headers.pop("transfer-encoding", None)
    request.content = body


def remove_upgrade(request: Request) -> None:
    """Remove an upgrade: we cannot judge a tunnel, and a server may always continue without one."""
    for name in _HOP_BY_HOP:
        request.headers.pop(name, None)
    tokens = [token.strip() for token in request.headers.get("connection", "").split(",")]
    kept = [token for token in tokens if token.lower() not in ("upgrade", "http2-settings", "")]
    if kept:
        request.headers["connection"] = ", ".join(kept)
    else:
        request.headers.pop("connection", None)


def replace_answer(response: Response, status: int, body: bytes, content_type: str = JSON) -> None:
    """Replace an answer's body; its other headers (such as a session's id) stay."""
    remove_description(response)
    for name in ("transfer-encoding", "upgrade"):
        response.headers.pop(name, None)
    if "upgrade" in response.headers.get("connection", "").lower():
        del response.headers["connection"]
    response.status_code = status
    response.reason = ""
    response.headers["content-type"] = content_type
    response.content = body  # this also sets the length


def remove_description(response: Response) -> None:
    """Remove the headers that describe the upstream's body."""
    fields = response.headers.fields
    if any(describes_body(name) for name, _ in fields):
        response.headers.fields = tuple(one for one in fields if not describes_body(one[0]))


def put_answer(response: Response, answered: Answered | None) -> None:
    """Replace an answer if there is another one; else correct its length.

    Another script may have changed the head or the body.
    """
    if answered:
        replace_answer(response, answered.status, answered.body, answered.content_type)
        return
    said, actual = response.headers.get("content-length"), str(len(response.raw_content or b""))
    has_body = response.status_code not in (204, 304)
    if said is not None and said != actual and has_body:
        response.headers["content-length"] = actual


def secure_answer_head(response: Response, upstream: UpstreamNames | None) -> bool:
    """Remove tool definitions from a head and make its URLs lead to us; return False for a redirect
    elsewhere.

    Without ``upstream``, URLs stay unchanged. Raises ProtocolError if clients could read the answer
    in another way.
    """
    coding = response.headers.get("transfer-encoding", "").lower()
    if coding not in ("", "chunked", "identity"):
        raise ProtocolError("a transfer coding that was not requested")
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
    if upstream is None or WITH_URLS.isdisjoint(map(bytes.lower, map(_NAME, fields))):
        return True
    response.headers.fields = tuple(keep_links(response.headers.fields, upstream))
    is_redirect: bool = 300 <= response.status_code < 400
    return not is_redirect or not leads_away(response.headers.fields)


def client_address(flow: object) -> str:
    """Return the address of a flow's client, such as 127.0.0.1:50000."""
    return _address(flow.client_conn.peername) if isinstance(flow, HTTPFlow) else ""


@lru_cache(1000)  # a client asks more than once
def _address(peername: tuple[str, int] | None) -> str:
    if peername is None:
        return ""
    host, port = peername[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def names_of(flow: object) -> tuple[str, str]:
    """Return the client's address, and mitmproxy's id of the flow."""
    return (client_address(flow), flow.id) if isinstance(flow, HTTPFlow) else ("", "")
