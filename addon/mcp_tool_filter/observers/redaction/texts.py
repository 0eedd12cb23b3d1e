"""Distinguish text from binary data. Bytes are decoded as Latin-1, one character per byte.

>>> problem_in_text("{}", ""), problem_in_text("\\x89PNG\\0", ""), decode_base64("aGk")
(None, 'binary data', b'hi')
"""

from __future__ import annotations

import base64
import binascii
import re

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
