r"""Chain log lines by the hash of the line before, so that a missing or changed line shows.

>>> first = link(render({"n": 1}), START)
>>> second = link(render({"n": 2}), hash_of(first))
>>> [problem.text for problem in check([first, second])]
[]
>>> [problem.text for problem in check([first.replace(b"1", b"7"), second])]
['the line before was changed, or one is missing']
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import orjson

from mcp_tool_filter.observers.audit.entry import Entry, LazyValue, made

_BEGINNING = b'{"v":'
START = "0" * 64
"""The previous hash in the very first line."""


_CUT = "it was cut off while it was written, and the lines after it are lost"


@dataclass(frozen=True, slots=True)
class Problem:
    number: int
    """The number of the line, from 1."""
    text: str


def render(entry: Entry) -> bytes:
    """Render an entry as a non-empty JSON object."""
    try:
        return orjson.dumps(entry, default=made)
    except TypeError:  # for example half a surrogate pair, which orjson refuses
        text = json.dumps(entry, default=_anyhow, ensure_ascii=False)
        return text.encode("utf-8", "replace")


def may_begin_log(beginning: bytes) -> bool:
    """Tell whether a file that begins so may be an audit log; a crash may cut its first line.

    >>> may_begin_log(b""), may_begin_log(b'{"v"'), may_begin_log(b"# My notes")
    (True, True, False)
    """
    first, newline, _ = beginning.partition(b"\n")
    if first.startswith(_BEGINNING) or b'"prev":"' in first:
        return True
    return not newline and _BEGINNING.startswith(first)


def link(rendered: bytes, before: str) -> bytes:
    """Return an entry as a line without its end; ``before`` is the hash of the line before."""
    return b'%b,"prev":"%b"}' % (rendered[:-1], before.encode())


def link_all(rendered: Iterable[bytes], before: str) -> tuple[bytes, str]:
    """Return entries as lines, each linked to the one before it, and the hash of the last line."""
    lines = []
    for one in rendered:
        line = link(one, before)
        before = hash_of(line)
        lines.append(line)
    lines.append(b"")  # the last one has an end, too
    return b"\n".join(lines), before


def _anyhow(part: object) -> object:
    """Render anything unexpected too, because a missing line would say less."""
    return part.made() if isinstance(part, LazyValue) else repr(part)


def hash_of(line: bytes) -> str:
    return hashlib.sha256(line).hexdigest()


def check(lines: Iterable[bytes], before: str | None = None) -> Iterator[Problem]:
    """Yield the problems of the lines; the first may have any previous hash if ``before`` is
    None."""
    for number, line in enumerate(lines, start=1):
        try:
            said = orjson.loads(line)["prev"]
        except (ValueError, KeyError, TypeError):
            is_cut = line.startswith(b"{") and not line.endswith(b"}")
            yield Problem(number, _CUT if is_cut else "not a line of an audit log")
            before = hash_of(line)
            continue
        if before is not None and said != before:
            yield Problem(number, "the line before was changed, or one is missing")
        before = hash_of(line)
