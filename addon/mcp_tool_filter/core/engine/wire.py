r"""HTTP/1.1 from bytes and back, in both roles, without I/O.

The idea: there is one way to read each byte. What two readers could read in two ways is a
``Fault``, and after a fault nothing of that connection is read any more. Heads end their lines with
CRLF, have no folded lines and announce their body once, by a length or as chunks; chunks and
trailers must be exact (trailers are dropped). We write heads and bodies anew, so the other side
never sees the framing of this one.

A wire has one of these states:

    head ──► count ──► end ──► done            a body with a length (without one, head ──► end)
         ──► size ──► chunk ──► size … ──► trailers ──► done
         ──► close ──► done                    an answer that ends with its connection
         ──► switched                          after 101, which no caller accepts

Who has seen the end of a message sets the state from done to head to read the next one. What comes
before that stays in the buffer.

The cost: every byte is searched once, also if a head or chunks come byte by byte. The last few
heads of a connection are remembered without the values of Content-Length and Date: a client repeats
the same head with each request, and then neither the head nor what was decided on it (``notes``) is
worked out again. The memory ends with its connection, since it holds credentials.

>>> wire = RequestWire()
>>> wire.receive(b"POST /mcp HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}")
>>> wire.next().target, wire.next(), wire.next(), wire.next()
('/mcp', b'{}', <End.END: 1>, None)
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Final, Literal

from mcp_tool_filter.core.http.head import AnswerNotes, RequestNotes
from mcp_tool_filter.core.messages.limits import HTTP_TOKEN

if TYPE_CHECKING:
    from mcp_tool_filter.core.http.head import Fields

type State = Literal[
    "head", "count", "close", "size", "chunk", "chunk end", "trailers", "end", "done", "switched"
]


class End(Enum):
    """The end of a message, from ``Wire.next``."""

    END = 1


END: Final = End.END


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpLimits:
    """The limits of size and time for one connection."""

    head: int = 64 * 1024
    """Bytes of a head, of trailers, or of a line before a chunk (there, a sixteenth)."""
    ahead: int = 1024 * 1024
    """Bytes that a client may send before it has its answer."""
    chunks: int = 64
    """Chunks that came together and are passed on one by one; the others are joined."""
    turn: int = 256
    """Pieces of one connection that we read in a row before we serve others: a chunk or a line of
    an event is one, a head is eight. That takes a few milliseconds."""
    interim: int = 100
    """Answers below 200 to one request: they could come without end."""
    heads: int = 8
    """Heads that are remembered for each connection."""
    longest_kept: int = 4096
    """Bytes of a head that is remembered."""
    head_time: float = 30.0
    """Seconds in which a request's head must come."""
    body_time: float = 60.0
    """Seconds without a byte of a request's body."""
    idle_time: float = 120.0
    """Seconds between two requests."""
    discard_time: float = 30.0
    """Seconds in which we read the rest of a body that was refused."""
    young: float = 2.0
    """Seconds an upstream's connection may have been idle to be used for a call: servers close
    idle ones after a few seconds, and a call must never be sent twice."""


DEFAULT_LIMITS = HttpLimits()


class Fault(Exception):
    """The peer's bytes are not HTTP as we accept it."""

    def __init__(self, why: str, status: int = 400, fields: Fields = ()) -> None:
        """``fields`` go with the answer that says so."""
        super().__init__(why)
        self.status, self.fields = status, fields


@dataclass(slots=True, eq=False)
class RequestHead:
    """A request's head as the client sent it."""

    method: str
    target: str
    fields: Fields
    is_11: bool = True
    keeps: bool = True
    """True if the connection may carry another request."""
    length: int | None = None
    """The announced length of the body."""
    is_chunked: bool = False
    expects: bool = False
    """True if the client waits for our 100 before it sends the body."""
    upgrades: bool = False
    """True if the client asks for another protocol on this connection."""
    authority: str | None = None
    """The host of an absolute target, once it is split."""
    body: bytes | None = None
    """The whole body, if it came with the head (``next_joined``)."""
    notes: RequestNotes = field(default_factory=RequestNotes)

    def again(self) -> RequestHead:
        """Return the same head for another exchange, with the same notes."""
        return RequestHead(
            self.method, self.target, self.fields, self.is_11, self.keeps, self.length,
            self.is_chunked, self.expects, self.upgrades, self.authority, None, self.notes,
        )  # fmt: skip

    def split_target(self) -> None:
        """Make a target that is a URL a path; every server must accept one (RFC 9112, 3.2.2)."""
        if absolute := _ABSOLUTE.fullmatch(self.target):
            self.authority, path = absolute[1], absolute[2] or "/"
            self.target = path if path.startswith("/") else f"/{path}"


@dataclass(slots=True, eq=False)
class AnswerHead:
    """An answer's head as the upstream sent it."""

    status: int
    reason: bytes
    fields: Fields
    is_11: bool = True
    keeps: bool = True
    length: int | None = None
    is_chunked: bool = False
    date: bytes | None = None
    body: bytes | None = None
    """The same as a request's."""
    notes: AnswerNotes = field(default_factory=AnswerNotes)

    def again(self) -> AnswerHead:
        """Return the same head for another exchange, with the same notes."""
        return AnswerHead(
            self.status, self.reason, self.fields, self.is_11, self.keeps, self.length,
            self.is_chunked, self.date, None, self.notes,
        )  # fmt: skip


_TOKEN = HTTP_TOKEN.encode()
FIELD: Final = re.compile(rb"%b+:[^\0-\x08\x0a-\x1f\x7f]*" % _TOKEN)
"""A field as it may be written, without its line end."""
_FIELD_LINES = re.compile(rb"(?:%b+:[^\0-\x08\x0a-\x1f\x7f]*\r\n)*" % _TOKEN)
# Exactly one space each: a reader that splits at every space would find another target.
_REQUEST_LINE = re.compile(rb"(%b+) ([!-~]+) HTTP/1\.([01])" % _TOKEN)
_REQUEST_SO_FAR = re.compile(rb"%b{0,64}(?: [!-~]*(?: [HTP/1.0]{0,8})?)?\r?" % _TOKEN)
_ABSOLUTE = re.compile(r"https?://([^/?#@\\]+)([/?][^#]*)?", re.IGNORECASE)
_STATUS_LINE = re.compile(rb"HTTP/1\.([01]) ([1-9][0-9]{2})(?: ([\t -~\x80-\xff]*))?")
_STATUS_SO_FAR = re.compile(rb"[HTP/1.0]{0,8}(?: [0-9]{0,3}(?: [\t -~\x80-\xff]*)?)?\r?")
# LF or CR alone, a folded line, a NUL: some readers end a line there and others do not.
_BARE = re.compile(rb"(?<!\r)\n|\r(?=[^\n])|\n[ \t]|\0")
# So few digits mean the same in 64 bits and in a double. (int() would also read "+1" and "1_0".)
LENGTH = re.compile(rb"[0-9]{1,15}").fullmatch
_DATE = re.compile(rb"[!-~](?:[ -~]*[!-~])?").fullmatch
# So few digits fit in 32 bits: no reader cuts off the first ones, and none sees another size.
_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,8})[ \t]*(?:;[^\0-\x08\x0a-\x1f\x7f]*)?\r\n")
_TRAILERS = re.compile(rb"(?:%b+:[^\0-\x08\x0a-\x1f\x7f]*\r\n)*\r\n" % _TOKEN)
_TAB_IN_FRAMING = re.compile(rb"\r\n(?:content-length|transfer-encoding):[^\r\t]*\t", re.IGNORECASE)
_LENGTH_ONLY = re.compile(rb"(\r\n(?:content-length):[ \t]*)([^\r\n]*)", re.IGNORECASE)
_LENGTH_OR_DATE = re.compile(rb"(\r\n(?:content-length|date):[ \t]*)([^\r\n]*)", re.IGNORECASE)
_PIECES_OF_A_HEAD = 8
LAST_CHUNK = b"0\r\n\r\n"
_END_OF_A_CHUNK = b"\r\n"
_AFTER_A_CHUNK = len(_END_OF_A_CHUNK + LAST_CHUNK)
NO_BODY = frozenset({204, 304})
"""The statuses of answers that never have a body."""
NOT_IMPLEMENTED: Final = 501


class Wire[H: (RequestHead, AnswerHead)](ABC):
    """What one side sends. Call ``receive`` with bytes, then ``next`` until it returns None."""

    def __init__(self, limits: HttpLimits = DEFAULT_LIMITS) -> None:
        self._limits = limits
        self.state: State = "head"
        self.unread = b""
        """What was received, from some read bytes on; empty if all was read."""
        self.pieces = 0
        """How many were read, in the unit of ``HttpLimits.turn``."""
        self._at = 0  # what was read already
        self._searched = 0  # no end of the head or of the trailers begins before this
        self._left = 0  # bytes of the body or chunk to come
        self._singly = 0  # chunks that came together and were passed on one by one
        self._remembered: dict[tuple[bytes, ...], tuple[H, tuple[int, ...]]] = {}
        """Heads by their bytes without what varies, and the places of the fields that vary."""
        self._last: tuple[bytes, H] | None = None
        """The last remembered head with all of its bytes: most are repeated as they were."""
        self._usual: tuple[bytes, H, int] | None = None
        """The same with its end, and how long it is with its body, if only a length frames that."""
        self._has_ended = False

    def receive(self, data: bytes) -> None:
        if self.unread:  # only what is left is copied, not what was read already
            data = self.unread[self._at :] + data
            self._searched -= self._at
            self._at = 0
        self.unread = data

    def eof(self) -> None:
        """The peer sends no more."""
        self._has_ended = True

    @property
    def ahead(self) -> int:
        """Bytes that were received and not read yet."""
        return len(self.unread) - self._at

    def take_rest(self) -> bytes:
        """Return what was received and is no longer HTTP."""
        rest = self.unread[self._at :]
        self._read_to(len(self.unread))
        return rest

    def _read_to(self, end: int) -> None:
        """Note that everything up to here was read."""
        if end == len(self.unread):  # what a socket returns may take a page of memory
            self.unread, end = b"", 0
        self._at = self._searched = end

    def forget(self) -> None:
        """Free the memory of the heads, since none comes for long."""
        self._remembered, self._last, self._usual = {}, None, None

    def next(self) -> H | bytes | End | None:
        """Return the next head, bytes of a body, or END; None if bytes are missing.

        Raises Fault.
        """
        match self.state:
            case "head":
                return self._head()
            case "count":
                return self._counted()
            case "end":
                self.state = "done"
                return END
            case "size" | "chunk" | "chunk end":
                return self._chunks()
            case "close":
                return self._until_close()
            case "trailers":
                return self._trailers()
            case "done" | "switched":
                return None

    def next_joined(self, data: bytes = b"") -> H | bytes | End | None:
        """Take bytes, then return the next event; a head has its body if all of that is here, and
        then no END follows."""
        if data:
            if (
                (usual := self._usual) is not None and self.state == "head" and not self.unread
                and self.asked == "POST" and len(data) == usual[2] and data.startswith(usual[0])
            ):  # fmt: skip
                return self._repeated(data, *usual)
            self.receive(data)
        if self.state != "head":
            return self.next()
        if (head := self._head()) is None:
            return None
        if self.state == "end":
            head.body, self.state = b"", "done"
        elif self.state == "count" and self._left <= len(self.unread) - self._at:
            head.body, self._left, self.state = self._take(self._left), 0, "done"
        elif self.state == "size" and self._joins_chunks:
            head.body = self._only_chunk()
        return head

    def _only_chunk(self) -> bytes | None:
        """Take the body if it is one chunk, and it is here with its end and nothing else."""
        if not self.unread.endswith(_END_OF_A_CHUNK + LAST_CHUNK):
            return None
        found = _CHUNK.match(self.unread, self._at)
        size = int(found[1], 16) if found is not None else 0
        if found is None or not size or found.end() + size + _AFTER_A_CHUNK != len(self.unread):
            return None
        data = self.unread[found.end() : found.end() + size]
        self.pieces += 2
        self.state = "done"
        self._read_to(len(self.unread))
        return data

    def _repeated(self, data: bytes, block: bytes, last: H, _size: int) -> H:
        """Return a head that is as the last one was, with its body: nothing else is in the data."""
        self.pieces += _PIECES_OF_A_HEAD
        self._interim = 0
        head: H = last.again()
        head.body, self._left, self.state = data[len(block) :], 0, "done"
        return head

    # Heads

    def _head(self) -> H | None:
        buffer, at = self.unread, self._at
        while buffer.startswith(b"\r\n", at):  # some clients send it after a body
            at += 2
        if at != self._at:
            self._read_to(at)
            buffer, at = self.unread, self._at
        # Three bytes back: the end may have begun with the bytes before.
        end = buffer.find(b"\r\n\r\n", max(at, self._searched - 3))
        if end < 0:
            if at < len(buffer):
                self._check_so_far()
            return None
        if end - at > self._limits.head:
            raise Fault("a head that is too long", 431)
        block = buffer[at:end]
        self.pieces += _PIECES_OF_A_HEAD
        self._read_to(end + 4)
        head = self._read(block)
        self._begin_body(head)
        return head

    def _check_so_far(self) -> None:
        """Refuse at once what can never become a head: its sender may wait for an answer."""
        buffer, at = self.unread, self._at
        if len(buffer) - at > self._limits.head:
            raise Fault("a head that is too long", 431)
        end = buffer.find(b"\r\n", at)
        if self._searched <= (at + 1024 if end < 0 else end):  # not again and again
            line = buffer[at:] if end < 0 else buffer[at:end]
            if not (self._so_far if end < 0 else self._first).fullmatch(line):
                raise Fault(f"not a {self._line} line")
        if _BARE.search(buffer, max(at, self._searched - 1)):
            raise Fault("line ends")
        self._searched = len(buffer)

    _joins_chunks = False
    """True if a body in one chunk may be joined to its head."""
    asked = "POST"
    """The method of the request that an answer is to; of another, a head may have no body."""
    _interim = 0
    _line: str
    _first: re.Pattern[bytes]
    _so_far: re.Pattern[bytes]
    _varies: re.Pattern[bytes]
    """What is different in each head of the same peer; what is remembered may not depend on it."""

    def _read(self, block: bytes) -> H:
        """Return a head, perhaps a remembered one with another length and date."""
        if self._last is not None and self._last[0] == block:
            return self._last[1].again()
        # Text between, then name and value of each field that varies: so every third is a value.
        parts: list[bytes] = self._varies.split(block)
        values = parts[2::3]
        if len(block) > self._limits.longest_kept or len(values) > 2:
            return self._parse(block)
        key = (*parts[::3], *parts[1::3])
        seen = self._remembered.get(key)
        if seen is not None and (again := self._again(*seen, values)) is not None:
            last = again.again()
            self._last, self._usual = (block, last), None
            if self._has_usual_body(last) and last.length is not None:
                self._usual = block + b"\r\n\r\n", last, len(block) + 4 + last.length
            return again
        head = self._parse(block)
        varying = {
            name.lower(): at
            for at, (name, _) in enumerate(head.fields)
            if self._varies.match(b"\r\n%b:" % name)
        }
        if len(varying) == len(values):  # no two dates
            if len(self._remembered) >= self._limits.heads:
                del self._remembered[next(iter(self._remembered))]
            # An exchange may change its own, but the notes are shared.
            self._remembered[key] = head.again(), tuple(varying.values())
        return head

    def _again(self, seen: H, places: tuple[int, ...], values: list[bytes]) -> H | None:
        """Return a remembered head with these values in these places, if they are plain."""
        head: H = seen.again()
        changed = [*head.fields]
        for at, value in zip(places, values, strict=True):
            name = changed[at][0]
            if len(name) == len("date") and isinstance(head, AnswerHead) and _DATE(value):
                head.date = value
            elif len(name) > len("date") and LENGTH(value):
                head.length = int(value)
            else:
                return None
            changed[at] = name, value
        head.fields = tuple(changed)
        return head

    def _parse(self, block: bytes) -> H:
        """Parse a head."""
        line, fields = _split(block)
        found = self._first.fullmatch(line)
        if found is None:
            raise Fault(f"not a {self._line} line")
        head = self._made(found, fields)
        _frame(head)
        return head

    @abstractmethod
    def _made(self, line: re.Match[bytes], fields: Fields) -> H:
        """Return a head that is not framed yet."""

    @abstractmethod
    def _has_usual_body(self, head: H) -> bool:
        """Tell whether its Content-Length alone says how long its body is."""

    @abstractmethod
    def _begin_body(self, head: H) -> None:
        """Set the state in which this head's body is read."""

    def _begin_framed(self, length: int | None, *, is_chunked: bool) -> None:
        self._left = length or 0
        self.state = "size" if is_chunked else "count" if length else "end"

    # Bodies

    def _counted(self) -> bytes | None:
        if not self.unread:
            return None
        data = self._take(self._left)
        self._left -= len(data)
        if not self._left:
            self.state = "end"
        return data

    def _take(self, most: int) -> bytes:
        data = self.unread[self._at : self._at + most]  # all of it is not copied
        self._read_to(self._at + len(data))
        return data

    def _until_close(self) -> bytes | End | None:
        if self.unread:
            return self._take(len(self.unread))
        if self._has_ended:
            self.state = "done"
            return END
        return None

    def _chunks(self) -> bytes | End | None:
        """Return the bytes of the next chunk; of many that came together, of all of them.

        A chunk means nothing, but some readers take each for a message.
        """
        pieces: list[bytes] = []
        while self.unread:
            if len(pieces) >= self._limits.turn:  # the reader of the wire decides when to go on
                return b"".join(pieces)
            if self.state == "size":
                if not self._begin_chunk():
                    break
            elif self.state == "chunk":
                data = self._take(self._left)
                self._left -= len(data)
                pieces.append(data)
                self._singly += 1
                if not self._left:
                    self.state = "chunk end"
                if self._singly <= self._limits.chunks:
                    return data
            elif self.state == "chunk end":
                if not self._end_chunk():
                    break
            else:
                break
        self._singly = 0
        if pieces:
            return pieces[0] if len(pieces) == 1 else b"".join(pieces)
        return self._trailers() if self.state == "trailers" else None

    def _begin_chunk(self) -> bool:
        found = _CHUNK.match(self.unread, self._at)
        if found is None:
            rest = self.unread[self._at :]
            # A line that has ended is wrong now; one that never ends would be kept for ever.
            if len(rest) > self._limits.head // 16 or b"\n" in rest:
                raise Fault("not a chunk")
            return False
        self.pieces += 1
        self._read_to(found.end())
        self._left = int(found[1], 16)
        self.state = "chunk" if self._left else "trailers"
        return True

    def _end_chunk(self) -> bool:
        end = self.unread[self._at : self._at + 2]
        if not b"\r\n".startswith(end):  # a reader that skips to the next line would hide bytes
            raise Fault("a chunk that is longer than announced")
        if len(end) < 2:
            return False
        self._read_to(self._at + 2)
        self.state = "size"
        return True

    def _trailers(self) -> End | None:
        buffer, at = self.unread, self._at
        if buffer.startswith(b"\r\n", at):
            end = at + 2
        else:
            end = buffer.find(b"\r\n\r\n", max(at, self._searched - 3)) + 4
            if end < 4:
                self._searched = len(buffer)
                if len(buffer) - at > self._limits.head:
                    raise Fault("trailers that are too long")
                return None
        # Nobody gets them: a reader that takes them for fields of the head could frame it anew.
        if not _TRAILERS.fullmatch(buffer, at, end):
            raise Fault("not trailers")
        self._read_to(end)
        self.state = "done"
        return END


class RequestWire(Wire[RequestHead]):
    """What a client says: requests."""

    _line = "request"
    _first = _REQUEST_LINE
    _so_far = _REQUEST_SO_FAR
    _varies = _LENGTH_ONLY

    def _made(self, line: re.Match[bytes], fields: Fields) -> RequestHead:
        return RequestHead(line[1].decode(), line[2].decode(), fields, line[3] == b"1")

    def _has_usual_body(self, head: RequestHead) -> bool:
        return head.method == "POST" and not head.is_chunked

    def _begin_body(self, head: RequestHead) -> None:
        if head.method == "CONNECT":  # what follows is a tunnel, whatever its head announces
            if head.length or head.is_chunked:
                raise Fault("a body on CONNECT")
            head.keeps = False
        self._begin_framed(head.length, is_chunked=head.is_chunked)


class AnswerWire(Wire[AnswerHead]):
    """What an upstream says: answers."""

    _line = "status"
    _first = _STATUS_LINE
    _so_far = _STATUS_SO_FAR
    _varies = _LENGTH_OR_DATE
    _joins_chunks = True
    asked = "GET"

    def _made(self, line: re.Match[bytes], fields: Fields) -> AnswerHead:
        date = next((value for name, value in fields if name.lower() == b"date"), None)
        return AnswerHead(int(line[2]), line[3] or b"", fields, line[1] == b"1", date=date)

    def _has_usual_body(self, head: AnswerHead) -> bool:
        return head.status == 200 and not head.is_chunked

    def _begin_body(self, head: AnswerHead) -> None:
        if head.status < 200:
            self._interim += 1
            if self._interim > self._limits.interim:
                raise Fault("too many answers before the final one")
            self.state = "switched" if head.status == 101 else "head"
            return
        self._interim = 0
        # In this order (RFC 9112, 6.3): what such an answer says of its length is not its framing.
        if self.asked == "HEAD" or head.status in NO_BODY:
            self.state = "end"
        elif head.length is None and not head.is_chunked:
            head.keeps = False
            self.state = "close"
        else:
            self._begin_framed(head.length, is_chunked=head.is_chunked)


def _split(block: bytes) -> tuple[bytes, Fields]:
    """Return the first line of a head and its fields. Raises Fault."""
    line, _, rest = block.partition(b"\r\n")
    if not rest:
        return line, ()
    # A space before the colon, or a line without one: some readers skip it, others read a field.
    if not _FIELD_LINES.fullmatch(rest + b"\r\n"):
        raise Fault("not a field")
    if b"\t" in rest and _TAB_IN_FRAMING.search(block):  # not every reader strips it
        raise Fault("a tab in a framing header")
    pairs = [one.partition(b":") for one in rest.split(b"\r\n")]
    return line, tuple([(name, value.strip(b" \t")) for name, _, value in pairs])


def _frame(head: RequestHead | AnswerHead) -> None:
    """Note in a head how its body is framed. Raises Fault if two readers could differ."""
    head.keeps = head.is_11
    names_upgrade = has_upgrade = False
    for name, value in head.fields:
        match name.lower():
            case b"content-length":  # not even twice the same: readers differ
                if head.length is not None or not LENGTH(value):
                    raise Fault("not one Content-Length")
                head.length = int(value)
            case b"transfer-encoding":
                # Who does not know a coding, or speaks HTTP/1.0, takes the body for the next head.
                if head.is_chunked or value.lower() != b"chunked" or not head.is_11:
                    raise Fault("a transfer coding other than chunked")
                head.is_chunked = True
            case b"connection":
                tokens = [token.strip() for token in value.lower().split(b",")]
                head.keeps = head.keeps and b"close" not in tokens
                names_upgrade = names_upgrade or b"upgrade" in tokens
            case b"upgrade":
                has_upgrade = True
            case b"expect" if isinstance(head, RequestHead):
                head.expects = head.is_11 and value.lower() == b"100-continue"
    if head.is_chunked and head.length is not None:  # how most requests are smuggled
        raise Fault("two framings")
    if isinstance(head, RequestHead):
        # Without the word in Connection the field means nothing (RFC 9110, 7.8), and is dropped.
        head.upgrades = names_upgrade and has_upgrade


# Writing

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
