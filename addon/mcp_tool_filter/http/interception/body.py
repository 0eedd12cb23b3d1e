"""Read a request's body until it is clear whether it is MCP; hold no more of it than needed.

A body that cannot be a message shows that by its first sign, and passes as it comes. JSON is held
until it is whole. JSON that is longer than any message passes, too, while we watch it: a body that
mentions a message so late is cut off, and no server can read what is left of it.

>>> reader = BodyReader("", Limits())
>>> reader.feed(b"  PNG...")
<Way.OTHER: 'other'>
"""

from __future__ import annotations

import re
import zlib
from enum import StrEnum

from mcp_tool_filter.errors import ProtocolError
from mcp_tool_filter.http.codings import decode_body
from mcp_tool_filter.http.interception.recognise import (
    BLANK,
    LONGEST_MENTION,
    Kind,
    kind_of_body,
    may_be_message,
    mentions_message,
)
from mcp_tool_filter.protocol.limits import Limits

_CODINGS = frozenset({"gzip", "x-gzip", "deflate", "br", "zstd"})
_NAME = re.compile(r"[a-z0-9-]+")
_INFLATED = ("gzip", "x-gzip", "deflate")
_ENOUGH = 4096  # decoded bytes that show how a body begins
_MOST_BLANK = 64 * 1024


class Way(StrEnum):
    """What becomes of a request."""

    OTHER = "other"
    """It passes untouched."""
    WATCHED = "watched"
    """It passes while ``Watch`` finds nothing in the rest of its body."""
    MCP = "mcp"
    """The filter judges it."""


class BodyReader:
    """Use one for each request whose head leaves it open."""

    def __init__(self, coding: str, limits: Limits, *, is_endpoint: bool = False) -> None:
        """``is_endpoint``: MCP is spoken where the request goes to, so all JSON-RPC is MCP."""
        # Some servers only look for a name in the header, so gzip;q=1 is gzip to them.
        self._codings = [one for one in _NAME.findall(coding.lower()) if one in _CODINGS]
        self._limits = limits
        self._is_endpoint = is_endpoint
        self._held = bytearray()
        self._has_begun = False

    @property
    def size(self) -> int:
        """Bytes that are held."""
        return len(self._held)

    @property
    def held(self) -> bytes:
        """What has come, as it came."""
        return bytes(self._held)

    def feed(self, chunk: bytes) -> Way | None:
        """Take the next part; return what it is, once that is clear."""
        self._held += chunk
        if not self._codings:
            return self._read_plain()
        if len(self._codings) > 1:
            return Way.MCP  # which nobody needs; it is refused there
        if self._codings[0] in _INFLATED and not self._has_begun:
            beginning = _inflated(bytes(self._held[:_MOST_BLANK]))
            if beginning is not None and not may_be_message(beginning):
                return Way.OTHER
            self._has_begun = bool((beginning or b"").lstrip(BLANK))
        return Way.MCP if self._is_too_long else None

    def finish(self) -> Way:
        """Return what the whole body is."""
        body = bytes(self._held)
        if not body.strip(BLANK):
            return Way.MCP if self._is_endpoint and body else Way.OTHER
        if self._codings:
            name = self._codings[0].removeprefix("x-")
            try:
                body = decode_body(body, name, limit=self._limits.message)
            except ProtocolError:
                return Way.MCP if self._may_be_read(body) else Way.OTHER
        kind = kind_of_body(body)
        if kind is Kind.MCP or (kind is Kind.JSON_RPC and self._is_endpoint):
            return Way.MCP
        return Way.OTHER

    def _may_be_read(self, body: bytes) -> bool:
        """Tell whether some server could find a message where we cannot undo the coding."""
        if self._codings[0] not in _INFLATED or may_be_message(body[:_MOST_BLANK]):
            return True
        return _inflated(body[:_MOST_BLANK]) is not None

    @property
    def _is_too_long(self) -> bool:
        return len(self._held) > self._limits.message

    def _read_plain(self) -> Way | None:
        if not self._has_begun:
            beginning = bytes(self._held[:_MOST_BLANK])
            if not may_be_message(beginning):
                return Way.OTHER
            self._has_begun = bool(beginning.strip(BLANK))
            if not self._has_begun and len(self._held) >= _MOST_BLANK:
                return Way.MCP
        if not self._is_too_long:
            return None
        return Way.MCP if mentions_message(bytes(self._held)) else Way.WATCHED


class Watch:
    """Looks for a message in what follows a body that was too long to hold."""

    def __init__(self, passed: bytes) -> None:
        self._last = passed[-LONGEST_MENTION:]

    def may_pass(self, chunk: bytes) -> bool:
        """Tell whether the body may go on with this chunk."""
        text = self._last + chunk
        self._last = text[-LONGEST_MENTION:]
        return not mentions_message(text)


def _inflated(raw: bytes) -> bytes | None:
    """Return how a compressed body begins; None if it cannot be read so."""
    for window in (47, -15):  # gzip or zlib; without a head
        try:
            return zlib.decompressobj(window).decompress(raw, _ENOUGH)
        except zlib.error:
            continue
    return None
