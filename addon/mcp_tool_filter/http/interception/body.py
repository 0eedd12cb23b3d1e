"""Read a request's body until we know whether it is MCP, and hold no more of it than needed.

The first character of a body shows that it cannot be a message; then it passes as it comes. We hold
JSON until it is complete. JSON that is longer than any message passes too, but we watch the rest:
if it mentions a message, we cut the body off, so that no server can read it.

>>> reader = BodyReader("", Limits())
>>> reader.feed(b"  PNG...")
<Treatment.OTHER: 'other'>
"""

from __future__ import annotations

import re
import zlib
from contextlib import suppress
from enum import StrEnum

from mcp_tool_filter.errors import ProtocolError
from mcp_tool_filter.http.codings import decode_body
from mcp_tool_filter.http.interception.recognise import (
    BLANK,
    LONGEST_MENTION,
    TrafficKind,
    kind_of_body,
    may_be_message,
    mentions_message,
)
from mcp_tool_filter.protocol.limits import Limits, OverLimit

_CODINGS = frozenset({"gzip", "x-gzip", "deflate", "br", "zstd"})
_NAME = re.compile(r"[a-z0-9-]+")
_GZIP = ("gzip", "x-gzip")
_INFLATED = (*_GZIP, "deflate")
_STEP = 1024 * 1024  # decoded bytes
_MOST_INFLATED = 32  # times the longest message; what grows beyond that is refused
_ENOUGH = 4096  # decoded bytes that show how a body begins
_MOST_BLANK = 64 * 1024


class Treatment(StrEnum):
    """What happens to a request."""

    OTHER = "other"
    """It passes untouched."""
    WATCHED = "watched"
    """It passes as long as ``Watch`` finds nothing in the rest of its body."""
    MCP = "mcp"
    """The filter judges it."""


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
        self.watch: Watch | None = None
        """For the rest of a body that is to be watched."""

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

    def finish(self) -> Treatment:
        """Return what happens to the request, given the complete body."""
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
                return Treatment.MCP if self._may_be_read(body) else Treatment.OTHER
            if may_be_message(raw[:_MOST_BLANK]) and mentions_message(raw):
                return Treatment.MCP  # for a server that ignores the coding
        kind = kind_of_body(body)
        if kind is TrafficKind.MCP or (kind is TrafficKind.JSON_RPC and self._is_endpoint):
            return Treatment.MCP
        return Treatment.OTHER

    def _may_be_read(self, body: bytes) -> bool:
        """Tell whether some server could find a message in a body that we cannot decode."""
        if self._codings[0] not in _INFLATED or may_be_message(body[:_MOST_BLANK]):
            return True
        return bool(_inflated(body[:_MOST_BLANK]))

    @property
    def _is_too_long(self) -> bool:
        return len(self._held) > self._limits.message

    def _read_long(self) -> Treatment:
        """Decide on compressed JSON that is longer than any message."""
        is_gzip = self._has_begun and self._codings[0] in _GZIP
        if not is_gzip or may_be_message(bytes(self._held[:_MOST_BLANK])):
            return Treatment.MCP
        self.watch = GzipWatch(_MOST_INFLATED * self._limits.message)
        return Treatment.WATCHED if self.watch.may_pass(bytes(self._held)) else Treatment.MCP

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
        self.watch = Watch()
        return Treatment.WATCHED if self.watch.may_pass(bytes(self._held)) else Treatment.MCP


class Watch:
    """Looks for a message in a body that is too long to hold."""

    def __init__(self) -> None:
        self._last = b""

    def may_pass(self, chunk: bytes) -> bool:
        """Tell whether this chunk of the body may pass."""
        text = self._last + chunk
        self._last = text[-LONGEST_MENTION:]
        return not mentions_message(text)


class GzipWatch(Watch):
    """The same for a body that is compressed: one gzip member with nothing behind it."""

    def __init__(self, most: int) -> None:
        """It may have ``most`` bytes when decoded."""
        super().__init__()
        self._inflater = zlib.decompressobj(31)
        self._room = most

    def may_pass(self, chunk: bytes) -> bool:
        while True:
            try:
                text = self._inflater.decompress(chunk, _STEP)
            except zlib.error:
                return False
            self._room -= len(text)
            if self._room < 0 or self._inflater.unused_data or not super().may_pass(text):
                return False
            chunk = self._inflater.unconsumed_tail
            if not chunk and len(text) < _STEP:
                return True


def _inflated(raw: bytes) -> list[bytes]:
    """Return the decoded beginnings of a compressed body, in each way that some server reads it."""
    found = []
    for window in (47, -15):  # gzip or zlib; without a head
        with suppress(zlib.error):
            found.append(zlib.decompressobj(window).decompress(raw, _ENOUGH))
    return found
