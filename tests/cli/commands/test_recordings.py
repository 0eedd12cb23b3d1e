"""``mcp-tool-filter replay`` and ``scrub``, as a person types them."""

from __future__ import annotations

import json
import logging
import random
import subprocess
import sys
from pathlib import Path

import pytest
from mitmproxy.io import FlowWriter
from mitmproxy.test import tflow

from mcp_tool_filter.adapters.recordings.flow_dump import read_flows
from mcp_tool_filter.cli.launcher import main
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


def test_a_replay_names_refused_prompts_resources_and_skills() -> None:
    flags = ("--deny-prompts", "^no_such", "--deny-resources", "^FILE:/", "--ignore-case")
    done = run("replay", RECORDINGS / "ts1-errors.flow", *flags)
    assert (done.returncode, done.stderr) == (0, "")
    refused = "resource file:///nowhere 1x, prompt no_such_prompt 1x"
    assert f"  Other requests refused: {refused}\n" in done.stdout


def test_a_replay_can_use_a_lock(tmp_path: Path) -> None:
    lock = tmp_path / "tools.lock"
    lock.write_text('{"version":1,"tools":{}}')
    done = run("replay", RECORDINGS / "mcp1-paginated.flow", "--lock", lock)
    assert (done.returncode, done.stderr) == (0, "")
    assert "    delete_file: not approved\n" in done.stdout
    assert "  Calls refused: delete_file 1x\n" in done.stdout
    broken = run("replay", RECORDINGS / "mcp1-paginated.flow", "--lock", tmp_path)
    assert (broken.returncode, "Cannot read the lock" in broken.stderr) == (1, True)


def test_a_replay_can_list_each_message_that_a_policy_would_refuse_or_change(
    tmp_path: Path,
) -> None:
    rules = tmp_path / "rules.yaml"
    rules.write_text(
        "interceptor: {rules: [{id: tried, mode: audit, actions: [block: no],"
        " conditions: [tool_equals: echo]}]}"
    )
    flags = ("--deny", "^read_", "--rules", rules, "--shadow")
    done = run("replay", RECORDINGS / "mcp1-sse.flow", *flags)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert "  Tools: 17, of which 1 would be hidden" in lines
    assert "  Calls refused: none" in lines
    assert sorted(line for line in lines if ": would be " in line) == [
        "  answer to tools/list: would be changed: hidden 1 tool; ^read_: read_file",
        "  tools/call echo: would be refused: refused by rule tried: no",
        "  tools/call echo: would be refused: refused by rule tried: no",
        "  tools/call read_file: would be refused: not found: read_file (denied by ^read_)",
    ]
    assert "  Only reported: 1 changed, 3 refused" in lines
    done = run("replay", RECORDINGS / "mcp1-sse.flow", *flags, "--json")
    reported = json.loads(done.stdout)["reported"]
    assert [one["tool"] for one in reported if one["verdict"] == "refused"].count("echo") == 2
    assert run("replay", RECORDINGS / "mcp1-sse.flow", *flags, "--gate").returncode == 3


def test_a_replay_can_print_json() -> None:
    done = run("replay", RECORDINGS / "ts1-batch.flow", "--allow", "^read_", "--json")
    outcome = json.loads(done.stdout)
    assert outcome["exposed"] == ["read_file"]
    assert outcome["hidden"]["delete_file"] == "matches no allow pattern"
    assert outcome["passed"] == {"read_file": 2}
    assert outcome["refused"] == {"delete_file": 2, "no_such_tool": 1}
    assert outcome["leaks"] == []


@pytest.mark.parametrize(
    ("flags", "status"),
    [
        (["--deny", "^read_"], 3),
        (["--deny", "^write_"], 0),
        (["--deny", "^read_", "--except", "^read_file$"], 0),
    ],
)
def test_a_replay_can_fail_if_a_call_would_be_refused(flags: list[str], status: int) -> None:
    recording = RECORDINGS / "mcp1-streamable-json.flow"
    assert run("replay", recording, *flags, "--gate").returncode == status


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


def test_scrub_writes_a_clean_copy(tmp_path: Path) -> None:
    """Only its user can read it, whoever could before."""
    source, target = RECORDINGS / "mcp1-sse.flow", tmp_path / "clean.flow"
    target.touch(0o644)
    done = run("scrub", source, target, "--field", "path")
    assert target.stat().st_mode & 0o777 == 0o600
    assert done.returncode == 0
    assert done.stderr == f"12 flows, 1 secret masked: {target}\n"
    assert b'"path":"xxxxxxxxx"' in target.read_bytes()
    assert [path.name for path in tmp_path.iterdir()] == ["clean.flow"]


def test_scrub_can_overwrite_its_input(tmp_path: Path) -> None:
    copy = tmp_path / "copy.flow"
    copy.write_bytes((RECORDINGS / "mcp1-sse.flow").read_bytes())
    assert run("scrub", copy, copy).returncode == 0
    assert copy.read_bytes() == (RECORDINGS / "mcp1-sse.flow").read_bytes()


def test_scrub_names_a_file_that_it_cannot_write(tmp_path: Path) -> None:
    done = run("scrub", RECORDINGS / "mcp1-sse.flow", tmp_path / "no" / "folder.flow")
    assert done.returncode == 1
    assert done.stderr.startswith("Error: Cannot write")


def test_scrub_leaves_nothing_behind_when_it_fails(tmp_path: Path) -> None:
    (tmp_path / "target.flow").mkdir()
    done = run("scrub", RECORDINGS / "mcp1-sse.flow", tmp_path / "target.flow")
    assert (done.returncode, "Traceback" in done.stderr) == (1, False)
    assert [path.name for path in tmp_path.iterdir()] == ["target.flow"]


def test_scrub_names_what_it_did_not_read(tmp_path: Path) -> None:
    [flow, *_] = read_flows(RECORDINGS / "mcp1-sse.flow")
    flow.request.headers["content-encoding"] = "x-own"
    flow.request.raw_content = b"?"
    with (tmp_path / "mixed.flow").open("wb") as file:
        writer = FlowWriter(file)
        for one in (flow, tflow.ttcpflow()):
            writer.add(one)
    done = run("scrub", tmp_path / "mixed.flow", tmp_path / "clean.flow")
    assert done.returncode == 0
    assert done.stderr == (
        f"1 flow, 0 secrets masked: {tmp_path}/clean.flow\n"
        "Left out: 1 flow that is not HTTP\n"
        "Warning: these parts could not be read and may still hold secrets:\n"
        "  flow 1 (POST), request: a content coding that is not accepted\n"
    )


def test_a_damaged_recording_gives_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk may be full, or a byte wrong; mitmproxy does not check what it reads."""
    monkeypatch.setattr(logging, "disable", lambda _level: None)
    whole = (RECORDINGS / "mcp1-sse.flow").read_bytes()
    chosen = random.Random(1)
    damaged, target = tmp_path / "damaged.flow", tmp_path / "clean.flow"
    refused = 0
    for number in range(60):
        at = chosen.randrange(len(whole))
        piece = bytes(chosen.choices(b"0123456789:,;]}!~#^", k=number % 3))
        damaged.write_bytes(whole[:at] + piece + (whole[at + 1 :] if number % 4 else b""))
        target.unlink(missing_ok=True)
        for argv in (["scrub", str(damaged), str(target)], ["replay", str(damaged)]):
            status = main(argv)
            out, err = capsys.readouterr()
            refused += status != 0
            assert status in (0, 1, 2), (number, at)
            assert "Traceback" not in out + err
            assert (status == 0) or err.startswith("Error: "), err
            assert argv[0] == "replay" or target.exists() == (status == 0)
    assert refused
