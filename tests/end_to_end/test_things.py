"""Denied prompts, resources and skills are gone in every shape of the filter."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.adapters.upstream.mcp_script import Legacy
from tests.cli.launched import launched
from tests.mcp_upstream import mcp_upstream, tool
from tests.proxy import SCRIPT
from tests.proxy import tool as program
from tests.raw_client import MCP_HEADERS, get, post, raw_client
from tests.raw_upstream import LAST_CHUNK, SSE_HEAD, Peer, RawRequest, answer, chunk, raw_upstream
from tests.stdio_client import filtered, upstream
from tests.stdio_upstream import THINGS
from tests.websocket import accept, connect

type Ask = Callable[[object], Awaitable[Any]]

OPTIONS = {
    "deny": "^delete_",
    "deny_prompts": "^secret",
    "deny_resources": "^file:///etc/",
    "deny_skills": "^hide$",
}
FLAGS = [word for key, text in OPTIONS.items() for word in (f"--{key.replace('_', '-')}", text)]
LISTED = {
    "prompts/list": {"prompts": [{"name": "greet"}]},
    "resources/list": {"resources": [{"uri": "file:///b"}]},
    "resources/templates/list": {"resourceTemplates": [{"uriTemplate": "file:///{a}"}]},
    "skills/list": {"skills": [{"uri": "skill://a/SKILL.md"}]},
    "tools/catalog": {"tools": [{"name": "read_file"}]},
}
REFUSED = [
    ("prompts/get", {"name": "secret"}, -32602),
    ("completion/complete", {"ref": {"type": "ref/prompt", "name": "secret"}}, -32602),
    ("resources/read", {"uri": "FILE:///x/../etc/%61"}, -32002),
    ("resources/read", {"uri": "skill://x/hide/a.md"}, -32002),
    ("resources/subscribe", {"uri": "file:///etc/a"}, -32002),
    ("skills/get", {"uri": "skill://hide/SKILL.md"}, -32602),
    ("tools/resolve", {"name": "delete_file"}, -32601),
    ("completion/complete", {"ref": {"type": "ref/tool", "name": "delete_file"}}, -32601),
    ("tasks/create", {"method": "tools/call", "params": {"name": "delete_file"}}, -32601),
    ("tasks/create", {"request": {"method": "prompts/get", "params": {"name": "secret"}}}, -32602),
]
PASSING = [
    ("prompts/get", {"name": "greet"}),
    ("resources/read", {"uri": "file:///b"}),
    ("skills/get", {"uri": "skill://a/SKILL.md"}),
]


def message(method: str, params: object = None, id: int = 1) -> dict[str, object]:
    return {"jsonrpc": "2.0", "id": id, "method": method, "params": params or {}}


INITIALIZE = message("initialize", {"protocolVersion": "2025-06-18", "capabilities": {}})


async def assert_filtered(ask: Ask, passed: Callable[[], object]) -> None:
    """``passed`` returns all that has reached the upstream."""
    for method, result in LISTED.items():
        assert (await ask(message(method)))["result"] == result, method
    for method, given in PASSING:
        assert (await ask(message(method, given)))["result"] == THINGS[method], method
    for method, params, code in REFUSED:
        answered = await ask(message(method, params))
        assert answered["error"]["code"] == code, method
        assert answered["id"] == 1
    for forbidden in ("secret", "/etc/", "%61", "hide/", "tools/resolve", "ref/tool", "tasks/"):
        assert forbidden not in str(passed())


async def over_http(port: int) -> Ask:
    headers = [MCP_HEADERS]

    async def ask(said: object) -> Any:
        async with raw_client(port) as client:
            got = await client.ask(post(json.dumps(said).encode(), headers=b"".join(headers)))
        headers.extend(re.findall(rb"(?im)^mcp-session-id:[^\r]*\r\n", got.head))
        return json.loads(got.body.partition(b"data: ")[2] or got.body)

    await ask(INITIALIZE)
    return ask


async def as_json(request: RawRequest, peer: Peer) -> None:
    await peer.say(answer(_answer_to(request)))


async def as_events(request: RawRequest, peer: Peer) -> None:
    await peer.say(SSE_HEAD + chunk(b"data: " + _answer_to(request) + b"\n\n") + LAST_CHUNK)


def _answer_to(request: RawRequest) -> bytes:
    asked = json.loads(request.body)
    if isinstance(asked, list):
        return json.dumps([_result(one) for one in asked]).encode()
    return json.dumps(_result(asked)).encode()


def _result(asked: dict[str, Any]) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": asked["id"], "result": THINGS[asked["method"]]}


TOOLS = [tool("read_file"), tool("delete_file")]


@pytest.mark.parametrize("respond", [as_json, as_events])
@pytest.mark.parametrize("host", ["launcher", "mitmdump"])
async def test_in_front_of_a_url(
    host: str, respond: Callable[[RawRequest, Peer], Awaitable[None]], tmp_path: Path
) -> None:
    async with (
        mcp_upstream(tools=TOOLS, respond=respond) as there,
        _host(host, there.url, tmp_path) as port,
    ):
        ask = await over_http(port)
        await assert_filtered(ask, lambda: [one.body for one in there.asked])
        if respond is as_json:  # members of a batch are judged one by one
            batch = [message("prompts/get", {"name": "secret"}), message("prompts/list", id=2)]
            answers = {one["id"]: one for one in await ask(batch)}
            assert answers[1]["error"]["code"] == -32602
            assert answers[2]["result"] == LISTED["prompts/list"]


@asynccontextmanager
async def _host(host: str, url: str, home: Path) -> AsyncIterator[int]:
    if host == "launcher":
        words = ("--upstream", f"{url}/mcp", "--port", "0", "--tools-list", "upstream", *FLAGS)
        async with launched(*words, home=home) as it:
            yield await it.serving()
        return
    sets = [f"{key}={text}" for key, text in {**OPTIONS, "endpoint": "/mcp"}.items()]
    words = ("-s", SCRIPT, "--mode", f"reverse:{url}")
    async with program(
        "mitmdump", *words, *(word for one in sets for word in ("--set", one)), home=home
    ) as it:
        port = await it.listening()
        await it.says("Saved: ")
        yield port


async def test_over_stdio_in_front_of_a_command(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    command = upstream("--tools", "read_file,delete_file", journal=journal)
    with filtered(*FLAGS, "--", *command, home=tmp_path) as client:
        client.opens()
        client.asks("tools/list")

        async def ask(said: object) -> Any:
            client.say(json.dumps(said).encode())
            return client.hears()

        await assert_filtered(ask, journal.read_text)


async def test_over_stdio_in_front_of_a_url(tmp_path: Path) -> None:
    async with mcp_upstream(tools=TOOLS, respond=as_json) as there:
        words = ("--stdio", "--upstream", f"{there.url}/mcp")
        with filtered(*words, *FLAGS, home=tmp_path) as client:

            async def ask(said: object) -> Any:
                client.say(json.dumps(said).encode())
                return await asyncio.to_thread(client.hears)

            await ask(INITIALIZE)
            client.say(b'{"jsonrpc":"2.0","method":"notifications/initialized"}')
            await assert_filtered(ask, lambda: [one.body for one in there.asked])


async def test_over_http_in_front_of_a_command(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    command = upstream("--tools", "read_file,delete_file", journal=journal)
    async with launched("--port", "0", *FLAGS, "--", *command, home=tmp_path) as it:
        port = await it.serving()
        await assert_filtered(await over_http(port), journal.read_text)


NEWS = {"jsonrpc": "2.0", "method": "notifications/resources/updated"}


async def test_over_a_websocket(tmp_path: Path) -> None:
    """News of a denied resource are dropped there, too."""
    heard: list[bytes] = []

    async def respond(request: RawRequest, peer: Peer) -> None:
        socket = await accept(peer.reader, peer.writer, request.head)
        while (said := await socket.hear()) is not None:
            heard.append(said)
            for uri in ("file:///etc/a", "file:///b"):
                await socket.say(json.dumps({**NEWS, "params": {"uri": uri}}).encode())
            await socket.say(json.dumps(_result(json.loads(said))).encode())

    async with (
        mcp_upstream(tools=TOOLS, respond=respond) as there,
        _host("launcher", there.url, tmp_path) as port,
        raw_client(port) as client,
    ):
        socket = await connect(client.reader, client.writer)

        async def ask(said: object) -> Any:
            await socket.say(json.dumps(said).encode())
            while "id" not in (got := json.loads(await socket.hear() or b"")):
                assert got["params"]["uri"] == "file:///b"
            return got

        await assert_filtered(ask, lambda: heard)


async def test_over_the_older_transport(tmp_path: Path) -> None:
    results: dict[str, Any] = {**THINGS, "tools/list": {"tools": [json.loads(x) for x in TOOLS]}}
    script = Legacy(**{method.replace("/", "_"): result for method, result in results.items()})
    async with (
        raw_upstream(script) as there,
        launched("--upstream", f"{there.url}/sse", "--port", "0", *FLAGS, home=tmp_path) as it,
        raw_client(await it.serving()) as stream,
        raw_client(it.port) as poster,
    ):
        await stream.say(get(path="/sse"))
        await stream.head()
        place = (await stream.chunk()).decode().partition("data: ")[2].strip()

        async def ask(said: object) -> Any:
            await poster.ask(post(json.dumps(said).encode(), path=place))
            return json.loads((await stream.chunk()).partition(b"data: ")[2])

        await assert_filtered(ask, lambda: [one.body for one in there.requests])
