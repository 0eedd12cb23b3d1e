r"""JavaScript's regex grammar, as ``new RegExp(text)`` reads it: no flags, Annex B included.

That is ES2024. The modifiers ``(?i:x)`` and duplicate group names of ES2025 are refused, because
Node 20 and other widely used engines refuse them: a pattern should mean the same everywhere.

>>> parse_regex(r"\D{2}").root
Repeat(body=Unit(chars=((0, 47), (58, 65535))), least=2, most=2, lazy=False)
>>> parse_regex("(a")
Traceback (most recent call last):
jsregex.syntax.NotJavaScript: a group is not closed

These look wrong but are right (ECMA-262, Annex B.1.2): a brace that opens no count is a brace,
``\N`` is an octal escape unless there are N groups, and ``\k`` is a k unless there are named
groups.

Group names are JavaScript identifiers, written plainly or with escapes:

>>> parse_group_name(r"(?<\u0061b>x)", 3)
('ab', 11)
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import lru_cache

from jsregex.tree import (
    DIGIT,
    EMPTY,
    NO_LINE_END,
    SPACE,
    WORD,
    Alternation,
    CharSet,
    Edge,
    Group,
    Look,
    Node,
    Reference,
    Repeat,
    Sequence,
    Unit,
    fold_set,
    fold_text,
    invert,
    single,
    to_units,
    union,
)


class NotJavaScript(Exception):
    """The text is not a regex; ``str()`` says why in a few words."""


_ESCAPE = (
    r"\\u\{(?P<code>[0-9a-fA-F]+)\}"
    r"|\\u(?P<high>[dD][89abAB][0-9a-fA-F]{2})\\u(?P<low>[dD][c-fC-F][0-9a-fA-F]{2})"
    r"|\\u(?P<unit>[0-9a-fA-F]{4})"
)
_NAME_CHAR = re.compile(rf"{_ESCAPE}|(?P<pair>[\ud800-\udbff][\udc00-\udfff])|(?P<plain>[^\\>])")

# Python's identifiers are those of Unicode except letters that normalizing changes (XID_Start).
_ALSO_LETTERS = frozenset(
    "\u037a\u0e33\u0eb3\u309b\u309c\ufc5e\ufc5f\ufc60\ufc61\ufc62\ufc63\ufdfa\ufdfb"
    "\ufe70\ufe72\ufe74\ufe76\ufe78\ufe7a\ufe7c\ufe7e\uff9e\uff9f$"
)
_JOINERS = "\u200c\u200d"


def parse_group_name(text: str, start: int) -> tuple[str, int]:
    """Return the name that starts there, and the offset after its ``>``."""
    name: list[str] = []
    at = start
    while found := _NAME_CHAR.match(text, at):
        char = _decode(found)
        known = f"a{char}" if name else char
        if not (known.isidentifier() or char in _ALSO_LETTERS or (name and char in _JOINERS)):
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


@dataclass(frozen=True, slots=True)
class Regex:
    root: Node
    groups: int
    ignore_case: bool = False
    """If set, the sets contain capitals only, so the text must be folded too."""


def parse_regex(text: str, *, ignore_case: bool = False) -> Regex:
    """Parse a pattern, with the flag ``i`` if ``ignore_case``. Raises NotJavaScript."""
    return _Parser(to_units(text), ignore_case=ignore_case).parse()


_NO_END = 2**31 - 1  # V8 treats this and every higher count as infinity
_MOST_GROUPS = 32767  # V8: "Too many captures"

_PLAIN = re.compile(r"[^\\^$.*+?()\[{|]+")
_QUANTIFIER = re.compile(r"(?P<sign>[*+?])|\{(?P<least>[0-9]+)(?P<range>,(?P<most>[0-9]*))?\}")
_REFERENCE = re.compile(r"\\[1-9k]")
_OPENING = re.compile(  # an escaped "(" or one in a class opens no group
    r"\\.|\[(?:\\.|[^\]\\])*|(?P<group>\((?:(?!\?)|\?<(?![=!])(?P<named>)))", re.DOTALL
)
_OCTAL = re.compile(r"[0-3][0-7]{0,2}|[4-7][0-7]?")
_HEX = re.compile(r"x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})")

_CLASSES = {
    "d": DIGIT,
    "D": invert(DIGIT),
    "s": SPACE,
    "S": invert(SPACE),
    "w": WORD,
    "W": invert(WORD),
}
_CONTROLS = {"f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_EDGES = {"^": Edge.START, "$": Edge.END}
_WORD_EDGES = {"b": Edge.WORD, "B": Edge.NOT_WORD}
_COUNTS = {"*": (0, None), "+": (1, None), "?": (0, 1)}
_LOOKS = {
    "?=": (False, False),
    "?!": (False, True),
    "?<=": (True, False),
    "?<!": (True, True),
}


@lru_cache(maxsize=512)
def _unit(char: str) -> Unit:
    return Unit(single(char))


@dataclass(slots=True)
class _Open:
    """A group that is being read: its finished options, and the items of the current one."""

    number: int | None = None
    look: tuple[bool, bool] | None = None
    options: list[Node] = field(default_factory=list)
    items: list[Node] = field(default_factory=list)

    def end_option(self) -> None:
        items = self.items
        self.options.append(items[0] if len(items) == 1 else Sequence(tuple(items)))
        self.items = []

    def body(self) -> Node:
        self.end_option()
        return self.options[0] if len(self.options) == 1 else Alternation(tuple(self.options))


class _Parser:
    """Reads the text once. Open groups are on our own stack, because they may be nested deeply."""

    def __init__(self, text: str, *, ignore_case: bool) -> None:
        self._text = text
        self._ignore_case = ignore_case
        self._at = 0
        self._stack = [_Open()]
        self._opened = 0
        openings = [found for found in _OPENING.finditer(text) if found["group"] is not None]
        self._groups = len(openings)
        if self._groups > _MOST_GROUPS:
            raise NotJavaScript("there are too many groups")
        self._names: dict[str, int] = {}
        for number, opening in enumerate(openings, 1):
            if opening["named"] is not None:
                name, _ = parse_group_name(text, opening.end())
                if name in self._names:
                    raise NotJavaScript(f"two groups are called {name}")
                self._names[name] = number
        self._may_refer = _REFERENCE.search(text) is not None

    def parse(self) -> Regex:
        while self._at < len(self._text):
            if plain := _PLAIN.match(self._text, self._at):
                self._read_plain(plain.group())
            else:
                self._read_special(self._text[self._at])
        if len(self._stack) > 1:
            raise NotJavaScript("a group is not closed")
        return Regex(self._stack[0].body(), self._groups, self._ignore_case)

    def _read_plain(self, chars: str) -> None:
        """Read characters that stand for themselves; a quantifier applies to the last one."""
        self._at += len(chars)
        if self._ignore_case:
            chars = fold_text(chars)
        self._stack[-1].items += map(_unit, chars[:-1])
        self._add(_unit(chars[-1]))

    def _read_special(self, char: str) -> None:
        match char:
            case "\\":
                self._read_escape()
            case "(":
                self._open()
            case ")":
                self._close()
            case "|":
                self._at += 1
                self._stack[-1].end_option()
            case "^" | "$":
                self._at += 1
                self._stack[-1].items.append(_EDGES[char])
            case "[":
                self._add(self._read_class())
            case ".":
                self._at += 1
                self._add(Unit(NO_LINE_END))
            case _:  # "*", "+", "?" or "{"
                if _QUANTIFIER.match(self._text, self._at):
                    raise NotJavaScript("there is nothing to repeat")
                self._at += 1
                self._add(_unit(char))

    # Groups

    def _open(self) -> None:
        rest = self._text[self._at + 1 : self._at + 4]
        for opening, look in _LOOKS.items():
            if rest.startswith(opening):
                self._at += 1 + len(opening)
                self._stack.append(_Open(look=look))
                return
        if rest.startswith("?:"):
            self._at += 3
            self._stack.append(_Open())
            return
        if rest.startswith("?<"):
            _, self._at = parse_group_name(self._text, self._at + 3)
        elif rest.startswith("?"):
            raise NotJavaScript("unknown kind of group after (?")
        else:
            self._at += 1
        self._opened += 1
        self._stack.append(_Open(number=self._opened))

    def _close(self) -> None:
        if len(self._stack) == 1:
            raise NotJavaScript("there is a ) without its (")
        self._at += 1
        group = self._stack.pop()
        if group.look is None:
            captures = group.number is not None and self._may_refer
            self._add(Group(group.body(), group.number or 0) if captures else group.body())
            return
        behind, negated = group.look
        look = Look(group.body(), behind, negated)
        if not behind:  # Annex B: a look-ahead may be repeated
            self._add(look)
        elif _QUANTIFIER.match(self._text, self._at):
            raise NotJavaScript("a look-behind cannot be repeated")
        else:
            self._stack[-1].items.append(look)

    # Repetition

    def _add(self, node: Node) -> None:
        """Add a node, repeated if a quantifier follows it."""
        quantifier = _QUANTIFIER.match(self._text, self._at)
        if quantifier:
            self._at = quantifier.end()
            least, most = _parse_count(quantifier)
            lazy = self._text.startswith("?", self._at)
            self._at += lazy
            node = Repeat(node, least, most, lazy)
        self._stack[-1].items.append(node)

    # Escapes

    def _read_escape(self) -> None:
        char = self._text[self._at + 1 : self._at + 2]
        if char in _WORD_EDGES:
            self._at += 2
            self._stack[-1].items.append(_WORD_EDGES[char])
        elif char and char in "123456789" and (number := self._parse_number()):
            self._add(self._refer_to(number))
        elif char == "k" and self._names:
            if not self._text.startswith("<", self._at + 2):
                raise NotJavaScript(r"\k needs the name of a group")
            name, self._at = parse_group_name(self._text, self._at + 3)
            if name not in self._names:
                raise NotJavaScript(f"no group is called {name}")
            self._add(self._refer_to(self._names[name]))
        else:
            self._add(Unit(self._folded(self._parse_char_or_class(in_class=False))))

    def _folded(self, chars: CharSet) -> CharSet:
        return fold_set(chars) if self._ignore_case else chars

    def _parse_number(self) -> int | None:
        r"""Read the N of ``\N`` if there is such a group."""
        end = self._at + 1
        while self._text[end : end + 1] and self._text[end] in "0123456789":
            end += 1
        digits = self._text[self._at + 1 : end]
        if len(digits) > 5 or int(digits) > self._groups:
            return None
        self._at = end
        return int(digits)

    def _refer_to(self, number: int) -> Node:
        inside = any(group.number == number for group in self._stack)
        return EMPTY if inside else Reference(number)  # inside itself, a group has no capture yet

    def _parse_char_or_class(self, *, in_class: bool) -> CharSet:
        start = self._at + 1
        if start == len(self._text):
            raise NotJavaScript("a backslash ends the pattern")
        char = self._text[start]
        self._at = start + 1
        if char in _CLASSES:
            return _CLASSES[char]
        if char in _CONTROLS:
            return single(_CONTROLS[char])
        if octal := _OCTAL.match(self._text, start):
            self._at = octal.end()
            return single(chr(int(octal.group(), 8)))
        if code := _HEX.match(self._text, start):
            self._at = code.end()
            return single(chr(int(code[1] or code[2], 16)))
        if char == "c":
            return self._parse_control(in_class=in_class)
        if char == "b" and in_class:
            return single("\b")
        if char == "k" and self._names:
            raise NotJavaScript(r"\k needs the name of a group")
        return single(char)

    def _parse_control(self, *, in_class: bool) -> CharSet:
        letter = self._text[self._at : self._at + 1]
        if letter.isascii() and (
            letter.isalpha() or (in_class and (letter.isdigit() or letter == "_"))
        ):
            self._at += 1
            return single(chr(ord(letter) % 32))
        self._at -= 1  # the backslash is itself, and the c is read again
        return single("\\")

    # Classes

    def _read_class(self) -> Unit:
        self._at += 1
        negated = self._text.startswith("^", self._at)
        self._at += negated
        parts: list[CharSet] = []
        while (char := self._class_char()) != "]":
            low = self._read_class_atom(char)
            if self._class_char() != "-":
                parts.append(low)
                continue
            self._at += 1
            if (char := self._class_char()) == "]":
                parts += (low, single("-"))
                continue
            parts += _range(low, self._read_class_atom(char))
        self._at += 1
        chars = self._folded(union(*parts))
        return Unit(invert(chars) if negated else chars)

    def _class_char(self) -> str:
        if self._at == len(self._text):
            raise NotJavaScript("a class is not closed")
        return self._text[self._at]

    def _read_class_atom(self, char: str) -> CharSet:
        if char == "\\":
            return self._parse_char_or_class(in_class=True)
        self._at += 1
        return single(char)


def _range(low: CharSet, high: CharSet) -> list[CharSet]:
    """Return what ``low-high`` stands for in a class."""
    if not (_is_single(low) and _is_single(high)):
        return [low, single("-"), high]  # Annex B: [\d-z] has a hyphen in it
    if low > high:
        raise NotJavaScript("a range in a class is out of order")
    return [((low[0][0], high[0][1]),)]


def _is_single(chars: CharSet) -> bool:
    return len(chars) == 1 and chars[0][0] == chars[0][1]


def _parse_count(found: re.Match[str]) -> tuple[int, int | None]:
    if found["sign"]:
        return _COUNTS[found["sign"]]
    least = _parse_clamped(found["least"])
    most = least if found["range"] is None else _parse_clamped(found["most"] or str(_NO_END))
    if least > most:
        raise NotJavaScript("a count is out of order")
    return least, None if most == _NO_END else most


def _parse_clamped(digits: str) -> int:
    digits = digits.lstrip("0") or "0"
    return _NO_END if len(digits) > 10 else min(int(digits), _NO_END)
