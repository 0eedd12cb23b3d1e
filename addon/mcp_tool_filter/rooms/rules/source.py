r"""Parse a rules file into a tree of values that know their place in the file.

>>> root, _ = read_source(b"a:\n  - 0x10\n  - yes\n")
>>> [(node.line, node.column, node.value) for node in root.members["a"].items]
[(2, 5, Number('16')), (3, 5, 'yes')]

ruamel parses YAML 1.2, and we read its scalars by the core schema. JSON is read by our scanner for
messages, because YAML parsers fail on tabs and surrogate pairs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NoReturn

from mcp_tool_filter.core.errors import ProtocolError
from mcp_tool_filter.core.messages.scan import EACH, Value, scan
from mcp_tool_filter.rooms.rules.fields import Document, Json, Number, Object


@dataclass(frozen=True, slots=True, order=True)
class MistakeAt:
    """``path`` is the place in the file's structure; lines and columns count from 1."""

    line: int
    column: int
    path: str
    text: str

    def shown(self, file: str) -> str:
        where = f"{self.path}: " if self.path else ""
        return f"{file}:{self.line}:{self.column}: {where}{self.text}"


class Mistaken(Exception):
    """What is wrong in a file, in the order of the file."""

    def __init__(self, *mistakes: MistakeAt) -> None:
        super().__init__(mistakes)
        self.mistakes = tuple(sorted(set(mistakes)))

    def shown(self, file: str) -> str:
        return "\n".join(mistake.shown(file) for mistake in self.mistakes)


LARGEST = 1024 * 1024  # bytes
_DEEPEST = 100
_MOST_NODES = 200_000  # including aliases: a few lines of anchors could expand to billions
_WORDS = dict.fromkeys(("", "~", "null", "Null", "NULL"))
_WORDS |= dict.fromkeys(("true", "True", "TRUE"), True)
_WORDS |= dict.fromkeys(("false", "False", "FALSE"), False)
_OTHER_BASE = re.compile(r"0o[0-7]{1,100}|0x[0-9a-fA-F]{1,100}")
_FLOAT = re.compile(r"([-+]?)0*((?:[1-9]\d*)?)(?:\.(\d*))?([eE][-+]?\d+)?")
_LEADING_ZERO = re.compile(r"[-+]?0\d+(?:\.\d*)?(?:[eE][-+]?\d+)?")
_NOT_FINITE = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")
_PLAIN_KEY = re.compile(r"[A-Za-z_][\w/-]*")
_SURROGATES = re.compile("[\ud800-\udfff]")


@dataclass(slots=True)
class YamlNode:
    """A scalar has a ``value``, a list ``items``, a mapping ``members``."""

    line: int
    column: int
    value: bool | Number | str | None = None
    items: list[YamlNode] | None = None
    members: dict[str, YamlNode] | None = None
    keys: dict[str, tuple[int, int]] = field(default_factory=dict)
    """The line and column of each key of a mapping."""
    size: int = 1
    """How many values there are in it, aliases and itself included."""

    def add(
        self,
        key: str,
        place: tuple[int, int],
        value: YamlNode,
        path: str,
        mistakes: list[MistakeAt],
    ) -> None:
        """Add a member, unless there is one of this name."""
        assert self.members is not None
        if key not in self.keys:
            self.members[key], self.keys[key] = value, place
            return
        line, column = self.keys[key]
        what = f"the key {key!r} appears twice; first at {line}:{column}"
        mistakes.append(MistakeAt(*place, path, what))

    @property
    def kind(self) -> str:
        if self.items is not None:
            return "a list"
        if self.members is not None:
            return "a mapping"
        match self.value:
            case None:
                return "nothing"
            case bool():
                return "true or false"
            case str():
                return "a text"
            case _:
                return "a number"

    def to_json(self) -> Json:
        if self.items is not None:
            return tuple(item.to_json() for item in self.items)
        if self.members is not None:
            return Object(tuple((key, node.to_json()) for key, node in self.members.items()))
        return self.value


def read_source(raw: bytes, begins: str = "interceptor") -> tuple[YamlNode, list[MistakeAt]]:
    """Read a file; return it with the mistakes in its text that do not prevent reading it.

    ``begins`` is the expected first key, for the message about an empty file.
    Raises Mistaken for mistakes that do.
    """
    if len(raw) > LARGEST:
        raise Mistaken(MistakeAt(1, 1, "", f"the file is larger than 1 MB ({len(raw):,} bytes)"))
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        raise Mistaken(MistakeAt(1, 1, "", "the file is not UTF-8")) from None
    text = text.removeprefix("\ufeff")
    empty = f"the file is empty; it begins with {begins}:"
    if not text.strip():
        raise Mistaken(MistakeAt(1, 1, "", empty))
    if text.lstrip()[0] == "{" and (read := _read_json(text)) is not None:
        return read
    return _Yaml(text, empty).read()


# JSON


def _read_json(text: str) -> tuple[YamlNode, list[MistakeAt]] | None:
    """Read JSON; None if the text is not JSON, or has mistakes that YAML can explain."""
    try:
        _, root = scan(text.encode(), {EACH: None})
    except ProtocolError:
        return None
    reader = _Json(text)
    return reader.node(root, ""), reader.mistakes


def inner_path(path: str, key: str) -> str:
    """Return the path of a member in readable form."""
    inner = key if _PLAIN_KEY.fullmatch(key) else repr(key)
    return f"{path}.{inner}" if path else inner


class _Json:
    def __init__(self, text: str) -> None:
        self.mistakes: list[MistakeAt] = []
        self._document = Document(text)
        self._text = text
        self._line, self._line_start = 1, 0  # of the last place
        self._at = 0

    def node(self, value: Value, path: str) -> YamlNode:
        line, column = self._place(value.start)
        if value.text is not None:
            return YamlNode(line, column, value.text)
        opened = self._document.open(value)
        node = YamlNode(line, column)
        if opened.members is not None:
            node.members = {}
            for member in opened.members:
                place = self._place(member.start)
                inner = self.node(member.value, inner_path(path, member.key))
                node.add(member.key, place, inner, path, self.mistakes)
        elif opened.elements is not None:
            node.items = [
                self.node(element, f"{path}[{number}]")
                for number, element in enumerate(opened.elements)
            ]
        else:
            node.value = _resolve(self._document.written(value), line, column)
        return node

    def _place(self, at: int) -> tuple[int, int]:
        """Return line and column, counted from the last place, because places come in order."""
        count = self._text.count("\n", self._at, at)
        if count:
            self._line += count
            self._line_start = self._text.rindex("\n", self._at, at) + 1
        self._at = at
        return self._line, at - self._line_start + 1


# YAML


class _Yaml:
    def __init__(self, text: str, empty: str) -> None:
        self._text = text
        self._empty = empty
        self._anchors: dict[str, YamlNode | None] = {}
        self._mistakes: list[MistakeAt] = []
        self._nodes = 0

    def read(self) -> tuple[YamlNode, list[MistakeAt]]:
        from ruamel.yaml import YAML
        from ruamel.yaml.error import MarkedYAMLError, YAMLError

        try:
            root = self._document(iter(YAML(typ="safe", pure=True).parse(self._text)))
        except MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            what = error.problem or error.context or "this is not YAML"
            line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
            raise Mistaken(*self._mistakes, MistakeAt(line, column, "", what)) from None
        except YAMLError as error:
            what = str(error).partition("\n")[0]
            raise Mistaken(MistakeAt(1, 1, "", f"this is not YAML: {what}")) from None
        return root, self._mistakes

    def _document(self, events: Iterator[Any]) -> YamlNode:
        root = None
        for event in events:
            if type(event).__name__ == "DocumentStartEvent":
                if root is not None:
                    mark = event.start_mark
                    second = MistakeAt(mark.line + 1, mark.column + 1, "", "a second document")
                    self._mistakes.append(second)
                    break
                root = self._node(first := next(events), events, "", 0)
                if _is_left_out(first):
                    root = None
                    break
        if root is None:
            raise Mistaken(MistakeAt(1, 1, "", self._empty))
        return root

    def _node(self, event: Any, events: Iterator[Any], path: str, depth: int) -> YamlNode:
        line, column = event.start_mark.line + 1, event.start_mark.column + 1
        kind = type(event).__name__
        if kind == "AliasEvent":
            return self._alias(event.anchor, line, column, path)
        before = self._nodes
        self._count(1, line, column)
        if depth > _DEEPEST:
            self._end(line, column, path, "nested too deeply")
        self._refuse_tag(event, line, column, path)
        if event.anchor:
            self._anchors[event.anchor] = None  # not complete yet: it must not contain itself
        node = YamlNode(line, column)
        if kind == "ScalarEvent":
            node.value = self._scalar(event, line, column)
        elif kind == "SequenceStartEvent":
            node.items = self._items(events, path, depth)
        else:
            self._fill(node, events, path, depth)
        node.size = self._nodes - before
        if event.anchor:
            self._anchors[event.anchor] = node
        return node

    def _items(self, events: Iterator[Any], path: str, depth: int) -> list[YamlNode]:
        items: list[YamlNode] = []
        while type(event := next(events)).__name__ != "SequenceEndEvent":
            items.append(self._node(event, events, f"{path}[{len(items)}]", depth + 1))
        return items

    def _fill(self, node: YamlNode, events: Iterator[Any], path: str, depth: int) -> None:
        node.members = {}
        while type(event := next(events)).__name__ != "MappingEndEvent":
            line, column = event.start_mark.line + 1, event.start_mark.column + 1
            if type(event).__name__ != "ScalarEvent":
                self._end(line, column, path, "a key must be a text")
            key = _joined(event.value)
            self._refuse_tag(event, line, column, path)
            event = next(events)
            value = self._node(event, events, inner_path(path, key), depth + 1)
            if _is_left_out(event):  # YAML places it where the next node begins
                value.line, value.column = line, column
            node.add(key, (line, column), value, path, self._mistakes)

    def _scalar(self, event: Any, line: int, column: int) -> bool | Number | str | None:
        if event.style or event.tag is not None:
            return _joined(event.value)
        try:
            return _resolve(event.value, line, column)
        except Mistaken as error:
            self._mistakes += error.mistakes
            return None

    def _alias(self, anchor: str, line: int, column: int, path: str) -> YamlNode:
        target = self._anchors.get(anchor)
        if target is None:
            what = "contains itself" if anchor in self._anchors else "is not defined"
            self._end(line, column, path, f"*{anchor} {what}")
        self._count(target.size, line, column)
        return target

    def _count(self, nodes: int, line: int, column: int) -> None:
        self._nodes += nodes
        if self._nodes > _MOST_NODES:
            what = f"the file has more than {_MOST_NODES:,} values, aliases included"
            self._end(line, column, "", what)

    def _refuse_tag(self, event: Any, line: int, column: int, path: str) -> None:
        if event.tag is not None and str(event.tag) != "!":
            what = f"tags such as {event.tag} are not allowed"
            self._mistakes.append(MistakeAt(line, column, path, what))

    def _end(self, line: int, column: int, path: str, what: str) -> NoReturn:
        """Report a mistake after which the rest of the text cannot be read."""
        raise Mistaken(*self._mistakes, MistakeAt(line, column, path, what))


def _is_left_out(event: Any) -> bool:
    """Tell whether a value is missing."""
    return type(event).__name__ == "ScalarEvent" and not (event.value or event.style)


def _joined(text: str) -> str:
    """Join surrogate pairs, which YAML's escapes leave separate."""
    if not _SURROGATES.search(text):
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")


def _resolve(text: str, line: int, column: int) -> bool | Number | str | None:
    """Parse a plain scalar by YAML's core schema."""
    if text in _WORDS:
        return _WORDS[text]
    if text[0].isdecimal() or text[0] in "+-.":
        return _number(text, line, column)
    return text


def _number(text: str, line: int, column: int) -> Number | str:
    if _LEADING_ZERO.fullmatch(text):
        # YAML 1.1 reads 0644 as octal, YAML 1.2 as decimal, and JSON not at all.
        what = f"{text} begins with a zero: write it without, as 0o… if it is octal, or in quotes"
        raise Mistaken(MistakeAt(line, column, "", what))
    try:
        return Number(text)
    except ValueError:
        pass
    if _NOT_FINITE.fullmatch(text):
        raise Mistaken(MistakeAt(line, column, "", f"{text} is not a number of JSON"))
    if _OTHER_BASE.fullmatch(text):
        return Number(str(int(text, 0)))
    number = _FLOAT.fullmatch(text)
    if number is None or not any(map(str.isdecimal, text)):
        return text
    sign = "-" if number[1] == "-" else ""
    fraction = f".{number[3]}" if number[3] else ""
    return Number(f"{sign}{number[2] or '0'}{fraction}{number[4] or ''}")
