"""Read the corpora: hostile and honest bytes, one row each, in ``corpora/FILE.txt``.

    == section
    label | bytes | further bytes

A control character is shown as its picture (␍␊), other bytes that cannot be read in hex (⟦$ff fe⟧).
⟦CALL⟧ is a part that the caller gives by this name, ⟦#CALL⟧ its length, ⟦%CALL⟧ its length in hex;
⟦500*[{⟧ is a text repeated so many times.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

_MARK = re.compile("⟦(?:(\\d+)\\*|([#%$]))?(.*?)⟧".encode() + rb"|\xe2\x90([\x80-\xa1])")


@cache
def _sections(file: str) -> dict[str, list[str]]:
    text = (Path(__file__).parent / "corpora" / f"{file}.txt").read_text("utf-8")
    sections = (one.rstrip("\n").split("\n") for one in text.split("== ")[1:])
    return {title: [row for row in found if row] for title, *found in sections}


def cells(file: str, section: str, **parts: bytes) -> list[tuple[str, list[bytes]]]:
    """Return the label of each row and what stands behind it."""
    split = (row.split(" | ") for row in _sections(file)[section])
    return [(label, [_read(cell, parts) for cell in found]) for label, *found in split]


def rows(file: str, section: str, **parts: bytes) -> list[tuple[str, bytes]]:
    """Return the rows of a section that has one cell behind each label."""
    return [(label, cell) for label, (cell,) in cells(file, section, **parts)]


def _read(cell: str, parts: Mapping[str, bytes]) -> bytes:
    def meant(mark: re.Match[bytes]) -> bytes:
        times, kind, name, picture = mark.groups()
        if picture:
            return b"\x7f" if picture == b"\xa1" else bytes([picture[0] - 0x80])
        if times:
            return int(times) * bytes(name)
        match kind:
            case b"$":
                return bytes.fromhex(name.decode())
            case b"#":
                return b"%d" % len(parts[name.decode()])
            case b"%":
                return b"%x" % len(parts[name.decode()])
        return parts[name.decode()]

    return _MARK.sub(meant, cell.encode())
