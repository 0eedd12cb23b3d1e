r"""Split a byte stream into lines, one JSON-RPC message each, as the stdio transport sends them.

Chunks end anywhere, even between a CR and its LF or inside a character. A line keeps its original
bytes without its line end. Only LF and CRLF end a line; U+2028 and the like are text:

>>> LineParser().feed(b'{"a":1}\r\n\n{"b":\xe2\x80\xa8')
[b'{"a":1}']

A line longer than the limit is dropped up to its end. We keep enough of it to find the message's
id:

>>> parser = LineParser(max_pending=20, kept=16)
>>> [cut] = parser.feed(b'{"id": 7, "method": "a very long one"}\n')
>>> cut, ids_in_cut(cut)
(CutLine(beginning=b'{"id": 7, "metho', end=b' very long one"}', size=38), ['7'])

A message is written on one line: a line end between tokens is ordinary white space.

>>> on_one_line(b'{\r\n  "a": "b\\n"\n}\n')
b'{    "a": "b\\n" }'

``Numbers`` gives requests of several clients unique ids on one connection, and restores them in
answers. Two clients of a stateless upstream may use the same id, the same progress token, the same
subscription. Only these are changed; every other byte stays:

>>> numbers = Numbers()
>>> numbers.renumber(b'{"jsonrpc":"2.0","id":"a","method":"ping"}')
(1, b'{"jsonrpc":"2.0","id":1,"method":"ping"}')
>>> numbers.restore(b'{"jsonrpc":"2.0","id":1,"result":{}}')
(1, b'{"jsonrpc":"2.0","id":"a","result":{}}')
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from mcp_tool_filter.core.errors import ProtocolError
from mcp_tool_filter.core.messages.limits import MEBIBYTE, Limits
from mcp_tool_filter.core.messages.messages import ids_guessed_in, is_utf8
from mcp_tool_filter.core.messages.scan import Outline, Value, scan

_SPACE = b" \t\r"
_STRING = rb'"(?:[^"\\]|\\.)*+"'
_NUMBER = rb"-?[0-9][0-9.eE+-]*+"
# An unfinished string matches, too, and ends the search.
_TOKEN = re.compile(rb'%b?|[{}\[\]:,]|[^\s"{}\[\]:,]++' % _STRING)
_LAST_MEMBER = re.compile(
    rb'(?<!\\)"id"\s*+:\s*+(%b|%b)\s*+(?:,\s*+"jsonrpc"\s*+:\s*+"2.0"\s*+)?\}\s*+\Z'
    % (_STRING, _NUMBER)
)
_is_string = re.compile(_STRING).fullmatch
_IS_ID = re.compile(rb"%b|%b" % (_STRING, _NUMBER)).fullmatch
_SEARCHED = 4096  # bytes at each end of a broken line
_BOM = b"\xef\xbb\xbf"


@dataclass(slots=True)
class CutLine:
    """Replaces a line that was longer than we hold: its beginning, its end and its size."""

    beginning: bytes = b""
    end: bytes = b""
    size: int = 0

    def add(self, part: bytes, kept: int) -> None:
        """Take more of the line; keep so many bytes at each end."""
        self.size += len(part)
        missing = kept - len(self.beginning)
        self.beginning += part[:missing]
        self.end = (self.end + part[missing:])[-kept:]


class LineParser:
    """Use one parser per direction. Chunk boundaries do not matter; the work is linear."""

    def __init__(self, *, max_pending: int = 20 * MEBIBYTE, kept: int = 4096) -> None:
        self._max_pending = max_pending
        self._kept = kept
        self._pending = bytearray()
        self._cut: CutLine | None = None

    def feed(self, chunk: bytes) -> list[bytes | CutLine]:
        """Take the next chunk; return the lines it completes, oldest first."""
        *ended, rest = chunk.split(b"\n")
        lines: list[bytes | CutLine] = []
        for part in ended:
            if self._pending or self._cut or len(part) > self._max_pending:
                self._hold(part)
                lines += self.finish()
            elif line := _without_end(part):
                lines.append(line)
        self._hold(rest)
        return lines

    def finish(self) -> list[bytes | CutLine]:
        """Return the last line, if the stream ended without a newline."""
        line = self._cut or _without_end(bytes(self._pending))
        self._cut = None
        self._pending = bytearray()
        return [line] if line else []

    def _hold(self, part: bytes) -> None:
        if self._cut:
            self._cut.add(part, self._kept)
            return
        self._pending += part
        if len(self._pending) > self._max_pending:
            self._cut = CutLine()
            self._cut.add(bytes(self._pending), self._kept)
            self._pending = bytearray()


def _without_end(line: bytes) -> bytes:
    """Return a line without the CR of its CRLF; an empty line if it is blank."""
    if line[-1:] in b"\r":  # or empty
        line = line[:-1]
    return line if line[:1] == b"{" or line.strip(_SPACE) else b""


def refuse_hidden_line(line: bytes) -> None:
    """Raise ProtocolError for a bare CR: white space in JSON, but a line end for Python servers."""
    if b"\r" in line:
        raise ProtocolError("a carriage return inside a line")


def ids_in_cut(cut: CutLine) -> list[str]:
    """Return the id of a cut message; several possible ids if we have to guess."""
    text = _text_of(cut.beginning)
    begun = _beginnings_of_messages(text) if text.startswith(b"{") else []
    if begun and begun[0].ids:
        return begun[0].ids[:1]
    found = _id_at_the_end(cut.end)
    if found is None:
        return list(dict.fromkeys(ids_guessed_in(cut.beginning) + ids_guessed_in(cut.end)))
    return [found.decode()] if _is_id(found) else []


def ids_answered(line: bytes | CutLine) -> list[str] | None:
    """Return the ids of the requests that a broken line of an upstream may answer; None if it is
    an answer, but we cannot tell to what.

    A log line, a notification or a request answers none, even if it contains a message:

    >>> ids_answered(b'{"id":1,"result":{}}'), ids_answered(b'{"jsonrpc":"2.0","id":1,"result":')
    (['1'], ['1'])
    >>> ids_answered(b'{"log":{"jsonrpc":"2.0","id":1,"result":{}}}')
    []
    """
    if isinstance(line, CutLine):
        beginning, end = line.beginning, line.end
    else:
        beginning, end = line[:_SEARCHED], line[_SEARCHED:][-_SEARCHED:]
    text = _text_of(beginning)
    if text[:1] not in (b"{", b"["):
        return None if isinstance(line, CutLine) else []
    ids: list[str] = []
    for one in _beginnings_of_messages(text):
        found = one.ids_answered(end)
        if found is None:
            return None
        ids += found
    return ids


def _text_of(beginning: bytes) -> bytes:
    return beginning.removeprefix(_BOM).lstrip(_SPACE)


class _Beginning:
    """The members of a message, as far as they can be read."""

    def __init__(self) -> None:
        self.keys: set[str] = set()
        self.ids: list[str] = []
        self.is_whole = False

    def ids_answered(self, end: bytes) -> list[str] | None:
        keys = self.keys
        is_answer = not keys.isdisjoint(("result", "error"))
        is_other = not keys.isdisjoint(("method", "params"))
        if not is_answer and (is_other or "jsonrpc" not in keys):
            is_hidden = not (is_other or self.is_whole) and b'"jsonrpc"' in end
            return None if is_hidden else []
        if self.ids:
            return self.ids
        if self.is_whole:
            return None if "jsonrpc" in keys else []
        found = _id_at_the_end(end)
        return [found.decode()] if found and _is_id(found) else None


def _beginnings_of_messages(text: bytes) -> list[_Beginning]:
    """Read the outermost object, or the objects in the outermost array."""
    outermost = 1 if text[:1] == b"{" else 2
    messages: list[_Beginning] = []
    depth, before, key = 0, b"", ""
    for token in _TOKEN.finditer(text):
        part = token[0]
        if part[:1] == b'"' and not _is_string(part):
            break
        if depth == outermost and messages:
            if part == b":":
                key = _key(before)
                messages[-1].keys.add(key)
            elif before == b":" and key == "id" and token.end() < len(text) and _is_id(part):
                messages[-1].ids.append(part.decode())
        if part == b"{" and depth == outermost - 1:
            messages.append(_Beginning())
        depth += (part in b"{[") - (part in b"}]")
        if depth == outermost - 1 and part == b"}" and messages:
            messages[-1].is_whole = True
        before = part
    return messages


def _key(written: bytes) -> str:
    try:
        return str(json.loads(written)).lower()
    except ValueError:
        return ""


def _is_id(written: bytes) -> bool:
    if _IS_ID(written) is None or not is_utf8(written):
        return False
    try:
        return not written.startswith(b'"') or isinstance(json.loads(written), str)
    except ValueError:  # such as a wrong escape
        return False


def _id_at_the_end(end: bytes) -> bytes | None:
    """Find the id if it is the last member: the last brace closes the outermost object."""
    found = _LAST_MEMBER.search(end)
    return found[1] if found else None


def on_one_line(message: bytes) -> bytes:
    """Return the message without line ends. Raises ProtocolError if it is not valid JSON.

    (Invalid JSON must not become valid: a line end within a string is an error.)
    """
    stripped = message.strip(b" \t\r\n")
    if b"\n" not in stripped and b"\r" not in stripped:
        return stripped
    scan(stripped, {}, Limits(message=max(1, len(stripped))))
    return stripped.replace(b"\r", b" ").replace(b"\n", b" ")


_SUBSCRIPTION = "io.modelcontextprotocol/subscriptionId"
_OUTLINE: Outline = {"params": {"_meta": {}}, "result": {"_meta": {}}}


@dataclass(frozen=True, slots=True)
class _Original:
    id: str
    token: str | None


class Numbers:
    """The ids of one shared connection."""

    def __init__(self) -> None:
        self._last = 0
        self._originals: dict[int, _Original] = {}

    def renumber(self, request: bytes) -> tuple[int, bytes]:
        """Return a new number, and the request with this number as its id."""
        text, root = scan(request, _OUTLINE, Limits(message=max(1, len(request))))
        self._last += 1
        token = _within(root, "params", "_meta", "progressToken")
        self._originals[self._last] = _Original(
            _cut(text, root["id"]), _cut(text, token) if token else None
        )
        places = [root["id"], *([token] if token else [])]
        return self._last, _replaced(text, [(place, str(self._last)) for place in places])

    def restore(self, message: bytes) -> tuple[int | None, bytes]:
        """Return the number of the message's request, and the message with the client's own ids.

        The number is None if the message belongs to no request, and 0 if the request is forgotten.
        """
        text, root = scan(message, _OUTLINE, Limits(message=max(1, len(message))))
        changes: list[tuple[Value, str]] = []
        found: int | None = None
        if (id := root.get("id")) and (number := self._number(text, id)):
            found = number
            changes.append((id, self._originals[number].id))
        token = _within(root, "params", "progressToken")
        if token:
            found = self._number(text, token) or 0
            if found:
                changes.append((token, self._originals[found].token or str(found)))
        for holder in ("params", "result"):
            named = _within(root, holder, "_meta", _SUBSCRIPTION)
            if named:
                found = self._number(text, named) or found or 0
                if found:
                    changes.append((named, self._originals[found].id))
        return found, _replaced(text, changes) if changes else message

    def forget(self, number: int) -> None:
        """Forget a request that has been answered."""
        self._originals.pop(number, None)

    def _number(self, text: str, value: Value) -> int | None:
        # Some upstreams write a subscription's id as a string.
        written = _cut(text, value).strip('"')
        number = int(written) if written.isdecimal() and len(written) < 16 else None
        return number if number in self._originals else None


def _within(root: Value, *keys: str) -> Value | None:
    found: Value | None = root
    for key in keys:
        found = found.get(key) if found else None
    return found


def _cut(text: str, value: Value) -> str:
    return text[value.start : value.end]


def _replaced(text: str, changes: list[tuple[Value, str]]) -> bytes:
    for value, new in sorted(changes, key=lambda change: -change[0].start):
        text = text[: value.start] + new + text[value.end :]
    return text.encode()


def string_in(raw: bytes, *keys: str) -> str | None:
    """Return the string at a place in a message, if there is one."""
    try:
        found = json.loads(raw)
    except (ValueError, RecursionError):
        return None
    for key in keys:
        found = found.get(key) if isinstance(found, dict) else None
    return found if isinstance(found, str) else None
