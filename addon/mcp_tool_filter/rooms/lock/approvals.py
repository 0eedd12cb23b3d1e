"""What waits for approval: the tools that only the lock hides, with the difference as ``lock
--check`` prints it; and approving one of them, which writes the file of the lock.

Each has a token of its definition and of the lock, so that nobody approves anything else than the
page has shown; what is too long to be compared has none. There may be several of one name: not
every client gets the same tools.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from hashlib import sha256

from mcp_tool_filter.core.conversation.policy_in_force import PolicyInForce
from mcp_tool_filter.core.errors import StartError
from mcp_tool_filter.core.policy.config import Config
from mcp_tool_filter.core.policy.snapshot import shown
from mcp_tool_filter.core.process.statistics import JsonObject
from mcp_tool_filter.rooms.lock.changes import compare, problem_in
from mcp_tool_filter.rooms.lock.lock import Lock, compact, parse_json, parse_lock, render_lock
from mcp_tool_filter.rooms.lock.lock_file import lock_of, read_bytes, replace_lock
from mcp_tool_filter.rooms.lock.shown_changes import Line, Piece, lines_of_tool

log = logging.getLogger(__name__)

_MOST = 200  # that are shown at a time
_MOST_LINES = 200  # of one tool
_LONGEST = 64 * 1024  # bytes of a definition that is compared here: meanwhile, all others wait
_MOST_BYTES = 4 * _LONGEST  # of all that are
_TOO_LONG = "It is too long to be compared here: mcp-tool-filter lock --check FILE shows it"


@dataclass(frozen=True, slots=True)
class UnapprovedTool:
    """A definition that is not approved."""

    name: str
    raw: bytes

    def token(self, lock: Lock) -> str:
        return sha256(b"\0".join([lock.digest.encode(), self.name.encode(), self.raw])).hexdigest()


class Approvals:
    """The approvals of one server; or of all, if they share a lock."""

    def __init__(
        self,
        config: Callable[[], Config],
        policies: Callable[[], Iterable[PolicyInForce]],
        adopt: Callable[[Config], None],
    ) -> None:
        self._config = config
        self._policies = policies
        self._adopt = adopt

    def waiting(self) -> list[JsonObject]:
        """Return what waits, and the lines that show how it differs."""
        lock, room = lock_of(self._config()), _MOST_BYTES
        found: list[JsonObject] = []
        if lock is None:
            return found
        for one in self._all()[:_MOST]:
            is_short = len(one.raw) <= min(_LONGEST, room)
            room -= len(one.raw) if is_short else 0
            found.append(_described(lock, one, is_short=is_short))
        return found

    def _all(self) -> list[UnapprovedTool]:
        found = {
            UnapprovedTool(name, raw): None
            for policy in self._policies()
            for kind in (policy.kinds.start, *(kind for _, kind in policy.kinds))
            for name, raw in kind.locked
        }
        return sorted(found, key=lambda one: (one.name, one.raw))

    def approve(self, token: str) -> dict[str, object]:
        """Take a definition into the lock, and use that; return the problem with it, if any."""
        config = self._config()
        lock = lock_of(config)
        if lock is None:
            return {"problem": "There is no lock"}
        wanted = [one for one in self._all() if one.token(lock) == token]
        if not wanted:
            return {"problem": "This does not wait any more: look at the page again"}
        try:
            raw = read_bytes(config.lock)
            if sha256(raw).hexdigest() != lock.digest:
                why = "The file of the lock has changed since the filter read it: send SIGHUP first"
                return {"problem": why}
            new = _with(parse_lock(raw, config.lock), wanted[0])
            replace_lock(config.lock, raw, written := render_lock(new))
            new = parse_lock(written, config.lock)
            self._adopt(replace(config, choice=replace(config.choice, lock=new)))
        except (StartError, ValueError) as error:
            return {"problem": str(error)}
        name = shown(wanted[0].name)
        log.warning("The tool %s was approved on the page: %s has it now", name, config.lock)
        return {"problem": ""}


def _with(lock: Lock, one: UnapprovedTool) -> Lock:
    definition = parse_json(one.raw)
    if problem := problem_in(one.name, definition):
        raise ValueError(problem)
    return replace(lock, tools={**lock.tools, one.name: definition})


@lru_cache(maxsize=2 * _MOST)  # the page asks every second
def _described(lock: Lock, one: UnapprovedTool, *, is_short: bool) -> JsonObject:
    before = {one.name: lock.tools[one.name]} if one.name in lock.tools else {}
    token, lines = "", [Line(2, (Piece(_TOO_LONG),))]
    if is_short and len(compact(before)) <= _LONGEST:
        try:
            definition = parse_json(one.raw)
        except (ValueError, RecursionError):
            definition = {}
        changes = compare(Lock(tools=before), Lock(tools={one.name: definition}))
        found = [line for tool in changes.tools for line in lines_of_tool(tool)]
        token, lines = one.token(lock), found[1:]  # without the tool's name
    return {
        "name": shown(one.name),
        "token": token,
        "is_new": not before,
        "lines": [*map(_line, lines[:_MOST_LINES])],
        "more": max(0, len(lines) - _MOST_LINES),
    }


def _line(line: Line) -> JsonObject:
    pieces = [{"text": one.text, "style": one.style} for one in line.pieces]
    return {"indent": line.indent, "pieces": pieces}
