"""``--shadow`` in every shape: the bytes are those of the upstream, and the audit log says what
would have happened."""

from __future__ import annotations

import asyncio
import json
import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.browser import browser
from tests.cli.launched import launched
from tests.filtered import DELETE, READ, filtered
from tests.make import asking, calling
from tests.mcp_upstream import mcp_upstream, tool_list
from tests.raw_client import MCP_HEADERS, post, raw_client
from tests.raw_upstream import free_port
from tests.rooms.page.test_dashboard import Visitor, address_of
from tests.rooms.rules.test_rules_in_mitmproxy import policy
from tests.rooms.telemetry.test_metrics import fetched, value_of
from tests.served import served
from tests.shapes import TRANSPORTS, Message, Server, Talk, shape, talking

DENY = ["^delete_"]
# Each with what would be done to it.
CALLS: list[tuple[bytes, tuple[str, str]]] = [
    (calling(name, arguments=arguments), would)
    for name, arguments, would in (
        ("delete_file", "{}", ("refused", "denied")),
        ("no_such", "{ }", ("refused", "unknown")),
        ("read_file", '{"case" : "block"}', ("refused", "blocked")),
        ("read_file", '{"case":"error"}', ("refused", "blocked")),
        ("read_file", '{"case":"change","gone" :1}', ("changed", "changed")),
        ("read_file", '{"case":"merge","gone":1e0}', ("changed", "changed")),
        ("read_file", '{"case":"delay"}', ("changed", "changed")),
        ("read_file", '{"case":"script"}', ("changed", "changed")),
        ("read_file", '{"case":"cache"}', ("changed", "changed")),
        ("read_file", '{"case":"cache"}', ("changed", "changed")),
        ("read_file", '{"case":"redact"}', ("answer changed", "changed")),
        ("read_file", '{"case":"set"}', ("answer changed", "changed")),
        ("read_file", '{"case":"patch"}', ("answer changed", "changed")),
        ("read_file", '{"case":"hide"}', ("answer changed", "blocked")),
    )
]
LIST = asking("tools/list", id="7")


def would_of(entry: dict[str, Any]) -> tuple[str, str]:
    assert entry["shadow"] is True
    if "answer_verdict" in entry:
        return f"answer {entry['answer_verdict']}", entry["answer_why"]
    return entry["verdict"], entry["why"]


def check_log(file: Path) -> None:
    entries = [json.loads(line) for line in file.read_bytes().splitlines()]
    calls = [one for one in entries if one.get("method") == "tools/call" and "event" not in one]
    assert list(map(would_of, calls)) == [would for _, would in CALLS]
    assert all(one["answered"] for one in calls)
    listed = [one for one in entries if one.get("method") == "tools/list"]
    assert set(map(would_of, listed)) == {("answer changed", "hidden")}


def echo(asked: Message) -> Message:
    text = f"secret-1 {json.dumps(asked['params']['arguments'])}"
    return {"content": [{"type": "text", "text": text}]}


async def heard_when_saying(talk: Talk, *said: bytes) -> list[bytes]:
    found = []
    for body in said:  # all have the same id
        await talk.say(body)
        found.append(await talk.hear())
    return found


async def listed(talk: Talk) -> tuple[bytes, list[bytes]]:
    """List over HTTP; return the body and the digests in the head."""
    async with raw_client(talk.port) as client:
        got = await client.ask(post(LIST, path=talk.path, headers=MCP_HEADERS))
    digests = re.findall(rb"(?im)^.*digest.*$", got.head)
    assert digests
    return got.body, digests


IN_PROCESS = [(name, *way) for name in ("sockets", "mitmproxy") for way in TRANSPORTS]
COMMANDS = [("relay", "stdio", False), ("pipe", "stdio", False), ("bridge", "HTTP", False)]


@pytest.mark.parametrize(
    ("name", "transport", "as_events"),
    [*IN_PROCESS, *COMMANDS, ("forward proxy", "HTTP", False)],
)
async def test_nothing_changes(name: str, transport: str, as_events: bool, tmp_path: Path) -> None:
    digest = b'ETag: "a"\r\nRepr-Digest: sha-256=:b:\r\n'
    server = Server([READ, DELETE], calls=echo, as_events=as_events, head=digest, announces=True)
    log = tmp_path / "audit.jsonl"
    options: dict[str, str | bool] = {"deny": DENY[0], "rules": policy(tmp_path), "shadow": True}
    options["audit-log"] = str(log)
    is_command = (name, transport, as_events) in COMMANDS
    calls = [body for body, _ in CALLS]
    async with shape(name, server, tmp_path, options, transport=transport) as talk:
        if is_command:
            assert await heard_when_saying(talk, LIST) == [tool_list([READ, DELETE], id="7")]
        over = "HTTP" if transport == "stdio" else transport
        async with talking(over, server.port) as direct:
            seen = []
            for one in (direct, talk):
                server.heard.clear()
                answers = await heard_when_saying(one, *calls)
                seen.append((answers, [body for body in server.heard if b"tools/call" in body]))
            assert seen[0] == seen[1]
            assert seen[0][1] == calls
            for server.as_events in () if is_command else (True, False):
                assert await listed(talk) == await listed(direct)
    assert "Warning: nothing is enforced" in talk.stderr() or name == "mitmproxy"
    check_log(log)


async def test_what_cannot_be_judged_is_refused_also_then(tmp_path: Path) -> None:
    async with filtered(tmp_path, shadow=["true"], on_sockets=True) as between:
        got = await between.ask(b'{"jsonrpc":"2.0","id":1,"id":2,"method":"tools/call"}')
        assert got.status == 400
        got = await between.ask(calling("read_file"), b"Mcp-Method: tools/list\r\n")
        assert got.status == 400
        foreign = post(calling("read_file"), headers=MCP_HEADERS + b"Origin: http://evil.test\r\n")
        assert (await between.client.ask(foreign)).status == 403
        assert between.upstream.of("tools/call") == []


async def test_it_can_be_switched_while_the_filter_runs(tmp_path: Path) -> None:
    async with mcp_upstream(tools=[READ, DELETE]) as upstream:
        options: dict[str, Any] = {"deny": DENY, "endpoint": ["/mcp"]}
        async with served(to=upstream.url, **options) as running:
            for shadow in ("true", "false"):
                running.adopt(**options, shadow=[shadow])
                async with raw_client(running.port) as client:
                    await client.ask(post(calling("delete_file"), headers=MCP_HEADERS))
                assert len(upstream.of("tools/call")) == 1
            assert [one for one in running.warnings if "shadow was switched" in one]


async def test_terminal_metrics_and_page_say_what_would_have_happened(tmp_path: Path) -> None:
    metrics = free_port()
    async with mcp_upstream(tools=[READ, DELETE]) as upstream:
        flags = ["-u", upstream.url, "-d", DENY[0], "--shadow", "--dashboard", "0"]
        flags += ["--metrics-port", str(metrics), "--metrics-token", "t"]
        async with launched(*flags, home=tmp_path) as it, raw_client(await it.serving()) as client:
            page_of = Visitor(*await address_of(it))
            await client.ask(post(calling("delete_file"), headers=MCP_HEADERS))
            await client.ask(post(LIST, headers=MCP_HEADERS))
            await it.says(r"delete_file: ok, would be refused \(denied by \^delete_\)")
            await it.says(r"tools/list: ok, answer would be changed \(hidden\)")
            ask = partial(fetched, metrics, "/metrics", authorization="Bearer t")
            text = (await asyncio.to_thread(ask))[1]
            why = 'tool="delete_file",verdict="refused",why="denied"'
            assert value_of(text, f"mcp_tool_filter_shadow_total{{{why}}}") == 1
            assert value_of(text, 'mcp_tool_filter_calls_total{tool="delete_file"}') == 1
            assert "refusals_total{" not in text
            state = page_of.ask("state")[1]
            [listener] = state["listeners"]
            assert (listener["shadow"], listener["reported"], listener["refused"]) == (True, 2, 0)
            assert state["recent"][1]["would"] == "would be refused (denied by ^delete_)"
            page_of.change("apply", deny=["^read_"])  # the switches change what is reported
            await client.ask(post(calling("read_file"), headers=MCP_HEADERS))
            await it.says(r"read_file: ok, would be refused \(denied by \^read_\)")
            with browser(tmp_path) as page:
                page.go(f"http://127.0.0.1:{page_of.port}{page_of.path}")
                wanted = "Nothing is enforced", "Would be hidden", "would be refused"
                page.wait_for(*wanted)
                assert page.errors() == []
            it.interrupt()
            await it.exit_code()
    said = it.stdout + it.stderr
    assert said.count("Warning: nothing is enforced") == 1
    assert "Tools: 2, all exposed; 1 would be denied" in said
    assert "Only reported: 3 messages, none refused or changed" in said


@pytest.mark.parametrize("host", ["sockets", "mitmproxy"])
async def test_a_rule_with_mode_audit_is_logged_and_nothing_else(host: str, tmp_path: Path) -> None:
    rules, log = tmp_path / "rules.yaml", tmp_path / "audit.jsonl"
    rules.write_text(
        "interceptor: {rules: ["
        "{id: tried, mode: audit, conditions: [tool_equals: read_file], actions: [block: no]},"
        "{id: real, conditions: [param_equals: {field: arguments.a, value: 1}],"
        " actions: [block: n]}]}"
    )
    given: dict[str, Any] = {"rules": [str(rules)], "audit_log": [str(log)]}
    async with filtered(tmp_path, on_sockets=host == "sockets", **given) as between:
        for arguments in ("{}", '{"a":1}'):
            await between.ask(calling("read_file", arguments=arguments))
        assert [one.body for one in between.upstream.of("tools/call")] == [calling("read_file")]
    lines = [json.loads(line) for line in log.read_bytes().splitlines()]
    told = [(one.get("event"), one["verdict"], one["rule"], one.get("shadow")) for one in lines]
    assert sorted(told, key=str) == [
        ("rule", "refused", "tried", True),
        (None, "refused", "real", None),
        (None, "refused", "tried", True),
    ]
