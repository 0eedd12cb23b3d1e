r"""JSON as people write it: with comments and trailing commas, edited in place.

A client's file belongs to its user. So we do not rewrite it: an edit replaces, adds or removes one
member or item, and every other byte stays. One small scanner finds the items of an object or an
array in the text, of JSON or TOML; the values themselves are read by ``json`` and ``tomlkit``.

>>> text = '{\n  "a": 1, // one\n  "b": [2,],\n}\n'
>>> print(with_mapping(text, [], {"a": 1, "b": [2, 3]}), end="")
{
  "a": 1, // one
  "b": [2, 3,],
}
>>> text = '[ // how\n  "-y", // sure\n  "files"\n]'
>>> print(with_items(text, ["-y", "files"], ["--deny", "^rm", "-y", "files"], json.dumps))
[ // how
  "--deny",
  "^rm",
  "-y", // sure
  "files"
]
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, NoReturn

from mcp_tool_filter.core.errors import ProtocolError

_PART = re.compile(
    r"""(?P<space>[ \t\r\n\ufeff]+)
    | (?P<comment>//[^\n]*|/\*[^*]*(?:\*+[^*/][^*]*)*(?:\*+/)?|\#[^\n]*)
    | (?P<string>\"{3}.*?\"{3,5}|'{3}.*?'{3,5}|"(?:[^"\\]|\\.)*"?|'[^']*'?)
    | (?P<open>[\[{])
    | (?P<close>[\]}])
    | (?P<comma>,)
    | (?P<other>[^\s\ufeff,\[\]{}"'\#/]+|.)""",
    re.DOTALL | re.VERBOSE,
)
"""What nothing closes goes on to the end of the text, so that it is read only once."""
_REST_OF_LINE = re.compile(r"[ \t]*(?://[^\r\n]*|\#[^\r\n]*|/\*[^\r\n]*?\*/[ \t]*)?(?=\r?\n)")
_BLANK_REST = re.compile(r"[ \t]*\r?\n")
_BLANKS = re.compile(r"[ \t]*")
_IGNORED = r"(?:[ \t\r\n\ufeff]|//[^\n]*\n|/\*[^*]*\*+(?:[^*/][^*]*\*+)*/)*"
_BEFORE_VALUE = re.compile(rf'("(?:[^"\\]|\\.)*"){_IGNORED}:{_IGNORED}', re.DOTALL)
_WIDEST = 80  # characters of an array on one line


class _Edit(NamedTuple):
    """Replaces the text from ``start`` to ``end`` by ``text``."""

    start: int
    end: int
    text: str


@dataclass(slots=True, eq=False)
class _Item:
    """An item of an array, or a member of an object."""

    start: int
    end: int
    comma: int | None = None
    """The place of the comma after it."""


def parse(text: str) -> object:
    """Return the value of a file. Raises ProtocolError, which names the line."""
    if not text.strip("\ufeff \t\r\n"):
        raise ProtocolError("line 1: the file is empty")
    try:
        try:
            return json.loads(text, parse_constant=_refuse_constant)
        except ValueError:  # most files have no comments
            return json.loads(_plain(text), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        is_deep = isinstance(error, RecursionError)
        what = "nested too deeply" if is_deep else getattr(error, "msg", str(error))
        what = f"{what[:1].lower()}{what[1:]}"
        raise ProtocolError(f"line {getattr(error, 'lineno', 1)}: {what}") from None


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"there is no {name} in JSON")


def comments_in(text: str) -> list[str]:
    """Return the comments in a text of JSON or TOML."""
    return [one[0].rstrip() for one in _PART.finditer(text) if one["comment"]]


def _plain(text: str) -> str:
    """Return a text of the same length without comments and trailing commas."""
    pieces: list[str] = []
    before, comma = "open", None  # the last part that counts, and where a trailing comma may be
    for part in _PART.finditer(text):
        kind, said = str(part.lastgroup), part[0]
        if kind == "space" or (kind == "comment" and _is_whole(said)):
            pieces.append(re.sub(r"[^\r\n]", " ", said))
            continue
        if kind == "close" and before == "comma" and comma is not None:
            pieces[comma] = " "
        comma = len(pieces) if kind == "comma" and before not in ("open", "comma") else None
        before = kind
        pieces.append(said)
    return "".join(pieces)


def _is_whole(comment: str) -> bool:
    """Tell whether a comment is one of JSON, and is closed."""
    is_block = comment.startswith("/*")
    return comment.endswith("*/") and len(comment) >= 4 if is_block else comment[0] == "/"


def with_mapping(text: str, path: Sequence[str], value: Mapping[str, object]) -> str:
    """Return the text with another object at a path of keys, which must lead to an object."""
    start, end = span_of(text, path)
    old = parse(text[start:end])
    assert isinstance(old, dict)
    changed = _applied(text, _Container(text, start).edit_object(old, value))
    if _at(changed, path) == value:
        return changed
    line = text.rfind("\n", 0, start) + 1
    indent = text[line : len(text) - len(text[line:].lstrip(" \t"))]
    return _applied(text, [_Edit(start, end, render(value, indent, _unit_of(text)))])


def _at(text: str, path: Sequence[str]) -> object:
    try:
        found = parse(text)
    except ProtocolError:
        return None
    for key in path:
        found = found.get(key) if isinstance(found, dict) else None
    return found


def span_of(text: str, path: Sequence[str]) -> tuple[int, int]:
    """Return where the value at a path begins and ends."""
    start, end = 0, len(text)
    if first := next((one for one in _PART.finditer(text) if one.lastgroup == "open"), None):
        start = first.start()
    for wanted in path:
        member = dict(_Container(text, start).members())[wanted]
        start, end = _value_start(text, member), member.end
    return start, end


class _Container:
    """An object or an array in a text, and the edits of its members or items."""

    def __init__(self, text: str, at: int) -> None:
        self._text = text
        self._at = at
        self.items = list(_items_in(text, at))
        self.indent = self._find_indent()

    def _find_indent(self) -> str | None:
        """Return the indentation of the items; None if they are not on lines of their own."""
        first = self.items[0].start if self.items else 0
        line = self._text.rfind("\n", 0, first) + 1
        indent = self._text[line:first]
        return indent if line and not indent.strip() else None

    def members(self) -> list[tuple[str, _Item]]:
        """Return the members of an object with their keys."""
        found = [(_BEFORE_VALUE.match(self._text, item.start), item) for item in self.items]
        return [(json.loads(key[1]), item) for key, item in found if key]

    def edit_object(self, old: Mapping[str, object], new: Mapping[str, object]) -> list[_Edit]:
        """Return the edits that turn an object into another one."""
        members, unit = self.members(), _unit_of(self._text)
        gone = [item for key, item in members if key not in new]
        added = [
            f"{json.dumps(key)}: {_render_in(self.indent, value, unit)}"
            for key, value in new.items()
            if key not in old
        ]
        # A new member replaces a removed one, so that no comma has to move.
        edits = self._edit(gone, added, len(self.items))
        for key, item in dict(members).items():  # of several, the last one counts
            if key in new and new[key] != old[key]:
                edits += self._edit_value(item, old[key], new[key])
        return edits

    def _edit_value(self, member: _Item, old: object, new: object) -> list[_Edit]:
        """Return the edits of a value. What stays in an object or array keeps its spelling."""
        start = _value_start(self._text, member)
        if isinstance(old, dict) and isinstance(new, dict) and old:
            return _Container(self._text, start).edit_object(old, new)
        if isinstance(old, list) and isinstance(new, list):
            edits = _Container(self._text, start).edit_array(old, new, _json)
            if edits is not None:
                return edits
        widest = 0 if "\n" in self._text[start : member.end] else _WIDEST
        said = _render_in(self.indent, new, _unit_of(self._text), widest)
        return [_Edit(start, member.end, self._comments_in(start, member.end) + said)]

    def edit_array(
        self, old: Sequence[object], new: Sequence[object], render: Callable[[object], str]
    ) -> list[_Edit] | None:
        """Return the edits that turn an array into another one; None if it is empty or unclear."""
        if not self.items or len(self.items) != len(old):
            return None
        after = _common(list(reversed(old)), list(reversed(new)))
        before = _common(old[: len(old) - after], new[: len(new) - after])
        added = [render(one) for one in new[before : len(new) - after]]
        end = len(old) - after
        return self._edit(self.items[before:end], added, end)

    def _edit(self, gone: Sequence[_Item], added: Sequence[str], index: int) -> list[_Edit]:
        """Return the edits that put texts in the place of items, and more texts at an index."""
        edits = [
            _Edit(one.start, one.end, self._comments_in(one.start, one.end) + said)
            for one, said in zip(gone, added, strict=False)
        ]
        edits += self._removals(gone[len(added) :])
        if self.items and (more := added[len(gone) :]):
            edits.append(self._insertion(index, more))
        return edits

    def _comments_in(self, start: int, end: int) -> str:
        """Return the comments in what is replaced, to put before what replaces it."""
        found, line = comments_in(self._text[start:end]), f"\n{self.indent or ''}"
        return "".join(f"{one}{' ' if one[:2] == '/*' else line}" for one in found)

    def _removals(self, gone: Sequence[_Item]) -> Iterator[_Edit]:
        """Yield the edits that remove items, each with a comma."""
        text = self._text
        for one in gone:
            end = one.end if one.comma is None else one.comma + 1
            if one.comma is not None and text[one.end : one.comma].strip():  # a comment in between
                yield _Edit(one.comma, end, "")
                end = one.end
            line = text.rfind("\n", 0, one.start) + 1
            rest = _BLANK_REST.match(text, end)
            if comments := self._comments_in(one.start, one.end):
                yield _Edit(one.start, end, comments)
            elif line and rest and not text[line : one.start].strip():
                yield _Edit(line, rest.end(), "")
            else:
                space = _BLANKS.match(text, end)
                yield _Edit(one.start, space.end() if space and one.comma is not None else end, "")
        left = [one for one in self.items if one not in gone]
        if gone and left and gone[-1] is self.items[-1] and gone[-1].comma is None:
            comma = left[-1].comma
            assert comma is not None
            yield _Edit(comma, comma + 1, "")

    def _insertion(self, index: int, said: Sequence[str]) -> _Edit:
        """Return the edit that inserts items before the one with this index, or at the end."""
        items, end = self.items, self.items[-1].end
        if self.indent is None:
            if index < len(items):
                at = items[index].start
                return _Edit(at, at, "".join(f"{one}, " for one in said))
            return _Edit(end, end, "".join(f", {one}" for one in said))
        if index == len(items):
            return _Edit(end, end, "".join(f",\n{self.indent}{one}" for one in said))
        begin = (items[index - 1].comma or 0) + 1 if index else self._at + 1
        rest = _REST_OF_LINE.match(self._text, begin)  # a comment there is about what is before it
        at = rest.end() if rest else begin
        return _Edit(at, at, "".join(f"\n{self.indent}{one}," for one in said))


def with_items(
    text: str, old: Sequence[object], new: Sequence[object], render: Callable[[object], str]
) -> str | None:
    """Return the text of an array with other items; None if it cannot be read, or is empty."""
    edits = _Container(text, text.find("[")).edit_array(old, new, render)
    return None if edits is None else _applied(text, edits)


def _applied(text: str, edits: Sequence[_Edit]) -> str:
    is_windows = "\r\n" in text
    for start, end, said in sorted(edits, reverse=True):
        spelt = re.sub(r"(?<!\r)\n", "\r\n", said) if is_windows else said
        text = text[:start] + spelt + text[end:]
    return text


def _value_start(text: str, member: _Item) -> int:
    found = _BEFORE_VALUE.match(text, member.start)
    assert found
    return found.end()


def _items_in(text: str, at: int) -> Iterator[_Item]:
    """Yield the items between the bracket at this place and the one that closes it."""
    depth, item = 0, None
    for part in _PART.finditer(text, at):
        match part.lastgroup:
            case "space" | "comment":
                continue
            case "comma" if depth == 1:
                if item:
                    item.comma = part.start()
                    yield item
                item = None
                continue
            case "open":
                depth += 1
                if depth == 1:
                    continue
            case "close":
                depth -= 1
                if depth == 0:
                    break
        item = item or _Item(part.start(), part.end())
        item.end = part.end()
    if item:
        yield item


def _common(some: Sequence[object], others: Sequence[object]) -> int:
    """Return how many items at the beginning are equal."""
    count = 0
    for one, other in zip(some, others, strict=False):
        if one != other or type(one) is not type(other):
            break
        count += 1
    return count


def _unit_of(text: str) -> str:
    """Return one level of this file's indentation.

    >>> _unit_of('{\\n\\t"a": 1\\n}'), _unit_of('{\\n    "a": 1\\n}'), _unit_of("{}")
    ('\\t', '    ', '  ')
    """
    found = re.search(r"\n([ \t]+)\S", text)
    return found[1] if found else "  "


def _render_in(indent: str | None, value: object, unit: str, widest: int = _WIDEST) -> str:
    """Render a value; on one line if the members around it are."""
    return _json(value) if indent is None else render(value, indent, unit, widest)


def render(value: object, indent: str = "", unit: str = "  ", widest: int = _WIDEST) -> str:
    """Render a value: on one line if it fits, else with one item per line."""
    line = _json(value)
    if len(line) <= widest or not isinstance(value, list | dict) or not value:
        return line
    more = indent + unit
    if isinstance(value, dict):
        items = [
            f"{json.dumps(key)}: {render(one, more, unit, widest)}" for key, one in value.items()
        ]
    else:
        items = [render(one, more, unit, widest) for one in value]
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    inner = ",".join(f"\n{more}{item}" for item in items)
    return f"{opening}{inner}\n{indent}{closing}"


def _json(value: object) -> str:
    """Render a value on one line."""
    line = json.dumps(value, ensure_ascii=False)
    return line if line.isprintable() else json.dumps(value)  # half a surrogate pair, for example
