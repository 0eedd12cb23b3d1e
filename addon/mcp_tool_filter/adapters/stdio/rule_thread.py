"""A thread with an event loop for a relay's rules.

The relay itself has no event loop. With rules, all decisions are made in this thread, one after the
other; those that must wait do so concurrently.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from threading import Condition, Thread
from typing import Any

from mcp_tool_filter.adapters.effects.carry_out import Effects
from mcp_tool_filter.adapters.effects.copies import Copies
from mcp_tool_filter.adapters.effects.rules_in_force import RulesInForce
from mcp_tool_filter.policy.effects import Deciding

_LONGEST_WAIT = 600.0  # seconds that waiting decisions may take after one side has ended


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
        self._waiting: dict[str, int] = {}
        self._changed = Condition()
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

        return asyncio.run_coroutine_threadsafe(doing(), self._loop).result()

    def decide_later[Outcome](
        self, side: str, deciding: Deciding[Outcome], done: Callable[[Outcome | Exception], None]
    ) -> None:
        """Make a decision that must wait; ``done`` is called in a new thread."""
        with self._changed:
            self._waiting[side] = self._waiting.get(side, 0) + 1

        def finish(outcome: Outcome | Exception) -> None:
            try:
                done(outcome)
            finally:
                with self._changed:
                    self._waiting[side] -= 1
                    self._changed.notify_all()

        def begin() -> None:
            self._effects.carry_out(deciding, lambda made: _in_a_thread(finish, made))

        self._loop.call_soon_threadsafe(begin)

    def wait_for(self, side: str) -> None:
        """Wait until all decisions on messages of one side have been made."""
        end = time.monotonic() + _LONGEST_WAIT
        with self._changed:
            self._changed.wait_for(
                lambda: not self._waiting.get(side), timeout=end - time.monotonic()
            )

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


def _in_a_thread(work: Callable[[Any], None], outcome: Any) -> None:
    """Run in a new thread, because writing may block and must not delay other decisions."""
    Thread(target=work, args=(outcome,), daemon=True).start()
