"""The head of an event stream of unknown length, in each version of HTTP."""

from __future__ import annotations

import pytest
from mitmproxy.http import Response
from mitmproxy.test import taddons
from mitmproxy.test.tflow import tflow

from mcp_tool_filter.adapters.effects.carry_out import Effects
from mcp_tool_filter.adapters.mitmproxy.forward.event_streams import (
    filter_whole_stream,
    frame_as_stream,
    through_stream,
)
from mcp_tool_filter.adapters.mitmproxy.forward.safe.orders import Injected
from mcp_tool_filter.http.event_stream import EventStream
from tests.http.listening import asked, listener
from tests.make import asking, definition, event, listing

SHOWN = event(listing("read"))
HIDDEN = event(listing("read", "rm"))


def stream() -> EventStream:
    door = listener()
    return door.open_stream(asked(asking("tools/list"), door), "/mcp", None)


@pytest.mark.parametrize(
    ("version", "framed"),
    [
        ("HTTP/1.0", {"connection": "close"}),
        ("HTTP/1.1", {"transfer-encoding": "chunked"}),
        ("HTTP/2.0", {}),
    ],
)
def test_a_stream_has_no_length_and_ends_as_its_version_can(
    version: str, framed: dict[str, str]
) -> None:
    flow = tflow()
    flow.request.http_version = version
    response = Response.make(200, b"", {"content-length": "7", "content-type": "text/event-stream"})
    response.http_version = "HTTP/2.0" if version == "HTTP/2.0" else "HTTP/1.1"
    frame_as_stream(flow, response)
    assert dict(response.headers) == {"content-type": "text/event-stream", **framed}


def test_an_empty_result_for_a_chunk_does_not_end_the_stream() -> None:
    on_chunk = through_stream(tflow(), stream(), Effects())
    assert on_chunk(HIDDEN[:10]) == []
    assert on_chunk(HIDDEN[10:]) == [SHOWN]
    assert on_chunk(b"") == []


def test_only_bytes_injected_into_this_flow_pass_unfiltered() -> None:
    """Else what another addon, or another flow, injects would be no event of this stream."""
    flow = tflow()
    on_chunk = through_stream(flow, stream(), Effects())
    ours, other = Injected(b"data: ours\n\n"), Injected(b"data: other\n\n")
    ours.flow_id, other.flow_id = flow.id, "another"
    assert on_chunk(ours) == [b"data: ours\n\n"]
    assert on_chunk(other) == []


def test_a_stream_that_cannot_be_judged_is_closed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    flow, filtered = tflow(resp=True), stream()
    monkeypatch.setattr(filtered, "feed", lambda *_: fail(filtered))
    with taddons.context():
        on_chunk = through_stream(flow, filtered, Effects())
        assert on_chunk(definition("rm")) == []
    assert "cannot judge" in caplog.text


def fail(filtered: EventStream) -> bytes:
    filtered.failure = RuntimeError("a bug")
    return b"secret"


async def test_a_stream_that_arrives_whole_is_filtered() -> None:
    flow, effects, filtered = tflow(), Effects(), stream()
    response = Response.make(200, HIDDEN + HIDDEN)
    response.stream = through_stream(flow, filtered, effects)
    await filter_whole_stream(response, filtered, effects)
    assert response.data.content == SHOWN + SHOWN
