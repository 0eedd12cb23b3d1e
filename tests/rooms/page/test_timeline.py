"""What the page shows over time, and by whom."""

from __future__ import annotations

from mcp_tool_filter.rooms.audit.entry import LazyValue
from mcp_tool_filter.rooms.page.timeline import Timeline


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


def test_a_call_without_an_answer_is_counted_as_failed_as_its_line_says() -> None:
    timeline = Timeline()
    timeline.note({"session": "s", "tool": "read", "answered": False, "answer_why": "client_left"})
    timeline.note({"session": "s", "tool": "read"})
    [caller] = timeline.callers()
    step = timeline.steps()[-1]
    assert (caller["calls"], caller["failed"]) == (step["calls"], step["failed"]) == (2, 1)
