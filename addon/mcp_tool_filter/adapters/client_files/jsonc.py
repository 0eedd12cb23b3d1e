r"""JSON as people write it: with comments and trailing commas, edited in place.

A client's file belongs to its user. So we do not rewrite it: an edit replaces, adds or removes one
member, and every other byte stays.

>>> text = '{\n  "a": 1, // one\n  "b": [2,],\n}\n'
>>> root = parse(text)
>>> print(apply(text, [replace(text, root.member("b").value, [2, 3])]), end="")
{
  "a": 1, // one
  "b": [2, 3,],
}

Change the items of an array in a text, JSON or TOML, and keep its comments and its lines.

>>> import json
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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from mcp_tool_filter.errors import ProtocolError

_PART = re.compile(
    r"""(?P<space>[ \t\r\n\ufeff]+)
    | (?P<comment>//[^\n]*|/\*.*?\*/|\#[^\n]*)
    | (?P<string>\"{3}.*?\"{3,5}|'{3}.*?'{3,5}|"(?:[^"\\]|\\.)*"|'[^']*')
    | (?P<open>[\[{])
    | (?P<close>[\]}])
    | (?P<comma>,)
    | (?P<other>[^\s,\[\]{}"'\#/]+|.)""",
    re.DOTALL | re.VERBOSE,
)
_REST_OF_LINE = re.compile(r"[ \t]*(?://[^\r\n]*|\#[^\r\n]*|/\*[^\r\n]*?\*/)?[ \t]*(?=\r?\n)")


@dataclass(slots=True)
class _Item:
    start: int
    end: int
    comma: int | None = None
    """The place of the comma after it."""


def with_items(
    text: str, old: Sequence[object], new: Sequence[object], render: Callable[[object], str]
) -> str | None:
    """Return the text of an array with other items; None if it cannot be read, or is empty."""
    items = list(_items_in(text))
    if not items or len(items) != len(old):
        return None
    after = _common(list(reversed(old)), list(reversed(new)))
    before = _common(old[: len(old) - after], new[: len(new) - after])
    gone = items[before : len(items) - after]
    added = [render(one) for one in new[before : len(new) - after]]
    edits = [(one.start, one.end, said) for one, said in zip(gone, added, strict=False)]
    edits += _removals(text, items, gone[len(added) :])
    if more := added[len(gone) :]:
        edits.append(_insertion(text, items, len(items) - after, more))
    for start, end, said in sorted(edits, reverse=True):
        text = text[:start] + said + text[end:]
    return text


def _items_in(text: str) -> Iterator[_Item]:
    """Yield the items of the array, whose text begins and ends with a bracket."""
    depth, item = 0, None
    for part in _PART.finditer(text):
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


def _removals(
    text: str, items: Sequence[_Item], gone: Sequence[_Item]
) -> Iterator[tuple[int, int, str]]:
    """Yield the edits that remove items next to each other, each with a comma."""
    for one in gone:
        end = one.end if one.comma is None else one.comma + 1
        if one.comma is not None and text[one.end : one.comma].strip():  # a comment in between
            yield one.comma, end, ""
            end = one.end
        line = text.rfind("\n", 0, one.start) + 1
        rest = re.compile(r"[ \t]*\r?\n").match(text, end)
        if line and rest and not text[line : one.start].strip():
            yield line, rest.end(), ""
        else:
            space = re.compile(r"[ \t]*").match(text, end)
            yield one.start, space.end() if space and one.comma is not None else end, ""
    left = [one for one in items if one not in gone]
    if gone and left and gone[-1] is items[-1] and items[-1].comma is None:
        comma = left[-1].comma
        assert comma is not None
        yield comma, comma + 1, ""


def _insertion(
    text: str, items: Sequence[_Item], index: int, said: Sequence[str]
) -> tuple[int, int, str]:
    """Return the edit that inserts items before the one with this index, or at the end."""
    first = items[0]
    line = text.rfind("\n", 0, first.start) + 1
    indent = text[line : first.start]
    if not line or indent.strip():  # not on lines of their own
        if index < len(items):
            return items[index].start, items[index].start, "".join(f"{one}, " for one in said)
        return items[-1].end, items[-1].end, "".join(f", {one}" for one in said)
    newline = "\r\n" if "\r\n" in text else "\n"
    if index == len(items):
        end = items[-1].end
        return end, end, "".join(f",{newline}{indent}{one}" for one in said)
    begin = (items[index - 1].comma or 0) + 1 if index else 1
    rest = _REST_OF_LINE.match(text, begin)  # a comment there is about what is before it
    at = rest.end() if rest else begin
    return at, at, "".join(f"{newline}{indent}{one}," for one in said)


_SPACE = re.compile(r"(?:[ \t\r\n\ufeff]+|//[^\n]*|/\*.*?\*/)*", re.DOTALL)
_STRING = re.compile(r'"(?:[^"\\\x00-\x1f]|\\.)*"')
_SCALAR = re.compile(r"-?[0-9][0-9.eE+-]*|true|false|null")
_DEEPEST = 100
_WIDEST = 80  # characters of an array on one line


@dataclass(slots=True)
class JsonNode:
    """A value and its place in the text."""

    start: int
    end: int
    value: object
    members: list[JsonMember] = field(default_factory=list)
    """The members of an object."""

    def member(self, key: str) -> JsonMember | None:
        """Return the last member with this key, which is the one that counts."""
        return next((one for one in reversed(self.members) if one.key == key), None)

    def at(self, path: Sequence[str]) -> JsonNode | None:
        """Return the value at a path of keys; None if there is none."""
        node: JsonNode | None = self
        for key in path:
            member = node.member(key) if node else None
            node = member.value if member else None
        return node


@dataclass(slots=True)
class JsonMember:
    key: str
    start: int
    value: JsonNode

    @property
    def end(self) -> int:
        return self.value.end


@dataclass(frozen=True, slots=True)
class TextEdit:
    """Replaces the text from ``start`` to ``end`` by ``text``."""

    start: int
    end: int
    text: str


def parse(text: str) -> JsonNode:
    """Read a file. Raises ProtocolError, which names the line."""
    reader = _Reader(text)
    node = reader.value(0)
    reader.skip()
    if reader.at != len(text):
        raise reader.problem("unexpected text after the end")
    return node


def apply(text: str, edits: Sequence[TextEdit]) -> str:
    """Return the text with all edits made; they must not overlap."""
    for edit in sorted(edits, key=lambda edit: (edit.start, edit.end), reverse=True):
        text = text[: edit.start] + edit.text + text[edit.end :]
    return text


def replace(text: str, node: JsonNode, value: object, indent: str | None = "") -> TextEdit:
    """Replace a value, on several lines if the old one was; on one line if ``indent`` is None.

    The items of an array that stay keep their spelling and their comments.
    """
    old = text[node.start : node.end]
    if isinstance(node.value, list) and isinstance(value, list):
        new = with_items(old, node.value, value, json_of)
        if new is not None and _says(new, value):
            return TextEdit(node.start, node.end, new)
    if indent is None:
        return TextEdit(node.start, node.end, json_of(value))
    widest = 0 if "\n" in old else _WIDEST
    return TextEdit(node.start, node.end, render(value, indent, unit_of(text), widest))


def _says(text: str, value: object) -> bool:
    try:
        return parse(text).value == value
    except ProtocolError:
        return False


def remove(text: str, parent: JsonNode, member: JsonMember) -> TextEdit:
    """Remove a member with the comma after it, or before it if it is the last."""
    after = _SPACE.match(text, member.end)
    assert after
    if text[after.end() : after.end() + 1] == ",":
        end = after.end() + 1
        line = re.compile(r"[ \t]*\r?\n").match(text, end)
        begin = text.rfind("\n", 0, member.start) + 1
        if line and not text[begin : member.start].strip():
            return TextEdit(begin, line.end(), "")
        space = re.compile(r"[ \t]*").match(text, end)
        return TextEdit(member.start, space.end() if space else end, "")
    before = [other.end for other in parent.members if other.end < member.start]
    return TextEdit(max(before) if before else member.start, member.end, "")


def insert(text: str, parent: JsonNode, members: Sequence[tuple[str, object]]) -> TextEdit:
    """Add members after the last one of an object."""
    indent = indent_of(text, parent)
    unit = unit_of(text)
    written = [member_text(key, value, indent, unit) for key, value in members]
    if not parent.members:
        if indent is None:
            return TextEdit(parent.start + 1, parent.end - 1, ", ".join(written))
        inner = ",".join(f"\n{indent}{one}" for one in written)
        outer = _line_indent(text, parent.start)
        return TextEdit(parent.start + 1, parent.end - 1, f"{inner}\n{outer}")
    last = max(one.end for one in parent.members)
    between = f",\n{indent}" if indent is not None else ", "
    return TextEdit(last, last, "".join(between + one for one in written))


def member_text(key: str, value: object, indent: str | None, unit: str) -> str:
    """Render a member; on one line if ``indent`` is None, as the others of its object are."""
    return f"{json.dumps(key)}: {json_of(value) if indent is None else render(value, indent, unit)}"


def indent_of(text: str, parent: JsonNode) -> str | None:
    """Return the indentation of the members; None if they are on one line."""
    if not parent.members:
        return _line_indent(text, parent.start) + unit_of(text)
    first = min(one.start for one in parent.members)
    begin = text.rfind("\n", 0, first) + 1
    before = text[begin:first]
    return before if not before.strip() and begin > parent.start else None


def unit_of(text: str) -> str:
    """Return one level of this file's indentation.

    >>> unit_of('{\\n\\t"a": 1\\n}'), unit_of('{\\n    "a": 1\\n}'), unit_of("{}")
    ('\\t', '    ', '  ')
    """
    found = re.search(r"\n([ \t]+)\S", text)
    return found[1] if found else "  "


def render(value: object, indent: str = "", unit: str = "  ", widest: int = _WIDEST) -> str:
    """Render a value: on one line if it fits, else with one item per line."""
    line = json_of(value)
    if len(line) <= widest or not isinstance(value, list | dict) or not value:
        return line
    more = indent + unit
    if isinstance(value, dict):
        items = [
            f"{json.dumps(key)}: {render(item, more, unit, widest)}" for key, item in value.items()
        ]
        opening, closing = "{", "}"
    else:
        items = [render(item, more, unit, widest) for item in value]
        opening, closing = "[", "]"
    inner = ",".join(f"\n{more}{item}" for item in items)
    return f"{opening}{inner}\n{indent}{closing}"


def json_of(value: object) -> str:
    """Render a value on one line."""
    line = json.dumps(value, ensure_ascii=False)
    return line if line.isprintable() else json.dumps(value)  # half a surrogate pair, for example


def _line_indent(text: str, at: int) -> str:
    begin = text.rfind("\n", 0, at) + 1
    found = re.compile(r"[ \t]*").match(text, begin)
    return found[0] if found else ""


class _Reader:
    def __init__(self, text: str) -> None:
        self._text = text
        self.at = 0

    def problem(self, what: str) -> ProtocolError:
        return ProtocolError(f"line {self._text.count('\n', 0, self.at) + 1}: {what}")

    def skip(self) -> None:
        space = _SPACE.match(self._text, self.at)
        assert space
        self.at = space.end()

    def value(self, depth: int) -> JsonNode:
        if depth > _DEEPEST:
            raise self.problem("nested too deeply")
        self.skip()
        match self._text[self.at : self.at + 1]:
            case "{":
                return self._object(depth)
            case "[":
                return self._array(depth)
            case '"':
                start = self.at
                text = self._string()
                return JsonNode(start, self.at, text)
            case _:
                return self._scalar()

    def _object(self, depth: int) -> JsonNode:
        node = JsonNode(self.at, self.at, None)
        self.at += 1
        while not self._closes("}"):
            start = self.at
            key = self._string()
            self.skip()
            if self._text[self.at : self.at + 1] != ":":
                raise self.problem("a colon is missing")
            self.at += 1
            node.members.append(JsonMember(key, start, self.value(depth + 1)))
            self._comma("}")
        node.value = {one.key: one.value.value for one in node.members}
        node.end = self.at
        return node

    def _array(self, depth: int) -> JsonNode:
        node, items = JsonNode(self.at, self.at, None), []
        self.at += 1
        while not self._closes("]"):
            items.append(self.value(depth + 1).value)
            self._comma("]")
        node.value = items
        node.end = self.at
        return node

    def _closes(self, bracket: str) -> bool:
        self.skip()
        if self._text[self.at : self.at + 1] != bracket:
            return False
        self.at += 1
        return True

    def _comma(self, bracket: str) -> None:
        self.skip()
        if self._text[self.at : self.at + 1] == ",":
            self.at += 1
        elif self._text[self.at : self.at + 1] != bracket:
            raise self.problem(f"a comma or {bracket} is missing")

    def _string(self) -> str:
        found = _STRING.match(self._text, self.at)
        if found is None:
            raise self.problem("a string in double quotes is missing")
        try:
            value = json.loads(found[0])
        except ValueError:
            raise self.problem("a string with a wrong escape") from None
        self.at = found.end()
        return str(value)

    def _scalar(self) -> JsonNode:
        found = _SCALAR.match(self._text, self.at)
        try:
            value = json.loads(found[0]) if found else None
        except ValueError:
            found = None
        if found is None:
            raise self.problem("a value is missing or wrong")
        self.at = found.end()
        return JsonNode(found.start(), found.end(), value)
