"""``replay`` and the tests of rules: nothing is sent, and delays are skipped."""

from __future__ import annotations

import sys
from pathlib import Path

from mcp_tool_filter.adapters.rules.host import OfflineHost
from mcp_tool_filter.adapters.rules.state import StateInMemory
from mcp_tool_filter.policy.effects import Delay
from mcp_tool_filter.policy.rule_effects import RunScript, ScriptResult


def script(folder: Path, code: str, *, decides: bool) -> RunScript:
    file = folder / "script"
    file.write_text(f"#!{sys.executable}\n{code}\n")
    file.chmod(0o755)
    return RunScript((str(file),), (), b"", 20.0, decides, "r")


def test_a_script_that_decides_runs_to_its_end(tmp_path: Path) -> None:
    effect = script(tmp_path, "print('said')", decides=True)
    assert OfflineHost(StateInMemory()).at_once(effect) == ScriptResult(0, b"said\n")


def test_other_scripts_do_not_run(tmp_path: Path) -> None:
    effect = script(tmp_path, "open(__file__ + '.ran', 'w')", decides=False)
    assert OfflineHost(StateInMemory()).at_once(effect) is None
    assert not (tmp_path / "script.ran").exists()


def test_a_delay_is_skipped() -> None:
    assert OfflineHost(StateInMemory()).at_once(Delay(3600.0)) is None
