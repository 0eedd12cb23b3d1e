"""Sessions over stdio as flow dumps, in the format of mitmproxy."""

from __future__ import annotations

import json
import stat
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from mitmproxy.io import tnetstring

from mcp_tool_filter.adapters.recordings.flow_dump import read_flows, read_recording
from mcp_tool_filter.adapters.recordings.line_recorder import LineRecorder, write_value
from mcp_tool_filter.adapters.recordings.replay import replay
from mcp_tool_filter.policy.verdict import Forward, Reason, Reply, Rewrite, Why
from tests.cli.launched import run
from tests.make import answering, asking, calling, listing
from tests.stdio_client import filtered, upstream


def _raise(error: OSError) -> None:
    raise error


def recorded(path: Path) -> LineRecorder:
    return LineRecorder(path.open("wb"), on_failure=_raise, clock=iter(range(1000)).__next__)


def test_a_request_is_recorded_with_its_answer(tmp_path: Path) -> None:
    file = tmp_path / "s.flow"
    recorder = recorded(file)
    recorder.from_client(asking("tools/list", id='"a"'), Forward())
    said, heard = listing("a", "b", id='"a"'), listing("a", id='"a"')
    recorder.from_upstream(said, Rewrite(heard, Reason(Why.HIDDEN)))
    recorder.end()
    [flow] = read_recording(file).flows
    assert (flow.body, flow.heard) == (asking("tools/list", id='"a"'), heard)
    assert flow.said
    assert flow.said.body == said


def test_a_request_without_an_answer_is_recorded_at_the_end(tmp_path: Path) -> None:
    file = tmp_path / "s.flow"
    recorder = recorded(file)
    recorder.from_client(asking("ping"), Forward())
    recorder.from_client(calling("rm", id="2"), Reply(b"{}", Reason(Why.DENIED)))
    recorder.from_upstream(b'{"jsonrpc":"2.0","method":"notifications/message"}', Forward())
    recorder.end()
    flows = read_flows(file)
    assert {(flow.request.method, flow.response is None) for flow in flows} == {
        ("POST", True),
        ("POST", False),
        ("GET", False),
    }


def test_a_recorded_session_can_be_replayed_with_other_patterns(tmp_path: Path) -> None:
    file = tmp_path / "s.flow"
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
    assert {call.tool: call.passes for call in transcript.calls} == {
        "read_file": False,
        "delete_file": True,
        "noise": False,
    }


def test_a_file_that_cannot_be_written_stops_the_start(tmp_path: Path) -> None:
    made = tmp_path / "made"
    found = run("--record", "/no/such/folder/x", "--", "touch", str(made), home=tmp_path)
    assert found.returncode == 1
    assert "--record" in found.stderr
    assert not made.exists()


def test_our_own_answers_to_batch_members_are_recorded(tmp_path: Path) -> None:
    file = tmp_path / "s.flow"
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
