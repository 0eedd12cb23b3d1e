"""Calls of real clients, and what real servers answered, through the lane and the whole way."""

from __future__ import annotations

import json

from mcp_tool_filter.rooms.recordings.flow_dump import RecordedFlow, read_recording
from tests.proxy import REPOSITORY
from tests.raw_upstream import chunk
from tests.rooms.lane.both_ways import STYLES, Act, Style, compared, says

SESSIONS = sorted((REPOSITORY / "recordings").glob("*.flow"))


def test_calls_of_real_clients_come_out_the_same() -> None:
    taken = 0
    for path in SESSIONS:
        for flow in read_recording(path).flows:
            if b'"tools/call"' in flow.body and flow.said is not None and flow.said.status == 200:
                taken += goes_both_ways(flow)
    assert taken >= 10


def goes_both_ways(flow: RecordedFlow) -> bool:
    """Compare what comes of a recorded call; return whether it took the lane."""
    message = json.loads(flow.body)
    if not isinstance(message, dict):
        return False
    style = STYLES["session" if flow.head.said.session_id else "no session"]
    if b"io.modelcontextprotocol/protocolVersion" in flow.body:
        style = newest(flow, message["params"]["_meta"])
    name = json.dumps(message["params"]["name"])[1:-1].encode()
    taken, _ = compared(flow.body, *answers(flow), style=style, more=name)
    return taken


def newest(flow: RecordedFlow, meta: dict[str, object]) -> Style:
    """A client of 2026-07-28 that says of itself what this one says."""
    meta = {key: value for key, value in meta.items() if key != "progressToken"}
    usual = STYLES["2026-07-28"]
    written = json.dumps(meta, separators=(",", ":")).encode()
    name = (flow.head.get(b"mcp-name") or "read").encode()
    head = usual.head.replace(b"Name: read", b"Name: " + name)
    return Style(head, False, written, usual.listing, name)


def answers(flow: RecordedFlow) -> list[Act]:
    """What the server said, in the pieces in which it came."""
    assert flow.said is not None
    kept = [one for one in flow.said.headers if one[0].lower() not in _FRAMING]
    fields = b"".join(b"%b: %b\r\n" % one for one in kept)
    head = b"HTTP/1.1 200 OK\r\n%bTransfer-Encoding: chunked\r\n\r\n" % fields
    pieces = [chunk(one.data) for one in flow.said.chunks]
    return [says(one) for one in (head, *pieces, b"0\r\n\r\n")]


_FRAMING = (b"content-length", b"transfer-encoding", b"connection")
