"""What an audit log adds up to."""

from __future__ import annotations

import pytest

from mcp_tool_filter.rooms.audit.entry import Entry
from mcp_tool_filter.rooms.audit.summary import summarise
from tests.rows import each_row


def call(tool: str, **more: object) -> Entry:
    usual = {"time": "2026-11-18T09:00:00.000Z", "method": "tools/call", "session": "s"}
    return {**usual, "tool": tool, "verdict": "forwarded", **more}


def test_calls_refusals_and_errors_are_counted_by_tool() -> None:
    summary = summarise([
        call("read", upstream_ms=2.0, answered=True),
        call("read", upstream_ms=5, error_code=-1, time="2026-11-18T08:00:00.000Z"),
        call("slow", answered=False),
        call("rm", verdict="refused", session=None, client="127.0.0.1:9"),
        {"time": "", "verdict": "dropped"},
        {"method": "prompts/get", "verdict": "refused", "prompt": "secret"},
        {"method": "resources/read", "verdict": "refused", "uri": "a:b", "resource": "a:b"},
        {"method": "skills/get", "verdict": "refused", "skill": "refunds"},
        {"method": "tools/list", "verdict": "answered", "saved_bytes": 400},
    ])  # fmt: skip
    assert summary.calls == {"read": 2, "slow": 1}
    assert summary.refused == {"rm": 1, "unreadable": 1, "secret": 1, "a:b": 1, "refunds": 1}
    assert summary.errors == {"read": 1}
    assert (summary.unanswered, summary.saved_bytes, summary.entries) == (1, 400, 9)
    assert (summary.first[11:13], summary.last[11:13]) == ("08", "09")
    assert summary.sessions["127.0.0.1"] == 1
    slowest = [{"tool": "read", "ms": 5.0}, {"tool": "read", "ms": 2.0}]
    assert summary.as_json()["slowest"] == slowest


def test_only_the_slowest_are_kept() -> None:
    summary = summarise(call("read", upstream_ms=float(ms)) for ms in range(100))
    assert [took for took, _ in summary.slowest] == [float(ms) for ms in range(90, 100)]


def test_lines_about_other_events_are_not_counted_as_messages() -> None:
    summary = summarise([
        {"event": "dropped", "count": 3}, {"event": "dropped", "count": "x"}, {"event": "rule"},
    ])  # fmt: skip
    assert (summary.dropped, summary.entries) == (3, 0)


def test_calls_are_counted_for_each_session_and_tool() -> None:
    calls = [call("read"), call("read"), call("write"), call("read", session="t")]
    found = summarise([*calls, call("rm", verdict="refused")]).as_json()["calls_by_session"]
    assert found == {"s": {"read": 2, "write": 1}, "t": {"read": 1}}


@each_row("number", [10**400, -1, float("nan"), float("inf"), True, "7", [], {}])
@each_row("name", ["upstream_ms", "saved_bytes", "count"])
def test_numbers_that_we_never_write_are_left_out(name: str, number: object) -> None:
    """A crafted line must not make a log unreadable."""
    entry: Entry = {"method": "tools/call", "tool": "read", name: number}
    dropped: Entry = {"event": "dropped", name: number}
    summary = summarise([entry, dropped])
    assert (summary.slowest, summary.saved_bytes, summary.dropped) == ([], 0, 0)
    assert summary.calls == {"read": 1}


@pytest.mark.parametrize("more", [{"tool_error": True}, {"error_code": -1}, {"status": 500}])
def test_each_kind_of_error_is_counted(more: dict[str, object]) -> None:
    entry: Entry = {"method": "tools/call", "tool": "read", "verdict": "forwarded", **more}
    assert summarise([entry]).errors == {"read": 1}
