r"""Build a deny pattern for exactly these tools.

>>> print(deny_for(["delete_file", "delete_user"], ["delete_file", "delete_user", "read_file"]))
^delete_
>>> print(deny_for(["rm"], ["rm", "rmdir"]))
^rm$
>>> print(deny_for(["a.b", "c"], ["a.b", "aXb", "c", "cd"]))
^(?:a\.b|c)$
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from itertools import takewhile

from mcp_tool_filter.policy.patterns import parse_pattern

_SPECIAL = re.compile(r"[\^$\\.*+?()\[\]{}|/,]")
_WORD_END = re.compile(r"[_\-./:]|[a-z0-9](?=[A-Z])")


def deny_for(hidden: Sequence[str], names: Collection[str]) -> str:
    """Return the shortest pattern we find that matches the hidden names and no other of ``names``.

    A prefix that only hidden names share may replace them; it also hides later tools with that
    prefix.
    """
    exact = _exactly(hidden)
    shorter = _by_beginnings(hidden, set(names) - set(hidden))
    return shorter if len(shorter) < len(exact) and _is_right(shorter, hidden, names) else exact


def _is_right(pattern: str, hidden: Collection[str], names: Collection[str]) -> bool:
    matches = parse_pattern(pattern).matches
    return all(matches(name) == (name in hidden) for name in names)


def _exactly(names: Sequence[str]) -> str:
    if len(names) == 1:
        return f"^{_escaped(names[0])}$"
    begin = common_beginning(min(names), max(names))
    ends = "|".join(_escaped(name[len(begin) :]) for name in names)
    return f"^{_escaped(begin)}(?:{ends})$"


def common_beginning(one: str, other: str) -> str:
    """Return the longest text with which both begin."""
    same = takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))
    return "".join(char for char, _ in same)


def _by_beginnings(hidden: Sequence[str], kept: Collection[str]) -> str:
    parts = dict.fromkeys(_beginning(name, hidden, kept) or f"{_escaped(name)}$" for name in hidden)
    return f"^{next(iter(parts))}" if len(parts) == 1 else f"^(?:{'|'.join(parts)})"


def _beginning(name: str, hidden: Collection[str], kept: Collection[str]) -> str | None:
    """Return the first words of a name if several hidden names and no kept name begin with them."""
    for end in _WORD_END.finditer(name):
        begin = name[: end.end()]
        if any(one.startswith(begin) for one in kept):
            continue
        return _escaped(begin) if sum(one.startswith(begin) for one in hidden) > 1 else None
    return None


def _escaped(text: str) -> str:
    plain = _SPECIAL.sub(r"\\\g<0>", text)
    return "".join(
        letter if letter.isprintable() and letter != " " else _as_unicode(letter)
        for letter in plain
    )


def _as_unicode(letter: str) -> str:
    units = letter.encode("utf-16-be", "surrogatepass")
    pairs = [units[at : at + 2].hex() for at in range(0, len(units), 2)]
    return "".join(f"\\u{pair}" for pair in pairs)
