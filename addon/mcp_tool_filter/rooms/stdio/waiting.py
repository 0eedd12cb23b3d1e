"""Decisions that wait for a rule, over stdio.

``HeldLines`` holds the client's lines: one that waits, and all behind it. They leave in the order
in which they came. We go on reading meanwhile, because the client may cancel a request that is
held: it is never sent then, and neither is the cancellation.

A relay has no event loop. With rules, it decides in a ``DecidingThread``; without, it starts one
when a call must wait for the tool list.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import KW_ONLY, dataclass, field
from threading import Thread
from typing import TYPE_CHECKING, Any

from mcp_tool_filter.core.conversation.policy_in_force import LOST_ANSWER
from mcp_tool_filter.core.messages.messages import (
    UPSTREAM_LOST,
    Message,
    Request,
    id_value,
    read_message,
    render_batch,
    render_error,
    singles,
)
from mcp_tool_filter.core.policy.effects import Decision, waits
from mcp_tool_filter.core.policy.verdict import Drop, Forward, Reason, Reply, Rewrite, Verdict, Why
from mcp_tool_filter.core.process.background import Effects
from mcp_tool_filter.rooms.stdio.judge import LineJudge, cancelled_by
from mcp_tool_filter.rooms.stdio.lines import CutLine

if TYPE_CHECKING:
    from mcp_tool_filter.cli.line_session import RulesAwake

type PassOn = Callable[[bytes | CutLine, Verdict], Awaitable[None]]


@dataclass(slots=True, eq=False)
class _Held:
    line: bytes | CutLine
    made: asyncio.Future[Verdict]
    is_leaving: bool = False
    cancelled: set[str] = field(default_factory=set)
    """The ids, as values, of its requests that the client has cancelled."""

    @property
    def size(self) -> int:
        return len(self.line) if isinstance(self.line, bytes) else 0

    @property
    def waiting(self) -> dict[str, str]:
        """The ids of its requests that are not cancelled, as they were written, by value."""
        if self.is_leaving:
            return {}
        message = _parsed(self.line)
        requests = [one for one in singles(message) if isinstance(one, Request)] if message else []
        ids = {id_value(request.id): request.id for request in requests}
        return {value: id for value, id in ids.items() if value not in self.cancelled}

    @property
    def is_cancelled(self) -> bool:
        """Whether nothing is left of it."""
        return self.made.cancelled() or (bool(self.cancelled) and not self.waiting)

    def cancel(self, values: set[str]) -> None:
        self.cancelled |= values
        if not self.waiting:
            self.made.cancel()


@dataclass(eq=False)
class HeldLines:
    """Use it in one event loop; only ``is_empty`` may be asked elsewhere."""

    judge: LineJudge
    effects: Effects
    pass_on: PassOn
    """Sends a line when it may leave."""
    _: KW_ONLY
    on_bug: Callable[[Exception], None]
    most: int
    """Bytes; when they are held, ``add`` waits."""

    def __post_init__(self) -> None:
        self._lines: deque[_Held] = deque()
        self._left = asyncio.Event()  # set whenever a line has left
        self._releasing: asyncio.Task[None] | None = None

    @property
    def is_empty(self) -> bool:
        return not self._lines

    async def add(self, line: bytes | CutLine, decision: Decision[Verdict]) -> None:
        """Hold a line, unless it cancels a request that is held; wait if too much is held."""
        if self._cancels(line):
            return
        made: asyncio.Future[Verdict]
        if waits(decision):
            made = asyncio.ensure_future(self.effects.outcome_of(decision))
        else:
            made = asyncio.get_running_loop().create_future()
            made.set_result(decision)
        self._lines.append(_Held(line, made))
        if len(self._lines) == 1:
            self._releasing = asyncio.create_task(self._release())
        while sum(one.size for one in self._lines) > self.most:
            await self._next_left()

    def _cancels(self, line: bytes | CutLine) -> bool:
        """Tell whether a line cancels a request that is held; then drop it."""
        notice = _parsed(line) if self._lines else None
        named = cancelled_by(notice) if notice else None
        value = id_value(named) if named else None
        for held in self._lines if value else ():
            if value in held.waiting:
                held.cancel({value})
                self.judge.forget([value])
                return True
        return False

    async def lose(self) -> list[bytes]:
        """Drop all that is held; return an error for each request."""
        lost: list[str] = []
        for held in self._lines:
            lost += held.waiting.values()
            held.cancel(set(held.waiting))
        self.judge.forget(lost)
        return [render_error(id, UPSTREAM_LOST, LOST_ANSWER) for id in lost]

    async def wait_until_empty(self) -> None:
        while self._lines:
            await self._next_left()

    async def _next_left(self) -> None:
        self._left.clear()
        await self._left.wait()

    async def _release(self) -> None:
        while self._lines:
            held = self._lines[0]
            await asyncio.wait([held.made])
            is_cancelled, held.is_leaving = held.is_cancelled, True
            try:
                if not is_cancelled:
                    verdict = _without(held.cancelled, held.line, held.made.result())
                    self.judge.forget(list(held.cancelled))
                    await self.pass_on(held.line, verdict)
            except Exception as bug:
                self.on_bug(bug)
            self._lines.popleft()
            self._left.set()


def _without(ids: set[str], line: bytes | CutLine, verdict: Verdict) -> Verdict:
    """Leave out the members of a batch that the client has cancelled."""
    if not ids or not isinstance(verdict, Forward | Rewrite):
        return verdict
    message = _parsed(line if isinstance(verdict, Forward) else verdict.text)
    members = singles(message) if message else ()
    kept = [
        member.place.raw
        for member in members
        if not (isinstance(member, Request) and id_value(member.id) in ids)
    ]
    owed = verdict.owed if isinstance(verdict, Rewrite) else ()
    reason = Reason(Why.CHANGED)
    if kept:
        return Rewrite(render_batch(kept), reason, owed)
    return Reply(render_batch(list(owed)), reason) if owed else Drop(reason)


def _parsed(line: bytes | CutLine) -> Message | None:
    return None if isinstance(line, CutLine) else read_message(line)


class DecidingThread:
    """A thread with an event loop, in which a relay waits. All decisions of a relay with rules are
    made there, one after the other; those that must wait do so concurrently."""

    held: HeldLines

    def __init__(self, rules: RulesAwake | None = None) -> None:
        self.effects = Effects()
        self.effects.room_host = rules.host if rules else None
        self.rules = rules
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._run, daemon=True)
        self._thread.start()

    def do[Outcome](self, work: Callable[[], Outcome]) -> Outcome:
        """Run a function in this thread, and wait for it."""

        async def doing() -> Outcome:
            return work()

        return self.wait_for(doing())

    def wait_for[Outcome](
        self, work: Coroutine[Any, Any, Outcome], seconds: float | None = None
    ) -> Outcome:
        """Run a coroutine in this thread, and wait for it. Raises TimeoutError."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(seconds)

    def hold_lines(
        self,
        judge: LineJudge,
        pass_on: PassOn,
        *,
        on_bug: Callable[[Exception], None],
        most: int,
    ) -> None:
        """Begin to hold the lines of a client."""

        def begin() -> None:
            self.effects.fetch_tools = lambda effect: asyncio.to_thread(judge.fetch_list, effect)
            self.held = HeldLines(judge, self.effects, pass_on, on_bug=on_bug, most=most)

        self.do(begin)

    def close(self) -> None:
        """End the thread; waiting decisions are dropped, and webhooks get time to arrive."""
        if self.rules:
            self.wait_for(self.rules.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        if self.rules:
            self._watching = self._loop.create_task(self.rules.watch())
        self._loop.run_forever()
        left = asyncio.all_tasks(self._loop)
        for task in left:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        self._loop.close()
