"""A thread with an event loop for a relay's rules, and the client's lines that wait for one.

The relay itself has no event loop. With rules, all decisions are made in this thread, one after the
other; those that must wait do so concurrently.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from threading import Condition, Thread

from mcp_tool_filter.adapters.effects.carry_out import Effects
from mcp_tool_filter.adapters.effects.copies import Copies
from mcp_tool_filter.adapters.effects.rules_in_force import RulesInForce
from mcp_tool_filter.adapters.stdio.judge import is_request
from mcp_tool_filter.policy.effects import Deciding, Decision, waits
from mcp_tool_filter.policy.verdict import Verdict
from mcp_tool_filter.protocol.lines import CutLine

LONGEST_WAIT = 600.0  # seconds that held lines may take after one side has ended


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

        return asyncio.run_coroutine_threadsafe(doing(), self._loop).result()

    def begin[Outcome](self, deciding: Deciding[Outcome]) -> Future[Outcome]:
        """Begin a decision that must wait."""
        return asyncio.run_coroutine_threadsafe(self._effects.outcome_of(deciding), self._loop)

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


@dataclass(slots=True, eq=False)
class _Held:
    line: bytes | CutLine
    made: Verdict | Future[Verdict]
    is_leaving: bool = False
    is_cancelled: bool = False

    @property
    def size(self) -> int:
        return len(self.line) if isinstance(self.line, bytes) else 0


class HeldLines:
    """A line of the client that waits for a rule, and all lines behind it.

    They leave in the order in which they came, in a thread of their own, because we must read on:
    the client may cancel what waits.
    """

    def __init__(
        self,
        rules: RuleThread,
        pass_on: Callable[[bytes | CutLine, Verdict | Exception], None],
        *,
        most: int,
    ) -> None:
        self._rules = rules
        self._pass_on = pass_on
        self._most = most
        self._size = 0
        self._lines: deque[_Held] = deque()
        self._changed = Condition()
        self._thread: Thread | None = None

    @property
    def is_empty(self) -> bool:
        return not self._lines

    def add(self, line: bytes | CutLine, decision: Decision[Verdict]) -> None:
        """Add a line; wait if too much is held already."""
        made = self._rules.begin(decision) if waits(decision) else decision
        held = _Held(line, made)
        with self._changed:
            self._changed.wait_for(lambda: self._size <= self._most)
            self._lines.append(held)
            self._size += held.size
            self._changed.notify_all()
        if self._thread is None:
            self._thread = Thread(target=self._run, daemon=True)
            self._thread.start()

    def cancel(self, id: str) -> bool:
        """Drop the request with this id; return False if it is not held."""
        with self._changed:
            for held in self._lines:
                if not (held.is_leaving or held.is_cancelled) and is_request(held.line, id):
                    held.is_cancelled = True
                    if isinstance(held.made, Future):
                        held.made.cancel()
                    return True
        return False

    def wait_until_empty(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: not self._lines, timeout=LONGEST_WAIT)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._lines)
                held = self._lines[0]
            made = _outcome_of(held.made)
            with self._changed:
                held.is_leaving = True
            if not held.is_cancelled:
                self._pass_on(held.line, made)
            with self._changed:
                self._size -= self._lines.popleft().size
                self._changed.notify_all()


def _outcome_of(made: Verdict | Future[Verdict]) -> Verdict | Exception:
    if not isinstance(made, Future):
        return made
    try:
        return made.result()
    except CancelledError:
        return RuntimeError("cancelled")
    except Exception as error:
        return error
