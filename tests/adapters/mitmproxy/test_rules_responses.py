"""What rules do with responses: JSON, events, cached results, and the snapshot's lists."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.adapters.mitmproxy.filtered import INITIALIZE, LIST, call
from tests.adapters.mitmproxy.ruled import HIDDEN, REDACT, SECRET, WAIT, ruled, streaming
from tests.mcp_upstream import saying
from tests.raw_client import MCP_HEADERS, get
from tests.raw_upstream import Peer, RawRequest, answer


async def test_a_json_answer_is_changed(tmp_path: Path) -> None:
    async with ruled(tmp_path, REDACT, respond=saying(SECRET)) as between:
        got = await between.ask(call("read_file"))
        assert got.body == HIDDEN
        assert got.all("content-length") == [str(len(HIDDEN))]


async def test_an_event_is_changed(tmp_path: Path) -> None:
    respond = streaming(b"id: 1\ndata: " + SECRET + b"\n\n", b": ping\n\n")
    async with ruled(tmp_path, REDACT, respond=respond) as between:
        got = await between.ask(call("read_file"))
        assert got.body == b"id: 1\ndata: " + HIDDEN + b"\n\n: ping\n\n"


async def test_a_response_on_a_resumed_stream_is_matched_to_its_request(tmp_path: Path) -> None:
    """What answers a request may come on another stream, after Last-Event-ID."""

    async def respond(request: RawRequest, peer: Peer) -> None:
        if request.line.startswith("GET"):
            await streaming(b"data: " + SECRET + b"\n\n")(request, peer)
        else:
            await peer.say(answer(b"", status="202 Accepted"))

    async with ruled(tmp_path, REDACT, respond=respond, session=b"s1") as between:
        await between.ask(INITIALIZE)
        session = b"Mcp-Session-Id: s1\r\n"
        await between.ask(call("read_file"), session)
        got = await between.client.ask(get(headers=MCP_HEADERS + session))
        assert HIDDEN in got.body


async def test_a_delay_applies_in_both_directions(tmp_path: Path) -> None:
    async with ruled(tmp_path, WAIT, respond=streaming(b"data: " + SECRET + b"\n\n")) as between:
        got = await between.ask(call("read_file"))
        assert got.body == b"data: " + SECRET + b"\n\n"


CACHE = """
  - id: cache
    conditions: [method_equals: vendor/get]
    actions: [cache: {key: "${params_hash}", ttl: 1m}]
  - id: mask
    conditions: [method_equals: vendor/get, result_exists: x]
    actions: [redact: {pattern: "sk-."}]
"""

GET = b'{"jsonrpc":"2.0","id":%s,"method":"vendor/get","params":{"a":1}}'


async def test_a_cached_result_answers_and_passes_the_response_rules(tmp_path: Path) -> None:
    respond = saying(b'{"jsonrpc":"2.0","id":1,"result":{"x":"sk-1"}}')
    async with ruled(tmp_path, CACHE, respond=respond) as between:
        first = await between.ask(GET % b"1")
        second = await between.ask(GET % b'"two"')
        assert first.body == b'{"jsonrpc":"2.0","id":1,"result":{"x":"***"}}'
        assert second.body == b'{"jsonrpc":"2.0","id":"two","result":{"x":"***"}}'
        assert len(between.upstream.asked) == 1
        other = await between.ask(GET % b"3", b"Authorization: Bearer other\r\n")
        assert other.status == 200
        assert len(between.upstream.asked) == 2


@pytest.mark.parametrize(
    "said",
    [
        b'{"jsonrpc":"2.0","id":1,"error":{"code":-1,"message":"x"}}',
        b'{"jsonrpc":"2.0","id":1,"result":{"isError":true,"content":[]}}',
    ],
)
async def test_failures_are_not_cached(tmp_path: Path, said: bytes) -> None:
    async with ruled(tmp_path, CACHE, respond=saying(said)) as between:
        await between.ask(GET % b"1")
        await between.ask(GET % b"1")
        assert len(between.upstream.asked) == 2


async def test_a_list_that_the_snapshot_answers_passes_the_rules(tmp_path: Path) -> None:
    rules = """
  - {id: mask, conditions: [method_equals: tools/list, result_exists: tools],
     actions: [redact: {pattern: "object"}]}
  - {id: limit, conditions: [method_equals: tools/list],
     actions: [rate_limit: {key: k, limit: 1, window: 1h}]}
"""

    async with ruled(tmp_path, rules, tools_list=["cache"]) as between:
        got = await between.ask(LIST)
        assert b'"type":"***"' in got.body
        assert between.upstream.asked == []
        again = await between.ask(LIST)
        assert json.loads(again.body)["error"]["data"]["action"] == "rate_limit"


OWN_ERRORS = """
  - {id: no, conditions: [{method_equals: vendor/block}], actions: [{block: "not here"}]}
  - {id: made, conditions: [{method_equals: vendor/inject}], actions: [{inject_error: {code: 7, message: "not here"}}]}
  - {id: few, conditions: [{method_equals: vendor/limit}], actions: [{rate_limit: {key: all, limit: 0, window: 1m}}]}
  - {id: read, conditions: [{method_equals: vendor/read}, {param_exists: a}], actions: [{block: "not here"}]}
  - {id: broken, conditions: [{method_equals: vendor/break}], actions: [{set_param: {field: "a[0]", value: 1}}]}
  - id: told
    on: response
    conditions:
      - {any: [{error_message_contains: "not here"}, {error_message_contains: limit}, {error_code_equals: -32600}, {error_message_contains: applied}]}
    actions: [{inject_error: {code: 9, message: "told ${method} ${params.x}"}}]
"""  # noqa: E501 - a line for each rule


@pytest.mark.parametrize("method", ["block", "inject", "limit"])
async def test_the_errors_of_rules_pass_the_response_rules(tmp_path: Path, method: str) -> None:
    """They are answers, as those from a cache or the snapshot are."""
    asked = b'{"jsonrpc":"2.0","id":"i","method":"vendor/%s","params":{"x":5}}' % method.encode()
    async with ruled(tmp_path, OWN_ERRORS) as between:
        got = json.loads((await between.ask(asked)).body)
        assert got == {
            "jsonrpc": "2.0",
            "id": "i",
            "error": {"code": 9, "message": f"told vendor/{method} 5"},
        }
        assert not between.upstream.asked


@pytest.mark.parametrize(
    ("said", "code"),
    [
        (b'"method":"vendor/read","params":{"a":1,"a":2}', -32600),
        (b'"method":"vendor/break","params":{"a":[]}', -32001),
    ],
)
async def test_the_errors_of_what_no_rule_decided_stay_as_they_are(
    tmp_path: Path, said: bytes, code: int
) -> None:
    async with ruled(tmp_path, OWN_ERRORS) as between:
        got = json.loads((await between.ask(b'{"jsonrpc":"2.0","id":1,%s}' % said)).body)
        assert got["error"]["code"] == code


async def test_the_errors_of_rules_in_a_batch_pass_the_response_rules(tmp_path: Path) -> None:
    member = b'{"jsonrpc":"2.0","id":%d,"method":"vendor/block","params":{"x":%d}}'
    async with ruled(tmp_path, OWN_ERRORS) as between:
        got = json.loads((await between.ask(b"[%s,%s]" % (member % (1, 1), member % (2, 2)))).body)
        assert [one["error"]["message"] for one in got] == [
            "told vendor/block 1",
            "told vendor/block 2",
        ]
