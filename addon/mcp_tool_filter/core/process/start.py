"""What refuses a start, for every shape of the filter: a port, stdio, several servers, a preview.

A wrong setting is refused when it is read (``cli/parsing``), and a file that it names when that is
read (``plugs.settled``). What only the tools of the upstream show is refused here. So an option
that refuses a start is a row in ``cli/options``, a field of ``Config`` with the same name, and
judged here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mcp_tool_filter.core.errors import StartError, UnmatchedPattern
from mcp_tool_filter.core.policy.config import Config
from mcp_tool_filter.core.policy.patterns import Pattern
from mcp_tool_filter.core.policy.situation import Editor
from mcp_tool_filter.core.policy.snapshot import Snapshot, shown


def refuse_start(
    config: Config,
    snapshots: Sequence[Snapshot],
    *,
    among: Iterable[Pattern] | None = None,
    beside: Editor | None = None,
) -> None:
    """Raise StartError if the user does not want to start with these tools.

    ``snapshots`` are those of all upstreams that this configuration is for. If only some of its
    patterns are judged here, these are the ones ``among`` which we look. The edits that another
    editor has, too, are not judged here.
    """
    if config.strict and (dead := unmatched_in(snapshots, among=among)):
        first = dead[0]
        raise UnmatchedPattern(first.text, thing=first.thing, hint=first.hint)
    editor = config.editor
    if editor is not None and config.strict and (lost := editor.unmatched(snapshots, beside)):
        what = f"The edit of {shown(lost[0])} matches no tool"
        raise StartError(what, why="With --strict, each edit must match")
    if editor is not None and among is None:
        editor.refuse_start(snapshots)


def unmatched_in(
    snapshots: Sequence[Snapshot], *, among: Iterable[Pattern] | None = None
) -> list[Pattern]:
    """Return the patterns that match nothing in any of these snapshots."""
    if not snapshots:
        return []
    wanted = None if among is None else set(map(key_of, among))
    lists = [set(map(key_of, snapshot.unmatched)) for snapshot in snapshots]
    return [
        one
        for one in snapshots[0].unmatched
        if all(key_of(one) in each for each in lists) and (wanted is None or key_of(one) in wanted)
    ]


def key_of(pattern: Pattern) -> tuple[str, str]:
    """Return what makes two patterns the same, also if they were read twice."""
    return pattern.option, pattern.text
