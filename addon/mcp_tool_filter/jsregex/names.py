r"""Group names: JavaScript identifiers, written plainly or with escapes.

>>> parse_group_name(r"(?<\u0061b>x)", 3)
('ab', 11)
"""

from __future__ import annotations

import re


class NotJavaScript(Exception):
    """The text is not a regex; ``str()`` says why in a few words."""


_ESCAPE = (
    r"\\u\{(?P<code>[0-9a-fA-F]+)\}"
    r"|\\u(?P<high>[dD][89abAB][0-9a-fA-F]{2})\\u(?P<low>[dD][c-fC-F][0-9a-fA-F]{2})"
    r"|\\u(?P<unit>[0-9a-fA-F]{4})"
)
_NAME_CHAR = re.compile(rf"{_ESCAPE}|(?P<pair>[\ud800-\udbff][\udc00-\udfff])|(?P<plain>[^\\>])")

# Unicode, PropList.txt: Other_ID_Start and Other_ID_Continue. _NEVER is the one letter (category
# Lm) that is Pattern_Syntax, so identifiers must not contain it.
_ALSO_START = frozenset("$_\u1885\u1886\u2118\u212e\u309b\u309c")
_ALSO_CONTINUE = frozenset(
    "\u00b7\u0387\u1369\u136a\u136b\u136c\u136d\u136e\u136f\u1370\u1371\u19da\u200c\u200d\u30fb\uff65"
)
_NEVER = frozenset("\u2e2f")


def parse_group_name(text: str, start: int) -> tuple[str, int]:
    """Return the name that starts there, and the offset after its ``>``."""
    name: list[str] = []
    at = start
    while found := _NAME_CHAR.match(text, at):
        char = _decode(found)
        if not _may_stand(char, first=not name):
            break
        name.append(char)
        at = found.end()
    if not name or not text.startswith(">", at):
        raise NotJavaScript("the name of a group is not an identifier")
    return "".join(name), at + 1


def _decode(found: re.Match[str]) -> str:
    if found["plain"]:
        return found["plain"]
    if pair := found["pair"]:
        return pair.encode("utf-16-le", "surrogatepass").decode("utf-16-le")
    if found["high"]:
        high, low = int(found["high"], 16), int(found["low"], 16)
        return chr(0x10000 + ((high & 0x3FF) << 10 | low & 0x3FF))
    code = int(found["code"] or found["unit"], 16)
    return chr(code) if code <= 0x10FFFF else "\0"


def _may_stand(char: str, *, first: bool) -> bool:
    if char.isascii():
        return char in "$_" or char.isalpha() or (char.isdigit() and not first)
    import unicodedata  # only here: start-up need not wait for it

    category = unicodedata.category(char)
    if char in _NEVER:
        return False
    if category[0] == "L" or category == "Nl" or char in _ALSO_START:
        return True
    return not first and (category in {"Mn", "Mc", "Nd", "Pc"} or char in _ALSO_CONTINUE)
