"""Show one line for each call, list and refusal, and a summary at the end.

Lines are collected for a moment and written together, so that the terminal does not slow down a
busy filter. On a terminal, a status line is below them.
"""

from __future__ import annotations

import json
import time
from bisect import insort
from collections import deque
from collections.abc import Callable
from typing import TextIO

from mcp_tool_filter.cli.report import estimate_tokens
from mcp_tool_filter.cli.terminal import Colour, count, is_terminal, paint, shortened
from mcp_tool_filter.rooms.audit.entry import (
    Entry,
    ShownEntry,
    Timestamps,
    made,
    method_of,
    reported,
    subject_in,
)
from mcp_tool_filter.rooms.audit.summary import Summary

_MOST_HELD = 200  # lines
_MOST_TIMES = 500  # the last calls, for the median
_KIBIBYTE = 1024


class Activity:
    """The display of the process. ``write`` shows a text above the status line."""

    def __init__(
        self,
        stream: TextIO,
        write: Callable[[str], None],
        later: Callable[[Callable[[], None]], object],
        *,
        as_json: bool = False,
        set_status: Callable[[str], None] = lambda _text: None,
    ) -> None:
        self._stream = stream
        self._write = write
        self._later = later
        self._as_json = as_json
        self._set_status = set_status
        self._held: list[Entry] = []
        self._is_due = False
        self._begun = time.monotonic()
        self._times: deque[float] = deque(maxlen=_MOST_TIMES)
        self.summary = Summary()

    def show(self, entry: Entry) -> None:
        """Add an entry, which is shown within a moment."""
        self._held.append(entry)
        if len(self._held) >= _MOST_HELD:
            self.flush()
        elif not self._is_due:
            self._is_due = True
            self._later(self.flush)

    def flush(self) -> None:
        """Write all collected lines, and the status below them."""
        self._is_due = False
        held, self._held = self._held, []
        for entry in held:
            self.summary.add(entry)
            took = entry.get("upstream_ms")
            if isinstance(took, int | float):
                self._times.append(float(took))
        if not held:
            return
        self._set_status("")
        self._write("\n".join(map(self._line, held)))
        self._set_status(self._status())

    def end(self) -> str:
        """Return the summary; nothing if nothing has happened."""
        self.flush()
        self._set_status("")
        if not self.summary.entries:
            return ""
        seconds = time.monotonic() - self._begun
        if self._as_json:
            now = Timestamps().write(time.time())
            event = {"time": now, "event": "summary", "seconds": round(seconds, 3)}
            return json.dumps({**event, **self.summary.as_json()}, ensure_ascii=False)
        return "\n".join(summary_lines(self.summary, seconds))

    def _line(self, entry: Entry) -> str:
        if self._as_json:
            return json.dumps(entry, ensure_ascii=False, default=made)
        text, colour = line_of(entry)
        return paint(text, colour, self._stream) if colour else text

    def _status(self) -> str:
        if not is_terminal(self._stream):
            return ""
        times: list[float] = []
        for took in self._times:
            insort(times, took)
        median = f"{times[len(times) // 2]:.0f} ms" if times else "-"
        calls, refused = sum(self.summary.calls.values()), sum(self.summary.refused.values())
        sessions = len(self.summary.sessions)
        open_ = f"{count(sessions, 'session')} · {count(calls, 'call')}"
        return f"{open_} · {refused} refused · p50 {median}"


def line_of(entry: Entry) -> tuple[str, Colour | None]:
    """Return an entry as a line, and its colour.

    >>> line_of({"time": "2026-11-18T09:30:00.123Z", "client": "127.0.0.1:5000", "bytes": 90,
    ...          "method": "tools/call", "tool": "read", "verdict": "forwarded",
    ...          "upstream_ms": 12.4, "answer_bytes": 2048})[0]
    '09:30:00 127.0.0.1:5000 tools/call read: ok, 12.4 ms, 90 B -> 2.0 KB'
    """
    verdict, colour = _verdict_of(entry)
    if would := reported(entry):
        verdict, colour = f"{verdict}, {would}", Colour.YELLOW
    what = " ".join(filter(None, [method_of(entry), subject_in(entry)]))
    parts = [verdict]
    if (took := entry.get("upstream_ms")) is not None:
        parts.append(duration(took))
    sizes = [_size(entry[name]) for name in ("bytes", "answer_bytes") if entry.get(name)]
    if sizes:
        parts.append(" -> ".join(sizes))
    clock = str(entry.get("time", ""))[11:19]
    client = str(entry.get("client") or "-").partition("#")[0]
    if upstream := entry.get("server") or entry.get("upstream"):  # it says more than the address
        client = str(upstream)
    return f"{clock} {client} {shortened(what, 100)}: {', '.join(parts)}", colour


def _verdict_of(entry: Entry) -> tuple[str, Colour | None]:
    if entry.get("shadow"):
        return _outcome_of(entry)
    by = entry.get("rule") or entry.get("pattern")
    more = f" by {by}" if by else f": {entry['detail']}" if "detail" in entry else ""
    why = f" ({entry['why']}{more})" if entry.get("why") else ""
    match entry.get("verdict"):
        case "changed" | "dropped" if entry.get("why") == "invalid":
            return "invalid message from the upstream", Colour.YELLOW
        case "refused" | "dropped":
            return f"refused{why}", Colour.RED
        case _ if entry.get("answer_why") == "invalid":
            return "error: invalid message from the upstream", Colour.YELLOW
        case _ if entry.get("answer_why") == "blocked":
            return f"answer refused (blocked by {entry.get('answer_rule')})", Colour.RED
    outcome, colour = _outcome_of(entry)
    if outcome != "ok":
        return outcome, colour
    if entry.get("verdict") == "answered":
        return f"answered by the filter{why}", None
    if entry.get("verdict") == "changed":
        return f"ok, changed{why}", None
    if "answer_why" in entry:
        by = f" by {entry['answer_rule']}" if "answer_rule" in entry else ""
        return f"ok, answer changed ({entry['answer_why']}{by})", None
    return outcome, None


def _outcome_of(entry: Entry) -> tuple[str, Colour | None]:
    """Say how the upstream has answered."""
    if "error_code" in entry:
        return f"error {entry['error_code']}{_problem_in(entry)}", Colour.YELLOW
    if entry.get("answered") is False:
        return f"no answer{_why_unanswered(entry)}", Colour.YELLOW
    if entry.get("tool_error"):
        return f"tool error{_problem_in(entry)}", Colour.YELLOW
    return "ok", None


def _problem_in(entry: Entry) -> str:
    problem = entry.problem if isinstance(entry, ShownEntry) else ""
    return f': "{shortened(problem, 80)}"' if problem else ""


def _why_unanswered(entry: Entry) -> str:
    if status := entry.get("status"):
        return f" (HTTP {status})"
    why = _ENDS.get(str(entry.get("answer_why")))
    return f" ({why})" if why else ""


_ENDS = {
    "cancelled": "cancelled",
    "client_left": "the client left",
    "upstream_failed": "the upstream failed",
}


def duration(took: object) -> str:
    """Return a time in readable form.

    >>> duration(3.136), duration(1503.27)
    ('3.1 ms', '1,503 ms')
    """
    return f"{took:,.{1 if took < 100 else 0}f} ms" if isinstance(took, int | float) else "?"


def _size(size: object) -> str:
    """Return a size in readable form.

    >>> _size(90), _size(2048), _size(5_500_000)
    ('90 B', '2.0 KB', '5.2 MB')
    """
    if not isinstance(size, int):
        return "?"
    if size < _KIBIBYTE:
        return f"{size} B"
    if size < _KIBIBYTE * _KIBIBYTE:
        return f"{size / _KIBIBYTE:.1f} KB"
    return f"{size / _KIBIBYTE / _KIBIBYTE:.1f} MB"


def summary_lines(summary: Summary, seconds: float) -> list[str]:
    """Return the lines of the summary since the start."""
    minutes, rest = divmod(round(seconds), 60)
    calls, refused = sum(summary.calls.values()), sum(summary.refused.values())
    unanswered = f", {summary.unanswered:,} without an answer" if summary.unanswered else ""
    lines = [
        f"Ran {minutes} min {rest} s: {count(calls, 'call')}, {refused} refused,"
        f" {count(sum(summary.errors.values()), 'error')}{unanswered}"
    ]
    if summary.reported:
        lines.append(
            f"Only reported: {count(summary.reported, 'message')}, none refused or changed"
        )
    if summary.saved_bytes:
        tokens = estimate_tokens(summary.saved_bytes)
        lines.append(f"Saved {_size(summary.saved_bytes)} of context, about {tokens} tokens")
    lines += [f"  {count:>7}  {tool}" for tool, count in summary.calls.most_common(10)]
    if more := len(summary.calls) - 10:
        lines += [f"  and {more} more tools"] if more > 0 else []
    lines += [f"  {count:>7}  {name} refused" for name, count in summary.refused.most_common(10)]
    return lines
