"""Messages out of a response that is an event stream, however it is cut."""

from __future__ import annotations

import json
from collections.abc import Iterable

import pytest

from mcp_tool_filter.adapters.fetch.mcp_events import EventReader
from mcp_tool_filter.adapters.sockets.client import HttpResponse
from mcp_tool_filter.errors import ProtocolError
from tests.make import answering, event


class Said(HttpResponse):
    """A response whose body comes in these pieces."""

    def __init__(self, pieces: Iterable[bytes], coding: str = "") -> None:
        self._pieces = iter(pieces)
        self._coding = coding

    @property
    def coding(self) -> str:
        return self._coding

    async def next_chunk(self) -> bytes:
        return next(self._pieces, b"")


async def results(*pieces: bytes, limit: int = 1000) -> list[object]:
    reader = EventReader(Said(pieces), limit)
    found = []
    while message := await reader.next_message():
        found.append(json.loads(message[1])["id"])
    return found


async def test_messages_come_one_after_the_other() -> None:
    stream = event(answering("{}", id="1")) + event(answering("{}", id='"b"'))
    assert await results(stream) == [1, "b"]
    assert await results(*(stream[at : at + 1] for at in range(len(stream)))) == [1, "b"]


async def test_a_batch_is_split_into_its_messages() -> None:
    batch = b"[%s,%s]" % (answering("{}", id="1"), answering("{}", id="2"))
    assert await results(event(batch)) == [1, 2]


async def test_keep_alive_events_are_no_messages() -> None:
    quiet = b": ping\n\nevent: endpoint\ndata: /x\n\ndata: hello\n\nid: 1\n\n"
    assert await results(quiet, event(answering("{}", id="3"))) == [3]


async def test_raw_events_can_be_read() -> None:
    reader = EventReader(Said([b"event: endpoint\ndata: /x\n\n"]), 100)
    found = await reader.next_event()
    assert found
    assert (found.name, found.data) == (b"endpoint", b"/x")
    assert await reader.next_event() is None


@pytest.mark.parametrize(
    "pieces",
    [
        [b"data: " + b"x" * 200 + b"\n\n"],
        [b"data: ", *[b"x" * 20] * 10],
        [b": "] + [b"x" * 20] * 10,
    ],
)
async def test_a_long_event_is_refused(pieces: list[bytes]) -> None:
    with pytest.raises(ProtocolError, match="An event is longer than 100 bytes"):
        await results(*pieces, limit=100)


async def test_a_compressed_stream_is_refused() -> None:
    with pytest.raises(ProtocolError, match=r"compressed \(gzip\)"):
        await EventReader(Said([b""], "gzip"), 100).next_event()
