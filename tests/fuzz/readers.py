r"""How others read the same bytes: by the standard, and carelessly, as it is done in the world.

>>> list(json_readings(b'{"a": 1, "A": 2, "a": 3}'))
[{'a': '3', 'A': '2'}, {'a': '1', 'A': '2'}, {'a': '3'}, {'a': '1'}, {'a': 3, 'A': 2}]
>>> list(event_readings(b"event: x\ndata: 1\r\rdata: 2"))[0]
[('x', '1'), ('message', '2')]

None of this knows anything of how the filter reads; that is the point of it.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import orjson

type Json = Any
type Events = list[tuple[str, str]]
"""Name and data of each."""


class _Pairs(list[tuple[str, Json]]):
    """An object as it was written: every key, as often as it stands there."""


_DECODER = json.JSONDecoder(object_pairs_hook=_Pairs, strict=False, parse_int=str)
_STRICT = json.JSONDecoder(object_pairs_hook=_Pairs, parse_int=str)
_STANDARD_LINE_END = re.compile(r"\r\n|\n|\r")
_DEEPEST = 200


def json_readings(raw: bytes, content_type: str = "") -> Iterator[Json]:
    """Yield every value that some reader finds in the bytes; some mind the charset that is said."""
    seen: list[Json] = []
    for document in dict.fromkeys(_documents(raw, charset_in(content_type))):
        for value in text_readings(document):
            if value not in seen:
                seen.append(value)
                yield value
    try:
        value = orjson.loads(raw)
    except orjson.JSONDecodeError:
        return
    if value not in seen:
        yield value


def text_readings(text: str, *, strict: bool = False) -> Iterator[Json]:
    """Yield what a text means to readers that mind keys differently."""
    try:  # whatever stands behind the first value is not read
        written, _ = (_STRICT if strict else _DECODER).raw_decode(text.lstrip(" \t\r\n"))
    except (ValueError, RecursionError):
        return
    for key_of in (_as_is, str.lower, _until_nul):
        for pairs_of in (_last_wins, _first_wins):
            yield _plain(written, key_of, pairs_of)


def event_readings(raw: bytes) -> Iterator[Events]:
    """Yield the events that different readers find in a stream; an unfinished one counts."""
    text = raw.decode("utf-8", "replace")
    lines = _STANDARD_LINE_END.split(text.removeprefix("\ufeff"))
    yield _events(lines)
    yield _events(text.splitlines())  # as httpx does
    yield _events([line.rstrip("\r") for line in text.split("\n")])
    blocks = re.split(r"\r\n\r\n|\n\n|\r\r", text)
    yield [event for block in blocks for event in _events(re.split(r"\r\n|\n|\r", block))]


def charset_in(content_type: str) -> str:
    found = re.search(r"(?i)charset\s*=\s*[\"']?([\w-]+)", content_type)
    try:
        return codecs.lookup(found[1]).name if found else "utf-8"
    except LookupError:
        return "utf-8"


def _documents(raw: bytes, charset: str) -> Iterator[str]:
    for text in _texts(raw, charset):
        yield text
        if "\0" in text:
            yield text.replace("\0", "")
        if "\n" in text.strip():
            yield from text.splitlines()


def _texts(raw: bytes, charset: str) -> Iterator[str]:
    for coding, errors in (
        (charset, "replace"),
        ("utf-8-sig", "strict"),
        (json.detect_encoding(raw), "surrogatepass"),
        ("utf-8", "ignore"),
        ("utf-8", "replace"),
        ("latin-1", "strict"),
    ):
        try:
            yield raw.decode(coding, errors)
        except (UnicodeError, LookupError):  # not all codecs are for text
            continue


def _as_is(key: str) -> str:
    return key


def _until_nul(key: str) -> str:
    return key.split("\0", 1)[0]


def _last_wins(pairs: Iterable[tuple[str, Json]]) -> dict[str, Json]:
    return dict(pairs)


def _first_wins(pairs: Iterable[tuple[str, Json]]) -> dict[str, Json]:
    found: dict[str, Json] = {}
    for key, value in pairs:
        found.setdefault(key, value)
    return found


def _plain(
    value: Json,
    key_of: Callable[[str], str],
    pairs_of: Callable[[Iterable[tuple[str, Json]]], dict[str, Json]],
    depth: int = 0,
) -> Json:
    if depth > _DEEPEST:
        return None
    if isinstance(value, _Pairs):
        return pairs_of(
            [(key_of(key), _plain(one, key_of, pairs_of, depth + 1)) for key, one in value]
        )
    if isinstance(value, list):
        return [_plain(one, key_of, pairs_of, depth + 1) for one in value]
    return value


def _events(lines: Iterable[str]) -> Events:
    found: Events = []
    name, data = "", list[str]()
    for line in (*lines, ""):
        key, _, value = line.partition(":")
        if line == "":
            if data:
                found.append((name or "message", "\n".join(data)))
            name, data = "", []
        elif key == "data":
            data.append(value.removeprefix(" "))
        elif key == "event":
            name = value.removeprefix(" ")
    return found
