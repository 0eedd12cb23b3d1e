"""A list that was judged once is not read again, until the patterns change."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcp_tool_filter.core.conversation.memory import JudgedLists
from mcp_tool_filter.core.conversation.policy_in_force import Judged
from mcp_tool_filter.core.http.asked import Answered
from mcp_tool_filter.core.http.listener import Listener
from mcp_tool_filter.core.messages.large import find_result_envelope
from mcp_tool_filter.core.messages.messages import Response, ids_in
from mcp_tool_filter.core.policy.taking import take_snapshot
from mcp_tool_filter.core.policy.verdict import Forward
from tests.core.http.listening import JSON, SSE, answer, hear, listener, waiting_for
from tests.make import answering, asking, definition, event, listing

NO_TOOLS = take_snapshot([])
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
    "1", "2", "77", '"a"', '"7-f"', "1.0", "01", "-1", "null", '"\\u0061"', '"a\\"b"', '"schema"',
    '"tools"', '1,"id":2', '"a"b"', '{"id":1}', "1 ", "", '"' + "x" * 70 + '"',
]  # fmt: skip


def is_id(text: str) -> bool:
    return ids_in(asking("ping", id=text)) == [text]


def facts(judged: Judged) -> object:
    """What the audit log, for one, reads in a message."""
    if not isinstance(message := judged.message, Response):
        return message and type(message), judged.verdict
    result = message.result and message.place.cut(message.result)
    return message.id, result, judged.verdict


def judgements(*said: tuple[str, bytes, str]) -> object:
    """Let the upstream answer these requests; return what becomes of the last answer."""
    told: list[object] = []
    door = listener()
    door.policy.observe = lambda one: told.append(facts(one))
    for method, raw, kind in said:
        for_them = waiting_for(door, *[asking(method, id=id) for id in filter(is_id, IDS)])
        told.clear()
        if kind == SSE:
            stream = door.open_stream(for_them, "/mcp", None)
            left: object = stream.feed(event(raw)), stream.finish()
        else:
            left = answer(door, for_them, raw, kind=kind)
    return left, told, list(for_them.conversation.exchanges.methods)


@settings(max_examples=300)
@given(
    before=st.lists(st.sampled_from(LISTS), min_size=1, max_size=3),
    at=st.integers(0, 10_000),
    cut=st.integers(0, 3),
    insert=st.sampled_from([b"", b"", b" ", b"1", b'"', b"\\", b'"id":3,', b"]", b"}", b"\xff"]),
    id=st.sampled_from(IDS),
    method=st.sampled_from(["tools/list", "tools/list", "prompts/list", "ping", "initialize"]),
    kind=st.sampled_from([JSON, SSE]),
    is_batch=st.integers(0, 9).map(lambda number: number == 0),
)
def test_a_remembered_list_is_judged_like_a_new_one(
    before: list[bytes], at: int, cut: int, insert: bytes, id: str, method: str, kind: str,
    is_batch: bool,
) -> None:  # fmt: skip
    """The same bytes, the same verdict, the same watchers' news, as if it were the first list."""
    raw = before[0].replace(b'"id":1', b'"id":' + id.encode(), 1)
    raw = raw.replace(b'"id": 1 }', b'"id": ' + id.encode() + b" }", 1)
    at %= len(raw) + 1
    raw = raw[:at] + insert + raw[at + cut * bool(insert) :]
    raw = b"[" + raw + b"]" if is_batch else raw
    warm = [(each, one, JSON) for one in before for each in ("tools/list", "prompts/list")]
    assert judgements(*warm, (method, raw, kind)) == judgements((method, raw, kind))


def test_a_judged_list_is_not_parsed_again(door: Listener, monkeypatch: pytest.MonkeyPatch) -> None:
    hear(LISTS[0], asking("tools/list"), door)
    for_it = waiting_for(door, asking("tools/list", id="2"))
    monkeypatch.delattr("mcp_tool_filter.core.conversation.conversation.parse_message")
    again = listing("read", "rm", id="2")
    assert answer(door, for_it, again) == Answered(200, listing("read", id="2"))


def test_the_bytes_and_the_number_of_remembered_lists_are_bounded() -> None:
    raws = [listing(name) for name in ("a", "b", "c")]
    envelopes = [envelope for raw in raws if (envelope := find_result_envelope(raw))]
    size = envelopes[0].end - envelopes[0].start
    for judged in (JudgedLists(most=2), JudgedLists(most_bytes=2 * size)):
        for raw, envelope in zip(raws, envelopes, strict=True):
            judged.remember(raw, envelope, Forward(), NO_TOOLS)
        pairs = list(zip(raws, envelopes, strict=True))
        known = [judged.recall(*pair, NO_TOOLS) for pair in pairs]
        assert known == [None, Forward(), Forward()]
        assert judged.recall(*pairs[1], take_snapshot([])) is None
