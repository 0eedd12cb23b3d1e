"""What each action of a rule does is the same in every transport; this is the table of all."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tests.mcp_upstream import tool
from tests.raw_client import MCP_HEADERS, post, raw_client
from tests.shapes import TRANSPORTS, Message, Server, Talk, call, shape

type Ask = Callable[[bytes], Awaitable[Message]]

SCRIPT = "#!/bin/sh\necho 'the script says no'\nexit 1\n"
RULES = """
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
        arguments = f'{{"case":"{name}"{more}}}'
        params = f'{{"name":"{tool}","arguments":{arguments}}}'
        text = f'{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{params}}}'
        got = await ask(text.encode())
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
    (home / "no.sh").write_text(SCRIPT)
    (home / "no.sh").chmod(0o755)
    (home / "policy.yaml").write_text(RULES)
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
        await talk.say(b"[%b,%b]" % (body, json.dumps(call("read_file", 2)).encode()))
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


@pytest.mark.parametrize(
    ("kind", "transport", "as_events", "form"),
    [
        *(("mitmproxy", *transport, "alone") for transport in TRANSPORTS),
        ("mitmproxy", "HTTP", False, "batch"),
        ("mitmproxy", "HTTP", False, "stateless"),
        ("sockets", "HTTP", False, "alone"),
        ("relay", "HTTP", False, "alone"),
        ("pipe", "HTTP", False, "alone"),
        ("bridge", "HTTP", False, "alone"),
    ],
)
async def test_every_rule_works(
    kind: str, transport: str, as_events: bool, form: str, tmp_path: Path
) -> None:
    heard: list[Message] = []

    def echo(asked: Message) -> Message:
        heard.append(asked["params"]["arguments"])
        text = f"secret-{len(heard)} {json.dumps(heard[-1])}"
        return {"content": [{"type": "text", "text": text}]}

    tools = [tool("read_file"), tool("delete_file")]
    server = Server(tools, calls=echo, as_events=as_events)
    options = {"deny": "^never$", "rules": policy(tmp_path)}
    async with shape(kind, server, tmp_path, options, transport=transport) as talk:
        await every_action_does_what_it_says(asking(talk, form), heard)
