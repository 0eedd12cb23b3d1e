"""All the ways in which some reader may take bytes, and whether a word shows in one of them."""

from __future__ import annotations

import base64
import re
import zlib
from collections.abc import Iterator
from contextlib import suppress
from urllib.parse import unquote_to_bytes


def readings_of(raw: bytes) -> list[bytes]:
    """Return bytes in all the ways in which some reader may take them."""
    readings = [raw, without_chunks(raw), raw.replace(b"\0", b"")]
    readings += [unquote_to_bytes(unquote_to_bytes(one)) for one in readings[:2]]
    readings += [_unescaped(one) for one in list(readings)]
    readings += list(_inflated(raw)) + list(_inflated(without_chunks(raw)))
    readings += [_from_base64(one) for one in re.findall(rb"[A-Za-z0-9+/_-]{12,}=*", raw)]
    return readings


def without_chunks(raw: bytes) -> bytes:
    return re.sub(rb"\r\n[0-9a-fA-F]+\r\n", b"", raw)


def shows(raw: bytes, *words: str) -> bool:
    """Tell whether a word can be found in bytes, however they may be written."""
    plain = [word.encode().lower() for word in words]
    return any(word in reading.lower() for reading in readings_of(raw) for word in plain)


def _unescaped(raw: bytes) -> bytes:
    return re.sub(
        rb"\\u([0-9a-fA-F]{4})",
        lambda match: chr(int(match[1], 16)).encode("utf-8", "replace"),
        raw,
    )


def _inflated(raw: bytes) -> Iterator[bytes]:
    # Raw deflate has no mark of its own: it may follow each head.
    for mark, window in (
        (b"\x1f\x8b", 31),
        (b"\x78\x9c", 15),
        (b"\x78\xda", 15),
        (b"\r\n\r\n", -15),
    ):
        at = raw.find(mark)
        while at >= 0:
            begin = at + len(mark) if window < 0 else at
            with suppress(zlib.error):
                yield zlib.decompressobj(window).decompress(raw[begin:], 1 << 20)
            at = raw.find(mark, at + 1)


def _from_base64(text: bytes) -> bytes:
    whole = text.rstrip(b"=").translate(bytes.maketrans(b"-_", b"+/"))
    return base64.b64decode(whole[: len(whole) // 4 * 4])
