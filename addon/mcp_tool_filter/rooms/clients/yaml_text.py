r"""YAML as people write it, edited by ruamel: goose's file.

ruamel writes a whole file anew, and not quite as it was. So we take from it only the lines in which
its text of the edited file differs from its text of the old one; all other lines keep their bytes.
The result is parsed again: an edit that means something else is refused.

>>> text = "a: # mine\n  cmd: npx\n  args:\n    # sure\n    - -y\n  n: 1\n"
>>> print(with_mapping(text, ["a"], {"cmd": "f", "args": ["--", "npx", "-y"], "n": 1}), end="")
a: # mine
  cmd: f
  args:
    # sure
    - --
    - npx
    - -y
  n: 1
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from io import StringIO
from typing import Any

from mcp_tool_filter.core.errors import ProtocolError
from mcp_tool_filter.rooms.clients.toml_text import merged, with_comments_of

_LARGEST = 1024 * 1024  # characters: ruamel needs seconds for more
_DEEPEST = 100  # brackets and braces within each other
_BYTE_ORDER_MARK = "\ufeff"


def parse(text: str) -> object:
    """Return the value of a file. Raises ProtocolError, which names the line."""
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
        return YAML(typ="safe", pure=True).load(text)
    except MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise ProtocolError(f"line {line}: {error.problem or error.context}") from None
    except (YAMLError, ValueError, RecursionError) as error:
        raise ProtocolError(str(error).partition("\n")[0] or "it is nested too deeply") from None


def with_mapping(text: str, path: Sequence[str], value: Mapping[str, object]) -> str:
    """Return the text with another mapping at a path of keys. Raises ProtocolError."""
    wanted: Any = parse(text)
    *above, last = path
    holder = wanted
    for key in above:
        holder = holder[key]
    holder[last] = dict(value)
    old = text.removeprefix(_BYTE_ORDER_MARK)
    ends_alike = "\r\n" in old
    old = old.replace("\r\n", "\n") if ends_alike else old
    for new in _candidates(old, path, value):
        result = new.replace("\n", "\r\n") if ends_alike else new
        result = text[: len(text) - len(text.removeprefix(_BYTE_ORDER_MARK))] + result
        try:
            if parse(result) == wanted:
                return result
        except ProtocolError:
            continue
    raise ProtocolError("an entry in it cannot be changed in place; change it by hand")


def _candidates(text: str, path: Sequence[str], value: Mapping[str, object]) -> list[str]:
    """Return the text after the edit: as much as it was as possible first."""
    from ruamel.yaml import YAML
    from ruamel.yaml.util import load_yaml_guess_indent

    yaml = YAML()
    yaml.preserve_quotes = True
    yaml.width = _LARGEST
    _, indent, dash = load_yaml_guess_indent(text)
    if indent is not None:
        yaml.indent(mapping=2, sequence=indent, offset=dash or 0)
    document = yaml.load(text)
    before = _written(yaml, document)
    table = document
    for key in path:
        table = table[key]
    _edit(table, value)
    after = _written(yaml, document)
    candidates = [one for one in (merged(before, after, text), after) if one is not None]
    return [*(with_comments_of(text, one, _comment_in) for one in candidates), *candidates]


def _written(yaml: Any, document: object) -> str:
    stream = StringIO()
    yaml.dump(document, stream)
    return stream.getvalue()


def _comment_in(line: str) -> str:
    """Return the comment in a line, as a line of its own; or an empty text."""
    quote = ""
    for mark in re.finditer("[\"'#]", line):
        letter, at = mark[0], mark.start()
        if letter != "#":
            quote = "" if quote == letter else quote or letter
        elif not quote and not line[max(at - 1, 0) : at].strip():
            indent = line[: len(line) - len(line.lstrip())]
            return f"{indent}{line[at:].rstrip()}\n"
    return ""


def _edit(table: Any, value: Mapping[str, object]) -> None:
    """Make a mapping equal to another one; what stays keeps its spelling and its comments."""
    for key in [key for key in table if key not in value]:
        del table[key]
    for key, new in value.items():
        old = table.get(key)
        if isinstance(old, dict) and isinstance(new, Mapping) and old and new:
            _edit(old, new)
        elif isinstance(old, list) and isinstance(new, list):
            _edit_items(old, new)
        elif key in table and old != new:
            table[key] = new
        elif key not in table and table:
            # Before the last one: ruamel keeps what follows the mapping with its last member.
            table.insert(len(table) - 1, key, new)
        elif key not in table:
            table[key] = new


def _edit_items(items: list[object], wanted: list[object]) -> None:
    """Keep the items at the end that stay, with their comments."""
    same = 0
    while same < min(len(items), len(wanted)) and items[-1 - same] == wanted[-1 - same]:
        same += 1
    for _ in range(len(items) - same):
        del items[0]
    for item in reversed(wanted[: len(wanted) - same]):
        items.insert(0, item)
