"""Rules in a real mitmproxy: requests, answers, streams, and what is edited while it runs.

What each action of a rule does is the same in every transport: at the end is the table of all.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from mitmproxy import ctx
from mitmproxy.exceptions import OptionsError

from mcp_tool_filter.rooms.mitmproxy.addon import ToolFilter
from tests.filtered import INITIALIZE, READ, SECRET, blocked, call, ruled, write
from tests.hosts import LAUNCHER, filtering, mitmdump
from tests.mcp_upstream import tool
from tests.raw_client import MCP_HEADERS, get, post, raw_client
from tests.raw_upstream import (
    SSE_HEAD,
    TIMEOUT,
    Peer,
    RawRequest,
    answer,
    chunk,
    raw_upstream,
    until,
)
from tests.shapes import TRANSPORTS, Message, Server, Talk, message, shape
from tests.shapes import call as asking_for

BLOCK = """
  - id: no-etc
    conditions: [tool_equals: read_file, param_matches: {field: arguments.path, pattern: ^/etc}]
    actions: [block: not there]
"""
REDACT = """
  - id: secrets
    conditions: [tool_equals: read_file]
    on: response
    actions: [redact: {pattern: "sk-[a-z0-9]+"}]
"""
AT_ETC = call("read_file", '{"path":"/etc/x"}')


async def test_an_edit_of_a_file_counts(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")

    async with ruled(tmp_path, BLOCK) as between:

        async def is_blocked() -> bool:
            return b"-32001" in (await between.ask(AT_ETC)).body

        assert await is_blocked()
        new = tmp_path / "new"
        new.write_text("interceptor:\n  rules: []\n")
        os.replace(new, tmp_path / "rules.yaml")  # as editors do it
        await until(lambda: "again: 0 rules" in caplog.text)
        assert not await is_blocked()
        (tmp_path / "rules.yaml").write_text("interceptor: {rulez: []}\n")
        await until(lambda: "unknown key 'rulez'" in caplog.text)
        assert not await is_blocked()
        write(tmp_path, BLOCK)
        await until(lambda: "again: 1 rule" in caplog.text)
        assert await is_blocked()
        (tmp_path / "rules.yaml").unlink()
        await until(lambda: "is gone" in caplog.text)
        assert await is_blocked()


async def test_webhooks_arrive_although_the_process_ends(tmp_path: Path) -> None:
    async def receive(peer: Peer) -> None:
        await peer.request()
        await asyncio.sleep(0.05)
        await peer.say(answer(b"{}"))

    async with raw_upstream(receive) as receiver:
        rules = f"  - {{id: r, actions: [webhook: {{url: '{receiver.url}/'}}]}}\n"
        async with filtering(LAUNCHER, tmp_path, f"rules={write(tmp_path, rules)}") as it:
            await it.hear(*[post(call("read"))] * 30)
    assert len(receiver.requests) == 30


async def test_rules_cannot_be_taken_away_at_run_time(tmp_path: Path) -> None:
    async with ruled(tmp_path, BLOCK) as between:
        with pytest.raises(OptionsError, match="cannot be removed"):
            ctx.options.rules = []
        assert b"-32001" in (await between.ask(AT_ETC)).body


async def test_a_call_has_a_single_policy(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    release = asyncio.Event()

    async def respond(_request: RawRequest, peer: Peer) -> None:
        await release.wait()
        await peer.say(answer(SECRET))

    async with ruled(tmp_path, REDACT, respond=respond) as between:
        waiting = asyncio.create_task(between.ask(call("read_file")))
        await until(lambda: between.upstream.asked)
        (tmp_path / "rules.yaml").write_text("interceptor: {rules: []}\n")
        await until(lambda: "again: 0 rules" in caplog.text)
        release.set()
        assert (await waiting).body == SECRET.replace(b"sk-1", b"***")


async def test_a_bad_rules_file_stops_the_start_with_every_mistake(tmp_path: Path) -> None:
    path = tmp_path / "rules.yaml"
    path.write_text("interceptor:\n  chian: {}\n  rules: [{id: 1}]\n")
    async with mitmdump(f"rules={path}", home=tmp_path) as it:
        assert await it.exit_code() == 1
        for line in (":2:3: interceptor: unknown key 'chian'", ":3:16: interceptor.rules[0].id:"):
            assert f"{path}{line}" in it.stderr


async def test_the_report_and_the_commands_show_the_rules(tmp_path: Path) -> None:
    said: list[str] = []
    rules = BLOCK + "  - {id: count, actions: [metric: {name: seen, value: 2}]}\n"
    async with ruled(tmp_path, rules, addon=ToolFilter(report=said.append)) as between:
        await between.ask(AT_ETC)
        await between.ask(call("read_file"))
        assert "  Rules: 2: no-etc, count" in said[0].splitlines()
        shown = {"  rule no-etc: 1 hits", "  rule count: 1 hits", "  metric seen: 2"}
        assert shown <= set(ctx.master.commands.call("mcp.stats"))
        sessions = ctx.master.commands.call("mcp.sessions")
        (known,) = [line for line in sessions if "as the rules" in line]
        assert "2 messages" in known


# What rules do with requests


HOLD = """
import asyncio
from pathlib import Path

FOLDER = Path(__file__).parent

async def hold(_message):
    (FOLDER / "held").touch()
    while not (FOLDER / "go").exists():
        await asyncio.sleep(0.01)
    (FOLDER / "gone").touch()
"""


def holding(folder: Path) -> str:
    """Return a rule that holds each call until ``go`` exists."""
    name = f"hold_{folder.name}"
    (folder / f"{name}.py").write_text(HOLD)
    action = f"transform: {{python: '{name}:hold'}}"
    return f"  - {{id: hold, conditions: [tool_equals: read_file], actions: [{action}]}}\n"


CANCEL = b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":%d}}'

CANCELLED = b'{"jsonrpc":"2.0","id":1,"error":{"code":-32800,"message":"Request cancelled"}}'


@pytest.mark.parametrize("is_batch", [False, True])
async def test_a_held_call_that_is_cancelled_is_never_sent(tmp_path: Path, is_batch: bool) -> None:
    """The cancellation comes on another connection, and the upstream gets neither of them."""
    headers = MCP_HEADERS + b"Mcp-Session-Id: s1\r\n"
    async with (
        ruled(tmp_path, holding(tmp_path), session=b"s1") as between,
        raw_client(between.port) as other,
    ):
        await between.ask(INITIALIZE)
        between.upstream.asked.clear()
        asked = call("read_file")
        await between.client.say(post(b"[%b]" % asked if is_batch else asked, headers=headers))
        await until((tmp_path / "held").exists)
        await other.ask(post(CANCEL % 2, headers=headers))  # another one
        assert (await other.ask(post(CANCEL % 1, headers=headers))).status == 202
        (tmp_path / "go").touch()
        got = (await between.client.answer()).body
        assert json.loads(got) == ([json.loads(CANCELLED)] if is_batch else json.loads(CANCELLED))
        assert [request.body for request in between.upstream.asked] == [CANCEL % 2]
        await other.ask(post(CANCEL % 1, headers=headers))  # nothing is held any more
        assert len(between.upstream.asked) == 2


async def test_nobody_cancels_the_call_of_another_session(tmp_path: Path) -> None:
    async with ruled(tmp_path, holding(tmp_path)) as between, raw_client(between.port) as other:
        own, others = (MCP_HEADERS + b"Mcp-Session-Id: s%d\r\n" % n for n in (1, 2))
        await between.client.say(post(call("read_file"), headers=own))
        await until((tmp_path / "held").exists)
        await other.ask(post(CANCEL % 1, headers=others))
        (tmp_path / "go").touch()
        assert b"result" in (await between.client.answer()).body


# What rules do with responses: JSON, events, cached results, and the snapshot's lists.


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


@pytest.mark.parametrize(("method", "params", "error"), [
    *((name, '{"x":5}', {"code": 9, "message": f"told vendor/{name} 5"})
      for name in ("block", "inject", "limit")),
    ("read", '{"a":1,"a":2}', {"code": -32600}), ("break", '{"a":[]}', {"code": -32001}),
])  # fmt: skip
async def test_the_errors_of_rules_pass_the_response_rules(
    tmp_path: Path, method: str, params: str, error: dict[str, object]
) -> None:
    """They are answers, as those from a cache are; errors of no rule stay as they are."""
    asked = f'{{"jsonrpc":"2.0","id":"i","method":"vendor/{method}","params":{params}}}'
    async with ruled(tmp_path, OWN_ERRORS) as between:
        got = json.loads((await between.ask(asked.encode())).body)
        assert got["id"] == "i"
        assert got["error"].items() >= error.items()
        assert not between.upstream.asked


# What rules do with what the upstream says on a stream.


NO_SAMPLING = """
  - {id: no-sampling, conditions: [from: server, method_equals: sampling/createMessage],
     actions: [block: no models here]}
"""
PING = b'{"jsonrpc":"2.0","id":9,"method":"ping"}'
SAMPLE = b'{"jsonrpc":"2.0","id":%s,"method":"sampling/createMessage","params":{}}'


@pytest.mark.parametrize("waits", [False, True])
async def test_a_batch_of_requests_of_the_upstream_is_answered(tmp_path: Path, waits: bool) -> None:
    heard: asyncio.Queue[bytes | None] = asyncio.Queue()

    async def respond(request: RawRequest, peer: Peer) -> None:
        if request.line.startswith("POST"):
            heard.put_nowait(request.body)
            await peer.say(answer(b"", status="202 Accepted"))
            return
        three = b"[" + SAMPLE % b"7" + b"," + PING + b"," + SAMPLE % b"8" + b"]"
        one = b"[" + SAMPLE % b"10" + b"]"
        await peer.say(SSE_HEAD + chunk(b"data: %b\n\ndata: %b\n\n" % (three, one)))
        await peer.left()

    slow = "  - {id: slow, priority: 1, conditions: [from: server], actions: [delay: 50ms]}\n"
    async with ruled(tmp_path, NO_SAMPLING + (slow if waits else ""), respond=respond) as between:
        await between.client.say(get())
        await between.client.head()
        assert await between.client.chunk() == b"data: [" + PING + b"]\n\n"
        async with asyncio.timeout(TIMEOUT):
            answers = [await heard.get() for _ in range(3)]
        refused = [blocked("no-sampling", "no models here", id) for id in ("7", "8", "10")]
        assert {*answers} == {*refused}


@pytest.mark.parametrize("transport", ["HTTP", "legacy stream"])
async def test_fork_works_in_each_transport(transport: str, tmp_path: Path) -> None:
    """A copy is not judged again, or it would be forked too; its answer is dropped."""
    rules = "  - {id: f, conditions: [tool_equals: read_file], actions: [fork: {copies: 2}]}\n"
    server = Server([READ], results={"ping": {}})
    options = {"rules": write(tmp_path, rules), "deny": "^never$"}
    async with shape("mitmproxy", server, tmp_path, options, transport=transport) as talk:
        assert "result" in await talk.ask(asking_for("read_file"))
        await until(lambda: len(server.called()) >= 3)
        assert (await talk.ask(message("ping", 9)))["id"] == 9
    copies = [json.loads(one) for one in server.heard if b"read_file" in one]
    assert len({str(one["id"]) for one in copies}) == len(copies) == 3
    assert [one["params"] for one in copies] == [asking_for("read_file")["params"]] * 3


# What each action of a rule does, in every transport

type Ask = Callable[[bytes], Awaitable[Message]]

EVERY_RULE = """
interceptor:
  method_interceptors:
    tools/call:
      class: ToolCallInterceptor
      config: {allowed_tools: [read_file]}
  rules:
    - {id: block, conditions: [param_equals: {field: arguments.case, value: block}],
       actions: [block: blocked here]}
    - {id: error, conditions: [param_equals: {field: arguments.case, value: error}],
       actions: [inject_error: {code: -32055, message: "no ${tool}", data: {a: [1]}}]}
    - {id: change, conditions: [param_equals: {field: arguments.case, value: change}],
       actions: [set_param: {field: arguments.added, value: true}, remove_param: arguments.gone]}
    - {id: merge, conditions: [param_equals: {field: arguments.case, value: merge}],
       actions: [transform: {merge_patch: {arguments: {gone: null, added: 2}}}]}
    - {id: delay, conditions: [param_equals: {field: arguments.case, value: delay}],
       actions: [delay: 30ms]}
    - {id: script, conditions: [param_equals: {field: arguments.case, value: script}],
       actions: [run_script: {path: ./no.sh, decides: true}]}
    - {id: limit, conditions: [param_equals: {field: arguments.case, value: limit}],
       actions: [rate_limit: {key: "${tool}", limit: 1, window: 1h}]}
    - {id: cache, conditions: [param_equals: {field: arguments.case, value: cache}],
       actions: [cache: {key: "${params_hash}", ttl: 1h}]}
    - {id: unclear, conditions: [param_equals: {field: arguments.twice, value: 1}],
       actions: [block: never]}
    - {id: redact, on: response,
       conditions: [result_matches: {field: "content[0].text", pattern: redact}],
       actions: [redact: {pattern: 'secret-[0-9]+'}]}
    - {id: set, on: response,
       conditions: [result_matches: {field: "content[0].text", pattern: '"set"'}],
       actions: [set_result: {field: "content[0].text", value: instead}]}
    - {id: patch, on: response,
       conditions: [result_matches: {field: "content[0].text", pattern: patch}],
       actions: [transform: {json_patch: [{op: replace, path: /content/0/text, value: patched}]}]}
    - {id: hide, on: response,
       conditions: [result_matches: {field: "content[0].text", pattern: hide}],
       actions: [block: not for you]}
"""


async def every_action_does_what_it_says(ask: Ask, heard: list[Message]) -> None:
    async def case(name: str, more: str = "", tool: str = "read_file") -> Message:
        heard.clear()
        got = await ask(call(tool, f'{{"case":"{name}"{more}}}'))
        assert got["id"] == 1
        return got

    def reached() -> list[Message]:
        return [one for one in heard if "case" in one]

    def refused(got: Message, rule: str, action: str) -> tuple[int, str]:
        error = got["error"]
        assert (error["data"]["rule"], error["data"]["action"]) == (rule, action)
        return error["code"], error["message"]

    assert refused(await case("block"), "block", "block") == (-32001, "blocked here")
    assert not reached()
    got = await case("error")
    assert got["error"] == {"code": -32055, "message": "no read_file", "data": {"a": [1]}}
    assert not reached()
    await case("change", ',"gone":1')
    assert reached() == [{"case": "change", "added": True}]
    await case("merge", ',"gone":1')
    assert reached() == [{"case": "merge", "added": 2}]
    assert "secret-" in text_in(await case("delay"))
    assert refused(await case("script"), "script", "block") == (-32001, "the script says no")
    assert not reached()
    assert "result" in await case("limit")
    assert refused(await case("limit"), "limit", "rate_limit") == (-32001, "Rate limit exceeded")
    assert not reached()
    first = await case("cache")
    assert reached()
    assert await case("cache") == first
    assert not reached()
    assert (await case("unclear", ',"twice":0,"twice":1'))["error"]["code"] == -32600
    assert (await case("unclear", ',"Twice":1'))["error"]["code"] == -32600
    assert not reached()
    assert text_in(await case("redact")).startswith("*** ")
    assert text_in(await case("set")) == "instead"
    assert text_in(await case("patch")) == "patched"
    assert refused(await case("hide"), "hide", "block") == (-32001, "not for you")
    got = await case("any", tool="delete_file")
    assert refused(got, "tools/call", "block") == (-32001, "Tool 'delete_file' not allowed")
    assert text_in(await case("none")).endswith('{"case": "none"}')


def text_in(message: Message) -> str:
    text: str = message["result"]["content"][0]["text"]
    return text


def policy(home: Path) -> str:
    (home / "no.sh").write_text("#!/bin/sh\necho 'the script says no'\nexit 1\n")
    (home / "no.sh").chmod(0o755)
    (home / "policy.yaml").write_text(EVERY_RULE)
    return str(home / "policy.yaml")


def read(heard: bytes) -> Message:
    message: Message = json.loads(heard.strip().removeprefix(b"data: "))
    return message


def asking(talk: Talk, form: str) -> Ask:
    async def alone(body: bytes) -> Message:
        await talk.say(body)
        return read(await talk.hear())

    async def in_a_batch(body: bytes) -> Message:
        """Beside a call that no rule is about."""
        await talk.say(b"[%b,%b]" % (body, json.dumps(asking_for("read_file", 2)).encode()))
        by_id: dict[int, Message] = {one["id"]: one for one in json.loads(await talk.hear())}
        assert sorted(by_id) == [1, 2]
        return by_id[1]

    async def stateless(body: bytes) -> Message:
        meta = b'"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}'
        headers = MCP_HEADERS + b"MCP-Protocol-Version: 2026-07-28\r\nMcp-Method: tools/call\r\n"
        name = json.loads(body)["params"]["name"].encode()
        headers += b"Mcp-Name: %b\r\nUser-Agent: c\r\n" % name
        async with raw_client(talk.port) as client:
            return read((await client.ask(post(body[:-2] + b",%b}}" % meta, headers=headers))).body)

    return {"alone": alone, "batch": in_a_batch, "stateless": stateless}[form]


@pytest.mark.parametrize(("kind", "transport", "as_events", "form"), [
    *(("mitmproxy", *transport, "alone") for transport in TRANSPORTS),
    *(("mitmproxy", "HTTP", False, form) for form in ("batch", "stateless")),
    *((kind, "HTTP", False, "alone") for kind in ("sockets", "relay", "pipe", "bridge")),
])  # fmt: skip
async def test_every_rule_works(
    kind: str, transport: str, as_events: bool, form: str, tmp_path: Path
) -> None:
    heard: list[Message] = []

    def echo(asked: Message) -> Message:
        heard.append(asked["params"]["arguments"])
        text = f"secret-{len(heard)} {json.dumps(heard[-1])}"
        return {"content": [{"type": "text", "text": text}]}

    server = Server([tool("read_file"), tool("delete_file")], calls=echo, as_events=as_events)
    options = {"deny": "^never$", "rules": policy(tmp_path)}
    async with shape(kind, server, tmp_path, options, transport=transport) as talk:
        await every_action_does_what_it_says(asking(talk, form), heard)
