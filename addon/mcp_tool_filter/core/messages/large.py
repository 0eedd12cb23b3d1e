"""Accept results of tools without reading them, and long lists without stopping for them.

Most bytes that pass are tool results, and we have nothing to judge in them. If the envelope and the
result have only the members of the schema, each once, we only check that the rest is JSON. Anything
else is read completely, as usual:

>>> result = b'{"content":[],"structuredContent":"%s"}' % (b"x" * 20_000)
>>> raw = b'{"jsonrpc":"2.0","id":7,"result":%s}' % result
>>> envelope = find_result_envelope(raw)
>>> envelope.id, raw[envelope.start : envelope.end] == result
('7', True)
>>> find_result_envelope(b'{"jsonrpc":"2.0","id":7,"x":0,"result":%s}' % result)

``skim`` does the reading. Without msgspec, everything is read as usual.

A long tool list is read in steps, so that other clients are served in between:

>>> raw = b'{"jsonrpc":"2.0","id":1,"result":{"tools":[{"name":"a","inputSchema":{}}]}}'
>>> try:
...     next(parse_in_steps(raw, Limits()))  # so short a list needs no pause
... except StopIteration as read:
...     read.value == parse_message(raw)
True
"""

from __future__ import annotations

import re
from codecs import utf_8_decode
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from json.decoder import scanstring  # type: ignore[attr-defined]  # as messages.scan does

from mcp_tool_filter.core.errors import ProtocolError
from mcp_tool_filter.core.messages.limits import MOST_LISTED, Limits, OverLimit, frozen
from mcp_tool_filter.core.messages.messages import (
    A_TOOL,
    Batch,
    Message,
    Place,
    Response,
    Single,
    UnreadPlace,
    parse_message,
)
from mcp_tool_filter.core.messages.scan import (
    PartBudget,
    Value,
    after_space,
    decode,
    read_value,
    skip_value,
)
from mcp_tool_filter.core.messages.skim import member_reader
from mcp_tool_filter.core.messages.tools import Definition, parse_listing, read_definition

SIMPLE_ID = rb'(?:0|[1-9][0-9]{0,15})|"[A-Za-z0-9_.:-]{0,64}"'
"""An id in the only usual spelling."""
_SPACE = rb"[ \t\n\r]*+"
_MEMBER = rb'(?:"jsonrpc"%(s)b:%(s)b"2\.0"|"id"%(s)b:%(s)b(?:%(id)b))' % {
    b"s": _SPACE,
    b"id": SIMPLE_ID,
}
_HEAD = re.compile(
    rb'(?P<space>%(s)b)\{%(s)b(?:%(m)b%(s)b,%(s)b){0,2}"result"%(s)b:%(s)b(?=\{)'
    % {b"s": _SPACE, b"m": _MEMBER}
)
_TAIL = re.compile(
    rb"\}%(s)b(?:,%(s)b%(m)b%(s)b){0,2}\}(?P<space>%(s)b)\Z" % {b"s": _SPACE, b"m": _MEMBER}
)
"""It begins with the last byte of the result: only where that stands do we look further."""
_ID = re.compile(rb'"id"%b:%b(%b)' % (_SPACE, _SPACE, SIMPLE_ID))
_ENDS = 512  # bytes at each end that may belong to the envelope
_CONTENT = frozenset({"content", "structuredContent"})
_KNOWN = frozenset({*_CONTENT, "isError", "_meta", "resultType"})
_LONGEST_REST = 16 * 1024  # bytes
_SHORT = 16 * 1024  # bytes; a longer text is not decoded as a whole before somebody reads it
_PIECE = 64 * 1024  # bytes; they stay in the processor's cache


@frozen
class ResultEnvelope:
    """The place of the result in a response that has only jsonrpc and an id beside it."""

    id: str
    start: int
    end: int
    response: Response
    """Its result is not parsed."""


@frozen
class ToolResult:
    rest: str
    """The result's members other than the content, as JSON; empty if none is an object or array."""
    is_error: bool


_ONLY_CONTENT = ToolResult("", is_error=False)


def find_result_envelope(raw: bytes) -> ResultEnvelope | None:
    """Return the envelope of a response that has exactly jsonrpc, id and result, each once.

    (It does not look into the result, which may not even be one JSON object.)
    """
    head = _HEAD.match(raw, 0, _ENDS)
    if head is None:
        return None
    tail = _TAIL.search(raw, len(raw) - _ENDS)
    if tail is None:
        return None
    members = head[0] + tail[0]
    ids = _ID.findall(members)
    if len(ids) != 1 or members.count(b'"jsonrpc"') != 1:
        return None
    id, start, end = ids[0].decode(), head.end(), tail.start() + 1
    before, after = len(head["space"]), len(tail["space"])
    try:
        if len(raw) <= _SHORT:
            text = raw.decode()
            length = len(text)
            place = Place(text, before, length - after)
        else:
            length = _count_characters(raw)
            place = UnreadPlace(raw, before, length - after)
    except UnicodeDecodeError:
        return None
    result = Value(start, length - (len(raw) - end))  # only ASCII is around it
    return ResultEnvelope(id, start, end, Response(id, result, place))


def read_tool_result(raw: bytes, envelope: ResultEnvelope, limits: Limits) -> ToolResult | None:
    """Return the result if it is unambiguous; None if it must be read as usual."""
    reader = member_reader(limits.depth - 1)  # the message itself is the first level
    if reader is None or len(raw) > limits.message:
        return None
    try:
        members = reader.read_once(raw, envelope.start, envelope.end)
        if members is None or not members.keys() <= _KNOWN:
            return None
        if members.keys() <= _CONTENT:  # as nearly always
            return _ONLY_CONTENT
        others = {key: bytes(value) for key, value in members.items() if key not in _CONTENT}
        if sum(map(len, others.values())) > _LONGEST_REST:
            return None
    except ValueError:  # msgspec's errors
        return None
    rest = ""
    if any(value[:1] in b"{[" for value in others.values()):
        rest = ",".join(f'"{key}":{value.decode()}' for key, value in others.items())
    return ToolResult(f"{{{rest}}}" if rest else "", others.get("isError") == b"true")


def _count_characters(raw: bytes) -> int:
    """Return the length of UTF-8 text without decoding it all at once."""
    if raw.isascii():
        return len(raw)
    view = memoryview(raw)
    count = at = 0
    while at < len(raw):
        text, used = utf_8_decode(view[at : at + _PIECE], "strict", at + _PIECE >= len(raw))
        count += len(text)
        at += used
    return count


_STEP = 32 * 1024  # characters of definitions per step: a few milliseconds
_LEVELS_ABOVE = 3  # the message, its result, and the array of its tools

type _Run = tuple[int, int]


def in_parts(raw: bytes) -> Iterator[bytes | None]:
    """Split an answer with a long list into several answers with a few of its tools each.

    (A parsed list takes ten times the memory of its bytes, and the memory it leaves is fragmented.)
    Yields None between the steps of the search for the tools. Anything else stays as it is.

    >>> tools = b",".join([b'"%b"' % (b"x" * 20_000)] * 3)
    >>> [len(part) for part in in_parts(b'{"result": {"tools": [%b]}}' % tools) if part]
    [40030, 20027]
    """
    text = decode(raw)
    runs: list[_Run] = []
    try:
        for run in _runs_of_tools(text):
            runs.append(run)
            yield None
    except (ValueError, IndexError, RecursionError):  # not JSON, as whoever reads it finds out
        runs = []
    if len(runs) <= 1:
        yield raw
        return
    head, tail = text[: runs[0][0]], text[runs[-1][1] :]
    for start, end in runs:
        yield f"{head}{text[start:end]}{tail}".encode()


def parse_in_steps(raw: bytes, limits: Limits) -> Generator[None, None, Message]:
    """Do as ``parse_message``, with pauses while long lists of tools are read.

    The tools are read first, then the rest, in which the lists are known. Raises ProtocolError.
    """
    if len(raw) > limits.message:
        raise OverLimit(f"a message is longer than {limits.message} bytes")
    text = decode(raw)
    known: dict[int, Value] = {}
    definitions: dict[int, tuple[Definition, ...]] = {}
    budget = PartBudget(MOST_LISTED)
    with suppress(ProtocolError, ValueError, IndexError, RecursionError):  # as the whole will tell
        for start, levels_above in _starts_of_tools(text):
            tools = yield from _read_tools(text, start, limits.depth - levels_above, budget)
            end = after_space(text, tools[-1][0].end if tools else start + 1) + 1
            known[start] = Value(start, end, elements=tuple(tool for tool, _ in tools))
            definitions[start] = tuple(definition for _, definition in tools)
    message = parse_message(raw, limits, known)
    if isinstance(message, Batch):
        return Batch(tuple(_with_listing(member, definitions) for member in message.members))
    return _with_listing(message, definitions)


def _read_tools(
    text: str, start: int, depth: int, budget: PartBudget
) -> Generator[None, None, list[tuple[Value, Definition]]]:
    tools: list[tuple[Value, Definition]] = []
    pause_at = start + _STEP
    for tool in _elements(text, start, lambda at: read_value(text, at, A_TOOL, depth, budget)):
        tools.append((tool, read_definition(text, tool)))
        if tool.end > pause_at:
            yield
            pause_at = tool.end + _STEP
    budget.take(len(tools))
    return tools


def _with_listing(message: Single, definitions: Mapping[int, tuple[Definition, ...]]) -> Single:
    """Return a message with the list in it, if that has been read."""
    if not isinstance(message, Response) or message.result is None:
        return message
    tools = message.result.named.get("tools")
    if tools is not None and (read := definitions.get(tools.start)) is not None:
        with suppress(ProtocolError):  # some reader may find another list: the judge will tell
            return replace(message, listing=parse_listing(message, read))
    return message


def _runs_of_tools(text: str) -> Iterator[_Run]:
    """Yield the span of the first few tools of ``result.tools``, then of the next few."""
    if (at := _start_of_tools(text, after_space(text, 0))) is None:
        return
    first = end = 0
    for tool in _elements(text, at, lambda at: Value(at, skip_value(text, at))):
        first, end = first or tool.start, tool.end
        if end - first > _STEP:
            yield first, end
            first = 0
    if first:
        yield first, end


def _starts_of_tools(text: str) -> Iterator[tuple[int, int]]:
    """Yield where each list of a message, or of a batch, begins, and how many levels are above."""
    at = after_space(text, 0)
    if text[at] != "[":
        if (start := _start_of_tools(text, at)) is not None:
            yield start, _LEVELS_ABOVE
        return
    for member in _elements(text, at, lambda at: Value(at, skip_value(text, at))):
        if (start := _start_of_tools(text, member.start)) is not None:
            yield start, _LEVELS_ABOVE + 1


def _start_of_tools(text: str, message: int) -> int | None:
    """Return where the array ``result.tools`` of a message begins, if there is one."""
    at: int | None = message
    for key in ("result", "tools"):
        at = _member(text, at, key) if at is not None and text[at] == "{" else None
    return at if at is not None and text[at] == "[" else None


def _member(text: str, at: int, key: str) -> int | None:
    """Return where the value of an object's member begins."""
    at = after_space(text, at + 1)
    while text[at] == '"':
        name, end = scanstring(text, at + 1, True)
        value = after_space(text, after_space(text, end) + 1)
        if name == key:
            return value
        end = after_space(text, skip_value(text, value))
        if text[end] != ",":
            break
        at = after_space(text, end + 1)
    return None


def _elements(text: str, at: int, read: Callable[[int], Value]) -> Iterator[Value]:
    """Yield each element of an array."""
    at = after_space(text, at + 1)
    while text[at] != "]":
        yield (element := read(at))
        at = after_space(text, element.end)
        if text[at] == ",":
            at = after_space(text, at + 1)
            if text[at] == "]":
                raise ValueError("a comma behind the last element")
        elif text[at] != "]":
            raise ValueError("no comma between elements")
