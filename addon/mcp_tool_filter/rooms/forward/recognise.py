r"""Find MCP in the traffic of a forward proxy; all other traffic passes untouched.

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

A ``BodyReader`` holds no more of a body than needed: its first character shows that it cannot be a
message; then it passes as it comes. JSON is held until it is complete. JSON that is longer than any
message passes too, but the rest is watched: if it mentions a message, we cut the body off, so that
no server can read it. An ``EventPeeker`` does the same for events.

>>> BodyReader("", Limits()).feed(b"  <p>...")
<Treatment.OTHER: 'other'>
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from enum import StrEnum
from functools import partial
from typing import Any

from mcp_tool_filter.core.errors import ProtocolError
from mcp_tool_filter.core.http.bodies import decode_body
from mcp_tool_filter.core.http.head import Head
from mcp_tool_filter.core.messages.limits import Limits, OverLimit
from mcp_tool_filter.core.messages.messages import fold, is_like_a_call
from mcp_tool_filter.core.messages.scan import EACH, Value, scan
from mcp_tool_filter.core.messages.sse import Event, parse_event

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
_SPACE = re.compile(r"[ \t\r\n]*")
_MOST_VALUES = 100_000


class TrafficKind(StrEnum):
    """The kind of a request, or of an event in a stream; of several, the last of these counts."""

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
        is_call = any(_begins(one, "tools/") for one in methods)
        return TrafficKind.MCP if is_call else TrafficKind.OTHER
    if len(methods) == 1 and methods[0] is not None and not _begins(methods[0], _METHODS):
        return TrafficKind.JSON_RPC
    return TrafficKind.MCP


def _most(kinds: Iterable[TrafficKind]) -> TrafficKind:
    return max(kinds, key=list(TrafficKind).index, default=TrafficKind.OTHER)


def _begins(method: str | None, beginnings: str | tuple[str, ...]) -> bool:
    """Tell whether some server could read a method as one of those that begin so, or as a call."""
    return method is not None and (fold(method).startswith(beginnings) or is_like_a_call(method))


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


# Bodies

_CODINGS = frozenset({"gzip", "x-gzip", "deflate", "br", "zstd"})
_NAME = re.compile(r"[a-z0-9-]+")
_GZIP = ("gzip", "x-gzip")
_INFLATED = (*_GZIP, "deflate")
_STEP = 1024 * 1024  # decoded bytes
_MOST_INFLATED = 32  # times the longest message; what grows beyond that is refused
_ENOUGH = 4096  # decoded bytes that show how a body begins
_MOST_BLANK = 64 * 1024
_LONGEST_LINE = 64 * 1024
_SKIPPED = b" \t\r\n\0\x0b\x0c\x1c\x1d\x1e\x1f\x85\xa0"
# Bytes that some server accepts as a space, or as a blank line before a request. Node reads RTSP
# and ICE as HTTP, and serves a request without a version.
_GAP = rb"[ \t\r\x0b\x0c\x1c-\x1f\x85\xa0]"
_METHOD = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,64}+"
_VERSION = b"(?i:HTTP|RTSP|ICE)/[0-9.]*+%b*+" % _GAP
_REQUEST_IN_BODY = re.compile(b"%b%b[^\\n]*%b%b\\n" % (_METHOD, _GAP, _GAP, _VERSION))
_MAY_BECOME_REQUEST = re.compile(b"%b(?:%b[^\\n]*)?" % (_METHOD, _GAP))
# Node accepts tabs in a target. More than a few count as its end: else we would read to the end of
# a long line from each of its tabs.
_TARGET = rb"(?:/|http)[^ \t\n]*+(?:\t[^ \t\n]*+){0,12}+[\t\n]"
_REQUEST_LINE_END = re.compile(b"(?<=[A-Z]{3})[ \\t]++%b|%b%b\\n" % (_TARGET, _GAP, _VERSION))
"""What a request line ends with. One that follows a body may begin in the middle of a line."""
_BLANK_LINE = re.compile(rb"\n\r?\n")
_CODED = re.compile(
    rb"[\r\n][\x00-\x09\x0b\x0c\x0e-\x20]*(?:transfer|content)[^a-z0-9:\r\n]+encoding[^a-z0-9:\r\n]*:",
    re.IGNORECASE,
)


class Treatment(StrEnum):
    """What happens to a request."""

    OTHER = "other"
    """It passes untouched, as long as the reader's watch finds nothing in the rest of its body."""
    MCP = "mcp"
    """The filter judges it."""
    REFUSED = "refused"
    """It must not be sent: to a server that ignores bodies, this one is another request."""


# Servers that hand headers on as variables read the name in other spellings, too.
_SAYS_CODING = re.compile(rb"\W*content[\W_]+encoding\W*", re.IGNORECASE).fullmatch


def coding_in(fields: Iterable[tuple[bytes, bytes]]) -> str:
    """Return all codings that some server could find in the head of a request."""
    return ",".join(value.decode("latin-1") for name, value in fields if _SAYS_CODING(name))


class BodyReader:
    """Use one per request whose head does not decide."""

    def __init__(self, coding: str, limits: Limits, *, is_endpoint: bool = False) -> None:
        """``is_endpoint`` means that the request goes to an MCP endpoint, so all JSON-RPC is
        MCP."""
        # Some servers only search the header for a name, so gzip;q=1 is gzip to them.
        self._codings = [one for one in _NAME.findall(coding.lower()) if one in _CODINGS]
        self._limits = limits
        self._is_endpoint = is_endpoint
        self._held = bytearray()
        self._has_begun = False
        self._is_no_request = False
        self._has_half_a_line = False  # of what may be a request
        self.watches: list[Watch] = []
        """For the rest of a body that passes."""

    @property
    def size(self) -> int:
        """Bytes held."""
        return len(self._held)

    @property
    def held(self) -> bytes:
        """The bytes received so far, unchanged."""
        return bytes(self._held)

    def feed(self, chunk: bytes) -> Treatment | None:
        """Take the next part; return what happens to the request once we know."""
        self._held += chunk
        return self._watched(self._read(chunk))

    def finish(self) -> Treatment:
        """Return what happens to the request, given the complete body."""
        return self._watched(self._read_all()) or Treatment.REFUSED

    def _watched(self, way: Treatment | None) -> Treatment | None:
        """Look for a request within a body that would pass."""
        if way is Treatment.OTHER:
            self.watches.append(RequestWatch())
            if not self.watches[-1].may_pass(bytes(self._held)):
                return Treatment.REFUSED
        return way

    def _read(self, chunk: bytes) -> Treatment | None:
        if not self._is_no_request:
            if self._has_half_a_line and b"\n" not in chunk and len(self._held) < _LONGEST_LINE:
                return None
            line = bytes(self._held[:_LONGEST_LINE]).lstrip(_SKIPPED)
            if _REQUEST_IN_BODY.match(line):
                return Treatment.REFUSED
            if line and len(line) < _LONGEST_LINE and _MAY_BECOME_REQUEST.fullmatch(line):
                self._has_half_a_line = len(line) > 64
                return None
            self._is_no_request = bool(line)
        if not self._codings:
            return self._read_plain()
        if len(self._codings) > 1:
            return Treatment.MCP  # nobody needs this; the filter refuses it
        if self._codings[0] in _INFLATED and not self._has_begun:
            held = bytes(self._held[:_MOST_BLANK])
            beginnings = _inflated(held)
            # Some servers ignore the coding: "{" is also the beginning of compressed data.
            if beginnings and not any(map(may_be_message, (held, *beginnings))):
                return Treatment.OTHER
            self._has_begun = any(one.lstrip(BLANK) for one in beginnings)
        return self._read_long() if self._is_too_long else None

    def _read_all(self) -> Treatment:
        raw = body = bytes(self._held)
        if not body.strip(BLANK):
            return Treatment.MCP if self._is_endpoint and body else Treatment.OTHER
        if self._codings:
            name = self._codings[0].removeprefix("x-")
            try:
                body = decode_body(body, name, limit=self._limits.message)
            except OverLimit:
                return Treatment.MCP if self._read_long() is Treatment.MCP else Treatment.OTHER
            except ProtocolError:
                # Could some server find a message in what we cannot decode?
                beginning = body[:_MOST_BLANK]
                is_other = self._codings[0] in _INFLATED and not may_be_message(beginning)
                is_other = is_other and not _inflated(beginning)
                return Treatment.OTHER if is_other else Treatment.MCP
            if may_be_message(raw[:_MOST_BLANK]) and mentions_message(raw):
                return Treatment.MCP  # for a server that ignores the coding
        kind = kind_of_body(body)
        if kind is TrafficKind.MCP or (kind is TrafficKind.JSON_RPC and self._is_endpoint):
            return Treatment.MCP
        return Treatment.OTHER

    @property
    def _is_too_long(self) -> bool:
        return len(self._held) > self._limits.message

    def _read_long(self) -> Treatment:
        """Decide on compressed JSON that is longer than any message."""
        is_gzip = self._has_begun and self._codings[0] in _GZIP
        if not is_gzip or may_be_message(bytes(self._held[:_MOST_BLANK])):
            return Treatment.MCP
        self.watches = [GzipWatch(_MOST_INFLATED * self._limits.message)]
        may_pass = self.watches[0].may_pass(bytes(self._held))
        return Treatment.OTHER if may_pass else Treatment.MCP

    def _read_plain(self) -> Treatment | None:
        if not self._has_begun:
            beginning = bytes(self._held[:_MOST_BLANK])
            if not may_be_message(beginning):
                return Treatment.OTHER
            self._has_begun = bool(beginning.strip(BLANK))
            if not self._has_begun and len(self._held) >= _MOST_BLANK:
                return Treatment.MCP
        if not self._is_too_long:
            return None
        self.watches = [Watch()]
        may_pass = self.watches[0].may_pass(bytes(self._held))
        return Treatment.OTHER if may_pass else Treatment.MCP


class Watch:
    """Looks for a message in a body that is too long to hold."""

    def __init__(self) -> None:
        self._last = b""

    def may_pass(self, chunk: bytes) -> bool:
        """Tell whether this chunk of the body may pass."""
        text = self._last + chunk
        self._last = text[-LONGEST_MENTION:]
        return not mentions_message(text)


class RequestWatch(Watch):
    r"""Looks for a request to MCP within another body: a server that ignores bodies reads it.

    It may begin anywhere, since such a server may skip what it cannot read. Honest texts show
    requests, too. So one is refused only with a message behind it, or if its head says that its
    body is coded: there we could not find a message.

    >>> [RequestWatch().may_pass(b"a=b\n\nPOST /mcp HTTP/1.1\n" + more)
    ...  for more in (b"\n{}", b"\n{'jsonrpc'", b"Transfer-Encoding: chunked\n")]
    [True, False, False]
    """

    def __init__(self) -> None:
        super().__init__()
        self._line = bytearray()  # the unfinished one
        self._has_found = self._is_in_head = False

    def may_pass(self, chunk: bytes) -> bool:
        if self._has_found and not super().may_pass(chunk):
            return False
        self._line += chunk
        if b"\n" not in chunk:
            if len(self._line) > 2 * _LONGEST_LINE:
                del self._line[:-_LONGEST_LINE]  # no server reads a longer one
            return True
        text = b"\n" + self._line
        end = text.rindex(b"\n") + 1
        del self._line[: end - 1]
        return self._may_pass_lines(text, end)

    def _may_pass_lines(self, text: bytes, end: int) -> bool:
        """Judge the whole lines of a text: those between its first character and ``end``."""
        at = 1
        while True:
            if self._is_in_head:
                blank = _BLANK_LINE.search(text, at - 1, end)
                if _CODED.search(text, at - 1, blank.end() if blank else end):
                    return False
                if blank is None:
                    return True
                self._is_in_head, at = False, blank.end()
            found = _REQUEST_LINE_END.search(text, at, end)
            if found is None:
                return True
            if not self._has_found and not super().may_pass(text[found.start() :]):
                return False
            self._has_found = self._is_in_head = True
            at = found.end()


class GzipWatch(Watch):
    """The same for a body that is compressed: one gzip member with nothing behind it."""

    def __init__(self, most: int) -> None:
        """It may have ``most`` bytes when decoded."""
        super().__init__()
        self._inflater = zlib.decompressobj(31)
        self._room = most

    def may_pass(self, chunk: bytes) -> bool:
        try:
            for text in _inflate_more(self._inflater, chunk):
                self._room -= len(text)
                if self._room < 0 or not super().may_pass(text):
                    return False
        except (zlib.error, ProtocolError):
            return False
        return True


def _inflated(raw: bytes) -> list[bytes]:
    """Return the decoded beginnings of a compressed body, in each way that some server reads it."""
    found = []
    for window in (47, -15):  # gzip or zlib; without a head
        with suppress(zlib.error):
            found.append(zlib.decompressobj(window).decompress(raw, _ENOUGH))
    return found


# Event streams

_LIMITS = Limits()
_EVENT_END = re.compile(rb"\n[\r\n]|\r\r")
_LINES = re.compile(rb"[^\r\n]+(?:\r\n?|\n)?|\r\n?|\n")
_OTHER_LINE_ENDS = re.compile(rb"[\x0b\x0c\x1c-\x1e]|\xc2\x85|\xe2\x80[\xa8\xa9]")
_BEGINS_LINE_END = re.compile(rb"(?:\xc2|\xe2\x80?)\Z")
_BOM = b"\xef\xbb\xbf"


class EventPeeker:
    r"""Finds the first MCP event in an event stream. What cannot become one passes at once.

    The older transport begins with an event called ``endpoint``. Of an event whose data cannot be a
    message, each line passes as it comes; all others are held until they are complete.

    >>> peeker = EventPeeker()
    >>> peeker.feed(b"data: hel"), peeker.feed(b"lo\n\ndata: {"), peeker.feed(b"}\n\n")
    ((b'data: hel', None), (b'lo\n\n', None), (b'data: {}\n\n', None))
    >>> peeker.feed(b'data: {"jsonrpc":"2.0","method":"ping","id":1}\n\n: x\n')
    (b'', b'data: {"jsonrpc":"2.0","method":"ping","id":1}\n\n: x\n')
    """

    def __init__(self, limits: Limits = _LIMITS) -> None:
        self._limits = limits
        self._held = bytearray()  # of the event that has begun, or the byte order mark
        self._searched = 0
        self._passes: bool | None = None  # None means that we do not know yet
        self._last = b""  # the last byte of the event that has passed
        self._watch: Watch | None = None
        self._has_begun = False

    @property
    def held(self) -> int:
        """Bytes held."""
        return len(self._held)

    def feed(self, chunk: bytes) -> tuple[bytes, bytes | None]:
        """Return the bytes that pass; and once there is MCP, all the other bytes received.

        Raises ProtocolError if a message begins in what has passed.
        """
        self._held += chunk
        passed: list[bytes] = []
        while (end := self._find_end()) is not None:
            event = bytes(self._held[:end])
            if self._is_mcp(event):
                return b"".join(passed), self._take(len(self._held))
            passed.append(self._take(end))
            self._passes, self._last, self._watch = None, b"", None
        if self._passes is None:
            self._passes = _passes_early(bytes(self._held[:_MOST_BLANK]))
            if self._passes is None and len(self._held) >= _MOST_BLANK:
                self._passes = False
        if self._passes is False and len(self._held) > self._limits.message:
            if mentions_message(bytes(self._held)):
                return b"".join(passed), self._take(len(self._held))
            self._passes, self._watch = True, Watch()
        if self._passes:
            passed.append(self._pass_on())
        return b"".join(passed), None

    def finish(self) -> tuple[bytes, bytes | None]:
        """Return the same for an unfinished last event."""
        rest = self._take(len(self._held))
        return (b"", rest) if rest and self._is_mcp(rest) else (rest, None)

    def _find_end(self) -> int | None:
        """Return where the event ends; also blank lines, comments and a byte order mark are one."""
        held = self._held
        if not self._has_begun and held:
            if len(held) < len(_BOM) and _BOM.startswith(held):
                return None
            self._has_begun = True
            if held.startswith(_BOM):
                return len(_BOM)
        if held[:1].isspace() and held[0] in b"\r\n" and (not self._last or self._last in b"\r\n"):
            return 1
        if held[:1] == b":" and not self._last:
            found = _LINES.match(held)
            return found.end() if found and found[0][-1:] in b"\r\n" else None
        found = _EVENT_END.search(held, max(0, self._searched - 1))
        self._searched = len(held)
        return found.end() if found else None

    def _take(self, size: int) -> bytes:
        taken = bytes(self._held[:size])
        del self._held[:size]
        self._searched = 0
        return taken

    def _is_mcp(self, event: bytes) -> bool:
        if not self._passes:
            return _is_mcp_event(parse_event(event))
        if _OTHER_LINE_ENDS.search(event) and mentions_message(event):
            raise ProtocolError("a message in a line that only some readers see")
        if self._watch and not self._watch.may_pass(event):
            raise ProtocolError("a message that is too long")
        return False

    def _pass_on(self) -> bytes:
        """Return what may pass of an event that cannot be a message."""
        held = bytes(self._held)
        odd = _OTHER_LINE_ENDS.search(held) or _BEGINS_LINE_END.search(held)
        piece = self._take(odd.start() if odd else len(held))
        if self._watch and not self._watch.may_pass(piece):
            raise ProtocolError("a message that is too long")
        self._last = piece[-1:] or self._last
        return piece


def _passes_early(begun: bytes) -> bool | None:
    """Tell whether an event that has begun like this may pass as it comes; None if unknown."""
    for line in _LINES.findall(begun):
        name, colon, value = line.partition(b":")
        if name != b"data" and _OTHER_LINE_ENDS.search(line):
            return False
        if name == b"event" and value.strip().lower() == b"endpoint":
            return False
        if name == b"data" and colon and (said := value.lstrip(BLANK)):
            if len(said) < 4 and b"http".startswith(said.lower()):
                return None
            # A line with a URL may come before the one that calls the event an endpoint.
            return not may_be_message(said) and not said.lower().startswith(b"http")
    return None


def _is_mcp_event(event: Event) -> bool:
    if event.name.strip().lower() == b"endpoint":
        return True
    data = event.data or b""
    is_odd = not may_be_message(data) and _OTHER_LINE_ENDS.search(data) is not None
    if (is_odd or event.hides_a_line()) and mentions_message(event.raw):
        return True
    return bool(data) and kind_of_body(data) is TrafficKind.MCP


def inflating(coding: str) -> Callable[[bytes], Iterator[bytes]]:
    """Return a function that decodes the next bytes of a compressed stream, in bounded pieces.

    Raises ProtocolError if nobody here can.
    """
    match coding.strip().lower().removeprefix("x-"):
        case "gzip" | "deflate":
            return partial(_inflate_more, zlib.decompressobj(47))
        case "br":
            import brotli

            return partial(_unbrotli_more, brotli.Decompressor())
        case "zstd":
            import zstandard

            return partial(_unzstd_more, zstandard.ZstdDecompressor().decompressobj())
    raise ProtocolError("an event stream in an unknown coding")


def _inflate_more(inflater: Any, raw: bytes) -> Iterator[bytes]:
    while True:
        yield (piece := inflater.decompress(raw, _STEP))
        if inflater.unused_data:
            raise ProtocolError("something behind compressed data")
        raw = inflater.unconsumed_tail
        if not raw and len(piece) < _STEP:  # else it may have kept the end
            return


def _unbrotli_more(decoder: Any, raw: bytes) -> Iterator[bytes]:
    while (piece := bytes(decoder.process(raw, output_buffer_limit=_STEP))) or raw:
        yield piece
        raw = b""


def _unzstd_more(decoder: Any, raw: bytes) -> Iterator[bytes]:
    for at in range(0, len(raw), 256):  # a few bytes can say a hundred kilobytes
        yield decoder.decompress(raw[at : at + 256])
