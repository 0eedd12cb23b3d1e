"""What waits for approval: the tools that only the lock hides, with the difference as ``lock
--check`` prints it; and approving one of them, which writes the file of the lock.

Each has a token of its definition and of the lock, so that nobody approves anything else than the
page has shown; what is too long to be compared has none. There may be several of one name: not
every client gets the same tools.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256

from mcp_tool_filter.core.conversation.policy_in_force import PolicyInForce
from mcp_tool_filter.core.errors import StartError
from mcp_tool_filter.core.messages.sizes import HEAD
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
_MOST_BYTES = 4 * HEAD  # of all that are
_AT_ONCE = 8 * 1024  # bytes of definitions that are compared while all others wait: about 50 ms
_LATER = "It is being compared"
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
        self._compared: dict[_Key, JsonObject] = {}
        self._comparing = False

    def waiting(self) -> list[JsonObject]:
        """Return what waits, and the lines that show how it differs."""
        lock, room, at_once = lock_of(self._config()), _MOST_BYTES, _AT_ONCE
        if lock is None:
            return []
        found: dict[_Key, JsonObject] = {}
        for one in self._all()[:_MOST]:
            is_short = len(one.raw) <= min(HEAD, room)
            room -= len(one.raw) if is_short else 0
            key = lock.digest, one, is_short
            described = self._compared.get(key)
            if described is None:
                at_once -= _size_of(lock, one) if is_short else 0
                described = self._described(lock, key) if at_once >= 0 else self._later(lock, key)
            found[key] = described
        self._compared = {key: one for key, one in self._compared.items() if key in found}
        return [*found.values()]

    def _described(self, lock: Lock, key: _Key) -> JsonObject:
        _, one, is_short = key
        described = self._compared[key] = _described(lock, one, is_short=is_short)
        return described

    def _later(self, lock: Lock, key: _Key) -> JsonObject:
        """Compare in a thread, one at a time; the page asks again."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return self._described(lock, key)
        if not self._comparing:
            self._comparing = True
            compare = partial(_described, lock, key[1], is_short=key[2])
            comparing = loop.run_in_executor(None, compare)
            comparing.add_done_callback(partial(self._have_compared, key))
        return _shown(lock, key[1], "", [Line(2, (Piece(_LATER),))])

    def _have_compared(self, key: _Key, comparing: asyncio.Future[JsonObject]) -> None:
        self._comparing = False
        if not comparing.cancelled():
            self._compared[key] = comparing.result()

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


type _Key = tuple[str, UnapprovedTool, bool]
"""The digest of the lock, a tool, and whether it is compared here."""


def _size_of(lock: Lock, one: UnapprovedTool) -> int:
    return len(one.raw) + len(compact(lock.tools.get(one.name, {})))


def _described(lock: Lock, one: UnapprovedTool, *, is_short: bool) -> JsonObject:
    before = {one.name: lock.tools[one.name]} if one.name in lock.tools else {}
    token, lines = "", [Line(2, (Piece(_TOO_LONG),))]
    if is_short and len(compact(before)) <= HEAD:
        try:
            definition = parse_json(one.raw)
        except (ValueError, RecursionError):
            definition = {}
        changes = compare(Lock(tools=before), Lock(tools={one.name: definition}))
        found = [line for tool in changes.tools for line in lines_of_tool(tool)]
        token, lines = one.token(lock), found[1:]  # without the tool's name
    return _shown(lock, one, token, lines)


def _shown(lock: Lock, one: UnapprovedTool, token: str, lines: Sequence[Line]) -> JsonObject:
    return {
        "name": shown(one.name),
        "token": token,
        "is_new": one.name not in lock.tools,
        "lines": [*map(_line, lines[:_MOST_LINES])],
        "more": max(0, len(lines) - _MOST_LINES),
    }


def _line(line: Line) -> JsonObject:
    pieces = [{"text": piece.text, "style": piece.style} for piece in line.pieces]
    return {"indent": line.indent, "pieces": pieces}
