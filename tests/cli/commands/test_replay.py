"""``mcp-tool-filter replay``, as a person types it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.proxy import REPOSITORY

RECORDINGS = REPOSITORY / "recordings"


def run(*args: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mcp_tool_filter", *map(str, args)],
        check=False,
        capture_output=True,
        text=True,
        cwd=REPOSITORY / "addon",
    )


def test_a_replay_shows_what_a_policy_would_have_done() -> None:
    done = run("replay", RECORDINGS / "mcp1-sse.flow", "--deny", "^read_")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == (
        "mcp1-sse.flow: 12 requests\n"
        "  Tools: 17, of which 1 hidden\n"
        "  Saved: 482 bytes per tools/list\n"
        "    read_file: denied by ^read_\n"
        "  Calls that pass: echo 2x, progress 1x, sample 1x, fail 1x\n"
        "  Calls refused: read_file 1x\n"
        "  Calls that pass now, but have no answer in the recording: delete_file 1x\n"
    )


def test_a_replay_can_print_json() -> None:
    done = run("replay", RECORDINGS / "ts1-batch.flow", "--allow", "^read_", "--json")
    outcome = json.loads(done.stdout)
    assert outcome["exposed"] == ["read_file"]
    assert outcome["hidden"]["delete_file"] == "matches no allow pattern"
    assert outcome["passed"] == {"read_file": 2}
    assert outcome["refused"] == {"delete_file": 2, "no_such_tool": 1}
    assert outcome["leaks"] == []


@pytest.mark.parametrize(("deny", "status"), [("^read_", 3), ("^write_", 0)])
def test_a_replay_can_fail_if_a_call_would_be_refused(deny: str, status: int) -> None:
    recording = RECORDINGS / "mcp1-streamable-json.flow"
    assert run("replay", recording, "--deny", deny, "--gate").returncode == status


def test_a_transcript_shows_both_sides() -> None:
    done = run("replay", RECORDINGS / "ts1-errors.flow", "--deny", "^fail$", "--transcript")
    assert "upstream gets   nothing" in done.stdout
    assert '"message":"Tool not found: fail"' in done.stdout


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["nowhere.flow"], "Error: Cannot read the recording nowhere.flow\nNo such file or"),
        ([RECORDINGS / "README.md"], "Not a mitmproxy flow file"),
        (
            [RECORDINGS / "mcp1-sse.flow", "--deny", "^[a-z"],
            'Error: Invalid regex pattern in deny list: "^[a-z"\nPattern must be valid',
        ),
    ],
)
def test_an_unreplayable_recording_is_refused(args: list[str | Path], said: str) -> None:
    done = run("replay", *args)
    assert done.returncode == 1
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_rules_are_tried_on_a_recording_and_send_nothing(tmp_path: Path) -> None:
    rules = tmp_path / "rules.yaml"
    rules.write_text(
        "interceptor:\n  rules:\n"
        "    - {id: no-echo, conditions: [tool_equals: echo], actions: [delay: 1m, block: x]}\n"
        "    - {id: told, actions: [webhook: {url: 'http://127.0.0.1:1/'}, fork: {}]}\n"
    )
    recording = RECORDINGS / "mcp1-streamable-json.flow"
    said = json.loads(run("replay", recording, "--rules", rules, "--json").stdout)
    assert said["rules"] == {"no-echo": 2}
    assert said["refused"] == {"echo": 2}
    assert said["unknown"] == {"delete_file": 1}


def test_the_rules_are_counted_for_each_message_of_a_batch(tmp_path: Path) -> None:
    rules = tmp_path / "rules.yaml"
    rules.write_text(
        "interceptor:\n  rules:\n"
        "    - {id: no-calls, conditions: [method_equals: tools/call], actions: [block: x]}\n"
    )
    recording = RECORDINGS / "ts1-batch.flow"
    said = json.loads(run("replay", recording, "--rules", rules, "--json").stdout)
    assert said["refused"] == {"read_file": 2, "delete_file": 2, "no_such_tool": 1}
    assert said["rules"] == {"no-calls": 4}  # rules never see a call of a tool that is not there


def test_a_bad_rules_file_is_reported(tmp_path: Path) -> None:
    rules = tmp_path / "rules.yaml"
    rules.write_text("interceptor: {rulez: 1}")
    done = run("replay", RECORDINGS / "mcp1-streamable-json.flow", "--rules", rules)
    assert done.returncode == 1
    assert "did you mean 'rules'?" in done.stderr
