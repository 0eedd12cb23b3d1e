r"""Distinguish MCP from everything else that a client sends through a forward proxy.

Everything that an MCP server could read as a message is MCP. The filter judges it and refuses what
it cannot read. The body decides, never its Content-Type: a client may write any type, and some
servers ignore it.

>>> kind_of_body(b'{"jsonrpc": "2.0", "id": 1, "method": "tools/call"}')
<TrafficKind.MCP: 'mcp'>
>>> kind_of_body(b'{"model": "m", "messages": [{"content": "\\"jsonrpc\\": \\"2.0\\""}]}')
<TrafficKind.OTHER: 'other'>

JSON-RPC with methods that MCP does not define is MCP only at an MCP endpoint:

>>> kind_of_body(b'{"jsonrpc": "2.0", "id": 1, "method": "eth_call", "params": []}')
<TrafficKind.JSON_RPC: 'json-rpc'>
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from enum import StrEnum
from itertools import chain

from mcp_tool_filter.errors import ProtocolError
from mcp_tool_filter.http.head import Head
from mcp_tool_filter.protocol.folding import fold
from mcp_tool_filter.protocol.limits import Limits
from mcp_tool_filter.protocol.messages import is_like_a_call
from mcp_tool_filter.protocol.scan import EACH, Value, scan

_EM_SPACES = "".join(map(chr, range(0x2000, 0x200B)))
_OTHER_SPACES = "\x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000\ufeff" + _EM_SPACES
BLANK = b" \t\r\n\0\x0b\x0c\x1c\x1d\x1e\x1f\xfe\xff" + bytes({*_OTHER_SPACES.encode()})
"""Bytes that some reader skips before JSON: white space, also Unicode's, and byte order marks."""
LONGEST_MENTION = 256
"""Bytes that ``mentions_message`` must see at once."""
_METHODS = (
    "initialize", "ping", "server/", "tools/", "resources/", "prompts/", "completion/",
    "logging/", "notifications/", "sampling/", "roots/", "elicitation/", "tasks/",
    "subscriptions/",
)  # fmt: skip
_MCP_HEADER = re.compile(rb"[^a-z0-9]*mcp[^a-z0-9]")
_HIDDEN_LINE = re.compile(rb"\r(?!\n[ \t])|(?<!\r)\n|\0")
_SPACE = re.compile(r"[ \t\r\n]*")
_MOST_VALUES = 100_000


class TrafficKind(StrEnum):
    """The kind of a request, or of an event in a stream."""

    OTHER = "other"
    JSON_RPC = "json-rpc"
    """A message whose method MCP does not define."""
    MCP = "mcp"


def is_mcp_head(head: Head) -> bool:
    """Tell whether the head alone shows that a request is MCP."""
    if any(map(_MCP_HEADER.match, head.names.places)):
        return True
    offered = head.get(b"sec-websocket-protocol") or ""
    return "mcp" in re.split(r"[^a-z]+", offered.lower())


def has_hidden_line(head: Head) -> bool:
    """Tell whether a head contains a line that only some servers see.

    Such a line could change the length of the body, so that part of the body becomes a request. A
    header that continues on the next line is not such a line.
    """
    words = (head.method.encode(), head.target.encode("utf-8", "surrogateescape"))
    return any(map(_HIDDEN_LINE.search, (*words, *chain.from_iterable(head.headers))))


def kind_of_body(body: bytes) -> TrafficKind:
    """Return the kind of a complete, decoded body."""
    if not may_be_message(body):
        return TrafficKind.OTHER
    try:
        limits = Limits(message=len(body) + 1)
        _, root = scan(body, {EACH: {}}, limits)
        found = [root] if root.members is not None else root.elements or ()
        return _most(map(_kind_of, found))
    except ProtocolError:
        return _kind_of_unusual(body)


def may_be_message(beginning: bytes) -> bool:
    """Tell whether a body with this beginning can be a message.

    Its first character opens JSON, or a comment, which some JSON readers skip, or is the ``)`` of
    ``)]}'``, which Gson skips.
    """
    return beginning.lstrip(BLANK)[:1] in (b"", b"{", b"[", b"/", b"#", b")")


def mentions_message(raw: bytes) -> bool:
    """Tell whether bytes contain, anywhere and in any spelling, a word that each message needs."""
    raw = raw.replace(b"\0", b"")
    lower = raw.lower()
    if any(word in lower for word in _PLAIN_MENTIONS):
        return True
    return any(_MENTION.search(raw, *around) for around in _around_escapes(raw))


def _around_escapes(raw: bytes) -> Iterator[tuple[int, int]]:
    """Yield the places where a word could be spelt with escapes: to search all of it is slow."""
    start = end = -1
    for found in _ESCAPE.finditer(raw):
        if end < found.start() - LONGEST_MENTION:
            if end >= 0:
                yield start, end
            start = max(0, found.start() - LONGEST_MENTION)
        end = found.end() + LONGEST_MENTION
    if end >= 0:
        yield start, end


def _kind_of(value: Value) -> TrafficKind:
    return _kind_of_members((one.key, one.text) for one in value.members or ())


def _kind_of_members(members: Iterable[tuple[str, str | None]]) -> TrafficKind:
    """Return the kind of an object by its keys and its string values."""
    is_rpc = False
    methods: list[str | None] = []
    for key, value in members:
        match fold(key):
            case "jsonrpc":
                is_rpc = True
            case "method":
                methods.append(value)
    if not is_rpc:
        is_call = any(one is not None and _is_about_tools(one) for one in methods)
        return TrafficKind.MCP if is_call else TrafficKind.OTHER
    if len(methods) == 1 and methods[0] is not None and not _is_mcp_method(methods[0]):
        return TrafficKind.JSON_RPC
    return TrafficKind.MCP


def _most(kinds: Iterable[TrafficKind]) -> TrafficKind:
    found = set(kinds)
    return next(
        (one for one in (TrafficKind.MCP, TrafficKind.JSON_RPC) if one in found), TrafficKind.OTHER
    )


def _is_mcp_method(method: str) -> bool:
    return fold(method).startswith(_METHODS) or is_like_a_call(method)


def _is_about_tools(method: str) -> bool:
    return fold(method).startswith("tools/") or is_like_a_call(method)


class _Members(list[tuple[str, object]]):
    """An object with all its keys, including repeated ones."""


def _kind_of_unusual(body: bytes) -> TrafficKind:
    """Return the kind of a body that is not a single JSON value in UTF-8, such as lines of JSON.

    Some servers read only its first value.
    """
    text = body.replace(b"\0", b"").lstrip(BLANK).decode("utf-8", "surrogateescape")
    try:
        return _most(map(_kind_of_python, _values_in(text)))
    except (ValueError, IndexError, RecursionError):
        return TrafficKind.MCP if mentions_message(body) else TrafficKind.OTHER


def _values_in(text: str) -> Iterator[object]:
    read = json.JSONDecoder(object_pairs_hook=_Members).raw_decode
    at = 0
    for _ in range(_MOST_VALUES):
        space = _SPACE.match(text, at)
        at = space.end() if space else at
        if at >= len(text):
            return
        value, at = read(text, at)
        yield value
    raise ValueError("too many values")


def _kind_of_python(value: object) -> TrafficKind:
    match value:
        case _Members():
            pairs = ((key, one if isinstance(one, str) else None) for key, one in value)
            return _kind_of_members(pairs)
        case list():
            return _most(_kind_of_python(one) for one in value if isinstance(one, _Members))
    return TrafficKind.OTHER


def _spellings(word: str) -> bytes:
    """Return a regex for all JSON spellings of a word."""
    return b"".join(map(_spelling, word))


def _spelling(sign: str) -> bytes:
    ways = {sign.lower(), sign.upper(), *("\u017f" if sign == "s" else "")}
    plain = [re.escape(one.encode()) for one in ways]
    escaped = [rb"\\u%04x" % ord(one) for one in ways]
    slash = [rb"\\/"] if sign == "/" else []
    return b"(?:" + b"|".join([*plain, *escaped, *slash]) + b")"


_WORDS = ("jsonrpc", "tools/call", "tools/list")
_MENTION = re.compile(b"|".join(map(_spellings, _WORDS)), re.IGNORECASE)
_PLAIN_MENTIONS = (
    b"jsonrpc",
    *(b"tools" + way for way in (b"/call", b"/list", rb"\/call", rb"\/list")),
)
_ESCAPE = re.compile(rb"\\u00[2-7][0-9a-f]|\\u017f|\xc5\xbf", re.IGNORECASE)
"""What stands in any other spelling: an escape of a letter or a slash, or a long s."""
