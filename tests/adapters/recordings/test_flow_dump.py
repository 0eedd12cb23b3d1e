"""What a dump keeps of a flow comes back as it was, also from dumps made without us."""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from pathlib import Path

from mitmproxy.http import Headers, HTTPFlow
from mitmproxy.test import tflow, tutils

from mcp_tool_filter.adapters.recordings.flow_dump import (
    Chunk,
    keep_chunk,
    keep_fetched,
    keep_head,
    keep_request,
    read_recording,
    write_flows,
)
from mcp_tool_filter.conversation.memory import example

type Fields = Sequence[tuple[bytes, bytes]]


def flow(at: float = 1.0, says: bytes = b"{}", headers: Fields = ()) -> HTTPFlow:
    fields = Headers(headers)
    made = tflow.tflow(
        req=tutils.treq(content=b"asked", headers=Headers([(b"X-Client", b"1")])),
        resp=tutils.tresp(content=says, headers=fields),
    )
    made.request.timestamp_start = at
    return made


def test_a_recorded_flow_can_be_read_back(tmp_path: Path) -> None:
    made = flow()
    kept = keep_request(made, "example.com")
    made.request.headers["X-Client"] = "changed since"
    made.request.content = b"changed since"
    assert made.response
    keep_head(kept, made.response.headers.fields, 207, 5.0)
    for at, data in ((6.0, b"one "), (7.0, b"two"), (8.0, b"")):
        keep_chunk(kept, data, at)
    keep_fetched(kept, example())
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
    made = flow(
        headers=((b"Content-Encoding", b"gzip"), (b"Content-Type", b"text/event-stream; x=y"))
    )
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
