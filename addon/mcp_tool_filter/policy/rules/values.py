"""JSON values of a policy, to compare with a message: by value, without rounding.

>>> from mcp_tool_filter.policy.rules.values import Number
>>> Number("1") == Number("1.0"), Number("9007199254740993") == Number("9007199254740992")
(True, False)
>>> Number("-0.0") == Number("0"), Number("1e400") > Number("9e399")
(True, True)
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import total_ordering
from json.encoder import encode_basestring_ascii

_NUMBER = re.compile(r"(-?)(\d+)(?:\.(\d+))?(?:[eE]([+-]?\d+))?")
_LONGEST_EXPONENT = 1000  # digits; Python reads no more than 4300


@total_ordering
class Number:
    """A JSON number of any length. It keeps its text, to be written as it was read."""

    __slots__ = ("_digits", "_exponent", "_sign", "text")

    def __init__(self, text: str) -> None:
        """Raises ValueError if the text is not a JSON number, or has a huge exponent."""
        found = _NUMBER.fullmatch(text)
        if found is None or len(found[4] or "") > _LONGEST_EXPONENT:
            raise ValueError("not a number that can be compared")
        self.text = text
        digits = (found[2] + (found[3] or "")).lstrip("0")
        # The value is 0.DIGITS * 10 ** exponent.
        self._exponent = int(found[4] or 0) - len(found[3] or "") + len(digits)
        self._digits = digits.rstrip("0")
        self._sign = 0 if not self._digits else -1 if found[1] else 1
        if not self._sign:
            self._exponent = 0

    @property
    def key(self) -> tuple[int, int, str]:
        return self._sign, self._exponent, self._digits

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Number) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def __lt__(self, other: Number) -> bool:
        if self._sign != other._sign:
            return self._sign < other._sign
        one, two = (self._exponent, self._digits), (other._exponent, other._digits)
        return one < two if self._sign > 0 else two < one

    def __repr__(self) -> str:
        return f"Number({self.text!r})"


@dataclass(frozen=True, slots=True)
class Object:
    members: tuple[tuple[str, Json], ...]

    def __eq__(self, other: object) -> bool:
        """Compare without the order of members."""
        return isinstance(other, Object) and dict(self.members) == dict(other.members)

    def __hash__(self) -> int:
        return hash(frozenset(self.members))


type Json = bool | Number | str | tuple[Json, ...] | Object | None


def render_json(value: Json) -> str:
    """Render a value, with numbers as they were read."""
    match value:
        case Number():
            return value.text
        case str():
            return quote(value)
        case tuple():
            return f"[{','.join(map(render_json, value))}]"
        case Object(members):
            return "{" + ",".join(f"{quote(key)}:{render_json(of)}" for key, of in members) + "}"
        case _:
            return json.dumps(value)


def quote(text: str) -> str:
    """Render a string in ASCII, so that no reader of lines or events finds a line end in it."""
    return encode_basestring_ascii(text)
