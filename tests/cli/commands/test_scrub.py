"""``mcp-tool-filter scrub``, as a person types it."""

from __future__ import annotations

import logging
import random
from pathlib import Path

import pytest
from mitmproxy.io import FlowWriter
from mitmproxy.test import tflow

from mcp_tool_filter.adapters.recordings.flow_dump import read_flows
from mcp_tool_filter.cli.launcher import main
from tests.cli.commands.test_replay import RECORDINGS, run


def test_scrub_writes_a_clean_copy(tmp_path: Path) -> None:
    source, target = RECORDINGS / "mcp1-sse.flow", tmp_path / "clean.flow"
    done = run("scrub", source, target, "--field", "path")
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
