r"""A lock: the definitions that a person has approved, as a file that is reviewed like code.

Two definitions are equal if they are the same JSON: the order of members does not matter, numbers
are compared as they are written, and a definition that has a member twice equals none.

>>> lock = parse_lock(b'{"version":1,"tools":{"a":{"name":"a","inputSchema":{"maximum":1.0}}}}')
>>> lock.judge("a", b'{"inputSchema": {"maximum": 1.0}, "name": "a"}')
>>> lock.judge("a", b'{"inputSchema": {"maximum": 1}, "name": "a"}').value
'changed since it was approved'
>>> lock.judge("b", b"{}").value
'not approved'

The same lock always gives the same bytes. What a reviewer could not see is written as an escape:

>>> print(render_json({"b": [WrittenNumber("1.0")], "a": "x\u200by"}))
{
  "a": "x\u200by",
  "b": [
    1.0
  ]
}
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from hashlib import sha256
from json.encoder import encode_basestring
from operator import itemgetter
from typing import Final, NamedTuple

from mcp_tool_filter.core.errors import LockError, printable
from mcp_tool_filter.core.policy.choice import IN_LOCK

VERSION: Final = 1
_DEEPEST = 300  # levels; a definition that a server sends has at most 128
_MEMBERS = frozenset({"version", "server", "instructions", "tools"})
# Characters that most programs show as nothing, or that change how others are shown. This list does
# not depend on the release of Python, because the same lock must always give the same bytes.
_UNSEEN = (
    "\x00-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f"
    "\u2028-\u202e\u2060-\u206f\u2800\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb"
    "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff\ud800-\udfff"
)
UNSEEN: Final = re.compile(f"[{_UNSEEN}]")


class WrittenNumber(NamedTuple):
    """A number as it was written. (A tuple, so that it equals no text.)"""

    text: str


class Doubled(dict[str, "Json"]):
    """An object that has a member twice: two readers may read it differently, so it equals none."""

    def __init__(self, pairs: list[tuple[str, Json]]) -> None:
        super().__init__(pairs)
        self.pairs = pairs
        self.twice = Counter(name for name, _ in pairs).most_common(1)[0][0]

    __hash__ = None

    def __eq__(self, _other: object) -> bool:
        return False

    def __ne__(self, _other: object) -> bool:
        return True


type Json = dict[str, Json] | list[Json] | str | WrittenNumber | bool | None


class Lacks(StrEnum):
    """Why a lock does not let a tool pass."""

    NEW = "not approved"
    CHANGED = "changed since it was approved"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Lock:
    server_name: str = ""
    server_version: str = ""
    instructions: str | None = None
    tools: Mapping[str, Json] = field(default_factory=dict)
    """The approved definition of each tool."""
    digest: str = field(default="", compare=False)
    """Of the file, for ``repr``: that of the tools could take megabytes."""
    _equal: dict[str, bytes] = field(default_factory=dict, compare=False)
    """The last bytes of each tool that were equal to its definition."""

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        return f"<Lock {self.digest or id(self)}>"

    def judge(self, name: str, definition: bytes) -> Lacks | None:
        """Return what a tool lacks to be exposed, or None."""
        if name not in self.tools:
            return Lacks.NEW
        if self._equal.get(name) == definition:
            return None
        try:
            is_equal = self.tools[name] == parse_json(definition)
        except (ValueError, RecursionError):
            is_equal = False
        if is_equal:
            self._equal[name] = definition
        return None if is_equal else Lacks.CHANGED

    def problem_in(self, instructions: str | None) -> str:
        """Return the warning about the instructions of a server; empty if they are approved."""
        same = instructions == self.instructions
        return "" if same else f"the server's instructions are not the approved ones{IN_LOCK}"


class BrokenLock(LockError):
    def __init__(self, file: str, why: str) -> None:
        hint = "Repair it by hand, or take it from your repository again"
        super().__init__(f"The lock is broken: {file}", why=why, hint=hint)


def parse_lock(raw: bytes, file: str = "the file") -> Lock:
    """Parse a lock. Raises BrokenLock, which names the file."""
    try:
        return replace(_parse(raw), digest=sha256(raw).hexdigest())
    except UnicodeDecodeError:
        why = "It is not UTF-8"
    except json.JSONDecodeError as error:
        why = f"Line {error.lineno}, column {error.colno}: {error.msg}"
    except RecursionError:
        why = "It is nested too deeply"
    except ValueError as error:
        why = str(error)
    raise BrokenLock(file, why)


def looks_like_lock(raw: bytes) -> bool:
    """Tell whether this is a lock, perhaps a broken one.

    >>> looks_like_lock(b'{"version":1,"tools":{}}'), looks_like_lock(b'{"tools":{}}')
    (True, False)
    """
    try:
        return bool(parse_lock(raw))
    except BrokenLock:  # such as one with two sides of a merge
        return all(b'"%s"' % name.encode() in raw for name in _MEMBERS)


def _parse(raw: bytes) -> Lock:
    whole = parse_json(raw)
    if not isinstance(whole, dict):
        raise ValueError("It is not a JSON object")
    _refuse_doubled(whole, "It")
    if (version := whole.get("version")) != WrittenNumber(str(VERSION)):
        said = f"version {compact(version)[:40]}" if "version" in whole else "no version"
        raise ValueError(f"It has {said}; this release reads version {VERSION}")
    if unknown := sorted(whole.keys() - _MEMBERS):
        raise ValueError(f'It has a member that no lock has: "{printable(unknown[0][:40])}"')
    server, instructions = whole.get("server", {}), whole.get("instructions")
    tools = whole.get("tools")
    if not isinstance(server, dict) or not isinstance(tools, dict):
        wrong = "server" if isinstance(tools, dict) else "tools"
        raise ValueError(f'Its member "{wrong}" is not an object')
    _refuse_doubled(server, "Its server")
    _refuse_doubled(tools, "The list of its tools")
    name, version_of = server.get("name", ""), server.get("version", "")
    if not isinstance(name, str) or not isinstance(version_of, str):
        raise ValueError("Its server has a name or a version that is not a text")
    if instructions is not None and not isinstance(instructions, str):
        raise ValueError("Its instructions are neither a text nor null")
    for tool, definition in tools.items():
        if not isinstance(definition, dict):
            raise ValueError(f'Its tool "{printable(tool[:128])}" is not an object')
        if _is_too_deep(definition):
            raise RecursionError
    return Lock(server_name=name, server_version=version_of, instructions=instructions, tools=tools)


def _refuse_doubled(table: dict[str, Json], what: str) -> None:
    if isinstance(table, Doubled):
        raise ValueError(f'{what} has "{printable(table.twice[:128])}" twice')


def _is_too_deep(value: Json) -> bool:
    level = [value]
    for _ in range(_DEEPEST):
        level = [child for one in level for child in children(one)]
        if not level:
            return False
    return True


def children(value: Json) -> Iterable[Json]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def parse_json(raw: bytes | str) -> Json:
    """Parse JSON with numbers as they are written. Raises ValueError."""
    text = raw if isinstance(raw, str) else raw.decode("utf-8-sig")
    value: Json = json.loads(
        text,
        parse_int=WrittenNumber,
        parse_float=WrittenNumber,
        parse_constant=_refuse_constant,
        object_pairs_hook=_object,
    )
    return value


def _refuse_constant(text: str) -> Json:
    raise ValueError(f"{text} is not JSON")


def _object(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    table = dict(pairs)
    return table if len(table) == len(pairs) else Doubled(pairs)


def doubled_in(value: Json) -> str | None:
    """Return a member that some object has twice, or None."""
    if isinstance(value, Doubled):
        return value.twice
    return next(filter(None, map(doubled_in, children(value))), None)


def render_lock(lock: Lock) -> bytes:
    """Return the bytes of a lock's file."""
    text = ",\n  ".join([
        f'"version": {VERSION}',
        '"server": '
        + _rendered({"name": lock.server_name, "version": lock.server_version}, "\n  "),
        f'"instructions": {_rendered(lock.instructions, "")}',
        f'"tools": {_rendered(dict(lock.tools), "\n  ")}',
    ])  # fmt: skip
    return f"{{\n  {text}\n}}\n".encode()


def render_json(value: Json) -> str:
    """Render JSON with sorted members, indented by two."""
    return _rendered(value, "\n")


def compact(value: Json) -> str:
    """Render JSON on one line."""
    return _rendered(value, "")


def _rendered(value: Json, newline: str) -> str:
    """Render JSON; ``newline`` begins each line, and is empty if there should be only one."""
    match value:
        case str():
            return UNSEEN.sub(lambda found: escaped(found[0]), encode_basestring(value))
        case WrittenNumber(text):
            return text
        case dict() if value:
            below = f"{newline}  " if newline else ""
            pairs = value.pairs if isinstance(value, Doubled) else value.items()
            items = [
                f"{_rendered(key, '')}: {_rendered(one, below)}"
                for key, one in sorted(pairs, key=itemgetter(0))
            ]
            brackets = "{}"
        case list() if value:
            below = f"{newline}  " if newline else ""
            items = [_rendered(one, below) for one in value]
            brackets = "[]"
        case _:
            return json.dumps(value)
    between = f",{below}" if newline else ", "
    return f"{brackets[0]}{below}{between.join(items)}{newline}{brackets[1]}"


def escaped(letter: str) -> str:
    r"""Return a letter as JSON can write it, such as \u200b."""
    units = letter.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{int.from_bytes(units[at : at + 2]):04x}" for at in range(0, len(units), 2))
