"""Distinguish text from binary data. Bytes are decoded as Latin-1, one character per byte.

>>> problem_in_text("{}", ""), problem_in_text("\\x89PNG\\0", ""), decode_base64("aGk")
(None, 'binary data', b'hi')
"""

from __future__ import annotations

import base64
import binascii
import re
import zlib
from contextlib import suppress

_MOST_UNPACKED = 16 * 1024 * 1024
_CHARSET = re.compile(r"charset=\"?([\w-]{1,40})", re.I)


def problem_in_text(text: str, content_type: str) -> str | None:
    """Return why bytes cannot be read as text, or None."""
    charset = _CHARSET.search(content_type)
    if charset and charset[1].lower() not in ("utf-8", "utf8", "us-ascii", "iso-8859-1", "latin1"):
        return f"text in the charset {charset[1]}"
    if "\0" in text:
        return "binary data"
    try:
        text.encode("latin-1").decode()
    except ValueError:
        return None if charset and charset[1].lower() in ("iso-8859-1", "latin1") else "binary data"
    return None


def decode_base64(text: str) -> bytes | None:
    compact = re.sub(r"[\r\n=]", "", text).translate(str.maketrans("-_", "+/"))
    try:
        return base64.b64decode(compact + "=" * (-len(compact) % 4), validate=True)
    except (binascii.Error, ValueError):
        return None


def readable(data: bytes) -> tuple[str, bool]:
    """Return bytes as text, unpacked if they are packed, and whether all of it could be read."""
    if data[:2] == b"\x1f\x8b" or data[:2] in (b"x\x9c", b"x\x01", b"x\xda"):
        with suppress(zlib.error):
            data = zlib.decompressobj(zlib.MAX_WBITS | 32).decompress(data, _MOST_UNPACKED)
    if len(data) % 2 == 0 and data[1::2].count(0) * 10 > len(data) * 4:
        with suppress(ValueError):  # as PowerShell encodes commands
            data = data.decode("utf-16-le").encode()
    text = data.decode("latin-1")
    return text, problem_in_text(text, "") is None


def is_private_key(data: bytes) -> bool:
    """Tell whether bytes are a private key, or a store of keys, without text around them."""
    if data.startswith((b"openssh-key-v1\0", b"\xfe\xed\xfe\xed", b"PuTTY-User-Key-File")):
        return True
    # A DER sequence that begins with a version: PKCS#1, PKCS#8, SEC 1 and PKCS#12.
    return (
        re.match(
            rb"\x30(?:[\x00-\x7f]|\x81.|\x82..|\x83...)\x02\x01[\x00\x01\x03][\x02\x04\x30]",
            data,
            re.DOTALL,
        )
        is not None
    )
