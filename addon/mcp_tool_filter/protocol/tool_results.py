r"""Accept a tool's result without building it in memory.

Most bytes that pass are tool results, and we have nothing to judge in them. If the envelope and the
result have only the members of the schema, each once, we only check that the rest is JSON. Anything
else is read completely, as usual:

>>> result = b'{"content":[],"structuredContent":"%s"}' % (b"x" * 20_000)
>>> raw = b'{"jsonrpc":"2.0","id":7,"result":%s}' % result
>>> envelope = find_result_envelope(raw)
>>> envelope.id, raw[envelope.start : envelope.end] == result
('7', True)
>>> find_result_envelope(b'{"jsonrpc":"2.0","id":7,"x":0,"result":%s}' % result)

``members`` does the reading. Without msgspec, everything is read as usual.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mcp_tool_filter.errors import ProtocolError
from mcp_tool_filter.protocol.levels import opens_more
from mcp_tool_filter.protocol.limits import Limits
from mcp_tool_filter.protocol.members import member_reader, spans_of
from mcp_tool_filter.protocol.messages import Response, UnreadPlace
from mcp_tool_filter.protocol.scan import Value, count_characters

if TYPE_CHECKING:
    from msgspec import Raw

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
    rb"(?<=\})%(s)b(?:,%(s)b%(m)b%(s)b){0,2}\}(?P<space>%(s)b)\Z" % {b"s": _SPACE, b"m": _MEMBER}
)
_ID = re.compile(rb'"id"%b:%b(%b)' % (_SPACE, _SPACE, SIMPLE_ID))
_ENDS = 512  # bytes at each end that may belong to the envelope
_CONTENT = frozenset({"content", "structuredContent"})
_KNOWN = frozenset({*_CONTENT, "isError", "_meta", "resultType"})
_COUNTED = 128 * 1024  # bytes; in fewer, counting brackets is quick
_LONGEST_REST = 16 * 1024  # bytes


@dataclass(frozen=True, slots=True)
class ResultEnvelope:
    """The place of the result in a response that has only jsonrpc and an id beside it."""

    id: str
    start: int
    end: int
    space: tuple[int, int]
    """White space before and after the message."""


@dataclass(frozen=True, slots=True)
class ToolResult:
    response: Response
    """Its result is not parsed further."""
    rest: str
    """The result's members other than the content, as JSON."""


def find_result_envelope(raw: bytes) -> ResultEnvelope | None:
    """Return the envelope of a long response that has exactly jsonrpc, id and result, each once.

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
    space = len(head["space"]), len(tail["space"])
    return ResultEnvelope(ids[0].decode(), head.end(), tail.start(), space)


def read_tool_result(raw: bytes, envelope: ResultEnvelope, limits: Limits) -> ToolResult | None:
    """Return the result if it is unambiguous; None if it must be read as usual."""
    reader = member_reader()
    if reader is None or len(raw) > limits.message:
        return None
    most = limits.depth - 1  # the message itself is the first level
    start, end = envelope.start, envelope.end
    written = memoryview(raw)[start:end]
    try:
        may_be_deep = len(raw) > _COUNTED or opens_more(raw, (b"[", b"{"), start, end, most)
        members = reader.within(most).read(written) if may_be_deep else reader.members_of(written)
        rest = None if members is None else _rest_of(members, written)
        if rest is None:
            return None
        length = count_characters(raw)
    except (ValueError, ProtocolError):  # msgspec's errors are ValueErrors
        return None
    before, after = envelope.space
    place = UnreadPlace(raw, before, length - after)
    result = Value(start, length - (len(raw) - end))
    return ToolResult(Response(envelope.id, result, place), rest)


def _rest_of(members: Mapping[str, Raw], written: memoryview) -> str | None:
    """Return the members except the content, if all are known and occur once."""
    if not members.keys() <= _KNOWN or spans_of(members, written) is None:
        return None
    others = {key: value for key, value in members.items() if key not in _CONTENT}
    if sum(memoryview(value).nbytes for value in others.values()) > _LONGEST_REST:
        return None
    pairs = [f'"{key}":{bytes(value).decode()}' for key, value in others.items()]
    return "{" + ",".join(pairs) + "}"
