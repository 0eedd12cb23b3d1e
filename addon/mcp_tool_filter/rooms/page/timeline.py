"""Messages over time, as the page shows them: the last ones, who calls what, and ten minutes.

>>> timeline = Timeline(clock=lambda: 25.0)
>>> timeline.note({"verdict": "forwarded", "tool": "read", "upstream_ms": 4.0})
>>> timeline.note({"verdict": "refused", "tool": "rm"})
>>> timeline.steps()[-1]
{'calls': 1, 'failed': 0, 'refused': 1, 'p50_ms': 4.0, 'saved_bytes': 0}
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice

import orjson

from mcp_tool_filter.core.messages.sizes import MANY
from mcp_tool_filter.core.process.statistics import JsonObject, count_bounded
from mcp_tool_filter.rooms.audit.entry import (
    LONGEST_SHOWN,
    Entry,
    Shown,
    ShownEntry,
    caller_of,
    count_in,
    has_failed,
    is_refused,
    render,
    reported,
)

STEP = 10.0
"""Seconds per step."""
_STEPS = 60
_MOST_RECENT = 10_000
_MOST_DETAILS = 8 * 1024 * 1024  # bytes of arguments and results
_MOST_CALLERS = 100
_MOST_TOOLS = 200  # of one caller
_MOST_SHOWN = 8


@dataclass(frozen=True, slots=True)
class _Details:
    """What the page shows of a message on request, with secrets."""

    arguments: Shown | None
    result: Shown | None
    size: int
    """Bytes that it keeps in memory."""


@dataclass(slots=True)
class _Counted:
    number: int
    calls: int = 0
    failed: int = 0
    refused: int = 0
    saved: int = 0
    times: list[float] = field(default_factory=list)

    def as_json(self) -> JsonObject:
        times = sorted(self.times)
        return {
            "calls": self.calls,
            "failed": self.failed,
            "refused": self.refused,
            "p50_ms": times[len(times) // 2] if times else None,
            "saved_bytes": self.saved,
        }


@dataclass(slots=True)
class _Caller:
    tools: Counter[str] = field(default_factory=Counter)
    client: str = ""
    """The name that it gives itself."""
    failed: int = 0
    refused: int = 0
    last: str = ""


class Timeline:
    """The timeline of one process."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._recent: deque[bytes] = deque(maxlen=_MOST_RECENT)
        """The last entries as JSON, newest first: so they take the least memory."""
        self._details: dict[int, _Details] = {}
        self._size = 0
        """Bytes of the details."""
        self._number = 0
        self._callers: dict[str, _Caller] = {}
        self._counted: deque[_Counted] = deque(maxlen=_STEPS)

    def note(self, entry: Entry) -> None:
        """Add an entry; see ``rooms/audit/entry``."""
        self._number += 1
        self._recent.appendleft(render(_line_of(self._number, entry)))
        if isinstance(entry, ShownEntry) and (entry.arguments or entry.result):
            size = _size_of(entry, "bytes", entry.arguments)
            size += _size_of(entry, "answer_bytes", entry.result)
            self._keep(self._number, _Details(entry.arguments, entry.result, size))
        step = self._step()
        if is_refused(entry):
            step.refused += 1
        elif "tool" in entry:
            step.calls += 1
            step.failed += _is_shown_as_failed(entry)
        saved = entry.get("saved_bytes")
        if isinstance(saved, int):
            step.saved += saved
        self._note_caller(entry)
        took = entry.get("upstream_ms")
        if isinstance(took, float) and len(step.times) < MANY:
            step.times.append(took)

    def _keep(self, number: int, details: _Details) -> None:
        self._details[number] = details
        self._size += details.size
        while self._size > _MOST_DETAILS:
            self._size -= self._details.pop(next(iter(self._details))).size

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
        if isinstance(entry, ShownEntry):
            caller.client = entry.client or caller.client
        if is_refused(entry):
            caller.refused += 1
            return
        caller.failed += _is_shown_as_failed(entry)
        count_bounded(caller.tools, str(entry["tool"]), most=_MOST_TOOLS)

    def callers(self) -> list[JsonObject]:
        """Return the callers and their tools, the most recent first."""
        return [
            {
                "name": name,
                "client": one.client,
                "failed": one.failed,
                "calls": one.tools.total(),
                "refused": one.refused,
                "tools": dict(one.tools.most_common(_MOST_SHOWN)),
                "last": one.last,
            }
            for name, one in reversed(self._callers.items())
        ]

    def _step(self) -> _Counted:
        number = int(self._clock() // STEP)
        if not self._counted or self._counted[-1].number != number:
            self._counted.append(_Counted(number))
        return self._counted[-1]

    def recent(self) -> list[Entry]:
        """Return the last entries, newest first, each with a unique number."""
        return [orjson.loads(line) for line in self._recent]

    def recent_json(self, after: int = 0, *, most: int = _MOST_RECENT) -> bytes:
        """Return those behind a number as a JSON array, newest first."""
        new = min(self._number - after, most)
        return b"[%b]" % b",".join(islice(self._recent, max(0, new)))

    def details(self, number: int) -> JsonObject:
        """Return the arguments and the result of one of the last entries, without secrets."""
        details = self._details.get(number)
        if details is None:
            return {"problem": "The page keeps only the last messages, and this one is older"}
        # slow to import
        from mcp_tool_filter.rooms.secrets.finder import redacted_beginning

        said = {"arguments": details.arguments, "result": details.result}
        return {
            name: redacted_beginning(text if isinstance(text, str) else text(), LONGEST_SHOWN)
            for name, text in said.items()
            if text is not None
        }

    def steps(self) -> list[JsonObject]:
        """Return the counts of the last ten minutes, oldest first, with zeros for quiet times."""
        now = int(self._clock() // STEP)
        known = {one.number: one for one in self._counted}
        numbers = range(now - _STEPS + 1, now + 1)
        return [known.get(number, _Counted(number)).as_json() for number in numbers]


def _is_shown_as_failed(entry: Entry) -> bool:
    """Tell whether the page shows a call as failed: it got an error, or no answer at all."""
    return has_failed(entry) or entry.get("answered") is False


def _size_of(entry: Entry, name: str, text: Shown | None) -> int:
    """Return the size of a text; of one that is found later, that of the whole message."""
    return len(text) if isinstance(text, str) else count_in(entry, name) or 0


def _line_of(number: int, entry: Entry) -> JsonObject:
    line: JsonObject = {"number": number, **entry}
    line.pop("arguments", None)
    line.pop("result", None)
    if would := reported(entry):
        line["would"] = would
    if isinstance(entry, ShownEntry):
        has_details = entry.arguments is not None or entry.result is not None
        line |= {"client_name": entry.client, "problem": entry.problem, "details": has_details}
    return line
