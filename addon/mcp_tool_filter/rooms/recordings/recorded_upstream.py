"""An upstream that answers real clients from a recording.

    async with recorded_upstream(read_recording(path)) as upstream:
        ...  # a client may connect to upstream.url

A request gets the answer of the most similar request in the recording, with the current client's
ids. An event on a stream is sent after the client has sent all that came before it in the
recording, so answers do not overtake requests, and the open stream of the older transport works too
(mitmproxy's own server replay sends a stream all at once, and never keeps one open). A request that
is not in the recording is answered from the tool list, or with an error.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections import deque
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from queue import Queue
from typing import Protocol

from mcp_tool_filter.cli.http_server import ServerLimits, http_server
from mcp_tool_filter.core.conversation.memory import Fetched
from mcp_tool_filter.core.errors import ProtocolError, StartError
from mcp_tool_filter.core.http.bodies import may_be_event_stream
from mcp_tool_filter.core.messages.limits import (
    KNOWN_REVISIONS,
    OLDEST,
    REVISION_KEY,
    Transport,
    has_initialize,
)
from mcp_tool_filter.core.messages.messages import (
    Batch,
    Message,
    Request,
    Response,
    Single,
    parse_message,
    render_batch,
    render_error,
    singles,
)
from mcp_tool_filter.core.messages.sse import (
    Event,
    EventParser,
    parse_event,
    render_event,
    with_data,
)
from mcp_tool_filter.core.messages.tool_requests import parse_list_request
from mcp_tool_filter.core.messages.tools import parse_listing
from mcp_tool_filter.core.sockets.served import ServedRequest, ServedResponse
from mcp_tool_filter.core.upstream.clients import JSON_BODY
from mcp_tool_filter.rooms.recordings.flow_dump import RecordedFlow, Recording, Said

_LIMITS = ServerLimits(grace=0.0)  # its streams never end
_SESSION = b"mcp-session-id"
_NOT_SAID = (b"content-length", b"transfer-encoding", b"connection", b"date", b"content-encoding")
_MARK = "recorded"  # the parameter that distinguishes conversations of the older transport

type PlainJson = dict[str, PlainJson] | list[PlainJson] | str | int | float | bool | None
type FieldList = list[tuple[bytes, bytes]]


@dataclass(frozen=True)
class RecordedUpstream:
    """A running recorded upstream."""

    port: int
    path: str

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        return self.origin + self.path


class McpRecordedUpstream(Protocol):
    """The fixture ``mcp_recorded_upstream`` of the pytest plugin."""

    def __call__(self, path: str | Path) -> str:
        """Serve a recording until the test ends, and return its URL."""


@asynccontextmanager
async def recorded_upstream(recording: Recording) -> AsyncIterator[RecordedUpstream]:
    """Run one on loopback. Raises ToolsUnknown if the recording contains no tools."""
    fetched = recording.fetched or known_tools(recording)
    if fetched is None:
        raise ToolsUnknown(recording.name)
    stage = _Stage(recording, fetched)
    async with http_server(stage.answer, limits=_LIMITS) as server:
        yield RecordedUpstream(server.port, fetched.endpoint)


@contextmanager
def running_upstream(recording: Recording) -> Iterator[RecordedUpstream]:
    """Run one in a thread, for code without an event loop."""
    found: Queue[RecordedUpstream | BaseException] = Queue()
    over = threading.Event()

    async def main() -> None:
        try:
            async with recorded_upstream(recording) as upstream:
                found.put(upstream)
                await asyncio.to_thread(over.wait)
        except BaseException as error:
            found.put(error)

    thread = threading.Thread(target=asyncio.run, args=[main()])
    thread.start()
    try:
        upstream = found.get()
        if isinstance(upstream, BaseException):
            raise upstream
        yield upstream
    finally:
        over.set()
        thread.join()


@dataclass(frozen=True)
class _Line:
    """An event of a recorded stream, and how many of the client's messages came before it."""

    event: Event
    after: int


class _Conversation:
    """One client's way through the recording."""

    def __init__(self, flows: Sequence[RecordedFlow], number: int) -> None:
        self.number = number
        self.ids: dict[str, PlainJson] = {}
        """Maps recorded ids (as JSON) to current ones, and progress tokens too."""
        self._flows = flows
        self._taken: set[int] = set()
        self._besides: deque[bytes] = deque()
        self._news = asyncio.Condition()

    async def take(self, method: str, body: bytes) -> RecordedFlow | None:
        """Return the recorded flow that is most similar to this request."""
        shape = (method, *_shapes(body))
        shapes = ((flow.head.method, *_shapes(flow.body)) for flow in self._flows)
        alike = [n for n, other in enumerate(shapes) if other == shape]
        if not alike and method == "POST":
            kind = _kinds(body)
            alike = [n for n, flow in enumerate(self._flows) if kind and _kinds(flow.body) == kind]
        if not alike:
            return None
        fresh = [n for n in alike if n not in self._taken]
        number = (fresh or alike)[0]
        async with self._news:
            self._taken.add(number)
            self.ids.update(_pairs(self._flows[number].body, body))
            self._news.notify_all()
        return self._flows[number]

    async def lines(self, said: Said) -> AsyncIterator[bytes]:
        """Yield the events of a stream, each when it is due; keep it open if the recording did."""
        lines = deque(_lines(said, self._flows))
        while lines or said.ended is None:
            async with self._news:
                await self._news.wait_for(
                    lambda: self._besides or (lines and self._is_due(lines[0]))
                )
            if self._besides:
                yield self._besides.popleft()
            else:
                yield self.in_present_words(lines.popleft().event)

    async def say_besides(self, reply: bytes) -> None:
        """Send a reply on the open stream that is not in the recording."""
        async with self._news:
            self._besides.append(render_event(reply))
            self._news.notify_all()

    def in_present_words(self, event: Event) -> bytes:
        """Return an event with the current ids, otherwise unchanged."""
        if event.name.strip() == b"endpoint":
            text = (event.data or b"").decode().strip()
            joint = "&" if "?" in text else "?"
            return with_data(event, f"{text}{joint}{_MARK}={self.number}".encode())
        data = self.with_ids(event.data or b"")
        return event.raw if data == event.data or not event.data else with_data(event, data)

    def with_ids(self, body: bytes) -> bytes:
        message = _read(body)
        changed = _changed(message, self.ids)
        return body if changed == message else _written(changed)

    def _is_due(self, line: _Line) -> bool:
        match _read(line.event.data or b""):
            case {"id": id, "result": _} if json.dumps(id) not in self.ids:
                return False  # all earlier requests have been sent, except this one
        return line.after in self._taken or line.after < 0


class _Stage:
    """The server of one recording, with all its conversations."""

    def __init__(self, recording: Recording, fetched: Fetched) -> None:
        self._flows = recording.flows
        self._fetched = fetched
        self._numbers = count(1)
        self._conversations: dict[str, _Conversation] = {}

    async def answer(self, request: ServedRequest) -> ServedResponse:
        conversation = self._conversation(request)
        flow = await conversation.take(request.method, request.body)
        if flow is None or flow.said is None:
            return await self._answer_unrecorded(request, conversation)
        said = flow.said
        fields = self._fields(said, conversation)
        if said.is_event_stream:
            return ServedResponse(said.status, fields, conversation.lines(said))
        return ServedResponse(said.status, fields, conversation.with_ids(said.body))

    async def _answer_unrecorded(
        self, request: ServedRequest, conversation: _Conversation
    ) -> ServedResponse:
        if request.method != "POST":
            return ServedResponse(200 if request.method == "DELETE" else 405)
        reply = guess_answer(request.body, self._fetched)
        if reply and self._is_legacy:
            await conversation.say_besides(reply)
            reply = b""
        if not reply:
            return ServedResponse(202)
        return ServedResponse(200, [JSON_BODY], reply)

    def _conversation(self, request: ServedRequest) -> _Conversation:
        target = request.target
        key = target.rpartition(f"{_MARK}=")[2] if f"{_MARK}=" in target else ""
        key = key or (request.header(_SESSION) or "").rpartition("~")[2]
        opens = "initialize" in _kinds(request.body) or (
            request.method == "GET" and self._is_legacy
        )
        if opens and not (key and self._is_legacy):
            key = str(next(self._numbers))
        if key not in self._conversations:
            self._conversations[key] = _Conversation(self._flows, int(key or 0))
        return self._conversations[key]

    @property
    def _is_legacy(self) -> bool:
        return self._fetched.transport is Transport.LEGACY_SSE

    def _fields(self, said: Said, conversation: _Conversation) -> FieldList:
        fields = [(name, value) for name, value in said.headers if name.lower() not in _NOT_SAID]
        return [
            (name, b"%s~%d" % (value, conversation.number) if name.lower() == _SESSION else value)
            for name, value in fields
        ]


def _lines(said: Said, flows: Sequence[RecordedFlow]) -> Iterator[_Line]:
    parser = EventParser()
    for chunk in said.chunks:
        before = [n for n, flow in enumerate(flows) if flow.at <= chunk.at and flow.body]
        for event in parser.feed(chunk.data):
            if isinstance(event, Event):
                yield _Line(event, before[-1] if before else -1)
    if rest := parser.finish():
        yield _Line(parse_event(rest), -1)


# The shape of requests


def _shapes(body: bytes) -> Iterator[str]:
    """Yield the shape of each message of a body, without ids."""
    for message in _members(body):
        params = message.get("params")
        plain = (
            {key: value for key, value in params.items() if key != "_meta"}
            if (isinstance(params, dict))
            else params
        )
        if message.get("method") == "initialize":
            plain = None
        yield json.dumps([message.get("method"), plain or None], sort_keys=True)


def _kinds(body: bytes) -> list[str]:
    return [str(message.get("method")) for message in _members(body)]


def _pairs(recorded: bytes, present: bytes) -> Iterator[tuple[str, PlainJson]]:
    """Yield recorded ids and progress tokens, each with its current one."""
    for one, other in zip(_members(recorded), _members(present), strict=False):
        if "method" in one:
            for before, now in ((one.get("id"), other.get("id")), (_token(one), _token(other))):
                if before is not None:
                    yield json.dumps(before), now


def _token(message: dict[str, PlainJson]) -> PlainJson:
    match message:
        case {"params": {"_meta": {"progressToken": token}}}:
            return token
    return None


def _members(body: bytes) -> list[dict[str, PlainJson]]:
    message = _read(body)
    members = message if isinstance(message, list) else [message]
    return [member for member in members if isinstance(member, dict)]


def _changed(message: PlainJson, ids: dict[str, PlainJson]) -> PlainJson:
    if isinstance(message, list):
        return [_changed(one, ids) for one in message]
    if not isinstance(message, dict):
        return message
    match message:
        case {"method": "notifications/progress", "params": dict(params)} if (
            "progressToken" in params
        ):
            return {**message, "params": _with_present("progressToken", params, ids)}
        case {"id": _} if "method" not in message:
            return _with_present("id", message, ids)
    return message


def _with_present(key: str, fields: dict[str, PlainJson], ids: dict[str, PlainJson]) -> PlainJson:
    return {**fields, key: ids.get(json.dumps(fields[key]), fields[key])}


def _read(body: bytes) -> PlainJson:
    try:
        parsed: PlainJson = json.loads(body)
    except ValueError:
        return None
    return parsed


def _written(message: PlainJson) -> bytes:
    return json.dumps(message, ensure_ascii=False, separators=(",", ":")).encode()


# What it can answer, and what it cannot have said

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


def messages_in(body: bytes) -> list[Single]:
    """Return the message of a body, or the members of a batch."""
    message = read(body)
    return list(singles(message)) if message else []


def _messages_said(said: Said) -> Iterator[Single]:
    """Yield the messages of an answer, which is JSON or an event stream."""
    if not may_be_event_stream(said.content_type):
        yield from messages_in(said.body)
        return
    for event in EventParser().feed(said.body):
        if isinstance(event, Event):
            yield from messages_in(event.data or b"")


def ids_asked(body: bytes) -> set[str]:
    """Return the ids of the requests in a body."""
    return {one.id for one in messages_in(body) if isinstance(one, Request)}


def answers_nobody_asked_for(event: Event, unasked: set[str]) -> bool:
    """Tell whether an event only answers requests that the upstream never got."""
    message = read(event.data or b"")
    return message is not None and all(
        isinstance(one, Response) and one.id in unasked for one in singles(message)
    )


def without_answers(body: bytes, unasked: set[str]) -> bytes:
    """Return an answer without responses to requests that the upstream never got.

    >>> without_answers(b'{"jsonrpc":"2.0","id":1,"result":{}}', {"1"})
    b''
    """
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
    asked = {
        one.id
        for flow in recording.flows
        for one in messages_in(flow.body)
        if isinstance(one, Request) and one.method == "tools/list"
    }
    answers = [flow.said for flow in recording.flows if flow.said]
    pages = [  # in the older transport they are on another flow
        one.place.raw
        for said in answers
        for one in _messages_said(said)
        if isinstance(one, Response) and one.id in asked and _is_listing(one)
    ]
    if not pages:
        return None
    revision = _revision(recording)
    transport = Transport.STREAMABLE if has_initialize(revision) else Transport.STATELESS
    return Fetched(
        transport=Transport.LEGACY_SSE if any(map(endpoint_in, answers)) else transport,
        revision=revision,
        endpoint=_endpoint(recording),
        server_name=recording.name,
        server_version="",
        sessions=any(name.lower() == _SESSION for said in answers for name, _ in said.headers),
        pages=tuple(dict.fromkeys(pages)),
    )


def _is_listing(response: Response) -> bool:
    try:
        return parse_listing(response) is not None
    except ProtocolError:
        return False


def _revision(recording: Recording) -> str:
    for flow in recording.flows:
        for one in messages_in(flow.body):
            if isinstance(one, Request) and one.method == "tools/list":
                said = parse_list_request(one).revision
                if said and said in KNOWN_REVISIONS:
                    return said
        for single in _messages_said(flow.said) if flow.said else ():
            if isinstance(single, Response) and single.result:
                version = single.result.get(REVISION_KEY)
                if version and version.text and version.text in KNOWN_REVISIONS:
                    return version.text
    return OLDEST


def _endpoint(recording: Recording) -> str:
    for flow in recording.flows:
        if endpoint_in(flow.said) or read(flow.body):
            return flow.head.target
    return "/mcp"


def endpoint_in(said: Said | None) -> str | None:
    """Return the endpoint that the older transport named to its clients."""
    if said is None or not said.is_event_stream:
        return None
    for event in EventParser().feed(said.body):
        if isinstance(event, Event) and event.name.strip() == b"endpoint":
            return (event.data or b"").decode("utf-8", "replace").strip()
    return None
