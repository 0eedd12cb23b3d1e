"""The upstream's answers to our own requests, whole or as events, and our messages to it.

We only look at the envelope and at what the fetch needs. The bytes of a page are passed on
unchanged, and judged like all tool lists.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NoReturn

import orjson

from mcp_tool_filter import __version__
from mcp_tool_filter.core.conversation.declared import ALL_CAPABILITIES
from mcp_tool_filter.core.errors import ProtocolError, printable
from mcp_tool_filter.core.messages.limits import META_REVISION, NEWEST_WITH_INITIALIZE, REVISION_KEY
from mcp_tool_filter.core.messages.messages import parse_message, singles
from mcp_tool_filter.core.messages.sse import Event, EventParser, Oversized
from mcp_tool_filter.core.sockets.client import HttpResponse

METHOD_NOT_FOUND: Final = -32601
UNSUPPORTED_REVISION: Final = -32022
HEADER_MISMATCH: Final = -32020

CLIENT_INFO: Final = {"name": "mcp-tool-filter", "version": __version__}
CAPABILITIES: Final = orjson.loads(ALL_CAPABILITIES)
"""All capabilities: some upstreams list certain tools only to clients that declare what these
need."""
INITIALIZE: Final = {
    REVISION_KEY: NEWEST_WITH_INITIALIZE,
    "capabilities": CAPABILITIES,
    "clientInfo": CLIENT_INFO,
}
INITIALIZED: Final = b'{"jsonrpc":"2.0","method":"notifications/initialized"}'

_SERVER_INFO = "io.modelcontextprotocol/serverInfo"
_MAX_QUOTED = 200

type Result = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class ResultReply:
    """A response with a result."""

    raw: bytes
    result: Result


@dataclass(frozen=True, slots=True)
class RpcError:
    code: int
    message: str
    data: object

    def __str__(self) -> str:
        return f"JSON-RPC error {self.code}: {plain(self.message)}"


class Refused(Exception):
    """The upstream answered with an HTTP error or a JSON-RPC error instead of a result."""

    def __init__(self, status: int, status_line: str, error: RpcError | None = None) -> None:
        super().__init__(status, status_line, error)
        self.status = status
        self.status_line = plain(status_line)
        self.error = error
        self.path = ""
        """The path that refused, if it may be an MCP endpoint."""
        self.challenges: tuple[bytes, ...] = ()
        """The values of the WWW-Authenticate headers: how to log in."""

    def __str__(self) -> str:
        if self.error is None:
            return self.status_line
        return str(self.error) if self.status < 300 else f"{self.status_line}, {self.error}"

    @property
    def code(self) -> int | None:
        """The code of the JSON-RPC error, if there was one."""
        return self.error.code if self.error else None


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamIntroduction:
    """The upstream's answer to ``initialize`` or ``server/discover``."""

    revision: str
    server_name: str
    server_version: str
    has_tools: bool
    instructions: str | None
    """What it tells the model about itself."""
    offered: Mapping[str, object]
    """Its capabilities."""


def introduction_of(reply: ResultReply, *, revision: object) -> UpstreamIntroduction:
    """Parse the result of ``initialize`` or ``server/discover``; only the revision is required."""
    info = _mapping(reply.result.get("serverInfo"))  # initialize
    info = info or _mapping(_mapping(reply.result.get("_meta")).get(_SERVER_INFO))
    instructions = reply.result.get("instructions")
    return UpstreamIntroduction(
        revision=str(revision),
        server_name=plain(str(info.get("name") or "")),
        server_version=plain(str(info.get("version") or "")),
        has_tools="tools" in _mapping(reply.result.get("capabilities")),
        instructions=instructions if isinstance(instructions, str) else None,
        offered=_mapping(reply.result.get("capabilities")),
    )


def revisions_in(named: object) -> tuple[str, ...]:
    """Return the revisions in a ``supportedVersions`` or ``supported`` list."""
    return tuple(str(each) for each in named) if isinstance(named, list) else ()


def supported_by(error: RpcError | None) -> tuple[str, ...]:
    """Return the revisions that an UnsupportedProtocolVersionError names."""
    if error is None or error.code != UNSUPPORTED_REVISION:
        return ()
    return revisions_in(_mapping(error.data).get("supported"))


def next_cursor(reply: ResultReply, method: str = "tools/list") -> str | None:
    """Return the cursor of the next page. Raises ProtocolError if this is not a tool list."""
    if method == "tools/list" and not isinstance(reply.result.get("tools"), list):
        raise ProtocolError("The result of tools/list has no list of tools")
    cursor = reply.result.get("nextCursor")
    if cursor is not None and not isinstance(cursor, str):
        raise ProtocolError(f"The nextCursor of {method} is not a string")
    return cursor or None  # an empty cursor would request the first page again


def stateless_meta(revision: str) -> Result:
    """Return the ``_meta`` that describes us in each request since 2026-07-28."""
    return {
        META_REVISION: revision,
        "io.modelcontextprotocol/clientInfo": CLIENT_INFO,
        "io.modelcontextprotocol/clientCapabilities": CAPABILITIES,
    }


def render_request(number: int, method: str, params: Result) -> bytes:
    return orjson.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params})


_OWN_RESULTS: Final[dict[str, Result]] = {"ping": {}, "roots/list": {"roots": []}}


def answer_to(message: Result) -> bytes | None:
    """Return our answer if the message is a request: we have declared roots, and have none."""
    number = message.get("id")
    if not isinstance(message.get("method"), str) or not isinstance(number, int | str):
        return None
    answer: dict[str, object] = {"jsonrpc": "2.0", "id": number}
    if message["method"] in _OWN_RESULTS:
        answer["result"] = _OWN_RESULTS[message["method"]]
    else:
        answer["error"] = {"code": METHOD_NOT_FOUND, "message": "Method not found"}
    return orjson.dumps(answer)


def messages_in(raw: bytes) -> list[tuple[Result, bytes]]:
    """Return the message, or the members of a batch, each with its bytes. Raises ProtocolError."""
    if not raw.lstrip().startswith(b"["):
        return [(_read(raw), raw)]
    members = [single.place.raw for single in singles(parse_message(raw))]
    return [(_read(member), member) for member in members]


def error_in(raw: bytes) -> RpcError | None:
    """Return the JSON-RPC error in the body of a refusal, or None."""
    try:
        return _error_of(_read(raw))
    except ProtocolError:
        return None


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _read(raw: bytes) -> Result:
    message: Any
    try:
        message = orjson.loads(raw)
    except orjson.JSONDecodeError:  # or half a surrogate pair, or a number such as 1e400
        try:
            message = json.loads(raw.decode(), parse_constant=_refuse_constant)
        except (ValueError, RecursionError):
            raise ProtocolError("The answer is not valid JSON") from None
    if not isinstance(message, dict) or message.get("jsonrpc") != "2.0":
        raise ProtocolError("The answer is not a JSON-RPC 2.0 message")
    return message


def is_response_to(number: int, message: Result) -> bool:
    identifier = message.get("id")
    return identifier == number and not isinstance(identifier, bool) and not message.get("method")


def is_nameless_error(message: Result) -> bool:
    """Tell whether this is an error without an id."""
    return "error" in message and message.get("id") is None


def reply_in(message: Result, raw: bytes) -> ResultReply:
    """Return the result in a response. Raises Refused, ProtocolError."""
    if error := _error_of(message):
        raise Refused(200, "HTTP 200 OK", error)
    result = message.get("result")
    if not isinstance(result, dict):
        raise ProtocolError("The answer has neither a result nor an error")
    return ResultReply(raw, result)


def only_reply(number: int, raw: bytes) -> ResultReply:
    """Parse a body that must be the response. Raises Refused, ProtocolError."""
    for message, written in messages_in(raw):
        if is_response_to(number, message) or is_nameless_error(message):
            return reply_in(message, written)
    raise ProtocolError("The answer does not have the id of the request")


def _error_of(message: Result) -> RpcError | None:
    error = message.get("error")
    if not isinstance(error, dict):
        return None
    code, said = error.get("code"), str(error.get("message"))
    return RpcError(code if isinstance(code, int) else 0, said, error.get("data"))


def plain(text: str) -> str:
    """Return the text for display: cut, with control characters escaped."""
    return printable(text if len(text) <= _MAX_QUOTED else text[:_MAX_QUOTED] + "…")


def _mapping(value: object) -> Result:
    return value if isinstance(value, dict) else {}


class EventReader:
    """The events of a response body, and the messages in them."""

    def __init__(self, response: HttpResponse, limit: int) -> None:
        """An event longer than the limit is an error, unless the events are iterated over."""
        self._response = response
        self._limit = limit
        self._parser = EventParser(max_pending=limit)
        self._events: deque[Event | Oversized] = deque()
        self._messages: deque[tuple[Result, bytes]] = deque()

    async def next_message(self) -> tuple[Result, bytes] | None:
        """Return the next message and its bytes; None at the end of the body."""
        while not self._messages:
            event = await self.next_event()
            if event is None:
                return None
            # Servers keep streams alive with events that have other names, no data, or just a word.
            if event.is_message and event.data and event.data.lstrip()[:1] in (b"{", b"["):
                self._messages.extend(messages_in(event.data))
        return self._messages.popleft()

    async def next_event(self) -> Event | None:
        """Return the next event; None at the end of the body. Raises HttpFailed, ProtocolError."""
        event = await self._next(self._limit)
        if isinstance(event, Oversized):
            raise self._too_long()
        return event

    def __aiter__(self) -> EventReader:
        return self

    async def __anext__(self) -> Event | Oversized:
        """Return the next event, or the beginning of one that is too long, once it has ended."""
        if (event := await self._next(None)) is None:
            raise StopAsyncIteration
        return event

    async def _next(self, most_unfinished: int | None) -> Event | Oversized | None:
        if self._response.coding:
            raise ProtocolError(f"The event stream is compressed ({plain(self._response.coding)})")
        unfinished = 0  # bytes that are not an event yet
        while not self._events:
            chunk = await self._response.next_chunk()
            if not chunk:
                return None
            self._events.extend(self._parser.feed(chunk))
            unfinished += len(chunk)
            if most_unfinished and unfinished > most_unfinished and not self._events:
                raise self._too_long()
        return self._events.popleft()

    def _too_long(self) -> ProtocolError:
        return ProtocolError(f"An event is longer than {self._limit} bytes")
