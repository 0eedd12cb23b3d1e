"""The last messages and the counts over time, for a live page.

>>> timeline = Timeline(clock=lambda: 25.0)
>>> timeline.note({"verdict": "forwarded", "tool": "read", "upstream_ms": 4.0})
>>> timeline.note({"verdict": "refused", "tool": "rm"})
>>> timeline.steps()[-1]
{'calls': 1, 'refused': 1, 'p50_ms': 4.0, 'saved_bytes': 0}
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypedDict

from mcp_tool_filter.observers.audit.entry import Entry, LazyValue, caller_of, is_refused

STEP = 10.0
"""Seconds per step."""
_STEPS = 60
_MOST_RECENT = 100
_MOST_CALLERS = 100
_MOST_TOOLS = 200  # of one caller
_MOST_SHOWN = 8
_MOST_TIMES = 1000  # in one step


class TimelineStep(TypedDict):
    calls: int
    refused: int
    p50_ms: float | None
    """The median of the upstream's time."""
    saved_bytes: int
    """What hidden tools would have cost in the lists."""


class CallerLine(TypedDict):
    name: str
    """A hash of the session's id, or an address."""
    calls: int
    refused: int
    tools: dict[str, int]
    """The tools it calls most."""
    last: str
    """The time of its last call."""


@dataclass(slots=True)
class _Counted:
    number: int
    calls: int = 0
    refused: int = 0
    saved: int = 0
    times: list[float] = field(default_factory=list)


@dataclass(slots=True)
class _Caller:
    tools: Counter[str] = field(default_factory=Counter)
    refused: int = 0
    last: str = ""


class Timeline:
    """The timeline of one process."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._recent: deque[tuple[int, Entry]] = deque(maxlen=_MOST_RECENT)
        self._number = 0
        self._callers: dict[str, _Caller] = {}
        self._counted: deque[_Counted] = deque(maxlen=_STEPS)

    def note(self, entry: Entry) -> None:
        """Add an entry; see ``observers/audit/entry``."""
        self._number += 1
        # Arguments and results may be long, and are not shown here.
        short = {name: part for name, part in entry.items() if not isinstance(part, LazyValue)}
        self._recent.appendleft((self._number, short))
        step = self._step()
        if is_refused(entry):
            step.refused += 1
        elif "tool" in entry:
            step.calls += 1
        saved = entry.get("saved_bytes")
        if isinstance(saved, int):
            step.saved += saved
        self._note_caller(entry)
        took = entry.get("upstream_ms")
        if isinstance(took, float) and len(step.times) < _MOST_TIMES:
            step.times.append(took)

    def _note_caller(self, entry: Entry) -> None:
        """Count the calls of a session, or without a session those of an address."""
        if "tool" not in entry:
            return
        name = caller_of(entry)
        caller = self._callers.pop(name, None) or _Caller()
        self._callers[name] = caller  # most recent last
        if len(self._callers) > _MOST_CALLERS:
            del self._callers[next(iter(self._callers))]
        caller.last = str(entry.get("time", ""))
        if is_refused(entry):
            caller.refused += 1
        elif len(caller.tools) < _MOST_TOOLS or str(entry["tool"]) in caller.tools:
            caller.tools[str(entry["tool"])] += 1

    def callers(self) -> list[CallerLine]:
        """Return the callers and their tools, the most recent first."""
        return [
            CallerLine(
                name=name,
                calls=one.tools.total(),
                refused=one.refused,
                tools=dict(one.tools.most_common(_MOST_SHOWN)),
                last=one.last,
            )
            for name, one in reversed(self._callers.items())
        ]

    def _step(self) -> _Counted:
        number = int(self._clock() // STEP)
        if not self._counted or self._counted[-1].number != number:
            self._counted.append(_Counted(number))
        return self._counted[-1]

    def recent(self) -> list[Entry]:
        """Return the last entries, newest first, each with a unique number."""
        return [{"number": number, **entry} for number, entry in self._recent]

    def steps(self) -> list[TimelineStep]:
        """Return the counts of the last ten minutes, oldest first, with zeros for quiet times."""
        now = int(self._clock() // STEP)
        known = {one.number: one for one in self._counted}
        return [_rendered(known.get(number)) for number in range(now - _STEPS + 1, now + 1)]


def _rendered(step: _Counted | None) -> TimelineStep:
    if step is None:
        return TimelineStep(calls=0, refused=0, p50_ms=None, saved_bytes=0)
    times = sorted(step.times)
    return TimelineStep(
        calls=step.calls,
        refused=step.refused,
        p50_ms=times[len(times) // 2] if times else None,
        saved_bytes=step.saved,
    )
