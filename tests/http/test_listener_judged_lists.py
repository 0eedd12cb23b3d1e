"""A list that was judged once is not read again, until the patterns change."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcp_tool_filter.conversation.conversation import Conversation
from mcp_tool_filter.http.exchange import Answered
from mcp_tool_filter.policy.verdict import Reply
from mcp_tool_filter.protocol.messages import ids_in
from tests.http.listening import (
    JSON,
    SSE,
    answer,
    asked,
    change_patterns,
    hear,
    listener,
    say,
    waiting_for,
)
from tests.make import answering, asking, calling, definition, event, listing, text_of

LISTS = [
    listing("read", "rm"),
    listing("read"),
    listing("rm", "new", more=',"nextCursor":"2"'),
    b' {"result": {"tools" :[' + definition("rm") + b', 1]}, "jsonrpc":"2.0", "id": 1 }\n',
    answering('{"id":1,"_meta":{"id":1},"tools":[' + definition("read", ',"x":1').decode() + "]}"),
    answering('{"tools":[],"_meta":{"input\\nSchema":1,"name":"rm"}}'),
    answering('{"tools":[1]}'),
    answering("{}"),
]

IDS = [
    "1",
    "2",
    "77",
    '"a"',
    '"7-f"',
    "1.0",
    "01",
    "-1",
    "null",
    '"\\u0061"',
    '"a\\"b"',
    '"schema"',
]
IDS += ['"tools"', '1,"id":2', '"a"b"', '{"id":1}', "1 ", "", '"' + "x" * 70 + '"']


def is_id(text: str) -> bool:
    return ids_in(asking("ping", id=text)) == [text]


def judgements(*said: tuple[str, bytes, str]) -> object:
    """Let the upstream answer these requests; return what becomes of the last answer."""
    told: list[object] = []
    door = listener()
    door.policy.observe = lambda one: told.append((getattr(one.message, "id", None), one.verdict))
    for method, raw, kind in said:
        for_them = waiting_for(door, *[asking(method, id=id) for id in filter(is_id, IDS)])
        told.clear()
        if kind == SSE:
            stream = door.open_stream(for_them, "/mcp", None)
            left: object = stream.feed(event(raw)) + stream.finish()
        else:
            left = answer(door, for_them, 200, kind, "", raw)
    return left, told, list(for_them.conversation.exchanges.methods)


@settings(max_examples=300)
@given(
    before=st.lists(st.sampled_from(LISTS), min_size=1, max_size=3),
    at=st.integers(0, 10_000),
    cut=st.integers(0, 3),
    insert=st.sampled_from([b"", b"", b" ", b"1", b'"', b"\\", b'"id":3,', b"]", b"}", b"\xff"]),
    id=st.sampled_from(IDS),
    method=st.sampled_from(["tools/list", "tools/list", "tools/list", "ping", "initialize"]),
    kind=st.sampled_from([JSON, SSE]),
    is_batch=st.integers(0, 9).map(lambda number: number == 0),
)
def test_a_remembered_list_is_judged_like_a_new_one(
    before: list[bytes],
    at: int,
    cut: int,
    insert: bytes,
    id: str,
    method: str,
    kind: str,
    is_batch: bool,
) -> None:
    """The same bytes, the same verdict, the same watchers' news, as if it were the first list."""
    raw = before[0].replace(b'"id":1', b'"id":' + id.encode(), 1)
    raw = raw.replace(b'"id": 1 }', b'"id": ' + id.encode() + b" }", 1)
    at %= len(raw) + 1
    raw = raw[:at] + insert + raw[at + cut * bool(insert) :]
    raw = b"[" + raw + b"]" if is_batch else raw
    warm = [("tools/list", one, JSON) for one in before]
    assert judgements(*warm, (method, raw, kind)) == judgements((method, raw, kind))


def test_an_already_judged_list_is_not_parsed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    door = listener()
    hear(LISTS[0], asking("tools/list"), door)
    for_it = waiting_for(door, asking("tools/list", id="2"))
    monkeypatch.delattr("mcp_tool_filter.conversation.conversation.parse_message")
    again = listing("read", "rm", id="2")
    assert answer(door, for_it, 200, JSON, "", again) == Answered(200, listing("read", id="2"))


def test_a_list_is_judged_again_when_the_patterns_change() -> None:
    door = listener()
    hear(LISTS[0], asking("tools/list"), door)
    change_patterns(door, "^read")
    assert hear(LISTS[0], asking("tools/list"), door) == Answered(200, listing("rm"))


@pytest.mark.parametrize("target", ["/mcp", "/sse"])
def test_an_open_stream_follows_the_patterns_in_force(target: str) -> None:
    """A stream may stay open for days; a tool that is denied meanwhile must not show on it."""
    door = listener()
    waiting = asked(asking("tools/list"), door)
    stream = door.open_stream(waiting, target, None)
    assert stream.feed(event(listing("read", "rm"))) == event(listing("read"))
    change_patterns(door, "^read")
    assert stream.feed(event(listing("read", "rm"))) == event(listing("rm"))
    named = b'event: other\ndata: {"x":' + definition("read") + b"}\n\n"
    assert stream.feed(named) == b""


def test_an_open_socket_and_a_waiting_request_follow_the_patterns_in_force() -> None:
    door = listener()
    socket, waiting = Conversation(door.policy), asked(asking("tools/list"), door)
    say(socket, asking("tools/list"), True)
    change_patterns(door, "^read")
    assert isinstance(say(socket, calling("read"), True), Reply)
    assert text_of(say(socket, listing("read", "rm"), False)) == listing("rm")
    judged = answer(door, waiting, 200, JSON, "", listing("read", "rm"))
    assert judged == Answered(200, listing("rm"))
