"""What an audit log suggests: tools that nobody calls, calls unlike the others, a first policy.

Only counts and robust statistics: a value is unusual if it is far from the median, measured by the
median distance of all values. Few calls say little, and then nothing is claimed.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from statistics import median

from mcp_tool_filter.observers.audit.entries import Entry

FEWEST = 20
"""Calls of a tool, below which its sizes and rates say nothing."""
_UNUSUAL = 6.0  # median distances from the median
_MINUTE = len("2026-11-18T09:30")
_MOST_SHOWN = 50
_FAMILIAR = 0.5  # a session's calls after which a new tool is unusual: the second half of them


@dataclass(frozen=True, slots=True)
class Unusual:
    """A call that is unlike the others."""

    time: str
    tool: str
    why: str


@dataclass(slots=True)
class Seen:
    """What a log says of calls."""

    calls: Counter[str] = field(default_factory=Counter)
    sessions: dict[str, list[tuple[str, str]]] = field(default_factory=lambda: defaultdict(list))
    """Time and tool of each call, by session."""
    sizes: dict[str, list[tuple[str, int]]] = field(default_factory=lambda: defaultdict(list))
    """Time and bytes of the arguments, by tool."""
    minutes: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    """Calls in each minute, by tool."""

    @property
    def total(self) -> int:
        return self.calls.total()


def look_through(entries: Iterable[Entry]) -> Seen:
    """Collect the calls that went through."""
    seen = Seen()
    for entry in entries:
        tool, time = entry.get("tool"), str(entry.get("time", ""))
        if "event" in entry:
            continue
        if entry.get("method") != "tools/call" or entry.get("verdict") in ("refused", "dropped"):
            continue
        if not isinstance(tool, str):
            continue
        seen.calls[tool] += 1
        session = str(entry.get("session") or entry.get("client") or "")
        seen.sessions[session].append((time, tool))
        seen.minutes[tool][time[:_MINUTE]] += 1
        arguments = entry.get("arguments")
        size = arguments.get("bytes") if isinstance(arguments, dict) else None
        if isinstance(size, int):
            seen.sizes[tool].append((time, size))
    return seen


def never_called(seen: Seen, names: Collection[str]) -> list[str]:
    """Return the tools that no call in the log names."""
    return [name for name in names if name not in seen.calls]


def unusual_calls(seen: Seen) -> list[Unusual]:
    """Return calls that are unlike the rest, each with the reason, oldest first."""
    found = [*_unusual_sizes(seen), *_bursts(seen), *_new_tools(seen)]
    return sorted(found, key=lambda one: one.time)[:_MOST_SHOWN]


def _unusual_sizes(seen: Seen) -> Iterator[Unusual]:
    for tool, sizes in seen.sizes.items():
        usual = _Usual.of([size for _, size in sizes])
        for time, size in sizes if usual else ():
            if usual and usual.is_far_above(size):
                why = f"arguments of {size:,} bytes; usual are {usual.middle:,.0f}"
                yield Unusual(time, tool, why)


def _bursts(seen: Seen) -> Iterator[Unusual]:
    for tool, minutes in seen.minutes.items():
        usual = _Usual.of(list(minutes.values()))
        for minute, count in minutes.items() if usual else ():
            if usual and usual.is_far_above(count):
                why = f"{count} calls in one minute; usual are {usual.middle:.0f}"
                yield Unusual(minute, tool, why)


def _new_tools(seen: Seen) -> Iterator[Unusual]:
    """Find sessions that call a tool late which no other session calls."""
    users = Counter(tool for calls in seen.sessions.values() for tool in {t for _, t in calls})
    for calls in seen.sessions.values():
        known: set[str] = set()
        for number, (time, tool) in enumerate(calls):
            is_late = number >= max(FEWEST, len(calls) * _FAMILIAR)
            if tool not in known and is_late and users[tool] == 1 and len(seen.sessions) > 1:
                yield Unusual(time, tool, f"first call of it after {number} others in its session")
            known.add(tool)


@dataclass(frozen=True, slots=True)
class _Usual:
    middle: float
    distance: float
    """The median distance from the middle."""

    @classmethod
    def of(cls, values: list[int]) -> _Usual | None:
        if len(values) < FEWEST:
            return None
        middle = median(values)
        return cls(middle, median(abs(value - middle) for value in values))

    def is_far_above(self, value: float) -> bool:
        # Where all are alike, twice as much is already unusual.
        distance = max(self.distance, self.middle / _UNUSUAL, 1.0)
        return value - self.middle > _UNUSUAL * distance


def policy_lines(seen: Seen) -> Iterator[str]:
    """Yield the lines of a rules file that allows what was seen, and twice its rate."""
    yield "# Made from an audit log: read it before you use it."
    yield f"# {seen.total} calls of {len(seen.calls)} tools were seen; all others are refused."
    yield "interceptor:"
    yield "  method_interceptors:"
    yield "    tools/call:"
    yield "      class: ToolCallInterceptor"
    yield "      config:"
    yield "        allowed_tools:"
    yield from (f"          - {_quoted(tool)}" for tool in sorted(seen.calls))
    most = max((max(one.values()) for one in seen.minutes.values()), default=0)
    yield "        rate_limit:"
    yield f"          per_minute: {max(10, 2 * most)}  # at most {most} a minute were seen"
    yield "  rules: []"


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
