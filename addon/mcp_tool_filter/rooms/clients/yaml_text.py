r"""YAML as people write it, edited in place: goose's file.

As with JSON (``jsonc``), an edit changes only the members and items that differ, and every other
byte stays. ruamel's nodes say where each value is in the text; what we write ourselves is JSON on
one line, which is YAML, too. The result is parsed again: an edit that means something else is
refused.

>>> text = "a: # mine\n  cmd: npx  # run\n  args:\n    # sure\n    - -y\n  n: 1\n"
>>> print(with_mapping(text, ["a"], {"cmd": "f", "args": ["--", "npx", "-y"], "n": 1}), end="")
a: # mine
  cmd: "f"  # run
  args:
    # sure
    - "--"
    - "npx"
    - -y
  n: 1
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mcp_tool_filter.core.errors import ProtocolError

_LARGEST = 1024 * 1024  # characters: ruamel needs seconds for more
_DEEPEST = 100  # brackets and braces within each other
_UNSAFE = re.compile("[\x7f-\x9f\u2028\u2029\ud800-\udfff\ufeff\ufffe\uffff]")
"""What a YAML text cannot contain, or what some readers take for the end of a line."""

_COMMENT = re.compile(r""""(?:[^"\\]|\\.)*"?|'[^']*'?|(?<!\S)(#[^\r\n]*)""")

type _Edit = tuple[int, int, str]


def parse(text: str) -> object:
    """Return the value of a file. Raises ProtocolError, which names the line."""
    return _read(text, "load")


def with_mapping(text: str, path: Sequence[str], value: Mapping[str, object]) -> str:
    """Return the text with another mapping at a path of keys. Raises ProtocolError."""
    wanted: Any = parse(text)
    *above, last = path
    holder, node = wanted, _read(text, "compose")
    for key in above:
        holder = holder[key]
    for key in path:
        node = next(inner for name, inner in node.value if name.value == key)
    edits = sorted(_Editor(text).mapping(node, holder[last], value), reverse=True)
    holder[last] = dict(value)
    new = text
    for start, end, inserted in edits:
        new = new[:start] + inserted + new[end:]
    if parse(new) != wanted:
        raise ProtocolError("an entry in it cannot be changed in place; change it by hand")
    return new


def _read(text: str, how: str) -> Any:
    from ruamel.yaml import YAML, tokens  # which only goose's file needs
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    if len(text) > _LARGEST:
        raise ProtocolError(f"it has more than {_LARGEST:,} characters")
    try:
        depth = 0
        for token in YAML(typ="safe", pure=True).scan(text):
            if isinstance(token, tokens.AliasToken):
                # A few lines of them could stand for billions of values, or for endless ones.
                raise ProtocolError("it has aliases (*name), which the filter does not follow")
            depth += isinstance(token, tokens.FlowMappingStartToken | tokens.FlowSequenceStartToken)
            depth -= isinstance(token, tokens.FlowMappingEndToken | tokens.FlowSequenceEndToken)
            if depth > _DEEPEST:  # ruamel looks at all open brackets for each token
                raise ProtocolError("it is nested too deeply")
        return getattr(YAML(typ="safe", pure=True), how)(text)
    except MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise ProtocolError(f"line {line}: {error.problem or error.context}") from None
    except (YAMLError, ValueError, RecursionError) as error:
        raise ProtocolError(str(error).partition("\n")[0] or "it is nested too deeply") from None


class _Editor:
    """Finds the edits that turn values of a text into others."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._newline = "\r\n" if "\r\n" in text else "\n"

    def mapping(self, node: Any, old: Any, value: Mapping[str, object]) -> Iterator[_Edit]:
        members = {name.value: (name, inner) for name, inner in node.value}
        if node.flow_style or not members or not value:
            yield self._whole(node, value)
            return
        for key, (name, inner) in members.items():
            if key not in value:
                start, end = self._line_of(name), self._after(inner)
                indent = " " * name.start_mark.column
                kept = [f"{indent}{one}" for one in self._comments_in(start, end)]
                yield start, end, self._as_lines(kept, start)
            elif old[key] is None and inner.value == "":  # its mark is at whatever follows
                at = self._text.index(":", name.end_mark.index) + 1
                yield at, at, f" {_json(value[key])}"
            elif old[key] != value[key]:
                yield from self._changed(inner, old[key], value[key])
        first, _ = next(iter(members.values()))
        indent = " " * first.start_mark.column
        _, last = list(members.values())[-1]
        at = self._after(last)
        lines = [f"{indent}{_plain(key)}: {_json(value[key])}" for key in value if key not in old]
        if lines:
            yield at, at, self._as_lines(lines, at)

    def _changed(self, node: Any, old: object, value: object) -> Iterator[_Edit]:
        if isinstance(old, list) and isinstance(value, list):
            yield from self._sequence(node, old, value)
        elif isinstance(old, dict) and isinstance(value, dict):
            yield from self.mapping(node, old, value)
        else:
            yield self._whole(node, value)

    def _sequence(self, node: Any, old: list[object], value: list[object]) -> Iterator[_Edit]:
        """Keep the items at the end that stay, with their comments."""
        same = 0
        while same < min(len(old), len(value)) and old[-1 - same] == value[-1 - same]:
            same += 1
        gone, new = node.value[: len(old) - same], value[: len(value) - same]
        kept = node.value[len(gone) :]
        first = node.value[0].start_mark.index if old else 0
        before = self._text[self._line_start(first) : first]
        if not same or not (node.flow_style or before.strip() == "-"):
            yield self._whole(node, value)
        elif node.flow_style:
            end = kept[0].start_mark.index if gone else first
            yield first, end, "".join(f"{_json(one)}, " for one in new)
        else:
            start = self._line_start(first)
            end = self._after(gone[-1]) if gone else start
            yield start, end, self._as_lines([f"{before}{_json(one)}" for one in new], start)

    def _whole(self, node: Any, value: object) -> _Edit:
        start = int(node.start_mark.index)
        before = self._text[self._line_start(start) : start]
        is_line = not before.strip()  # below its key
        indent = " " * (len(before) - len(before.lstrip()) + 2)
        comments = self._comments_in(start, self._end(node))
        kept = "".join(f"{one}{self._newline}{indent}" for one in comments)
        return start, self._end(node), "  " * is_line + kept + _json(value)

    def _comments_in(self, start: int, end: int) -> list[str]:
        """Return the comments in what goes."""
        return [one[1] for one in _COMMENT.finditer(self._text, start, end) if one[1]]

    def _end(self, node: Any) -> int:
        """Return where the text of a value ends; ruamel takes comments after it for a part."""
        if isinstance(node.value, list) and not node.flow_style and node.value:
            last = node.value[-1]
            return self._end(last[1] if isinstance(last, tuple) else last)
        start, end = int(node.start_mark.index), int(node.end_mark.index)
        return start + len(self._text[start:end].rstrip()) if end > start else end

    def _after(self, node: Any) -> int:
        """Return where the line after a value begins."""
        found = self._text.find("\n", self._end(node))
        return found + 1 if found >= 0 else len(self._text)

    def _line_start(self, at: int) -> int:
        return self._text.rfind("\n", 0, at) + 1

    def _line_of(self, node: Any) -> int:
        return self._line_start(int(node.start_mark.index))

    def _as_lines(self, lines: Sequence[str], at: int) -> str:
        end = self._newline
        is_unfinished = at == len(self._text) and not self._text.endswith("\n")
        text = "".join(f"{line}{end}" for line in lines)
        return end + text.removesuffix(end) if is_unfinished else text


def _json(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return _UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _plain(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z_][\w-]*", key) else _json(key)
