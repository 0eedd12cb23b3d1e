r"""Patterns that hide and show tools by name, as a click or a picked list wants it.

A click hides one tool, or exposes another:

>>> from mcp_tool_filter.core.policy.patterns import parse_pattern
>>> names = ["delete_file", "delete_user", "read_file"]
>>> before = Choice(deny=(parse_pattern("^delete_"),))
>>> changed = switched(before, names, hide=["read_file"], show=["delete_user"])
>>> changed.deny, changed.exceptions
(['^delete_', '^read_file$'], ['^delete_user$'])

A pattern for exactly these tools, and no others:

>>> print(deny_for(["delete_file", "delete_user"], ["delete_file", "delete_user", "read_file"]))
^delete_
>>> print(deny_for(["rm"], ["rm", "rmdir"]))
^rm$
>>> print(deny_for(["a.b", "c"], ["a.b", "aXb", "c", "cd"]))
^(?:a\.b|c)$
>>> print(deny_for(["delete_file", "drop_it"], ["delete_file", "drop_it", "delete_none"]))
^(?:delete_file|drop_it)$
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile

from mcp_tool_filter.core.policy.choice import (
    NOT_ALLOWED,
    Choice,
    Hider,
    is_hint,
    is_locked,
)
from mcp_tool_filter.core.policy.patterns import Pattern, parse_pattern
from mcp_tool_filter.core.policy.snapshot import Snapshot

NOTHING = "(?!)"
"""Matches no name: to deny nothing on purpose."""


@dataclass(frozen=True, slots=True)
class Switched:
    """The patterns after some tools were hidden or exposed one by one."""

    kept: list[Pattern]
    """The deny patterns that stay as they were typed."""
    more: list[str]
    """New deny patterns."""
    exceptions: list[str]

    @property
    def deny(self) -> list[str]:
        """All deny patterns; if none is left, one that hides nothing: an empty list is an error."""
        return [*(pattern.regex for pattern in self.kept), *self.more] or [NOTHING]


def switched(
    choice: Choice,
    names: Sequence[str],
    hide: Collection[str],
    show: Collection[str],
    hinted: Collection[str] = (),
) -> Switched:
    """Return patterns that also hide and expose these tools, and change no other of ``names``.

    No deny pattern is rewritten, because it may be meant for tools that come later: each tool to
    expose becomes an exception. (A pattern for exactly this tool is left out.) ``hinted`` are those
    that hints hide, unless there is an exception.
    """
    exceptions, one_of_show = choice.exceptions, {exactly([name]) for name in show}
    kept = [one for one in choice.deny if one.text != NOTHING and one.regex not in one_of_show]
    spared: dict[str, None] = {}
    for exception in exceptions:
        matched = [name for name in names if exception.matches(name)]
        if any(name in hide for name in matched):  # it must not spare that one any more
            spared |= dict.fromkeys(exactly([name]) for name in matched if name not in hide)
        else:
            spared[exception.regex] = None
    hit = {name for name in names if name in hinted or any(one.matches(name) for one in kept)}
    more = [name for name in names if name in hide and name not in hit]
    spared |= dict.fromkeys(
        exactly([name])
        for name in names
        if name in show and name in hit and not any(one.matches(name) for one in exceptions)
    )
    return Switched(kept, [deny_for(more, names)] if more else [], list(spared))


def could_expose(choice: Choice, name: str, by: Hider) -> bool:
    """Tell whether an exception would expose a tool that is hidden by this."""
    if not (isinstance(by, Pattern) or is_hint(by)):
        return False
    lists = filter(None, (choice.allow, choice.allow_too))
    return all(any(one.matches(name) for one in patterns) for patterns in lists)


def hinted_in(snapshot: Snapshot) -> set[str]:
    """The tools that hints hide, or could hide if no pattern decided."""
    hints = replace(snapshot.choice, deny=(), allow=(), exceptions=(), lock=None)
    if not hints.hints:
        return set()
    shown = {name for name, raw in snapshot.allowed.items() if hints.hiding(name, raw)}
    return shown | {
        name for name, by in snapshot.denied.items() if by is not NOT_ALLOWED and not is_locked(by)
    }


_SPECIAL = re.compile(r"[\^$\\.*+?()\[\]{}|/,]")
_WORD_END = re.compile(r"[_\-./:]|[a-z0-9](?=[A-Z])")


def deny_for(hidden: Sequence[str], names: Collection[str]) -> str:
    """Return the shortest pattern we find that matches the hidden names and no other of ``names``.

    A prefix that only hidden names share may replace them; it also hides later tools with that
    prefix.
    """
    exact = exactly(hidden)
    kept = set(names) - set(hidden)
    parts = dict.fromkeys(_beginning(name, hidden, kept) or f"{_escaped(name)}$" for name in hidden)
    shorter = f"^{next(iter(parts))}" if len(parts) == 1 else f"^(?:{'|'.join(parts)})"
    return shorter if len(shorter) < len(exact) and _is_right(shorter, hidden, names) else exact


def _is_right(pattern: str, hidden: Collection[str], names: Collection[str]) -> bool:
    matches = parse_pattern(pattern).matches
    return all(matches(name) == (name in hidden) for name in names)


def exactly(names: Sequence[str]) -> str:
    if len(names) == 1:
        return f"^{_escaped(names[0])}$"
    same = common_beginning(min(names), max(names))
    begin = same[: max((one.end() for one in _WORD_END.finditer(same)), default=0)]  # whole words
    ends = "|".join(_escaped(name[len(begin) :]) for name in names)
    return f"^{_escaped(begin)}(?:{ends})$"


def common_beginning(one: str, other: str) -> str:
    """Return the longest text with which both begin."""
    same = takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))
    return "".join(char for char, _ in same)


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
    r"""Return a letter as JSON and JavaScript can write it, such as \u200b."""
    units = letter.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))
