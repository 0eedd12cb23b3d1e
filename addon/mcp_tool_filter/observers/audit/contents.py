"""How much of arguments and results is entered: nothing, a keyed hash, or all but secrets."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable
from enum import StrEnum
from functools import partial

from mcp_tool_filter.observers.audit.entry import Entry, Later
from mcp_tool_filter.observers.redaction.finder import redact
from mcp_tool_filter.protocol.messages import Place, UnreadPlace
from mcp_tool_filter.protocol.scan import Value

_MOST_HASHES = 10_000
_DIGEST = 16  # bytes
_SHORT = 4096  # characters; to hash fewer takes less time than to keep them for later
_LONGEST_FULL = 64 * 1024  # characters of arguments, a result or a message that are entered in full


class Arguments(StrEnum):
    """How much of arguments and results is entered."""

    NONE = "none"
    HASH = "hash"
    FULL = "full"
    """All of it, but what looks like a secret."""


class Contents:
    """Shows arguments and results; hashes them with a key that nobody else gets to know.

    With the same key, equal texts are seen to be equal, and nothing else is.
    """

    __slots__ = ("_hashes", "_how", "_keyed", "_short")

    def __init__(self, how: Arguments, key: bytes | None = None) -> None:
        self._how = how
        self._short = _SHORT if how is Arguments.HASH else 0
        # OpenSSL's hashes are quicker for long texts, but here most are short.
        key = key or secrets.token_bytes(32)
        self._keyed = hashlib.blake2b(key=key, digest_size=_DIGEST)
        self._hashes: dict[str, str] = {}

    def shown(self, place: Place, part: Value) -> Entry | Later | None:
        """Return what may be entered of a part of a message; later, if that takes time."""
        size = part.end - part.start
        if size < self._short:
            return self._hashed(place.cut(part).encode("utf-8", "surrogatepass"))
        if self._how is Arguments.NONE:
            return None
        return Later(partial(self._show, _reader_of(place, part)), size)

    def hash_of_name(self, text: str) -> str:
        """Return the hash of a session's id or of credentials, which come with each message."""
        known = self._hashes.get(text)
        if known is None:
            if len(self._hashes) >= _MOST_HASHES:
                self._hashes.clear()
            raw = text.encode("utf-8", "surrogatepass")
            known = self._hashes[text] = str(self._hashed(raw)["hash"])
        return known

    def _show(self, read: Callable[[], bytes | memoryview]) -> Entry:
        raw = read()
        if self._how is Arguments.HASH:
            return self._hashed(raw)
        return {"text": redacted(bytes(raw).decode("utf-8", "surrogatepass")), "bytes": len(raw)}

    def _hashed(self, raw: bytes | memoryview) -> Entry:
        keyed = self._keyed.copy()
        keyed.update(raw)
        return {"hash": keyed.hexdigest(), "bytes": len(raw)}


def redacted(text: str) -> str:
    """Return a text without what looks like a secret, and not too much of it."""
    return redact(text if len(text) <= _LONGEST_FULL else text[:_LONGEST_FULL] + "…")


def _reader_of(place: Place, part: Value) -> Callable[[], bytes | memoryview]:
    """Return what reads a part later; till then, it holds on to little else."""
    if isinstance(place, UnreadPlace):  # a long result, and its message is hardly longer
        return partial(place.raw_of, part)
    text = place.cut(part)
    return lambda: text.encode("utf-8", "surrogatepass")
