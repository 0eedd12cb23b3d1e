"""What a dump keeps of a flow comes back as it was, also from dumps made without us."""

from __future__ import annotations

import gzip
import json
import stat
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mitmproxy.http import Headers, HTTPFlow
from mitmproxy.io import tnetstring
from mitmproxy.test import tflow, tutils

from mcp_tool_filter.core.conversation.memory import example
from mcp_tool_filter.core.policy.verdict import Forward, Reason, Reply, Rewrite, Why
from mcp_tool_filter.rooms.recordings import flow_dump
from mcp_tool_filter.rooms.recordings.flow_dump import (
    Chunk,
    read_flows,
    read_recording,
    write_flows,
)
from mcp_tool_filter.rooms.recordings.line_recorder import LineRecorder, write_value
from mcp_tool_filter.rooms.recordings.replay import replay
from tests.cli.launched import run
from tests.make import answering, asking, calling, listing
from tests.stdio_client import filtered, upstream

type Fields = Sequence[tuple[bytes, bytes]]


def flow(at: float = 1.0, says: bytes = b"{}", headers: Fields = ()) -> HTTPFlow:
    asked = tutils.treq(content=b"asked", headers=Headers([(b"X-Client", b"1")]))
    made = tflow.tflow(req=asked, resp=tutils.tresp(content=says, headers=Headers(headers)))
    made.request.timestamp_start = at
    return made


def test_a_recorded_flow_can_be_read_back(tmp_path: Path) -> None:
    made = flow()
    kept = flow_dump.keep_request(made, "example.com")
    made.request.headers["X-Client"] = "changed since"
    made.request.content = b"changed since"
    assert made.response
    flow_dump.keep_head(kept, made.response.headers.fields, 207, 5.0)
    for at, data in ((6.0, b"one "), (7.0, b"two"), (8.0, b"")):
        flow_dump.keep_chunk(kept, data, at)
    flow_dump.keep_fetched(kept, example())
    write_flows(tmp_path / "kept.flow", [made])
    [read] = read_recording(tmp_path / "kept.flow").flows
    assert (read.host, read.body) == ("example.com", b"asked")
    assert read.head.headers == ((b"X-Client", b"1"),)
    assert read.said
    assert (read.said.status, read.said.at, read.said.ended) == (207, 5.0, 8.0)
    assert read.said.chunks == (Chunk(6.0, b"one "), Chunk(7.0, b"two"))
    assert read.said.body == b"one two"
    assert read.fetched == example()


def test_without_the_filter_both_sides_of_a_recording_are_the_same(tmp_path: Path) -> None:
    kind = (b"Content-Type", b"text/event-stream; x=y")
    made = flow(headers=((b"Content-Encoding", b"gzip"), kind))
    assert made.response
    made.response.raw_content = gzip.compress(b"data: 1\n\n")
    write_flows(tmp_path / "plain.flow", [made])
    [read] = read_recording(tmp_path / "plain.flow").flows
    assert read.said
    assert read.said.body == b"data: 1\n\n"
    assert read.said.is_event_stream
    assert b"content-encoding" not in [name.lower() for name, _ in read.said.headers]
    assert read.fetched is None


def test_flows_are_sorted_by_time_and_other_kinds_left_out(tmp_path: Path) -> None:
    socket = tflow.twebsocketflow()
    socket.request.timestamp_start = 2.0
    write_flows(tmp_path / "two.flow", [flow(at=3.0), socket, flow(at=1.0)])
    recording = read_recording(tmp_path / "two.flow")
    assert [one.at for one in recording.flows] == [1.0, 2.0, 3.0]
    assert recording.flows[1].said is None  # what is said on a WebSocket is not kept
    assert recording.name == "two"


# Sessions over stdio as flow dumps, in the format of mitmproxy
def _raise(error: OSError) -> None:
    raise error


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "s.flow"


def recorded(path: Path) -> LineRecorder:
    return LineRecorder(path.open("wb"), on_failure=_raise, clock=iter(range(1000)).__next__)


def test_a_request_is_recorded_with_its_answer(file: Path) -> None:
    recorder = recorded(file)
    recorder.from_client(asking("tools/list", id='"a"'), Forward())
    said, heard = listing("a", "b", id='"a"'), listing("a", id='"a"')
    recorder.from_upstream(said, Rewrite(heard, Reason(Why.HIDDEN)))
    recorder.end()
    [flow] = read_recording(file).flows
    assert (flow.body, flow.heard) == (asking("tools/list", id='"a"'), heard)
    assert flow.said
    assert flow.said.body == said


def test_a_request_without_an_answer_is_recorded_at_the_end(file: Path) -> None:
    recorder = recorded(file)
    recorder.from_client(asking("ping"), Forward())
    recorder.from_client(calling("rm", id="2"), Reply(b"{}", Reason(Why.DENIED)))
    recorder.from_upstream(b'{"jsonrpc":"2.0","method":"notifications/message"}', Forward())
    recorder.end()
    flows = read_flows(file)
    found = {(flow.request.method, flow.response is None) for flow in flows}
    assert found == {("POST", True), ("POST", False), ("GET", False)}


def test_a_recorded_session_can_be_replayed_with_other_patterns(file: Path, tmp_path: Path) -> None:
    words = ("--record", str(file), "--deny", "^delete_")
    with filtered(*words, "--", *upstream(), home=tmp_path) as client:
        client.opens()
        client.asks("tools/list", id="2")
        client.calls("read_file", id="3")
        client.calls("delete_file", id="4")
        client.calls("noise", id="5")
        assert client.leaves() == 0
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    transcript = replay(read_recording(file), deny=["^read_"])
    assert set(transcript.snapshot.denied) == {"read_file"}
    passes = {call.tool: call.passes for call in transcript.calls}
    assert passes == {"read_file": False, "delete_file": True, "noise": False}


def test_a_file_that_cannot_be_written_stops_the_start(tmp_path: Path) -> None:
    made = tmp_path / "made"
    found = run("--record", "/no/such/folder/x", "--", "touch", str(made), home=tmp_path)
    assert found.returncode == 2
    assert "--record" in found.stderr
    assert not made.exists()


def test_our_own_answers_to_batch_members_are_recorded(file: Path) -> None:
    recorder = recorded(file)
    kept = b"[" + asking("ping") + b"]"
    refused = b'{"jsonrpc":"2.0","id":2,"error":{"code":-32601,"message":"x"}}'
    batch = b"[" + asking("ping") + b"," + calling("rm", id="2") + b"]"
    recorder.from_client(batch, Rewrite(kept, Reason(Why.DENIED), (refused,)))
    recorder.from_upstream(b"[" + answering("{}") + b"]", Forward())
    recorder.end()
    heard = [flow.heard for flow in read_recording(file).flows]
    assert any(json.loads(one)["id"] == 2 for one in heard if one.startswith(b"{"))


# Values as mitmproxy's flow dumps hold them.

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.binary() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text("abc"), inner),
)


@given(value=VALUES)
def test_mitmproxy_reads_each_value_as_it_was(value: object) -> None:
    assert tnetstring.loads(write_value(value)) == value  # type: ignore[arg-type]  # any of these
