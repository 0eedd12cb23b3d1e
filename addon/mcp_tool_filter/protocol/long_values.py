"""Find where the long values of a message end: a large message consists mostly of a few of them.

>>> raw = b'{"id":1,"result":{"content":"%s"}}' % (b"x" * 100_000)
>>> sorted(find_ends(raw, 128).items())
[(0, 100032), (17, 100031), (28, 100030)]

If ends are found, the whole message is known to be JSON within the allowed depth. For an unusual
message no ends are found, and it is read as usual.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from mcp_tool_filter.protocol.members import MemberReader, Span, member_reader, spans_of

_LONG = 64 * 1024  # bytes
_OPENED = ("result", "params", "error")
_BEGINNING = re.compile(rb"[ \t\n\r]*+(?=\{)")


def find_ends(raw: bytes, depth: int) -> Mapping[int, int]:
    """Return the end of each long value by its beginning. (Both are counted in characters.)"""
    reader = member_reader()
    if reader is None:
        return {}
    begun = _BEGINNING.match(raw)
    if begun is None:
        return {}
    try:
        spans = list(_long_spans(reader, raw, begun.end(), depth))
    except (ValueError, RecursionError):  # msgspec's errors are ValueErrors
        return {}
    return dict(spans) if raw.isascii() else dict(_in_characters(raw, spans))


def _long_spans(reader: MemberReader, raw: bytes, start: int, depth: int) -> Iterator[Span]:
    members = reader.within(depth).read(memoryview(raw)[start:])
    if members is None:  # too deep
        return
    end = raw.rfind(b"}") + 1  # the read succeeded, so only space follows
    yield start, end
    spans = spans_of(members, memoryview(raw)[start:end]) or {}
    for key, span in _placed(spans, start):
        yield span
        part = memoryview(raw)[slice(*span)]
        if key in _OPENED and raw.startswith(b"{", span[0]):
            inner = spans_of(reader.members_of(part), part) or {}
            yield from (span for _, span in _placed(inner, span[0]))


def _placed(spans: Mapping[str, Span], offset: int) -> Iterator[tuple[str, Span]]:
    for key, (start, end) in spans.items():
        if end - start >= _LONG:
            yield key, (start + offset, end + offset)


def _in_characters(raw: bytes, spans: list[Span]) -> Iterator[Span]:
    """Count characters instead of bytes."""
    characters = {}
    at = count = 0
    for place in sorted({place for span in spans for place in span}):
        count += len(raw[at:place].decode())
        at, characters[place] = place, count
    for start, end in spans:
        yield characters[start], characters[end]
