"""What the page shows over time, and by whom."""

from __future__ import annotations

from mcp_tool_filter.observers.audit.entry import LazyValue
from mcp_tool_filter.observers.statistics import Timeline


def test_calls_are_counted_by_session_or_by_address() -> None:
    timeline = Timeline()
    for port in (1, 2):
        timeline.note({"client": f"127.0.0.1:{port}", "tool": "read", "verdict": "forwarded"})
    timeline.note({"client": "127.0.0.1:3", "tool": "rm", "verdict": "refused"})
    timeline.note({"session": "s", "client": "127.0.0.1:4", "tool": "read", "time": "t"})
    session, address = timeline.callers()
    assert (session["name"], session["calls"], session["last"]) == ("s", 1, "t")
    assert (address["name"], address["refused"]) == ("127.0.0.1", 1)
    assert address["tools"] == {"read": 2}


def test_callers_and_their_tools_are_bounded() -> None:
    timeline = Timeline()
    for number in range(1000):
        timeline.note({"session": f"s{number}", "tool": "read"})
        timeline.note({"session": "one", "tool": f"t{number}"})
    callers = timeline.callers()
    assert len(callers) == 100
    assert callers[0]["name"] == "one"
    assert callers[0]["calls"] <= 200


def test_lists_save_context_over_time() -> None:
    now = [0.0]
    timeline = Timeline(clock=lambda: now[0])
    timeline.note({"method": "tools/list", "saved_bytes": 100})
    now[0] = 10.0
    timeline.note({"method": "tools/list", "saved_bytes": 50})
    assert [step["saved_bytes"] for step in timeline.steps()[-2:]] == [100, 50]


def test_no_argument_stays_in_memory() -> None:
    timeline = Timeline()
    timeline.note({"tool": "read", "arguments": LazyValue(dict, 10)})
    assert "arguments" not in timeline.recent()[0]
