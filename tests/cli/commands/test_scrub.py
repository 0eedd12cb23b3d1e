"""``mcp-tool-filter scrub``, as a person types it."""

from __future__ import annotations

from pathlib import Path

from mitmproxy.io import FlowWriter
from mitmproxy.test import tflow

from mcp_tool_filter.adapters.recordings.flow_dump import read_flows
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
