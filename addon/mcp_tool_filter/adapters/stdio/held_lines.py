"""The client's lines that wait: one for a rule, and all behind it.

They leave in the order in which they came. We go on reading meanwhile, because the client may
cancel a request that is held: it is never sent then, and neither is the cancellation.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from mcp_tool_filter.adapters.rules.carry_out import Effects
from mcp_tool_filter.adapters.stdio.judge import LineJudge
from mcp_tool_filter.errors import ProtocolError
from mcp_tool_filter.policy.effects import Decision, waits
from mcp_tool_filter.policy.verdict import Drop, Forward, Reason, Reply, Rewrite, Verdict, Why
from mcp_tool_filter.protocol.limits import Limits
from mcp_tool_filter.protocol.lines import CutLine
from mcp_tool_filter.protocol.messages import (
    Message,
    Notification,
    Request,
    id_value,
    parse_message,
    render_batch,
    singles,
)

type PassOn = Callable[[bytes | CutLine, Verdict], Awaitable[None]]


@dataclass(slots=True, eq=False)
class _Held:
    line: bytes | CutLine
    made: Verdict | asyncio.Task[Verdict]
    is_leaving: bool = False
    cancelled: set[str] = field(default_factory=set)
    """The ids, as values, of its requests that the client has cancelled."""

    @property
    def size(self) -> int:
        return len(self.line) if isinstance(self.line, bytes) else 0

    @property
    def is_cancelled(self) -> bool:
        """Whether nothing is left of it."""
        return bool(self.cancelled) and self.cancelled == _ids_in(self.line)


class HeldLines:
    """Use it in one event loop; only ``is_empty`` may be asked elsewhere."""

    def __init__(
        self,
        judge: LineJudge,
        effects: Effects,
        pass_on: PassOn,
        *,
        on_bug: Callable[[Exception], None],
        most: int,
    ) -> None:
        """``pass_on`` sends a line when it may leave; at ``most`` bytes, ``add`` waits."""
        self._judge = judge
        self._effects = effects
        self._pass_on = pass_on
        self._on_bug = on_bug
        self._most = most
        self._lines: deque[_Held] = deque()
        self._left = asyncio.Event()  # set whenever a line has left
        self._releasing: asyncio.Task[None] | None = None

    @property
    def is_empty(self) -> bool:
        return not self._lines

    async def add(self, line: bytes | CutLine, decision: Decision[Verdict]) -> None:
        """Hold a line; wait if too much is held."""
        made: Verdict | asyncio.Task[Verdict]
        if waits(decision):
            made = asyncio.ensure_future(self._effects.outcome_of(decision))
        else:
            made = decision
        self._lines.append(_Held(line, made))
        if len(self._lines) == 1:
            self._releasing = asyncio.create_task(self._release())
        while sum(one.size for one in self._lines) > self._most:
            await self._next_left()

    def cancels(self, line: bytes | CutLine) -> bool:
        """Tell whether a line cancels a request that is held; then drop it."""
        notice = _parsed(line)
        if not isinstance(notice, Notification) or notice.method != "notifications/cancelled":
            return False
        named = notice.params.get("requestId") if notice.params else None
        if named is None:
            return False
        id = id_value(notice.place.cut(named))
        for held in self._lines:
            if not held.is_leaving and id in _ids_in(held.line) - held.cancelled:
                held.cancelled.add(id)
                if isinstance(held.made, asyncio.Task) and held.is_cancelled:
                    held.made.cancel()
                self._judge.forget([id])
                return True
        return False

    async def wait_until_empty(self) -> None:
        while self._lines:
            await self._next_left()

    async def _next_left(self) -> None:
        self._left.clear()
        await self._left.wait()

    async def _release(self) -> None:
        while self._lines:
            held = self._lines[0]
            if isinstance(held.made, asyncio.Task):
                await asyncio.wait([held.made])
            held.is_leaving = True
            try:
                if not held.is_cancelled:
                    verdict = _without(held.cancelled, held.line, self._verdict_of(held))
                    self._judge.forget(list(held.cancelled))
                    await self._pass_on(held.line, verdict)
            except Exception as bug:
                self._on_bug(bug)
            self._lines.popleft()
            self._left.set()

    def _verdict_of(self, held: _Held) -> Verdict:
        if not isinstance(held.made, asyncio.Task):
            return held.made
        try:
            return held.made.result()
        except Exception as error:
            return self._judge.refuse_bug(held.line, error)


def _ids_in(line: bytes | CutLine) -> set[str]:
    """Return the ids of the requests in a line, as values."""
    message = _parsed(line)
    members = singles(message) if message else ()
    return {id_value(one.id) for one in members if isinstance(one, Request)}


def _without(ids: set[str], line: bytes | CutLine, verdict: Verdict) -> Verdict:
    """Leave out the members of a batch that the client has cancelled."""
    if not ids or not isinstance(verdict, Forward | Rewrite):
        return verdict
    message = _parsed(line if isinstance(verdict, Forward) else verdict.text)
    members = singles(message) if message else ()
    kept = [
        one.place.raw
        for one in members
        if not (isinstance(one, Request) and id_value(one.id) in ids)
    ]
    owed = verdict.owed if isinstance(verdict, Rewrite) else ()
    reason = Reason(Why.CHANGED)
    if kept:
        return Rewrite(render_batch(kept), reason, owed)
    return Reply(render_batch(list(owed)), reason) if owed else Drop(reason)


def _parsed(line: bytes | CutLine) -> Message | None:
    if isinstance(line, CutLine):
        return None
    try:
        return parse_message(line, Limits(message=max(1, len(line))))
    except ProtocolError:
        return None
