"""One line of ``doctor``, for people and for programs."""

from __future__ import annotations

import pytest

from mcp_tool_filter.cli.output.finding import Finding


def test_a_problem_is_shown_with_advice(capsys: pytest.CaptureFixture[str]) -> None:
    Finding(True, "all is well").print()
    Finding(False, "the port is taken", "Take another").print()
    assert capsys.readouterr().out == (
        "ok   all is well\nFAIL the port is taken\n     Take another\n"
    )


def test_json_findings_always_have_the_same_members() -> None:
    assert Finding(True, "t").as_json() == {"ok": True, "text": "t", "advice": None}
    assert Finding(False, "t", "a").as_json() == {"ok": False, "text": "t", "advice": "a"}
