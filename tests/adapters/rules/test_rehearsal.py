"""A policy tried on messages without sending anything."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from mcp_tool_filter.adapters.rules.file import ThisMachine
from mcp_tool_filter.adapters.rules.rehearsal import Rehearsal
from mcp_tool_filter.rules.load import load_policy
from mcp_tool_filter.rules.model import Policy
from mcp_tool_filter.rules.subject import Subject
from tests.rules.judging import call, rules, single


def refused_by(rehearsal: Rehearsal, text: str) -> str | None:
    refusal = rehearsal.judge(Subject(single(text))).refusal
    return refusal.rule if refusal else None


def test_limits_hold_within_a_rehearsal_and_begin_empty_with_the_next() -> None:
    policy = rules("- {id: slow-down, actions: [rate_limit: {key: k, limit: 1, window: 60s}]}")
    first = Rehearsal(policy)
    assert [refused_by(first, call()), refused_by(first, call())] == [None, "slow-down"]
    assert refused_by(Rehearsal(policy), call()) is None


def scripted(folder: Path, *statuses: int, parallel: bool) -> Policy:
    """Read a policy whose scripts end with these statuses; each notes that it ran."""
    text = f"interceptor:\n  chain: {{parallel: {str(parallel).lower()}}}\n  rules:\n"
    for number, status in enumerate(statuses):
        file = folder / f"s{number}"
        code = f"open(__file__ + '.ran', 'w')\nraise SystemExit({status})"
        file.write_text(f"#!{sys.executable}\n{code}\n")
        file.chmod(0o755)
        run = f"run_script: {{path: ./s{number}, decides: true}}"
        text += f"    - {{id: s{number}, actions: [{run}]}}\n"
    return load_policy(text.encode(), machine=ThisMachine(folder))


@pytest.mark.parametrize("parallel", [False, True])
def test_scripts_that_decide_run_to_their_end(parallel: bool, tmp_path: Path) -> None:
    """Nothing waits in a rehearsal, also where the rules let scripts run side by side."""
    policy = scripted(tmp_path, 0, 1, parallel=parallel)
    assert refused_by(Rehearsal(policy), call()) == "s1"
    assert (tmp_path / "s0.ran").exists()
