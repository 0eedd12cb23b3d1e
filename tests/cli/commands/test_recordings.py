"""``mcp-tool-filter replay`` and ``scrub``, as a person types them."""

from __future__ import annotations

import json
import logging
import random
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from mitmproxy.io import FlowWriter
from mitmproxy.test import tflow

from mcp_tool_filter.adapters.recordings.flow_dump import read_flows
from mcp_tool_filter.cli.launcher import main
from tests.cli.launched import run as ran
from tests.proxy import REPOSITORY

RECORDINGS = REPOSITORY / "recordings"
SSE = RECORDINGS / "mcp1-sse.flow"

type Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return lambda *words: ran(*map(str, words), home=tmp_path)


def ruled(home: Path, *rules: str) -> Path:
    """Write a file of rules."""
    file = home / "rules.yaml"
    file.write_text(f"interceptor: {{rules: [{', '.join(rules)}]}}")
    return file


def test_a_replay_shows_what_a_policy_would_have_done(run: Run) -> None:
    done = run("replay", SSE, "--deny", "^read_")
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


def test_a_replay_names_refused_prompts_resources_and_skills(run: Run) -> None:
    flags = ("--deny-prompts", "^no_such", "--deny-resources", "^FILE:/", "--ignore-case")
    done = run("replay", RECORDINGS / "ts1-errors.flow", *flags)
    assert (done.returncode, done.stderr) == (0, "")
    refused = "resource file:///nowhere 1x, prompt no_such_prompt 1x"
    assert f"  Other requests refused: {refused}\n" in done.stdout


def test_a_replay_can_use_a_lock(tmp_path: Path, run: Run) -> None:
    lock = tmp_path / "tools.lock"
    lock.write_text('{"version":1,"tools":{}}')
    done = run("replay", RECORDINGS / "mcp1-paginated.flow", "--lock", lock)
    assert (done.returncode, done.stderr) == (0, "")
    assert "    delete_file: not approved\n" in done.stdout
    assert "  Calls refused: delete_file 1x\n" in done.stdout


def test_a_replay_can_list_each_message_that_a_policy_would_refuse_or_change(
    tmp_path: Path, run: Run
) -> None:
    rule = "{id: tried, mode: audit, actions: [block: no], conditions: [tool_equals: echo]}"
    flags = ("--deny", "^read_", "--rules", ruled(tmp_path, rule), "--shadow")
    done = run("replay", SSE, *flags)
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
    done = run("replay", SSE, *flags, "--json")
    reported = json.loads(done.stdout)["reported"]
    assert [one["tool"] for one in reported if one["verdict"] == "refused"].count("echo") == 2
    assert run("replay", SSE, *flags, "--gate").returncode == 3


def test_a_replay_can_print_json(run: Run) -> None:
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
def test_a_replay_can_fail_if_a_call_would_be_refused(
    flags: list[str], status: int, run: Run
) -> None:
    recording = RECORDINGS / "mcp1-streamable-json.flow"
    assert run("replay", recording, *flags, "--gate").returncode == status


def test_a_transcript_shows_both_sides(run: Run) -> None:
    done = run("replay", RECORDINGS / "ts1-errors.flow", "--deny", "^fail$", "--transcript")
    assert "upstream gets   nothing" in done.stdout
    assert '"message":"Tool not found: fail"' in done.stdout


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["nowhere.flow"], "Error: Cannot read the recording nowhere.flow\nNo such file or"),
        ([RECORDINGS / "README.md"], "Not a mitmproxy flow file"),
        ([SSE, "--deny", "^[a-z"],
         'Error: Invalid regex pattern in deny list: "^[a-z"\nPattern must be valid'),
        ([SSE, "--rules", "bad.yaml"], "unknown key 'rulez'; did you mean 'rules'?"),
        ([SSE, "--lock", "."], "Cannot read the lock"),
    ],
)  # fmt: skip
def test_an_unreplayable_recording_is_refused(
    args: list[str | Path], said: str, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("bad.yaml").write_text("interceptor: {rulez: 1}")
    done = run("replay", *args)
    assert done.returncode == 1
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_rules_are_tried_on_a_recording_and_send_nothing(tmp_path: Path, run: Run) -> None:
    rules = ruled(
        tmp_path,
        "{id: no-echo, conditions: [tool_equals: echo], actions: [delay: 1m, block: x]}",
        "{id: told, actions: [webhook: {url: 'http://127.0.0.1:1/'}, fork: {}]}",
    )
    recording = RECORDINGS / "mcp1-streamable-json.flow"
    said = json.loads(run("replay", recording, "--rules", rules, "--json").stdout)
    assert said["rules"] == {"no-echo": 2}
    assert said["refused"] == {"echo": 2}
    assert said["unknown"] == {"delete_file": 1}


def test_the_rules_are_counted_for_each_message_of_a_batch(tmp_path: Path, run: Run) -> None:
    rule = "{id: no-calls, conditions: [method_equals: tools/call], actions: [block: x]}"
    rules, recording = ruled(tmp_path, rule), RECORDINGS / "ts1-batch.flow"
    said = json.loads(run("replay", recording, "--rules", rules, "--json").stdout)
    assert said["refused"] == {"read_file": 2, "delete_file": 2, "no_such_tool": 1}
    assert said["rules"] == {"no-calls": 4}  # rules never see a call of a tool that is not there


def test_scrub_writes_a_clean_copy(tmp_path: Path, run: Run) -> None:
    """Only its user can read it, whoever could before."""
    source, target = SSE, tmp_path / "clean.flow"
    target.touch(0o644)
    done = run("scrub", source, target, "--field", "path")
    assert target.stat().st_mode & 0o777 == 0o600
    assert done.returncode == 0
    assert done.stderr == f"12 flows, 1 secret masked: {target}\n"
    assert b'"path":"xxxxxxxxx"' in target.read_bytes()
    assert [path.name for path in tmp_path.iterdir()] == ["clean.flow"]


def test_scrub_can_overwrite_its_input(tmp_path: Path, run: Run) -> None:
    copy = tmp_path / "copy.flow"
    copy.write_bytes((SSE).read_bytes())
    assert run("scrub", copy, copy).returncode == 0
    assert copy.read_bytes() == (SSE).read_bytes()


@pytest.mark.parametrize("target", ["target.flow", "no/folder.flow"])
def test_scrub_names_what_it_cannot_write_and_leaves_nothing_behind(
    target: str, tmp_path: Path, run: Run
) -> None:
    (tmp_path / "target.flow").mkdir()
    done = run("scrub", SSE, tmp_path / target)
    assert done.returncode == 1
    assert done.stderr.startswith("Error: Cannot write")
    assert [path.name for path in tmp_path.iterdir()] == ["target.flow"]


def test_scrub_names_what_it_did_not_read(tmp_path: Path, run: Run) -> None:
    [flow, *_] = read_flows(SSE)
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
    whole = (SSE).read_bytes()
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
