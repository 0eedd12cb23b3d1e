"""The masks of secrets in a scrubbed recording: of the same length, and one mask per secret.

>>> masks = Masks()
>>> masks.choose({"a-long-session-id": False, "short": False, "other": False, "123456": True})
>>> [masks.of(Secret(0, len(value), value)) for value in masks.secrets]
['scrubbed-1-------', 'xxxxx', 'x2xxx', '111111']
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from mcp_tool_filter.observers.redaction.places import Secret

_MASK = re.compile(r"(?:scrubbed-[0-9]+-*|x(?:[0-9]+)?x*)")
_NUMBERED = re.compile(r"scrubbed-([0-9]+)")
_LONG_ENOUGH = 8
"""Bytes; a secret of this length is searched for everywhere. A shorter one could be any word."""
_WORDS = re.compile(r"[A-Za-z _.-]{1,15}|[0-9 _.:-]{1,11}")


@dataclass(slots=True)
class Masks:
    """The masks of one recording."""

    _masks: dict[str, bytes] = field(default_factory=dict)
    _taken: set[bytes] = field(default_factory=set)

    @property
    def secrets(self) -> list[str]:
        return list(self._masks)

    @property
    def distinctive(self) -> tuple[str, ...]:
        """The secrets to search for everywhere, the longest first, because one may contain
        another."""
        return tuple(sorted(filter(is_distinctive, self._masks), key=len, reverse=True))

    def choose(self, values: Mapping[str, bool]) -> None:
        """Choose masks for secrets (value: whether it is a number). Existing masks stay."""
        self._taken.update(_bytes(value) for value in values if _is_mask(value))
        numbers = [int(found[1]) for value in values if (found := _NUMBERED.search(value))]
        number = max(numbers, default=0)
        for value, is_number in values.items():
            if not _is_mask(value) and value not in self._masks:
                number += 1
                mask = b"1" * len(value) if is_number else self._free_mask(value, number)
                self._masks[value] = mask

    def of(self, secret: Secret) -> str:
        """Return the mask for a secret."""
        size = secret.end - secret.start
        if secret.is_number:
            return "1" * size
        if _is_mask(secret.value):
            return secret.value
        mask = self._masks.get(secret.value, b"x" * size).decode()
        return (
            mask.ljust(size, "x") if mask.startswith("x") else mask
        )  # may also fill the place of its escapes

    def _free_mask(self, value: str, number: int) -> bytes:
        secret = _bytes(value)
        mask = b"scrubbed-%d" % number
        if len(mask) <= len(secret):
            return mask.ljust(len(secret), b"-")
        for other in range(1, 10 ** min(len(secret), 6)):
            mask = _short_mask(len(secret), other)
            if mask not in self._taken:
                break
        self._taken.add(mask)
        return mask


def is_distinctive(value: str) -> bool:
    """Tell whether searching for a secret everywhere would not find ordinary words."""
    return len(value) >= _LONG_ENOUGH and not _WORDS.fullmatch(value)


def _short_mask(size: int, number: int) -> bytes:
    """Return a mask without room for a long name; the first of its length gets no number."""
    mask = b"x" if number == 1 or size < 3 else b"x%d" % number
    return mask.ljust(size, b"x")[:size]


def _is_mask(value: str) -> bool:
    return _MASK.fullmatch(value) is not None


def _bytes(value: str) -> bytes:
    try:
        return value.encode("latin-1")
    except UnicodeEncodeError:
        return value.encode()
