r"""JSON as people write it: with comments and trailing commas, edited in place.

A client's file belongs to its user. So we do not rewrite it: an edit replaces, adds or removes one
member, and every other byte stays.

>>> text = '{\n  "a": 1, // one\n  "b": [2,],\n}\n'
>>> root = parse(text)
>>> print(apply(text, [replace(text, root.member("b").value, [2, 3])]), end="")
{
  "a": 1, // one
  "b": [2, 3],
}
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from mcp_tool_filter.adapters.client_files.arrays import with_items
from mcp_tool_filter.errors import ProtocolError

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
