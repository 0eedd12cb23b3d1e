"""Summarise an audit log, and suggest from it: unused tools, unusual calls, a first policy.

Suggestions use counts and robust statistics only: a value is unusual if its distance from the
median is many times the median distance. We claim nothing from a few calls.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from math import inf, log, sqrt
from operator import itemgetter

from mcp_tool_filter.cli.commands.schema import first_line
from mcp_tool_filter.core.process.statistics import count_bounded
from mcp_tool_filter.rooms.audit.entry import (
    Entry,
    caller_of,
    count_in,
    has_failed,
    is_refused,
    method_of,
    milliseconds_in,
    subject_in,
)

FEWEST = 20
"""With fewer calls, a tool's sizes and rates say nothing."""
_UNUSUAL = 6.0  # median distances from the median
_MINUTE = len("2026-11-18T09:30")
_MOST_SHOWN = 50
_FAMILIAR = 0.5  # a new tool is unusual after this part of a session's calls


@dataclass(frozen=True, slots=True)
class Unusual:
    """An unusual call."""

    time: str
    tool: str
    why: str


@dataclass(slots=True)
class LoggedCalls:
    """The calls in a log."""

    calls: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    """Calls that we refused, by the tool they name."""
    sessions: dict[str, list[tuple[str, str]]] = field(default_factory=lambda: defaultdict(list))
    """Time and tool of each call, by session."""
    sizes: dict[str, list[tuple[str, int]]] = field(default_factory=lambda: defaultdict(list))
    """Time and bytes of the arguments, by tool."""
    minutes: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    """Calls in each minute, by tool."""

    @property
    def total(self) -> int:
        return self.calls.total()


def look_through(entries: Iterable[Entry]) -> LoggedCalls:
    """Collect the calls."""
    seen = LoggedCalls()
    for entry in entries:
        tool, time = entry.get("tool"), str(entry.get("time", ""))
        if "event" in entry:
            continue
        if entry.get("method") != "tools/call" or not isinstance(tool, str):
            continue
        if entry.get("verdict") in ("refused", "dropped") and not entry.get("shadow"):
            seen.refused[tool] += 1
            continue
        seen.calls[tool] += 1
        seen.sessions[caller_of(entry)].append((time, tool))
        seen.minutes[tool][time[:_MINUTE]] += 1
        arguments = entry.get("arguments")
        size = count_in(arguments, "bytes") if isinstance(arguments, dict) else None
        if size is not None:
            seen.sizes[tool].append((time, size))
    return seen


def unusual_calls(seen: LoggedCalls) -> list[Unusual]:
    """Return the most unusual calls, each with the reason, oldest first."""
    unusual = [*_unusual_sizes(seen), *_bursts(seen), *_new_tools(seen)]
    unusual.sort(key=lambda call: call[0], reverse=True)
    return sorted((call for _, call in unusual[:_MOST_SHOWN]), key=lambda call: call.time)


type _Found = tuple[float, Unusual]
"""The distance from the usual, in median distances, and the call."""


def _unusual_sizes(seen: LoggedCalls) -> Iterator[_Found]:
    for tool, sizes in seen.sizes.items():
        if (usual := _Usual.of([size for _, size in sizes])) is None:
            continue
        for time, size in sizes:
            if (far := usual.distance_to(size)) > _UNUSUAL:
                why = f"arguments of {size:,} bytes; usual: {usual.middle:,.0f}"
                yield far, Unusual(time, tool, why)


def _bursts(seen: LoggedCalls) -> Iterator[_Found]:
    for tool, minutes in seen.minutes.items():
        if (usual := _Usual.of(list(minutes.values()))) is None:
            continue
        # Random calls vary too, by about the square root of their usual number.
        by_chance = usual.middle + _UNUSUAL * sqrt(max(1.0, usual.middle))
        for minute, count in minutes.items():
            if count > by_chance and (far := usual.distance_to(count)) > _UNUSUAL:
                why = f"{count} calls in one minute; usual: {usual.middle:.0f}"
                yield far, Unusual(minute, tool, why)


def _new_tools(seen: LoggedCalls) -> Iterator[_Found]:
    """Find sessions that call, late, a tool that no other session calls."""
    users = Counter(tool for calls in seen.sessions.values() for tool in {t for _, t in calls})
    for calls in seen.sessions.values():
        known: set[str] = set()
        for number, (time, tool) in enumerate(calls):
            is_late = number >= max(FEWEST, len(calls) * _FAMILIAR)
            if tool not in known and is_late and users[tool] == 1 and len(seen.sessions) > 1:
                why = f"first call of this tool, after {number} other calls in its session"
                yield inf, Unusual(time, tool, why)
            known.add(tool)


@dataclass(frozen=True, slots=True)
class _Usual:
    """Compares values by their ratio, because sizes of texts differ by factors."""

    middle: float
    distance: float
    """The median distance from the middle, as a logarithm."""

    @classmethod
    def of(cls, values: list[int]) -> _Usual | None:
        if len(values) < FEWEST:
            return None
        from statistics import median  # late: the activity display starts without it

        middle = max(1.0, median(values))
        return cls(middle, median(abs(log(max(1, value) / middle)) for value in values))

    def distance_to(self, value: float) -> float:
        """Return how far above the middle it is, in median distances."""
        # If all values are alike, more than twice as much is already unusual.
        least = log(2) / _UNUSUAL
        return log(max(1.0, value) / self.middle) / max(self.distance, least)


def policy_lines(seen: LoggedCalls) -> Iterator[str]:
    """Yield a rules file that allows the logged calls, at twice their rate."""
    unusual: dict[str, str] = {}
    for call in unusual_calls(seen):
        unusual.setdefault(call.tool, call.why)
    yield first_line("rules").rstrip()
    yield "# Made from an audit log: review it before you use it."
    yield f"# {seen.total} calls of {len(seen.calls)} tools are in the log; all others are refused."
    yield "# Sure: each tool below was called. Not sure: whether it should be called, whether other"
    yield "# tools will be needed, and whether there will be more calls in a minute."
    yield "interceptor:"
    yield "  method_interceptors:"
    yield "    tools/call:"
    yield "      class: ToolCallInterceptor"
    yield "      config:"
    yield "        allowed_tools:"
    for tool, times in sorted(seen.calls.items()):
        doubts = ["called only once"] if times == 1 else []
        doubts += [f"unusual: {unusual[tool]}"] if tool in unusual else []
        yield f"          - {_quoted(tool)}{'  # ' if doubts else ''}{'; '.join(doubts)}"
    most = max(sum(seen.minutes.values(), Counter()).values(), default=0)
    yield "        rate_limit:"
    yield f"          per_minute: {max(10, 2 * most)}  # the log has at most {most} a minute"
    yield "  rules: []"


def _quoted(text: str) -> str:
    """Return a text as YAML has it; JSON's escapes are YAML's.

    >>> print(_quoted("it's"), _quoted("a\x1bb"))
    'it''s' "a\\u001bb"
    """
    if not text.isprintable():
        return json.dumps(text)
    return "'" + text.replace("'", "''") + "'"


_MOST_SLOWEST = 10
_MOST_NAMES = 10_000
_MOST_TOOLS = 200  # of one session


@dataclass(slots=True)
class Summary:
    """Counts of entries."""

    entries: int = 0
    first: str = ""
    last: str = ""
    calls: Counter[str] = field(default_factory=Counter)
    """Successful calls, by tool."""
    refused: Counter[str] = field(default_factory=Counter)
    """Refused requests, by tool or method."""
    errors: Counter[str] = field(default_factory=Counter)
    """Calls that the upstream, or the tool, answered with an error, by tool."""
    sessions: Counter[str] = field(default_factory=Counter)
    """Entries by session, or by address if there is none."""
    by_session: dict[str, Counter[str]] = field(default_factory=dict)
    """What each session has called, by tool."""
    names: dict[str, str] = field(default_factory=dict)
    """What the clients of sessions call themselves."""
    at: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    """Calls, refusals and errors by their kind, the server in the config file, and the name."""
    unanswered: int = 0
    dropped: int = 0
    """Lines that could not be written."""
    reported: int = 0
    """Messages that would have been refused or changed."""
    saved_bytes: int = 0
    """What the hidden tools would have cost in the lists."""
    slowest: list[tuple[float, str]] = field(default_factory=list)
    """The upstream's time in milliseconds, and the tool."""

    def add(self, entry: Entry) -> None:
        if entry.get("event") == "dropped":
            self.dropped += count_in(entry, "count") or 0
            return
        if "event" in entry:
            return
        self.entries += 1
        time = str(entry.get("time", ""))
        self.first = min(filter(None, (self.first, time)), default="")
        self.last = max(self.last, time)
        caller = caller_of(entry)
        count_bounded(self.sessions, caller, most=_MOST_NAMES)
        if (client := entry.get("client_name")) and len(self.names) < _MOST_NAMES:
            self.names[caller] = str(client)
        name, server = subject_in(entry) or method_of(entry), str(entry.get("server") or "")
        self.saved_bytes += count_in(entry, "saved_bytes") or 0
        self.reported += entry.get("shadow") is True
        if is_refused(entry):
            count_bounded(self.refused, name, most=_MOST_NAMES)
            self._count_at("refused", server, name)
        elif entry.get("method") == "tools/call":
            self._add_call(name, caller, entry)
            self._count_at("calls", server, name)
            if has_failed(entry):
                self._count_at("errors", server, name)

    def _count_at(self, kind: str, server: str, name: str) -> None:
        if (key := (kind, server, name)) in self.at or len(self.at) < _MOST_NAMES:
            self.at[key] += 1

    def _add_call(self, tool: str, caller: str, entry: Entry) -> None:
        count_bounded(self.calls, tool, most=_MOST_NAMES)
        if caller in self.by_session or len(self.by_session) < _MOST_NAMES:
            count_bounded(self.by_session.setdefault(caller, Counter()), tool, most=_MOST_TOOLS)
        self.unanswered += entry.get("answered") is False
        if has_failed(entry):
            count_bounded(self.errors, tool, most=_MOST_NAMES)
        took = milliseconds_in(entry, "upstream_ms")
        is_full = len(self.slowest) == _MOST_SLOWEST
        if took is not None and not (is_full and took <= self.slowest[0][0]):
            self.slowest = sorted([*self.slowest, (took, tool)], key=itemgetter(0))
            self.slowest = self.slowest[-_MOST_SLOWEST:]

    def by_server(self, kind: str) -> dict[str, dict[str, int]]:
        """Return the numbers of a kind for each server of the config file."""
        found: dict[str, dict[str, int]] = {}
        for (each, server, name), number in self.at.most_common():
            if each == kind and server:
                found.setdefault(server, {})[name] = number
        return found

    def as_json(self) -> dict[str, object]:
        return {
            "entries": self.entries,
            "first": self.first,
            "last": self.last,
            "calls": dict(self.calls.most_common()),
            "refused": dict(self.refused.most_common()),
            "errors": dict((+self.errors).most_common()),
            "sessions": dict(self.sessions.most_common()),
            "calls_by_session": {
                caller: dict(calls.most_common()) for caller, calls in self.by_session.items()
            },
            "clients": dict(self.names),
            "calls_by_server": self.by_server("calls"),
            "unanswered": self.unanswered,
            "dropped": self.dropped,
            "reported": self.reported,
            "saved_bytes": self.saved_bytes,
            "slowest": [{"tool": tool, "ms": took} for took, tool in reversed(self.slowest)],
        }


def summarise(entries: Iterable[Entry]) -> Summary:
    """Add up all entries."""
    summary = Summary()
    for entry in entries:
        summary.add(entry)
    return summary
