"""Answers of a recorded upstream: what it can answer, and what it cannot have sent.

>>> without_answers(b'{"jsonrpc":"2.0","id":1,"result":{}}', {"1"})
b''
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from mcp_tool_filter.adapters.recordings.flow_dump import RecordedFlow, Recording, Said
from mcp_tool_filter.conversation.memory import Fetched
from mcp_tool_filter.errors import ProtocolError, StartError
from mcp_tool_filter.http.bodies import may_be_event_stream
from mcp_tool_filter.protocol.limits import KNOWN_REVISIONS, R2024_11_05, Transport, has_initialize
from mcp_tool_filter.protocol.messages import (
    Batch,
    Message,
    Request,
    Response,
    parse_message,
    render_batch,
    render_error,
    singles,
)
from mcp_tool_filter.protocol.sse import Event, EventParser
from mcp_tool_filter.protocol.tools import parse_list_request, parse_listing

NOT_RECORDED = -32000
NOT_RECORDED_TEXT = "The recording does not know the answer"


class ToolsUnknown(StartError):
    def __init__(self, name: str) -> None:
        why = "It has no tools/list with an answer, so its tools are not known"
        super().__init__(f"Cannot replay the recording {name}", why=why)


def read(body: bytes) -> Message | None:
    """Return the message, or None if the body is not one."""
    try:
        return parse_message(body) if body else None
    except ProtocolError:
        return None


def messages_in(body: bytes, content_type: str) -> list[Message]:
    """Return the messages of an answer, which is JSON or an event stream."""
    if not may_be_event_stream(content_type):
        found = [read(body)]
    else:
        events = EventParser().feed(body)
        found = [read(one.data or b"") for one in events if isinstance(one, Event)]
    return [message for message in found if message is not None]


def ids_asked(body: bytes) -> set[str]:
    """Return the ids of the requests in a body."""
    message = read(body)
    return {one.id for one in singles(message) if isinstance(one, Request)} if message else set()


def answers_nobody_asked_for(event: Event, unasked: set[str]) -> bool:
    """Tell whether an event only answers requests that the upstream never got."""
    message = read(event.data or b"")
    return message is not None and all(
        isinstance(one, Response) and one.id in unasked for one in singles(message)
    )


def without_answers(body: bytes, unasked: set[str]) -> bytes:
    """Return an answer without responses to requests that the upstream never got."""
    message = read(body) if unasked else None
    if message is None:
        return body
    kept = [
        one.place.raw
        for one in singles(message)
        if not (isinstance(one, Response) and one.id in unasked)
    ]
    if isinstance(message, Batch):
        return render_batch(kept) if kept else b""
    return body if kept else b""


def guess_answer(asked: bytes, fetched: Fetched) -> bytes:
    """Return an answer for a request that is not in the recording; a list from the known tools."""
    message = read(asked)
    if message is None:
        return b""
    replies = [_guess(one, fetched) for one in singles(message) if isinstance(one, Request)]
    if isinstance(message, Batch):
        return render_batch(replies) if replies else b""
    return replies[0] if replies else b""


def _guess(request: Request, fetched: Fetched) -> bytes:
    if request.method == "tools/list":
        cursor = request.params.get("cursor") if request.params else None
        page = _page(fetched, cursor.text if cursor else None)
        if page is not None:
            return _with_id(page, request.id)
    return render_error(request.id, NOT_RECORDED, NOT_RECORDED_TEXT)


def _page(fetched: Fetched, cursor: str | None) -> bytes | None:
    following: str | None = None
    for page in fetched.pages:
        if following == cursor:
            return page
        following = str(json.loads(page)["result"].get("nextCursor"))
    return None


def _with_id(page: bytes, id: str) -> bytes:
    parsed = json.loads(page)
    text = json.dumps({"jsonrpc": "2.0", "id": 0, "result": parsed["result"]}, ensure_ascii=False)
    return text.replace('"id": 0', f'"id": {id}', 1).encode()


# Learn about the upstream from a recording that was made without us


def known_tools(recording: Recording) -> Fetched | None:
    """Find the tool list in the upstream's answers to its clients."""
    pages = list(dict.fromkeys(_pages(recording)))
    if not pages:
        return None
    revision = _revision(recording)
    return Fetched(
        transport=_transport(recording, revision),
        revision=revision,
        endpoint=_endpoint(recording),
        server_name=recording.name,
        server_version="",
        sessions=_has_sessions(recording),
        pages=tuple(pages),
    )


def _pages(recording: Recording) -> Iterator[bytes]:
    """Yield the answers to tools/list; in the older transport they are on another flow."""
    asked = {id for flow in recording.flows for id in _lists_asked(flow)}
    for said in (flow.said for flow in recording.flows if flow.said):
        for message in messages_in(said.body, said.content_type):
            for one in singles(message):
                if isinstance(one, Response) and one.id in asked and _is_listing(one):
                    yield one.place.raw


def _lists_asked(flow: RecordedFlow) -> list[str]:
    message = read(flow.body)
    return [
        one.id
        for one in (singles(message) if message else ())
        if isinstance(one, Request) and one.method == "tools/list"
    ]


def _is_listing(response: Response) -> bool:
    try:
        return parse_listing(response) is not None
    except ProtocolError:
        return False


def _revision(recording: Recording) -> str:
    for flow in recording.flows:
        for one in singles(message) if (message := read(flow.body)) else ():
            if isinstance(one, Request) and one.method == "tools/list":
                said = parse_list_request(one).revision
                if said and said in KNOWN_REVISIONS:
                    return said
        if flow.said:
            for message in messages_in(flow.said.body, flow.said.content_type):
                for single in singles(message):
                    if isinstance(single, Response) and single.result:
                        version = single.result.get("protocolVersion")
                        if version and version.text and version.text in KNOWN_REVISIONS:
                            return version.text
    return R2024_11_05


def _transport(recording: Recording, revision: str) -> Transport:
    if any(endpoint_in(flow.said) for flow in recording.flows):
        return Transport.LEGACY_SSE
    return Transport.STREAMABLE if has_initialize(revision) else Transport.STATELESS


def _endpoint(recording: Recording) -> str:
    for flow in recording.flows:
        if endpoint_in(flow.said) or read(flow.body):
            return flow.head.target
    return "/mcp"


def _has_sessions(recording: Recording) -> bool:
    return any(
        name.lower() == b"mcp-session-id"
        for flow in recording.flows
        if flow.said
        for name, _ in flow.said.headers
    )


def endpoint_in(said: Said | None) -> str | None:
    """Return the endpoint that the older transport named to its clients."""
    if said is None or not said.is_event_stream:
        return None
    for event in EventParser().feed(said.body):
        if isinstance(event, Event) and event.name.strip() == b"endpoint":
            return (event.data or b"").decode("utf-8", "replace").strip()
    return None
