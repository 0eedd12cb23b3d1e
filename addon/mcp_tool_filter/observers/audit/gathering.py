"""Gather messages, and make their entries together.

While a message waits, we only note that it came. Soon after, we make the entries of many messages
together: alone, an entry takes three times as long, because the processor's caches are cold.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from mcp_tool_filter.conversation.judged import Judged
from mcp_tool_filter.policy.verdict import Verdict

log = logging.getLogger(__name__)

_MOST_NOTED = 64  # messages; their entries take about half a millisecond
_LONGEST_NOTED = 4096  # bytes of a message

type Noted = tuple[Judged, Verdict, float, float]
"""A message as observed, its verdict then, and the time by both clocks."""
type Soon = Callable[[Callable[[], None]], object]
"""Calls a function in a moment, in the same thread."""


class Gathering:
    """Passes each message on to ``enter``: ``soon``, or at once if that is None."""

    def __init__(
        self,
        enter: Callable[[Noted], None],
        now: Callable[[], float],
        clock: Callable[[], float],
        soon: Soon | None,
    ) -> None:
        self._enter = enter
        self._now = now
        self._clock = clock
        self._soon = soon
        self._is_due = False
        self._noted: list[Noted] = []
        self._has_failed = False

    def note(self, judged: Judged) -> None:
        now, clock = self._now(), self._clock()
        noted = [(one, one.verdict, now, clock) for one in judged.members or (judged,)]
        if self._soon is None:
            self._enter_all(noted)
            return
        self._noted += noted
        if judged.size > _LONGEST_NOTED or len(self._noted) >= _MOST_NOTED:
            self.flush()
        elif not self._is_due:
            self._is_due = True
            self._soon(self._flush_when_due)

    def flush(self) -> None:
        """Pass on what was noted."""
        noted, self._noted = self._noted, []
        self._enter_all(noted)

    def _flush_when_due(self) -> None:
        self._is_due = False
        self.flush()

    def _enter_all(self, noted: list[Noted]) -> None:
        """An error here disturbs no message."""
        for one in noted:
            try:
                self._enter(one)
            except Exception:
                if not self._has_failed:
                    self._has_failed = True
                    log.exception("cannot report what happened to a message")
