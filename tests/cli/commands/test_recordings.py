"""``mcp-tool-filter replay`` and ``scrub``, as a person types them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from mitmproxy.io import FlowWriter
from mitmproxy.test import tflow

from mcp_tool_filter.adapters.recordings.flow_dump import read_flows
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


def test_a_replay_says_what_a_policy_would_have_done() -> None:
    done = run("replay", RECORDINGS / "mcp1-sse.flow", "--deny", "^read_")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == (
        "mcp1-sse.flow: 12 requests\n"
        "  Tools: 17, of which 1 hidden\n"
        "  Saved: 482 bytes a list\n"
        "    read_file: denied by ^read_\n"
        "  Calls that pass: echo 2x, progress 1x, sample 1x, fail 1x\n"
        "  Calls refused: read_file 1x\n"
        "  Calls that pass now, of which the recording knows no answer: delete_file 1x\n"
    )


def test_json_is_for_scripts() -> None:
    done = run("replay", RECORDINGS / "ts1-batch.flow", "--allow", "^read_", "--json")
    outcome = json.loads(done.stdout)
    assert outcome["exposed"] == ["read_file"]
    assert outcome["hidden"]["delete_file"] == "on no allow pattern"
    assert outcome["passed"] == {"read_file": 2}
    assert outcome["refused"] == {"delete_file": 2, "no_such_tool": 1}
    assert outcome["leaks"] == []


@pytest.mark.parametrize(("deny", "status"), [("^read_", 3), ("^write_", 0)])
def test_a_gate_closes_when_a_call_would_be_refused(deny: str, status: int) -> None:
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
        ([RECORDINGS / "README.md"], "It is no flow dump of mitmproxy"),
        (
            [RECORDINGS / "mcp1-sse.flow", "--deny", "^[a-z"],
            'Error: Invalid regex pattern in deny list: "^[a-z"\nPattern must be valid',
        ),
    ],
)
def test_what_cannot_be_replayed_is_refused(args: list[str | Path], said: str) -> None:
    done = run("replay", *args)
    assert done.returncode == 1
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_scrub_writes_a_clean_copy(tmp_path: Path) -> None:
    source, target = RECORDINGS / "mcp1-sse.flow", tmp_path / "clean.flow"
    done = run("scrub", source, target, "--field", "path")
    assert done.returncode == 0
    assert done.stderr == f"12 flows, 1 secret masked: {target}\n"
    assert b'"path":"xxxxxxxxx"' in target.read_bytes()
    assert [path.name for path in tmp_path.iterdir()] == ["clean.flow"]


def test_scrub_may_write_where_it_read(tmp_path: Path) -> None:
    copy = tmp_path / "copy.flow"
    copy.write_bytes((RECORDINGS / "mcp1-sse.flow").read_bytes())
    assert run("scrub", copy, copy).returncode == 0
    assert copy.read_bytes() == (RECORDINGS / "mcp1-sse.flow").read_bytes()


def test_scrub_says_where_it_cannot_write(tmp_path: Path) -> None:
    done = run("scrub", RECORDINGS / "mcp1-sse.flow", tmp_path / "no" / "folder.flow")
    assert done.returncode == 1
    assert done.stderr.startswith("Error: Cannot write")


def test_scrub_leaves_nothing_behind_when_it_fails(tmp_path: Path) -> None:
    (tmp_path / "target.flow").mkdir()
    done = run("scrub", RECORDINGS / "mcp1-sse.flow", tmp_path / "target.flow")
    assert (done.returncode, "Traceback" in done.stderr) == (1, False)
    assert [path.name for path in tmp_path.iterdir()] == ["target.flow"]


def test_scrub_says_what_it_did_not_read(tmp_path: Path) -> None:
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
