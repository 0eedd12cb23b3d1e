"""Find an object's members and their places without building any value.

>>> written = memoryview(b'{"a": [1, 2], "b": {}}')
>>> members = MemberReader().within(3).read(written)
>>> spans_of(members, written)
{'a': (6, 12), 'b': (19, 21)}

We use msgspec, because skipping values is many times as fast as building them. It refuses all that
we refuse, except for invalid UTF-8, a byte order mark, and depth; the caller checks the first two.
(It also refuses half a surrogate pair, which we accept.)
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING

from mcp_tool_filter.protocol.exact_depth import ExactDepth

if TYPE_CHECKING:
    from msgspec import Raw

_KEY = re.compile(rb'[ \t\n\r]*+"([^"\\]*+)"[ \t\n\r]*+:[ \t\n\r]*+')
_AFTER_VALUE = re.compile(rb"[ \t\n\r]*+([,}])")

type Span = tuple[int, int]


class MemberReader:
    """Reads members with msgspec.

    Raises ImportError without it, and ValueError if the text is not a JSON object.
    """

    def __init__(self) -> None:
        from msgspec import Raw
        from msgspec.json import Decoder

        self.members_of = Decoder(dict[str, Raw]).decode
        self._within: dict[int, ExactDepth[dict[str, Raw]]] = {}

    def within(self, most: int) -> ExactDepth[dict[str, Raw]]:
        """Return a reader of objects that nest at most so many levels."""
        if most not in self._within:
            self._within[most] = ExactDepth(self.members_of, most)
        return self._within[most]


@lru_cache(maxsize=1)
def member_reader() -> MemberReader | None:
    """Return the reader, or None without msgspec. (Imported late: a start does not need it.)"""
    try:
        return MemberReader()
    except ImportError:
        return None


def spans_of(members: Mapping[str, Raw], written: memoryview) -> dict[str, Span] | None:
    """Return the span of each value; None if a key occurs twice or has escapes.

    (If a key occurs twice, the reader keeps only the last value, so the spans do not add up to the
    whole text and we return None.)
    """
    spans: dict[str, Span] = {}
    at, after = 1, b","
    for key, value in members.items():
        name = _KEY.match(written, at)
        if after != b"," or name is None or name[1] != key.encode():
            return None
        spans[key] = span = name.end(), name.end() + memoryview(value).nbytes
        next_one = _AFTER_VALUE.match(written, span[1])
        if next_one is None:
            return None
        at, after = next_one.end(), next_one[1]
    return spans if after == b"}" and at == len(written) else None
