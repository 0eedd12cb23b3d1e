"""What the log says of arguments and results: nothing, a keyed hash, or all except secrets."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable
from enum import StrEnum
from functools import partial
from typing import NotRequired, TypedDict

from mcp_tool_filter.core.messages.messages import Place, UnreadPlace
from mcp_tool_filter.core.messages.scan import Value
from mcp_tool_filter.core.messages.sizes import HEAD
from mcp_tool_filter.rooms.audit.entry import LazyValue
from mcp_tool_filter.rooms.secrets.finder import redacted_beginning


class Content(TypedDict):
    """Arguments or a result in a line of the log."""

    hash: NotRequired[str]
    text: NotRequired[str]
    bytes: int


_MOST_HASHES = 10_000
_DIGEST = 16  # bytes
_SHORT = 4096  # characters; hashing fewer takes less time than keeping them for later


class Arguments(StrEnum):
    """How much of arguments and results is logged."""

    NONE = "none"
    HASH = "hash"
    FULL = "full"
    """Everything except what looks like a secret."""


class Contents:
    """Renders arguments and results for the log; hashes them with a key that we never reveal.

    The hashes only show whether two texts are equal.
    """

    __slots__ = ("_hashes", "_how", "_keyed", "_short")

    def __init__(self, how: Arguments, key: bytes | None = None) -> None:
        self._how = how
        self._short = _SHORT if how is Arguments.HASH else 0
        # OpenSSL's hashes are faster for long texts, but most texts here are short.
        key = key or secrets.token_bytes(32)
        self._keyed = hashlib.blake2b(key=key, digest_size=_DIGEST)
        self._hashes: dict[str, str] = {}

    def shown(self, place: Place, part: Value) -> Content | LazyValue | None:
        """Return what is logged of a part of a message; a lazy value if that takes time."""
        size = part.end - part.start
        if size < self._short:
            return self._hashed(place.cut(part).encode("utf-8", "surrogatepass"))
        if self._how is Arguments.NONE:
            return None
        return LazyValue(partial(self._show, _reader_of(place, part)), size)

    def hash_of_name(self, text: str) -> str:
        """Return the hash of a session's id or of credentials.

        (Cached: they come with each message.)
        """
        known = self._hashes.get(text)
        if known is None:
            if len(self._hashes) >= _MOST_HASHES:
                self._hashes.clear()
            raw = text.encode("utf-8", "surrogatepass")
            known = self._hashes[text] = self._hashed(raw)["hash"]
        return known

    def _show(self, read: Callable[[], bytes | memoryview]) -> Content:
        raw = read()
        if self._how is Arguments.HASH:
            return self._hashed(raw)
        return {"text": redacted(bytes(raw).decode("utf-8", "surrogatepass")), "bytes": len(raw)}

    def _hashed(self, raw: bytes | memoryview) -> Content:
        keyed = self._keyed.copy()
        keyed.update(raw)
        return {"hash": keyed.hexdigest(), "bytes": len(raw)}


def redacted(text: str) -> str:
    """Return a text without anything that looks like a secret, cut if it is long."""
    return redacted_beginning(text, HEAD)


def _reader_of(place: Place, part: Value) -> Callable[[], bytes | memoryview]:
    """Return a function that reads a part later, and that keeps little else in memory until
    then."""
    if isinstance(place, UnreadPlace):  # a long result: its message is hardly longer
        return partial(place.raw_of, part)
    text = place.cut(part)
    return lambda: text.encode("utf-8", "surrogatepass")
