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

from mcp_tool_filter.adapters.recordings.flow_dump import RecordedFlow, Recording, Said
from mcp_tool_filter.adapters.recordings.recorded_answers import (
    ToolsUnknown,
    guess_answer,
    known_tools,
)
from mcp_tool_filter.adapters.sockets.server import (
    ServedRequest,
    ServedResponse,
    ServerLimits,
    http_server,
)
from mcp_tool_filter.conversation.memory import Fetched
from mcp_tool_filter.protocol.limits import Transport
from mcp_tool_filter.protocol.sse import Event, EventParser, parse_event, render_event, with_data

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
        alike = [n for n, flow in enumerate(self._flows) if _shape(flow) == shape]
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
        return ServedResponse(200, [(b"content-type", b"application/json")], reply)

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


def _shape(flow: RecordedFlow) -> tuple[str, ...]:
    return (flow.head.method, *_shapes(flow.body))


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
            for find in (_id, _token):
                if find(one) is not None:
                    yield json.dumps(find(one)), find(other)


def _id(message: dict[str, PlainJson]) -> PlainJson:
    return message.get("id")


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
