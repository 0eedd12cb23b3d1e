"""A thread with an event loop for a relay's rules.

The relay itself has no event loop. With rules, all decisions are made in this thread, one after the
other; those that must wait do so concurrently.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from threading import Thread
from typing import Any

from mcp_tool_filter.adapters.rules.carry_out import Effects
from mcp_tool_filter.adapters.rules.file import RulesInForce
from mcp_tool_filter.adapters.rules.sending import Copies
from mcp_tool_filter.adapters.stdio.child import in_own_thread
from mcp_tool_filter.adapters.stdio.held_lines import HeldLines
from mcp_tool_filter.adapters.stdio.judge import LineJudge
from mcp_tool_filter.policy.effects import Deciding
from mcp_tool_filter.policy.verdict import Verdict
from mcp_tool_filter.protocol.lines import CutLine


class RuleThread:
    """The rules of one session."""

    def __init__(
        self,
        path: str,
        upstream: str,
        send_copy: Callable[[bytes], object],
        operator: bytes = b"",
    ) -> None:
        """``operator`` identifies the user of the command.

        Raises StartError if the rules file cannot be used.
        """
        self._effects = Effects()
        self._copies = Copies(lambda text, _effect: send_copy(text))
        self.rules = RulesInForce(path, self._copies.send, copies=self._copies.id_prefix)
        self.link = self.rules.link(upstream, lambda: operator)
        self._effects.rule_host = self.rules.host
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._run, daemon=True)
        self._thread.start()

    def do[Outcome](self, work: Callable[[], Outcome]) -> Outcome:
        """Run a function in this thread, and wait for it."""

        async def doing() -> Outcome:
            return work()

        return self.wait_for(doing())

    def wait_for[Outcome](self, work: Coroutine[Any, Any, Outcome]) -> Outcome:
        """Run a coroutine in this thread, and wait for it."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def outcome_of[Outcome](self, deciding: Deciding[Outcome]) -> Outcome:
        """Wait for a decision that must wait."""
        return self.wait_for(self._effects.outcome_of(deciding))

    def hold_lines(
        self,
        judge: LineJudge,
        pass_on: Callable[[bytes | CutLine, Verdict], None],
        *,
        on_bug: Callable[[Exception], None],
        most: int,
    ) -> HeldLines:
        """Return the queue of a client's lines; ``pass_on`` may block."""

        async def pass_on_elsewhere(line: bytes | CutLine, verdict: Verdict) -> None:
            await in_own_thread(lambda: pass_on(line, verdict))

        async def making() -> HeldLines:
            return HeldLines(judge, self._effects, pass_on_elsewhere, on_bug=on_bug, most=most)

        return self.wait_for(making())

    def close(self) -> None:
        """End the thread; waiting decisions are dropped, and webhooks get time to arrive."""
        asyncio.run_coroutine_threadsafe(self.rules.close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.create_task(self.rules.watch())
        self._loop.run_forever()
        left = asyncio.all_tasks(self._loop)
        for task in left:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        self._loop.close()
