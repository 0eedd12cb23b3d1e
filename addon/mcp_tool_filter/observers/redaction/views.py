r"""Unescaped text that knows the original place of each character.

So we can replace a secret in a JSON text within a form field without changing any other byte of the
outermost text:

>>> view = unescape_json(View.of(r'a\u0062\nc'))
>>> view.text, view.raw_span(1, 2)
('ab\nc', (1, 7))
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

type _Meaning = Callable[[re.Match[str]], str]

_JSON_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))", re.DOTALL)
_SHORT_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "b": "\b", "f": "\f"}
_PERCENT = re.compile(r"%([0-9a-fA-F]{2})")
_PERCENT_OR_PLUS = re.compile(r"%([0-9a-fA-F]{2})|\+")


@dataclass(frozen=True, slots=True)
class View:
    """A text; ``at`` has the original place of each character and of the end."""

    text: str
    at: Sequence[int]

    @classmethod
    def of(cls, text: str) -> View:
        return cls(text, range(len(text) + 1))

    def part(self, start: int, end: int) -> View:
        return View(self.text[start:end], self.at[start : end + 1])

    def raw_span(self, start: int, end: int) -> tuple[int, int]:
        return self.at[start], self.at[end]


def unescape_json(view: View) -> View:
    """Decode the escapes of a JSON string (given without quotes)."""
    return _unescaped(view, _JSON_ESCAPE, _json_meaning) if "\\" in view.text else view


def unescape_percent(view: View, *, plus: bool = False) -> View:
    """Decode percent escapes; with ``plus``, as in forms, a plus sign is a space."""
    if "%" not in view.text and not (plus and "+" in view.text):
        return view
    return _unescaped(view, _PERCENT_OR_PLUS if plus else _PERCENT, _percent_meaning)


def joined(parts: Sequence[View]) -> View:
    """Join lines with line feeds."""
    text = "\n".join(part.text for part in parts)
    at: list[int] = []
    for part in parts:
        at.extend(part.at)  # the end of a line is where its line feed is
    return View(text, at or [0])


def _unescaped(view: View, escape: re.Pattern[str], meaning: _Meaning) -> View:
    pieces: list[str] = []
    at: list[int] = []
    done = 0
    for found in escape.finditer(view.text):
        pieces.append(view.text[done : found.start()])
        at.extend(view.at[done : found.start()])
        pieces.append(meaning(found))
        at.append(view.at[found.start()])
        done = found.end()
    pieces.append(view.text[done:])
    at.extend(view.at[done:])
    return View("".join(pieces), at)


def _json_meaning(found: re.Match[str]) -> str:
    if found[1]:
        return chr(int(found[1], 16))
    return _SHORT_ESCAPES.get(found[2], found[2])


def _percent_meaning(found: re.Match[str]) -> str:
    return chr(int(found[1], 16)) if found[1] else " "
