"""The answers of an upstream to our own requests, whole or as events."""

from __future__ import annotations

import json
from contextlib import suppress

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_tool_filter.core.errors import ProtocolError
from mcp_tool_filter.core.upstream import replies
from mcp_tool_filter.core.upstream.replies import Refused, ResultReply, only_reply
from tests.rows import each_row

LONG = b"x" * 1000
NO_JSON, NO_MESSAGE = "The answer is not valid JSON", "The answer is not a JSON-RPC 2.0 message"
OTHER_ID = "The answer does not have the id of the request"
NEITHER = "The answer has neither a result nor an error"


@each_row(("body", "said"), [
    (b"{nonsense", NO_JSON), (b"", NO_JSON), (b'{"a":' * 100_000, NO_JSON),
    (b'{"jsonrpc":"2.0","id":3,"result":{"x":NaN}}', NO_JSON),
    (b'"text"', NO_MESSAGE), (b'{"id":3,"result":{}}', NO_MESSAGE),
    (b'{"jsonrpc":"2.0","id":4,"result":{}}', OTHER_ID),
    (b'{"jsonrpc":"2.0","id":"3","result":{}}', OTHER_ID),
    (b'{"jsonrpc":"2.0","id":true,"result":{}}', OTHER_ID),
    (b'{"jsonrpc":"2.0","id":3,"method":"x"}', OTHER_ID),
    (b'{"jsonrpc":"2.0","id":3}', NEITHER),
    (b'{"jsonrpc":"2.0","id":3,"result":[]}', NEITHER),
])  # fmt: skip
def test_an_unusable_answer_is_described(body: bytes, said: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        only_reply(3, body)
    assert str(caught.value) == said


@pytest.mark.parametrize("value", ['"cut off: \\ud83d"', "1e400"])
def test_valid_json_that_orjson_refuses_is_an_answer(value: str) -> None:
    """A server that cuts descriptions off could not be started."""
    raw = b'{"jsonrpc":"2.0","id":3,"result":{"x":%b}}' % value.encode()
    assert only_reply(3, raw).raw == raw


def test_an_error_may_lack_an_id() -> None:
    with pytest.raises(Refused) as caught:
        only_reply(3, b'{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"what?"}}')
    assert str(caught.value) == "JSON-RPC error -32600: what?"


def test_a_refusal_says_its_status_and_its_error_in_printable_words() -> None:
    error = replies.error_in(
        b'{"jsonrpc":"2.0","error":{"code":-1,"message":"\\u001b[31mred\\n%b"}}' % LONG
    )
    shown = str(Refused(400, "HTTP 400 Bad Request", error))
    said = "JSON-RPC error -1: \\x1b[31mred\\n" + "x" * 191 + "…"
    assert shown == f"HTTP 400 Bad Request, {said}"


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b'{"error":"sorry"}'])
def test_the_body_of_a_refusal_need_not_be_a_message(body: bytes) -> None:
    assert replies.error_in(body) is None


@pytest.mark.parametrize(("asked", "answered"), [
    ({"id": 1, "method": "ping"}, {"id": 1, "result": {}}),
    ({"id": 1, "method": "roots/list"}, {"id": 1, "result": {"roots": []}}),
    (
        {"id": "a", "method": "sampling/createMessage"},
        {"id": "a", "error": {"code": -32601, "message": "Method not found"}},
    ),
])  # fmt: skip
def test_pings_and_roots_are_answered_and_other_requests_refused(
    asked: dict[str, object], answered: dict[str, object]
) -> None:
    assert json.loads(replies.answer_to(asked) or b"") == {"jsonrpc": "2.0"} | answered


@pytest.mark.parametrize("said", [{"method": "ping"}, {"id": 1, "result": {}}, {"id": None}])
def test_notifications_get_no_answer(said: dict[str, object]) -> None:
    assert replies.answer_to(said) is None


@pytest.mark.parametrize("result", [{}, {"tools": {}}, {"tools": [], "nextCursor": 1}])
def test_an_answer_without_a_tool_list_is_refused(result: dict[str, object]) -> None:
    with pytest.raises(ProtocolError):
        replies.next_cursor(ResultReply(b"", result))


def test_an_empty_introduction_is_accepted() -> None:
    info: object
    for info in ([], {"name": None, "version": None}):
        strange: dict[str, object] = {"capabilities": None, "serverInfo": info, "_meta": "x"}
        introduction = replies.introduction_of(ResultReply(b"", strange), revision="2025-06-18")
        assert (introduction.server_name, introduction.server_version) == ("", "")
        assert not introduction.has_tools


def test_a_server_name_is_made_printable() -> None:
    reply = ResultReply(b"", {"serverInfo": {"name": "\x1b[2J", "version": 3}})
    introduction = replies.introduction_of(reply, revision="2025-06-18")
    assert (introduction.server_name, introduction.server_version) == ("\\x1b[2J", "3")


@pytest.mark.parametrize("data", [None, {}, {"supported": "2026-07-28"}, []])
def test_an_error_may_name_no_revisions(data: object) -> None:
    assert replies.supported_by(replies.RpcError(-32022, "no", data)) == ()


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
        replies.next_cursor(only_reply(1, body))


@given(st.dictionaries(words, values))
def test_any_introduction_can_be_printed(said: dict[str, object]) -> None:
    introduction = replies.introduction_of(ResultReply(b"", said), revision="2025-06-18")
    assert (introduction.server_name + introduction.server_version).isprintable()
