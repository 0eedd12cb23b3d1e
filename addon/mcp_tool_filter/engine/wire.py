"""HTTP/1.1 from bytes and back, in both roles. Sans-IO: no sockets, no clock.

Heads are cut out here (strictly: CRLF only, no folding, one framing) and parsed by a library; bodies are counted.
A head block that was seen before on this connection, apart from Content-Length and Date, is not
parsed again.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import h11

MOST_HEAD = 64 * 1024
_BARE = re.compile(rb"[^\r]\n|\r[^\n]|\n[ \t]|\0")
_DIGITS = re.compile(rb"[0-9]{1,15}").fullmatch
_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,8})[ \t]*(?:;[^\0\r\n]*)?\r\n")
_LAST = re.compile(rb"(?:[!#$%&'*+.^_`|~0-9A-Za-z-]+:[^\0\r\n]*\r\n)*\r\n")
_VARIABLE = re.compile(rb"\r\n(?:content-length|date):[ \t]*([^\r\n]*)(?=\r\n|$)", re.I)
_LINE = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+ [!-~\x80-\xff]+ HTTP/1\.[01]").fullmatch
_STATUS = re.compile(rb"HTTP/1\.[01] [1-9][0-9]{2}(?: [^\r\n\0]*)?").fullmatch
END, MORE = "end", None
NO_BODY = frozenset({204, 304})
PHRASES = {
    200: b"OK",
    202: b"Accepted",
    400: b"Bad Request",
    403: b"Forbidden",
    404: b"Not Found",
    413: b"Payload Too Large",
    431: b"Request Header Fields Too Large",
    500: b"Internal Server Error",
    502: b"Bad Gateway",
    503: b"Service Unavailable",
}


class Fault(Exception):
    """The peer does not speak HTTP as we accept it."""

    def __init__(self, why: str, status: int = 400) -> None:
        super().__init__(why)
        self.status = status


@dataclass(slots=True)
class Message:
    """A request's or an answer's head. ``known`` holds what was decided on it before, for a memoised head."""

    method: str = ""
    target: str = ""
    status: int = 0
    reason: bytes = b""
    fields: tuple[tuple[bytes, bytes], ...] = ()
    is_11: bool = True
    keep: bool = True
    length: int | None = None
    chunked: bool = False
    expects: bool = False
    known: dict[str, object] = field(default_factory=dict)


def frame(m: Message) -> Message:
    """Read the framing from the fields. Raises Fault if two readers could differ."""
    m.keep = m.is_11
    for name, value in m.fields:
        key = name.lower()
        if key == b"content-length":
            if m.length is not None or not _DIGITS(value):
                raise Fault("content-length")
            m.length = int(value)
        elif key == b"transfer-encoding":
            if m.chunked or value.lower() != b"chunked" or not m.is_11:
                raise Fault("transfer-encoding")
            m.chunked = True
        elif key == b"connection":
            low = value.lower()
            m.keep = m.keep and b"close" not in low
        elif key == b"expect":
            m.expects = m.is_11 and value.lower() == b"100-continue"
    if m.chunked and m.length is not None:
        raise Fault("two framings")
    return m


def _by_h11(block: bytes, is_server: bool) -> Message:
    c = h11.Connection(h11.SERVER if is_server else h11.CLIENT, MOST_HEAD * 4)
    if not is_server:  # h11 parses answers only to a request that it has sent
        c.send(_ASKED)
        c.send(h11.EndOfMessage())
    c.receive_data(block)
    return _from_event(c.next_event())


_ASKED = h11.Request(
    method=b"GET",
    target=b"/",
    headers=[(b"host", b"x"), (b"connection", b"upgrade"), (b"upgrade", b"any")],
)


def _from_event(e: object) -> Message:
    if isinstance(e, h11.Request):
        return Message(
            method=e.method.decode(),
            target=e.target.decode("latin-1"),
            fields=tuple((bytes(n), bytes(v)) for n, v in e.headers.raw_items()),
            is_11=e.http_version == b"1.1",
        )
    if isinstance(e, h11.Response | h11.InformationalResponse):
        return Message(
            status=e.status_code,
            reason=bytes(e.reason),
            fields=tuple((bytes(n), bytes(v)) for n, v in e.headers.raw_items()),
            is_11=e.http_version == b"1.1",
        )
    raise Fault("not a head")


class Wire:
    """One direction-pair of one connection. ``receive`` bytes, then call ``next`` until it returns MORE."""

    def __init__(self, *, is_server: bool) -> None:
        self.is_server = is_server
        self.memo: dict[bytes, Message] = {}
        self.buffer = b""
        self.state = "head"
        self.left = 0
        self.asked = "GET"
        self.has_ended = False  # the peer sends no more

    def receive(self, data: bytes) -> None:
        self.buffer = self.buffer + data if self.buffer else data

    def eof(self) -> None:
        self.has_ended = True

    def next(self) -> Message | bytes | str | None:
        """Return the next Message, body bytes or END; MORE if bytes are missing. Raises Fault."""
        while self.buffer or (self.has_ended and self.state == "close"):
            match self.state:
                case "head":
                    return self._head()
                case "count" | "close":
                    return self._counted()
                case "size":
                    if (m := _CHUNK.match(self.buffer)) is None:
                        if len(self.buffer) > 4096 or b"\n" in self.buffer:
                            raise Fault("chunk")
                        return MORE
                    self.left, self.buffer = int(m[1], 16), self.buffer[m.end() :]
                    self.state = "chunk" if self.left else "trailers"
                case "chunk":
                    data, self.buffer = self.buffer[: self.left], self.buffer[self.left :]
                    self.left -= len(data)
                    self.state = "chunk" if self.left else "crlf"
                    return data
                case "crlf":
                    if not b"\r\n".startswith(self.buffer[:2]):
                        raise Fault("chunk end")
                    if len(self.buffer) < 2:
                        return MORE
                    self.buffer, self.state = self.buffer[2:], "size"
                case "trailers":
                    if (m := _LAST.match(self.buffer)) is None:
                        if len(self.buffer) > MOST_HEAD or b"\r\n\r\n" in self.buffer:
                            raise Fault("trailers")
                        return MORE
                    self.buffer, self.state = self.buffer[m.end() :], "done"
                    return END
                case "none":
                    self.state = "done"
                    return END
                case _:  # done, switched
                    return MORE
        if self.state == "none":
            self.state = "done"
            return END
        return MORE

    def next_cycle(self) -> None:
        self.state = "head"

    @property
    def is_done(self) -> bool:
        return self.state == "done"

    def _head(self) -> Message | None:
        if self.buffer[:1] in (b"\r", b"\n"):
            raise Fault("an empty line")
        end = self.buffer.find(b"\r\n\r\n")
        if end < 0:
            if len(self.buffer) > MOST_HEAD:
                raise Fault("head too long", 431)
            if _BARE.search(self.buffer[:MOST_HEAD]):
                raise Fault("line ends")
            return MORE
        block, self.buffer = self.buffer[:end], self.buffer[end + 4 :]
        if end > MOST_HEAD:
            raise Fault("head too long", 431)
        return self._frame(self._memoised(block))

    def _memoised(self, block: bytes) -> Message:
        length = None
        key, at = [], 0
        for m in _VARIABLE.finditer(block):
            key.append(block[at : m.start(1)])
            at = m.end()
            if block[m.start() + 2] in b"cC":
                length = m[1] if length is None else b""
        seen = self.memo.get(b"".join([*key, block[at:]]))
        if seen is not None and (length is None or _DIGITS(length)):
            if length is not None:
                seen.length = int(length)
            return seen
        m = self._parsed(block)
        if len(self.memo) < 8 and length != b"" and not m.chunked:
            self.memo[b"".join([*key, block[at:]])] = m
        return m

    def _parsed(self, block: bytes) -> Message:
        if _BARE.search(block):
            raise Fault("line ends")
        line = block.partition(b"\r\n")[0]
        if not (_LINE if self.is_server else _STATUS)(line):
            raise Fault("first line")
        try:
            return frame(_by_h11(block + b"\r\n\r\n", self.is_server))
        except h11.ProtocolError as error:
            raise Fault(str(error)) from None

    def _frame(self, m: Message) -> Message:
        self.left = m.length or 0
        if not self.is_server:
            if m.status < 200:
                self.state = "switched" if m.status == 101 else "head"
                return m
            if self.asked == "HEAD" or m.status in NO_BODY:
                self.state = "none"
                return m
            if not m.chunked and m.length is None:
                m.keep = False
                self.state = "close"
                return m
        self.state = "size" if m.chunked else "count" if self.left else "none"
        return m

    def _counted(self) -> bytes | str | None:
        if self.state == "close":
            if self.buffer:
                data, self.buffer = self.buffer, b""
                return data
            self.state = "done"
            return END
        if len(self.buffer) <= self.left:
            data, self.buffer = self.buffer, b""
        else:
            data, self.buffer = self.buffer[: self.left], self.buffer[self.left :]
        self.left -= len(data)
        if not self.left:
            self.state = "none"
        return data

    # Writing

    def request(
        self, method: str, target: str, fields: object, body: bytes, head: bytes | None = None
    ) -> bytes:
        self.asked, self.state = method, "head"
        if head is None:
            head = b"%b %b HTTP/1.1\r\n%b" % (
                method.encode(),
                target.encode("latin-1"),
                lines(fields),
            )
        if body or method not in ("GET", "HEAD", "OPTIONS", "DELETE"):
            return b"%bcontent-length: %d\r\n\r\n%b" % (head, len(body), body)
        return head + b"\r\n"

    def answer(
        self, status: int, reason: bytes, fields: object, length: int | None, *, chunked: bool
    ) -> bytes:
        head = b"HTTP/1.1 %d %b\r\n%b" % (status, reason or PHRASES.get(status, b""), lines(fields))
        if length is not None:
            return b"%bcontent-length: %d\r\n\r\n" % (head, length)
        return head + (b"transfer-encoding: chunked\r\n\r\n" if chunked else b"\r\n")

    def chunk(self, data: bytes) -> bytes:
        return b"%x\r\n%b\r\n" % (len(data), data)

    def last(self) -> bytes:
        return b"0\r\n\r\n"


def lines(fields: object) -> bytes:
    return b"".join([b"%b: %b\r\n" % f for f in fields])
