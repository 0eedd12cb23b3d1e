"""What each action of a rule does is the same in every transport; this is the table of both."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import pytest

from tests.adapters.mitmproxy.filtered import Filtered, filtered
from tests.raw_client import MCP_HEADERS, RawClient, get, post, raw_client
from tests.raw_upstream import LAST_CHUNK, SSE_HEAD, Peer, RawRequest, answer, chunk
from tests.websocket import WebSocketEnd, accept, connect

type Message = dict[str, Any]

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


@dataclass
class Echo:
    """Answers each call with its arguments, in the transport that it is asked in."""

    as_event: bool = False
    heard: list[Message] = field(default_factory=list)
    _stream: Peer | None = None

    def answer_to(self, message: Message) -> Message:
        self.heard.append(message["params"]["arguments"])
        text = f"secret-{len(self.heard)} {json.dumps(message['params']['arguments'])}"
        result = {"content": [{"type": "text", "text": text}]}
        return {"jsonrpc": "2.0", "id": message["id"], "result": result}

    async def respond(self, request: RawRequest, peer: Peer) -> None:
        if request.line.startswith("GET /sse"):
            self._stream = peer
            await peer.say(SSE_HEAD + chunk(b"event: endpoint\ndata: /messages?s=1\n\n"))
            await peer.left()
        elif b"upgrade: websocket" in request.head.lower():
            socket = await accept(peer.reader, peer.writer, request.head)
            while (said := await socket.hear()) is not None:
                await socket.say(json.dumps(self.answer_to(json.loads(said))).encode())
        else:
            asked = json.loads(request.body)
            answered = [
                self.answer_to(one) for one in (asked if isinstance(asked, list) else [asked])
            ]
            body = json.dumps(answered if isinstance(asked, list) else answered[0]).encode()
            if "/messages" in request.line:
                await peer.say(answer(b"Accepted", status="202 Accepted", kind="text/plain"))
                assert self._stream
                await self._stream.say_event(body)
            elif self.as_event:
                await peer.say(SSE_HEAD + chunk(b"data: " + body + b"\n\n") + LAST_CHUNK)
            else:
                await peer.say(answer(body))


type Ask = Callable[[bytes], Awaitable[Message]]


def as_json(between: Filtered) -> Ask:
    async def ask(body: bytes) -> Message:
        return read((await between.ask(body, b"User-Agent: c\r\n")).body)

    return ask


def in_a_batch(between: Filtered) -> Ask:
    """Beside a call that no rule is about."""

    async def ask(body: bytes) -> Message:
        params = b'{"name":"read_file","arguments":{}}'
        other = b'{"jsonrpc":"2.0","id":2,"method":"tools/call","params":' + params + b"}"
        found = json.loads((await between.ask(b"[" + body + b"," + other + b"]")).body)
        by_id: dict[int, Message] = {one["id"]: one for one in found}
        assert sorted(by_id) == [1, 2]
        return by_id[1]

    return ask


def stateless(between: Filtered) -> Ask:
    async def ask(body: bytes) -> Message:
        meta = b'"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}'
        headers = b"MCP-Protocol-Version: 2026-07-28\r\nMcp-Method: tools/call\r\n"
        name = json.loads(body)["params"]["name"].encode()
        headers += b"Mcp-Name: " + name + b"\r\nUser-Agent: c\r\n"
        return read((await between.ask(body[:-2] + b"," + meta + b"}}", headers)).body)

    return ask


def over(socket: WebSocketEnd) -> Ask:
    async def ask(body: bytes) -> Message:
        await socket.say(body)
        return read(await socket.hear() or b"")

    return ask


def legacy(stream: RawClient, poster: RawClient) -> Ask:
    async def ask(body: bytes) -> Message:
        path = "/messages?s=1"
        got = await poster.ask(post(body, path=path, headers=MCP_HEADERS + b"User-Agent: c\r\n"))
        assert got.status == 202
        return read((await stream.chunk()).removeprefix(b"data: "))

    return ask


def read(text: bytes) -> Message:
    message: Message = json.loads(text.removeprefix(b"data: "))
    return message


class Echoes(Protocol):
    @property
    def heard(self) -> Any:
        """The arguments that have reached the upstream: a list, or what acts like one."""


async def every_action_does_what_it_says(ask: Ask, echo: Echoes) -> None:
    async def case(name: str, more: str = "", tool: str = "read_file") -> Message:
        echo.heard.clear()
        arguments = f'{{"case":"{name}"{more}}}'
        params = f'{{"name":"{tool}","arguments":{arguments}}}'
        text = f'{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{params}}}'
        got = await ask(text.encode())
        assert got["id"] == 1
        return got

    def reached() -> list[Message]:
        return [one for one in echo.heard if "case" in one]

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


@pytest.mark.parametrize(
    "transport", ["JSON", "event", "batch", "stateless", "websocket", "legacy stream"]
)
async def test_every_rule_works_over_http(tmp_path: Path, transport: str) -> None:
    echo = Echo(as_event=transport == "event")
    given: dict[str, Any] = {"deny": ["^never$"], "rules": [policy(tmp_path)]}
    async with (
        filtered(tmp_path, respond=echo.respond, **given) as between,
        raw_client(between.port) as poster,
    ):
        match transport:
            case "websocket":
                ask = over(await connect(between.client.reader, between.client.writer))
            case "legacy stream":
                await between.client.say(get(path="/sse"))
                await between.client.head()
                await between.client.chunk()
                ask = legacy(between.client, poster)
            case "batch":
                ask = in_a_batch(between)
            case "stateless":
                ask = stateless(between)
            case _:
                ask = as_json(between)
        await every_action_does_what_it_says(ask, echo)
