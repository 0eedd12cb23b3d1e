"""Rules in a real mitmproxy: requests, answers, WebSockets, and what is edited while it runs."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import pytest
from mitmproxy import ctx
from mitmproxy.exceptions import OptionsError

from mcp_tool_filter.adapters.mitmproxy.addon import ToolFilter
from tests.adapters.mitmproxy.filtered import INITIALIZE, READ, call
from tests.adapters.mitmproxy.ruled import (
    BLOCK,
    HIDDEN,
    PING,
    REDACT,
    SECRET,
    blocked,
    ruled,
    write,
)
from tests.cli.launched import launched
from tests.mcp_upstream import mcp_upstream
from tests.proxy import SCRIPT, tool
from tests.raw_client import MCP_HEADERS, post, raw_client
from tests.raw_upstream import TIMEOUT, Peer, RawRequest, answer, raw_upstream, until
from tests.shapes import Server, message, shape
from tests.shapes import call as asking_for
from tests.websocket import accept, connect


async def test_an_edit_of_the_file_takes_effect(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")

    async with ruled(tmp_path, BLOCK) as between:

        async def is_blocked() -> bool:
            return b"-32001" in (await between.ask(call("read_file", '{"path":"/etc/x"}'))).body

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

    async with raw_upstream(receive) as receiver, mcp_upstream(tools=[READ]) as upstream:
        hook = f"webhook: {{url: '{receiver.url}/'}}"
        path = write(tmp_path, f"  - {{id: r, actions: [{hook}]}}\n")
        flags = ("--upstream", upstream.url, "--rules", path)
        async with launched(*flags, home=tmp_path) as it:
            port = await it.serving()
            async with raw_client(port) as client:
                for _ in range(30):
                    await client.ask(post(call("read_file")))
            it.interrupt()
            assert await it.exit_code() == 0
    assert len(receiver.requests) == 30


async def test_rules_cannot_be_taken_away_at_run_time(tmp_path: Path) -> None:
    async with ruled(tmp_path, BLOCK) as between:
        with pytest.raises(OptionsError, match="cannot be removed"):
            ctx.options.rules = []
        ask = call("read_file", '{"path":"/etc/x"}')
        assert b"-32001" in (await between.ask(ask)).body


async def test_one_policy_judges_a_message_from_its_request_to_its_response(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
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
        assert (await waiting).body == HIDDEN


async def test_a_bad_rules_file_stops_the_start_with_every_mistake(tmp_path: Path) -> None:
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


async def test_the_report_and_the_commands_show_the_rules(tmp_path: Path) -> None:
    said: list[str] = []
    rules = BLOCK + "  - {id: count, actions: [metric: {name: seen, value: 2}]}\n"
    async with ruled(tmp_path, rules, addon=ToolFilter(report=said.append)) as between:
        await between.ask(call("read_file", '{"path":"/etc/x"}'))
        await between.ask(call("read_file"))
        assert "  Rules: 2: no-etc, count" in said[0].splitlines()
        lines = ctx.master.commands.call("mcp.stats")
        assert "  rule no-etc: 1 hits" in lines
        assert "  rule count: 1 hits" in lines
        assert "  metric seen: 2" in lines
        (known,) = [
            line for line in ctx.master.commands.call("mcp.sessions") if "as the rules" in line
        ]
        assert "2 messages" in known


# What rules do with requests; what each action does is in test_rules_everywhere.py.


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
    return (
        "  - {id: hold, conditions: [tool_equals: read_file], "
        f"actions: [transform: {{python: '{name}:hold'}}]}}\n"
    )


CANCEL = b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":%d}}'

CANCELLED = b'{"jsonrpc":"2.0","id":1,"error":{"code":-32800,"message":"Request cancelled"}}'


@pytest.mark.parametrize("has_session", [False, True])
@pytest.mark.parametrize("is_batch", [False, True])
async def test_a_held_call_that_is_cancelled_is_never_sent(
    tmp_path: Path, is_batch: bool, has_session: bool
) -> None:
    """The cancellation comes on another connection, and the upstream gets neither of them."""
    headers = MCP_HEADERS + (b"Mcp-Session-Id: s1\r\n" if has_session else b"")
    async with (
        ruled(tmp_path, holding(tmp_path), session=b"s1" if has_session else b"") as between,
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


@pytest.mark.parametrize(
    ("method", "params", "error"),
    [
        *((name, '{"x":5}', {"code": 9, "message": f"told vendor/{name} 5"})
          for name in ("block", "inject", "limit")),
        ("read", '{"a":1,"a":2}', {"code": -32600}),
        ("break", '{"a":[]}', {"code": -32001}),
    ],
)  # fmt: skip
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


# What rules do with messages on a WebSocket.


NO_SAMPLING = """
  - {id: no-sampling, conditions: [from: server, method_equals: sampling/createMessage],
     actions: [block: no models here]}
"""

SAMPLE = b'{"jsonrpc":"2.0","id":%s,"method":"sampling/createMessage","params":{}}'


@pytest.mark.parametrize("waits", [False, True])
async def test_requests_of_the_upstream_in_a_batch_over_a_websocket_are_answered(
    tmp_path: Path, waits: bool
) -> None:
    heard: asyncio.Queue[bytes | None] = asyncio.Queue()

    async def respond(request: RawRequest, peer: Peer) -> None:
        socket = await accept(peer.reader, peer.writer, request.head)
        await socket.say(b"[" + SAMPLE % b"7" + b"," + PING + b"," + SAMPLE % b"8" + b"]")
        await socket.say(b"[" + SAMPLE % b"10" + b"]")
        while (message := await socket.hear()) is not None:
            heard.put_nowait(message)

    slow = "  - {id: slow, priority: 1, conditions: [from: server], actions: [delay: 50ms]}\n"
    async with ruled(tmp_path, NO_SAMPLING + (slow if waits else ""), respond=respond) as between:
        socket = await connect(between.client.reader, between.client.writer)
        assert await socket.hear() == b"[" + PING + b"]"
        async with asyncio.timeout(TIMEOUT):
            answers = [await heard.get() for _ in range(3)]
        assert answers == [
            blocked("no-sampling", "no models here", "7"),
            blocked("no-sampling", "no models here", "8"),
            b"[" + blocked("no-sampling", "no models here", "10") + b"]",
        ]


@pytest.mark.parametrize(
    ("kind", "transport"),
    [
        ("mitmproxy", "HTTP"),
        ("mitmproxy", "legacy stream"),
        ("mitmproxy", "websocket"),
        ("sockets", "websocket"),
    ],
)
async def test_fork_works_in_each_transport(kind: str, transport: str, tmp_path: Path) -> None:
    """A copy is not judged again, or it would be forked too; its answer is dropped."""
    rules = "  - {id: f, conditions: [tool_equals: read_file], actions: [fork: {copies: 2}]}\n"
    server = Server([READ], results={"ping": {}})
    options = {"rules": write(tmp_path, rules), "deny": "^never$"}
    async with shape(kind, server, tmp_path, options, transport=transport) as talk:
        assert "result" in await talk.ask(asking_for("read_file"))
        await until(lambda: len(server.called()) >= 3)
        assert (await talk.ask(message("ping", 9)))["id"] == 9
    copies = [json.loads(one) for one in server.heard if b"read_file" in one]
    assert len({str(one["id"]) for one in copies}) == len(copies) == 3
    assert [one["params"] for one in copies] == [asking_for("read_file")["params"]] * 3
