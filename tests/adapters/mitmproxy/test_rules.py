"""Rules in a real mitmproxy: on requests, answers, events, batches, sockets, and when edited."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from mitmproxy import ctx
from mitmproxy.exceptions import OptionsError

from mcp_tool_filter.adapters.mitmproxy.addon import ToolFilter
from tests.adapters.mitmproxy.filtered import (
    INITIALIZE,
    LIST,
    READ,
    Filtered,
    call,
    filtered,
    not_found,
)
from tests.mcp_upstream import mcp_upstream, saying
from tests.proxy import SCRIPT, proxy, tool
from tests.raw_client import MCP_HEADERS, get, post, raw_client
from tests.raw_upstream import LAST_CHUNK, SSE_HEAD, Peer, RawRequest, answer, chunk
from tests.websocket import accept, connect

type Test = Callable[[Filtered], Coroutine[Any, Any, None]]


def run(home: Path, rules: str, test: Test, **options: Any) -> None:
    """Run a test between an upstream and a client, with these rules (a YAML list)."""

    async def main() -> None:
        async with filtered(home, rules=[write(home, rules)], **options) as between:
            await test(between)

    asyncio.run(main())


def write(home: Path, rules: str, top: str = "") -> str:
    path = home / "rules.yaml"
    path.write_text(f"interceptor:\n{top}  rules:\n{rules}")
    return str(path)


def blocked(rule: str, reason: str, id: str = "1", action: str = "block") -> bytes:
    data = f'{{"rule":"{rule}","action":"{action}"}}'
    error = f'{{"code":-32001,"message":"{reason}","data":{data}}}'
    return f'{{"jsonrpc":"2.0","id":{id},"error":{error}}}'.encode()


BLOCK = """
  - id: no-etc
    conditions: [tool_equals: read_file, param_matches: {field: arguments.path, pattern: ^/etc}]
    actions: [block: not there]
"""


def test_a_request_is_blocked_and_others_keep_their_bytes(tmp_path: Path) -> None:
    async def test(between: Filtered) -> None:
        got = await between.ask(call("read_file", '{"path":"\\/etc/passwd"}', id='"\\u0061"'))
        assert (got.status, got.body) == (200, blocked("no-etc", "not there", '"\\u0061"'))
        fine = call("read_file", '{ "path" :"/home", "n":1.00}')
        await between.ask(fine)
        assert [request.body for request in between.upstream.asked] == [fine]

    run(tmp_path, BLOCK, test)


def test_rules_never_see_what_the_filter_refuses(tmp_path: Path) -> None:
    rules = "  - {id: a, conditions: [tool_equals: delete_file], actions: [block: seen]}\n"

    async def test(between: Filtered) -> None:
        got = await between.ask(call("delete_file"))
        assert got.body == not_found("delete_file")

    run(tmp_path, rules, test)


def test_a_notification_is_dropped(tmp_path: Path) -> None:
    async def test(between: Filtered) -> None:
        note = call("read_file", '{"path":"/etc/x"}').replace(b'"id":1,', b"")
        assert (await between.ask(note)).status == 202
        assert between.upstream.asked == []

    run(tmp_path, BLOCK, test)


def test_the_members_of_a_batch_are_judged_one_by_one(tmp_path: Path) -> None:
    async def test(between: Filtered) -> None:
        bad, good = call("read_file", '{"path":"/etc/x"}', id="1"), call("read_file", id="2")
        got = await between.ask(b"[" + bad + b"," + good + b"]")
        assert json.loads(got.body) == [json.loads(OK), json.loads(blocked("no-etc", "not there"))]
        assert [request.body for request in between.upstream.asked] == [b"[" + good + b"]"]

    run(tmp_path, BLOCK, test, respond=saying(OK))


OK = b'{"jsonrpc":"2.0","id":2,"result":{}}'
UNCLEAR = [
    '{"path":"/home","path":"/etc/x"}',
    '{"path":"/home","Path":"/etc/x"}',
    '{"PATH":"/etc/x"}',
]


@pytest.mark.parametrize("arguments", UNCLEAR)
def test_an_unclear_field_is_refused(tmp_path: Path, arguments: str) -> None:
    async def test(between: Filtered) -> None:
        got = await between.ask(call("read_file", arguments, id="9"))
        assert got.status == 200
        assert json.loads(got.body)["error"]["code"] == -32600
        assert json.loads(got.body)["id"] == 9
        assert between.upstream.asked == []

    run(tmp_path, BLOCK, test)


CHANGE = """
  - id: safe
    conditions: [tool_equals: read_file]
    actions: [set_param: {field: arguments.safe, value: true}]
"""


def test_a_change_leaves_every_other_byte(tmp_path: Path) -> None:
    async def test(between: Filtered) -> None:
        await between.ask(call("read_file", '{ "n" :1.00}'))
        (request,) = between.upstream.asked
        assert request.body == call("read_file", '{ "n" :1.00,"safe":true}')
        assert request.all("content-length") == [str(len(request.body))]

    run(tmp_path, CHANGE, test)


RENAME = """
  - id: rename
    conditions: [param_exists: arguments.to]
    actions: [set_param: {field: name, value: "${params.arguments.to}"}, log: {message: late}]
"""


def test_no_rule_makes_a_denied_tool_callable(tmp_path: Path) -> None:
    async def test(between: Filtered) -> None:
        got = await between.ask(call("read_file", '{"to":"delete_file"}'))
        assert got.body == not_found("delete_file")
        assert between.upstream.asked == []

    run(tmp_path, RENAME, test)


def test_headers_follow_a_changed_message(tmp_path: Path) -> None:
    rules = """
  - id: rename
    conditions: [tool_equals: read_file]
    actions: [transform: {json_patch: [{op: replace, path: /name, value: "r\\u00e9ad"}]}]
"""
    headers = b"Mcp-Method: tools/call\r\nMcp-Name: read_file\r\n"

    async def test(between: Filtered) -> None:
        await between.ask(call("read_file"), headers)
        (request,) = between.upstream.asked
        assert request.all("mcp-method") == ["tools/call"]
        assert request.all("mcp-name") == ["=?base64?csOpYWQ=?="]

    async def main() -> None:
        upstreams = mcp_upstream(tools=[READ, READ.replace(b"read_file", "réad".encode())])
        async with (
            upstreams as upstream,
            proxy(
                ToolFilter(), to=upstream.url, home=tmp_path, endpoint=["/mcp"],
                rules=[write(tmp_path, rules)],
            ) as it,
            raw_client(it.port) as client,
        ):  # fmt: skip
            await test(Filtered(upstream, client, it.port))

    asyncio.run(main())


REDACT = """
  - id: secrets
    conditions: [tool_equals: read_file]
    on: response
    actions: [redact: {pattern: "sk-[a-z0-9]+"}]
"""
SECRET = b'{"jsonrpc":"2.0","id":1,"result":{"content":[ {"type":"text","text":"sk-1 a"}],"n":1.0}}'
HIDDEN = SECRET.replace(b"sk-1", b"***")


def test_a_json_answer_is_changed(tmp_path: Path) -> None:
    async def test(between: Filtered) -> None:
        got = await between.ask(call("read_file"))
        assert got.body == HIDDEN
        assert got.all("content-length") == [str(len(HIDDEN))]

    run(tmp_path, REDACT, test, respond=saying(SECRET))


def streaming(*events: bytes) -> Callable[[RawRequest, Peer], Coroutine[Any, Any, None]]:
    async def respond(_request: RawRequest, peer: Peer) -> None:
        body = b"".join(map(chunk, events))
        await peer.say(SSE_HEAD + body + LAST_CHUNK)

    return respond


def test_an_event_is_changed(tmp_path: Path) -> None:
    async def test(between: Filtered) -> None:
        got = await between.ask(call("read_file"))
        assert got.body == b"id: 1\ndata: " + HIDDEN + b"\n\n: ping\n\n"

    respond = streaming(b"id: 1\ndata: " + SECRET + b"\n\n", b": ping\n\n")
    run(tmp_path, REDACT, test, respond=respond)


def test_a_response_on_a_resumed_stream_is_still_known(tmp_path: Path) -> None:
    """What answers a request may come on another stream, after Last-Event-ID."""

    async def respond(request: RawRequest, peer: Peer) -> None:
        if request.line.startswith("GET"):
            await streaming(b"data: " + SECRET + b"\n\n")(request, peer)
        else:
            await peer.say(answer(b"", status="202 Accepted"))

    async def test(between: Filtered) -> None:
        await between.ask(INITIALIZE)
        session = b"Mcp-Session-Id: s1\r\n"
        await between.ask(call("read_file"), session)
        got = await between.client.ask(get(headers=MCP_HEADERS + session))
        assert HIDDEN in got.body

    run(tmp_path, REDACT, test, respond=respond, session=b"s1")


WAIT = """
  - id: wait
    conditions: [tool_equals: read_file]
    on: any
    actions: [delay: 50ms]
"""


def test_a_delay_in_both_directions(tmp_path: Path) -> None:
    async def test(between: Filtered) -> None:
        got = await between.ask(call("read_file"))
        assert got.body == b"data: " + SECRET + b"\n\n"

    run(tmp_path, WAIT, test, respond=streaming(b"data: " + SECRET + b"\n\n"))


def test_a_request_from_the_upstream_is_answered_for_the_client(tmp_path: Path) -> None:
    rules = """
  - {id: no-sampling, conditions: [from: server, method_equals: sampling/createMessage],
     actions: [block: no models here]}
"""
    ask = b'{"jsonrpc":"2.0","id":77,"method":"sampling/createMessage","params":{}}'
    answered: asyncio.Queue[RawRequest] = asyncio.Queue()

    async def respond(request: RawRequest, peer: Peer) -> None:
        if b"-32001" in request.body:
            answered.put_nowait(request)
            await peer.say(answer(b"", status="202 Accepted"))
        else:
            await streaming(b"data: " + ask + b"\n\n", b"data: " + SECRET + b"\n\n")(request, peer)

    async def test(between: Filtered) -> None:
        headers = b"User-Agent: c\r\nAuthorization: Bearer t\r\n"
        got = await between.ask(call("read_file"), headers)
        assert got.body == b"data: " + SECRET + b"\n\n"
        request = await asyncio.wait_for(answered.get(), 20)
        assert request.body == blocked("no-sampling", "no models here", "77")
        assert request.all("authorization") == ["Bearer t"]

    run(tmp_path, rules, test, respond=respond)


CACHE = """
  - id: cache
    conditions: [method_equals: vendor/get]
    actions: [cache: {key: "${params_hash}", ttl: 1m}]
  - id: mask
    conditions: [method_equals: vendor/get, result_exists: x]
    actions: [redact: {pattern: "sk-."}]
"""
GET = b'{"jsonrpc":"2.0","id":%s,"method":"vendor/get","params":{"a":1}}'


def test_a_cached_result_answers_and_passes_the_response_rules(tmp_path: Path) -> None:
    async def test(between: Filtered) -> None:
        first = await between.ask(GET % b"1")
        second = await between.ask(GET % b'"two"')
        assert first.body == b'{"jsonrpc":"2.0","id":1,"result":{"x":"***"}}'
        assert second.body == b'{"jsonrpc":"2.0","id":"two","result":{"x":"***"}}'
        assert len(between.upstream.asked) == 1
        other = await between.ask(GET % b"3", b"Authorization: Bearer other\r\n")
        assert other.status == 200
        assert len(between.upstream.asked) == 2

    respond = saying(b'{"jsonrpc":"2.0","id":1,"result":{"x":"sk-1"}}')
    run(tmp_path, CACHE, test, respond=respond)


@pytest.mark.parametrize(
    "said",
    [
        b'{"jsonrpc":"2.0","id":1,"error":{"code":-1,"message":"x"}}',
        b'{"jsonrpc":"2.0","id":1,"result":{"isError":true,"content":[]}}',
    ],
)
def test_failures_are_not_cached(tmp_path: Path, said: bytes) -> None:
    async def test(between: Filtered) -> None:
        await between.ask(GET % b"1")
        await between.ask(GET % b"1")
        assert len(between.upstream.asked) == 2

    run(tmp_path, CACHE, test, respond=saying(said))


def test_a_list_that_the_snapshot_answers_passes_the_rules(tmp_path: Path) -> None:
    rules = """
  - {id: mask, conditions: [method_equals: tools/list, result_exists: tools],
     actions: [redact: {pattern: "object"}]}
  - {id: limit, conditions: [method_equals: tools/list],
     actions: [rate_limit: {key: k, limit: 1, window: 1h}]}
"""

    async def test(between: Filtered) -> None:
        got = await between.ask(LIST)
        assert b'"type":"***"' in got.body
        assert between.upstream.asked == []
        again = await between.ask(LIST)
        assert json.loads(again.body)["error"]["data"]["action"] == "rate_limit"

    run(tmp_path, rules, test, tools_list=["cache"])


def test_fork_sends_a_copy_whose_answer_nobody_gets(tmp_path: Path) -> None:
    rules = "  - {id: f, conditions: [tool_equals: read_file], actions: [fork: {copies: 2}]}\n"

    async def test(between: Filtered) -> None:
        got = await between.ask(call("read_file"), b"User-Agent: c\r\nMcp-Session-Id: s\r\n")
        assert got.body == SECRET
        async with asyncio.timeout(20):
            while len(between.upstream.asked) < 3:
                await asyncio.sleep(0.01)
        ids = [json.loads(request.body)["id"] for request in between.upstream.asked]
        assert len(set(map(str, ids))) == 3
        sessions = [request.all("mcp-session-id") for request in between.upstream.asked]
        assert sessions == [["s"]] * 3

    run(tmp_path, rules, test, respond=saying(SECRET))


async def test_copies_of_a_renamed_call_say_its_new_name_in_the_header_too(tmp_path: Path) -> None:
    """An upstream of 2026-07-28 refuses a request whose header says another name than its body."""
    rules = """
  - {id: rename, conditions: [tool_equals: read_file], actions: [set_param: {field: name, value: delete_file}]}
  - {id: fork, actions: [fork: {copies: 1}]}
"""  # noqa: E501 - one rule, one line
    given: dict[str, Any] = {"rules": [write(tmp_path, rules)], "deny": ["^never$"]}
    async with filtered(tmp_path, respond=saying(SECRET), **given) as between:
        meta = '"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}'
        body = call("read_file").replace(b'"arguments":{}', b'"arguments":{},' + meta.encode())
        headers = b"MCP-Protocol-Version: 2026-07-28\r\nMcp-Method: tools/call\r\n"
        got = await between.ask(body, headers + b"User-Agent: c\r\nMcp-Name: read_file\r\n")
        assert got.body == SECRET
        async with asyncio.timeout(20):
            while len(asked := between.upstream.of("tools/call")) < 2:
                await asyncio.sleep(0.01)
    for request in asked:
        assert json.loads(request.body)["params"]["name"] == "delete_file"
        assert request.all("mcp-name") == ["delete_file"]
        assert request.all("mcp-method") == ["tools/call"]


def test_a_script_decides(tmp_path: Path) -> None:
    script = tmp_path / "check.sh"
    script.write_text('#!/bin/sh\ngrep -q secret && { echo "$MCP_TOOL: no"; exit 1; }\nexit 0\n')
    script.chmod(0o755)
    rules = "  - {id: ask, actions: [run_script: {path: ./check.sh, decides: true}]}\n"

    async def test(between: Filtered) -> None:
        got = await between.ask(call("read_file", '{"a":"secret"}'))
        assert got.body == blocked("ask", "read_file: no")
        assert (await between.ask(call("read_file"))).body == SECRET

    run(tmp_path, rules, test, respond=saying(SECRET))


def test_websocket_messages_are_judged(tmp_path: Path) -> None:
    rules = BLOCK + REDACT + WAIT

    async def respond(request: RawRequest, peer: Peer) -> None:
        socket = await accept(peer.reader, peer.writer, request.head)
        while await socket.hear() is not None:
            await socket.say(SECRET)

    async def test(between: Filtered) -> None:
        socket = await connect(between.client.reader, between.client.writer)
        await socket.say(call("read_file", '{"path":"/etc/x"}'))
        assert await socket.hear() == blocked("no-etc", "not there")
        await socket.say(call("read_file"))
        assert await socket.hear() == HIDDEN

    run(tmp_path, rules, test, respond=respond)


NO_SAMPLING = """
  - {id: no-sampling, conditions: [from: server, method_equals: sampling/createMessage],
     actions: [block: no models here]}
"""
SAMPLE = b'{"jsonrpc":"2.0","id":%s,"method":"sampling/createMessage","params":{}}'
PING = b'{"jsonrpc":"2.0","id":9,"method":"ping"}'


@pytest.mark.parametrize("waits", [False, True])
def test_what_the_upstream_asks_in_a_batch_over_a_websocket_is_answered(
    tmp_path: Path, waits: bool
) -> None:
    heard: asyncio.Queue[bytes | None] = asyncio.Queue()

    async def respond(request: RawRequest, peer: Peer) -> None:
        socket = await accept(peer.reader, peer.writer, request.head)
        await socket.say(b"[" + SAMPLE % b"7" + b"," + PING + b"," + SAMPLE % b"8" + b"]")
        await socket.say(b"[" + SAMPLE % b"10" + b"]")
        while (message := await socket.hear()) is not None:
            heard.put_nowait(message)

    async def test(between: Filtered) -> None:
        socket = await connect(between.client.reader, between.client.writer)
        assert await socket.hear() == b"[" + PING + b"]"
        async with asyncio.timeout(20):
            answers = [await heard.get() for _ in range(3)]
        assert answers == [
            blocked("no-sampling", "no models here", "7"),
            blocked("no-sampling", "no models here", "8"),
            b"[" + blocked("no-sampling", "no models here", "10") + b"]",
        ]

    slow = "  - {id: slow, priority: 1, conditions: [from: server], actions: [delay: 50ms]}\n"
    run(tmp_path, NO_SAMPLING + (slow if waits else ""), test, respond=respond)


def test_fork_over_a_websocket(tmp_path: Path) -> None:
    """A copy is not judged again, or it would be forked, too; its answer reaches nobody."""
    rules = "  - {id: f, conditions: [tool_equals: read_file], actions: [fork: {copies: 2}]}\n"
    heard: list[bytes] = []

    async def respond(request: RawRequest, peer: Peer) -> None:
        socket = await accept(peer.reader, peer.writer, request.head)
        while (message := await socket.hear()) is not None:
            heard.append(message)
            id = json.dumps(json.loads(message)["id"])
            await socket.say(SECRET.replace(b'"id":1', b'"id":' + id.encode()))

    async def test(between: Filtered) -> None:
        socket = await connect(between.client.reader, between.client.writer)
        await socket.say(call("read_file", '{"a":1}'))
        assert await socket.hear() == SECRET
        async with asyncio.timeout(20):
            while len(heard) < 3:
                await asyncio.sleep(0.01)
        await socket.say(PING)
        answer = json.loads(await socket.hear() or b"")
        assert answer["id"] == 9
        assert len(heard) == 4
        copies = [json.loads(one) for one in heard if b"read_file" in one]
        assert len({str(one["id"]) for one in copies}) == 3
        assert [one["params"] for one in copies] == [
            {"name": "read_file", "arguments": {"a": 1}}
        ] * 3

    run(tmp_path, rules, test, respond=respond)


def test_an_edit_of_the_file_is_in_force_within_two_seconds(tmp_path: Path) -> None:
    async def test(between: Filtered) -> None:
        ask = call("read_file", '{"path":"/etc/x"}')
        assert b"-32001" in (await between.ask(ask)).body
        new = tmp_path / "new"
        new.write_text("interceptor:\n  rules: []\n")
        os.replace(new, tmp_path / "rules.yaml")  # as editors do it
        await until(between, ask, lambda body: b"-32001" not in body)
        (tmp_path / "rules.yaml").write_text("interceptor: {rulez: []}\n")
        await asyncio.sleep(1)
        assert b"-32001" not in (await between.ask(ask)).body
        write(tmp_path, BLOCK)
        await until(between, ask, lambda body: b"-32001" in body)
        (tmp_path / "rules.yaml").unlink()
        await asyncio.sleep(1)
        assert b"-32001" in (await between.ask(ask)).body

    run(tmp_path, BLOCK, test)


async def until(between: Filtered, ask: bytes, condition: Callable[[bytes], bool]) -> None:
    async with asyncio.timeout(2):
        while not condition((await between.ask(ask)).body):
            await asyncio.sleep(0.05)


def test_rules_cannot_be_taken_away_at_run_time(tmp_path: Path) -> None:
    async def test(between: Filtered) -> None:
        with pytest.raises(OptionsError, match="cannot be taken away"):
            ctx.options.rules = []
        ask = call("read_file", '{"path":"/etc/x"}')
        assert b"-32001" in (await between.ask(ask)).body

    run(tmp_path, BLOCK, test)


def test_one_policy_judges_a_message_from_its_request_to_its_response(tmp_path: Path) -> None:
    release = asyncio.Event()

    async def respond(_request: RawRequest, peer: Peer) -> None:
        await release.wait()
        await peer.say(answer(SECRET))

    async def test(between: Filtered) -> None:
        waiting = asyncio.create_task(between.ask(call("read_file")))
        async with asyncio.timeout(20):
            while not between.upstream.asked:
                await asyncio.sleep(0.01)
        (tmp_path / "rules.yaml").write_text("interceptor: {rules: []}\n")
        await asyncio.sleep(1.5)
        release.set()
        assert (await waiting).body == HIDDEN

    run(tmp_path, REDACT, test, respond=respond)


async def test_a_bad_file_stops_the_start_with_every_mistake(tmp_path: Path) -> None:
    path = tmp_path / "rules.yaml"
    path.write_text("interceptor:\n  chian: {}\n  rules: [{id: 1}]\n")
    async with (
        mcp_upstream(tools=[READ]) as upstream,
        tool(
            "mitmdump", "-s", SCRIPT, "--mode", f"reverse:{upstream.url}",
            "--set", f"rules={path}", home=tmp_path,
        ) as it,
    ):  # fmt: skip
        assert await it.exit_code() == 1
        for line in (":2:3: interceptor: unknown key 'chian'", ":3:16: interceptor.rules[0].id:"):
            assert f"{path}{line}" in it.stderr


def test_the_report_names_the_rules(tmp_path: Path) -> None:
    said: list[str] = []

    async def main() -> None:
        rules = write(tmp_path, BLOCK + REDACT)
        async with (
            mcp_upstream(tools=[READ]) as upstream,
            proxy(
                ToolFilter(report=said.append), to=upstream.url, home=tmp_path,
                endpoint=["/mcp"], rules=[rules],
            ) as it,
            raw_client(it.port) as client,
        ):  # fmt: skip
            await client.ask(post(call("read_file")))

    asyncio.run(main())
    assert "  Rules: 2: no-etc, secrets" in said[0].splitlines()


def test_the_commands_and_the_flow_tell_of_rules(tmp_path: Path) -> None:
    rules = BLOCK + "  - {id: count, actions: [metric: {name: seen, value: 2}]}\n"

    async def test(between: Filtered) -> None:
        await between.ask(call("read_file", '{"path":"/etc/x"}'))
        await between.ask(call("read_file"))
        lines = ctx.master.commands.call("mcp.stats")
        assert "  rule no-etc: 1 hits" in lines
        assert "  rule count: 1 hits" in lines
        assert "  metric seen: 2" in lines
        (known,) = [
            line for line in ctx.master.commands.call("mcp.sessions") if "as the rules" in line
        ]
        assert "2 messages" in known

    run(tmp_path, rules, test)
