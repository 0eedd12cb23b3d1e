r"""Changes that attackers of JSON filters make by habit, so that chance need not find them.

>>> change(b'xx{"name":"read_file"}', Random(14))
b'xx{"name":{"name":"wipe_disk"},"name":"read_file"}'

Nothing is parsed: what is nearly JSON is changed in the same way.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from random import Random

from tests.fuzz.tokens import TOKENS

_STRING = re.compile(rb'"((?:[^"\\]|\\.)*)"')
_KEY = re.compile(rb'"((?:[^"\\]|\\.)+)"\s*:')
_PLACE = re.compile(rb"[{\[,:}\]]|\n")
_VALUES = (
    b'"wipe_disk"', b'"read_file"', b'"tools/call"', b'"tools/list"', b'{"name":"wipe_disk"}',
    b'[{"name":"wipe_disk","inputSchema":{"type":"object"}}]', b"{}", b"null", b"1", b"[]",
)  # fmt: skip
_DOOR = 2  # bytes that choose it, and its circumstances


def change(raw: bytes, random: Random) -> bytes:
    """Make one such change to what stands behind the choice of a door."""
    door, said = raw[:_DOOR], raw[_DOOR:]
    return door + random.choice(_HABITS)(said, random)


def _repeat_a_key(said: bytes, random: Random) -> bytes:
    if not (key := _one(_KEY, said, random)):
        return said
    other = b'"%s":%s,' % (_disguised(key[1], random), random.choice(_VALUES))
    return said[: key.start()] + other + said[key.start() :]


def _disguise_a_string(said: bytes, random: Random) -> bytes:
    if not (string := _one(_STRING, said, random)):
        return said
    return said[: string.start(1)] + _disguised(string[1], random) + said[string.end(1) :]


def _exchange_a_string(said: bytes, random: Random) -> bytes:
    if not (string := _one(_STRING, said, random)):
        return said
    return said[: string.start()] + random.choice(_VALUES) + said[string.end() :]


def _insert_a_word(said: bytes, random: Random) -> bytes:
    place = _one(_PLACE, said, random)
    at = place.end() if place else 0
    word: bytes = random.choice(TOKENS)
    return said[:at] + word + said[at:]


def _copy_a_part(said: bytes, random: Random) -> bytes:
    places = [0, *(place.start() for place in _PLACE.finditer(said)), len(said)]
    start, end = sorted((random.choice(places), random.choice(places)))
    at = random.choice(places)
    return said[:at] + said[start:end] + said[at:]


def _leave_out_a_part(said: bytes, random: Random) -> bytes:
    start, end = sorted((random.randrange(len(said) + 1), random.randrange(len(said) + 1)))
    return said[:start] + said[min(end, start + 40) :]


def _disguised(text: bytes, random: Random) -> bytes:
    """Write a text so that some take it for itself and some do not; or as it is."""
    at = random.randrange(len(text) + 1)
    letter = text[at : at + 1]
    match random.randrange(7):
        case 0:
            return text[:at] + letter.swapcase() + text[at + 1 :]
        case 1 if letter.isalnum():
            return text[:at] + b"\\u%04x" % ord(letter) + text[at + 1 :]
        case 2:
            return text + random.choice((b"\\u0000", b"\\u0000x", b" ", b"\\u200b", b"\\ud800"))
        case 3:
            return text.replace(b"s", "\u017f".encode()).replace(b"i", "\u0131".encode())
        case 4:
            return random.choice((b"\\u0000", b" ", b"\\ufeff", b"_")) + text
        case _:
            return text


def _one(pattern: re.Pattern[bytes], said: bytes, random: Random) -> re.Match[bytes] | None:
    found = list(pattern.finditer(said))
    return random.choice(found) if found else None


_HABITS: tuple[Callable[[bytes, Random], bytes], ...] = (
    _repeat_a_key,
    _disguise_a_string,
    _exchange_a_string,
    _insert_a_word,
    _copy_a_part,
    _leave_out_a_part,
)
