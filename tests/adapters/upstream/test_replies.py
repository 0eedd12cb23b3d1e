"""The answers of an upstream to our own requests, whole or as events."""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import suppress

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_tool_filter.adapters.sockets.client import HttpResponse
from mcp_tool_filter.adapters.upstream.replies import (
    EventReader,
    Refused,
    ResultReply,
    RpcError,
    answer_to,
    error_in,
    introduction_of,
    next_cursor,
    only_reply,
    supported_by,
)
from mcp_tool_filter.errors import ProtocolError
from tests.make import answering, event


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"{nonsense", "The answer is not valid JSON"),
        (b"", "The answer is not valid JSON"),
        (b'{"a":' * 100_000, "The answer is not valid JSON"),
        (b'{"jsonrpc":"2.0","id":3,"result":{"x":NaN}}', "The answer is not valid JSON"),
        (b'"text"', "The answer is not a JSON-RPC 2.0 message"),
        (b'{"id":3,"result":{}}', "The answer is not a JSON-RPC 2.0 message"),
        (b'{"jsonrpc":"2.0","id":4,"result":{}}', "The answer does not have the id of the request"),
        (
            b'{"jsonrpc":"2.0","id":"3","result":{}}',
            "The answer does not have the id of the request",
        ),
        (
            b'{"jsonrpc":"2.0","id":true,"result":{}}',
            "The answer does not have the id of the request",
        ),
        (
            b'{"jsonrpc":"2.0","id":3,"method":"x"}',
            "The answer does not have the id of the request",
        ),
        (b'{"jsonrpc":"2.0","id":3}', "The answer has neither a result nor an error"),
        (b'{"jsonrpc":"2.0","id":3,"result":[]}', "The answer has neither a result nor an error"),
    ],
)
def test_an_unusable_answer_is_described(body: bytes, said: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        only_reply(3, body)
    assert str(caught.value) == said


def test_a_reply_keeps_its_bytes_even_from_a_batch() -> None:
    odd = b'{"id" : 3,"result":{"x":1.0e2,"y":"\\u00e9"}, "jsonrpc":"2.0"}'
    note = b'{"jsonrpc":"2.0","method":"notifications/message"}'
    assert only_reply(3, odd).raw == odd
    assert only_reply(3, b" [" + note + b", " + odd + b"]").raw == odd


def test_an_error_is_made_printable() -> None:
    shown = str(Refused(200, "HTTP 200 OK", RpcError(-1, "\x1b[31mred\n" + "é" * 1000, None)))
    assert shown == "JSON-RPC error -1: \\x1b[31mred\\n" + "é" * 191 + "…"


def test_an_error_may_lack_an_id() -> None:
    with pytest.raises(Refused) as caught:
        only_reply(3, b'{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"what?"}}')
    assert str(caught.value) == "JSON-RPC error -32600: what?"


def test_a_refusal_says_its_status_and_its_error() -> None:
    error = error_in(b'{"jsonrpc":"2.0","error":{"code":-32600,"message":"what?"}}')
    shown = str(Refused(400, "HTTP 400 Bad Request", error))
    assert shown == "HTTP 400 Bad Request, JSON-RPC error -32600: what?"


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b'{"error":"sorry"}'])
def test_the_body_of_a_refusal_need_not_be_a_message(body: bytes) -> None:
    assert error_in(body) is None


@pytest.mark.parametrize(
    ("asked", "answered"),
    [
        ({"id": 1, "method": "ping"}, {"id": 1, "result": {}}),
        (
            {"id": "a", "method": "sampling/createMessage"},
            {"id": "a", "error": {"code": -32601, "message": "Method not found"}},
        ),
    ],
)
def test_pings_are_answered_and_other_requests_refused(
    asked: dict[str, object], answered: dict[str, object]
) -> None:
    assert json.loads(answer_to(asked) or b"") == {"jsonrpc": "2.0"} | answered


@pytest.mark.parametrize("said", [{"method": "ping"}, {"id": 1, "result": {}}, {"id": None}])
def test_notifications_get_no_answer(said: dict[str, object]) -> None:
    assert answer_to(said) is None


@pytest.mark.parametrize(
    ("result", "cursor"),
    [
        ({"tools": []}, None),
        ({"tools": [], "nextCursor": None}, None),
        ({"tools": [], "nextCursor": ""}, None),
        ({"tools": [], "nextCursor": "2"}, "2"),
    ],
)
def test_a_page_says_where_the_next_one_begins(
    result: dict[str, object], cursor: str | None
) -> None:
    """An empty cursor would ask for the first page again."""
    assert next_cursor(ResultReply(b"", result)) == cursor


@pytest.mark.parametrize("result", [{}, {"tools": {}}, {"tools": [], "nextCursor": 1}])
def test_an_answer_without_a_tool_list_is_refused(result: dict[str, object]) -> None:
    with pytest.raises(ProtocolError):
        next_cursor(ResultReply(b"", result))


def test_an_empty_introduction_is_accepted() -> None:
    info: object
    for info in ([], {"name": None, "version": None}):
        strange: dict[str, object] = {"capabilities": None, "serverInfo": info, "_meta": "x"}
        introduction = introduction_of(ResultReply(b"", strange), revision="2025-06-18")
        assert (introduction.server_name, introduction.server_version) == ("", "")
        assert not introduction.has_tools


def test_a_server_name_is_made_printable() -> None:
    reply = ResultReply(b"", {"serverInfo": {"name": "\x1b[2J", "version": 3}})
    introduction = introduction_of(reply, revision="2025-06-18")
    assert (introduction.server_name, introduction.server_version) == ("\\x1b[2J", "3")


@pytest.mark.parametrize("data", [None, {}, {"supported": "2026-07-28"}, []])
def test_an_error_may_name_no_revisions(data: object) -> None:
    assert supported_by(RpcError(-32022, "no", data)) == ()


words = st.text(max_size=4) | st.sampled_from(
    ["jsonrpc", "2.0", "id", "method", "result", "error", "code", "data", "supported", "tools"]
)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=4),
    max_leaves=12,
)


@given(st.binary(max_size=40) | values.map(orjson.dumps))
def test_any_input_is_a_reply_or_is_refused(body: bytes) -> None:
    with suppress(Refused, ProtocolError):
        next_cursor(only_reply(1, body))


@given(st.dictionaries(words, values))
def test_any_introduction_can_be_printed(said: dict[str, object]) -> None:
    introduction = introduction_of(ResultReply(b"", said), revision="2025-06-18")
    assert (introduction.server_name + introduction.server_version).isprintable()


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
