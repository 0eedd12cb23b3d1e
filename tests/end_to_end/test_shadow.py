"""``--shadow`` in every shape: the bytes are those of the upstream, and the audit log says what
would have happened."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from mcp_tool_filter.adapters.mitmproxy.addon import ToolFilter
from tests.adapters.mitmproxy.filtered import DELETE, READ, Filtered, filtered
from tests.adapters.mitmproxy.test_rules_everywhere import Echo, policy
from tests.adapters.watch.test_dashboard import Visitor, address_of
from tests.adapters.watch.test_metrics import fetched, value_of
from tests.browser import browser
from tests.cli.commands.served_command import served as served_command
from tests.cli.commands.test_every_rule_over_stdio import ECHO
from tests.cli.launched import launched
from tests.make import asking, calling
from tests.mcp_upstream import mcp_upstream, tool_list
from tests.proxy import proxy
from tests.raw_client import MCP_HEADERS, RawClient, get, post, raw_client
from tests.raw_upstream import RawRequest, answer, free_port
from tests.stdio_client import filtered as filtered_stdio
from tests.stdio_client import started
from tests.websocket import connect

type AskRaw = Callable[[bytes], Awaitable[bytes]]

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
    [listed] = [one for one in entries if one.get("method") == "tools/list"]
    assert would_of(listed) == ("answer changed", "hidden")


def list_with_digest(_request: RawRequest, id: str) -> bytes:
    whole = answer(tool_list([READ, DELETE], id=id))
    return whole.replace(b"\r\n", b'\r\nETag: "a"\r\nRepr-Digest: sha-256=:b:\r\n', 1)


async def bodies(ask: AskRaw, echo: Echo) -> list[bytes]:
    """Say it all; return the answers."""
    found = []
    for body, _ in CALLS:
        echo.heard.clear()
        found.append(await ask(body))
        assert echo.heard == [json.loads(body)["params"]["arguments"]]
    return found


@pytest.mark.parametrize("host", ["sockets", "mitmproxy"])
@pytest.mark.parametrize("transport", ["JSON", "event", "websocket", "legacy stream"])
async def test_over_http_nothing_changes(tmp_path: Path, transport: str, host: str) -> None:
    echo = Echo(as_event=transport == "event")
    log = tmp_path / "audit.jsonl"
    given: dict[str, Any] = {
        "deny": DENY,
        "rules": [policy(tmp_path)],
        "shadow": ["true"],
        "audit_log": [str(log)],
        "tools_list": ["cache"],
    }
    async with filtered(
        tmp_path, respond=echo.respond, lists=list_with_digest,
        on_sockets=host == "sockets", **given,
    ) as between:  # fmt: skip
        direct = int(between.upstream.url.rpartition(":")[2])
        seen = [
            await _said_and_heard(port, transport, echo, between) for port in (direct, between.port)
        ]
        assert seen[0] == seen[1]
        heads = []
        for port in (direct, between.port):
            async with raw_client(port) as client:
                got = await client.ask(post(LIST, headers=MCP_HEADERS))
                assert got.body == tool_list([READ, DELETE], id="7")
                heads.append([line for line in got.head.split(b"\r\n") if b"igest" in line])
        assert heads[0] == heads[1] != []
    check_log(log)


async def _said_and_heard(
    port: int, transport: str, echo: Echo, between: Filtered
) -> tuple[list[bytes], list[bytes]]:
    """Return what reaches the upstream, and what the client gets."""
    between.upstream.asked.clear()
    async with raw_client(port) as client, raw_client(port) as poster:
        found = await bodies(await asker(transport, client, poster), echo)
    reached = [one.body for one in between.upstream.asked if b"tools/call" in one.body]
    return reached, found


async def asker(transport: str, client: RawClient, poster: RawClient) -> AskRaw:
    if transport == "websocket":
        socket = await connect(client.reader, client.writer)

        async def over_socket(body: bytes) -> bytes:
            await socket.say(body)
            return await socket.hear() or b""

        return over_socket
    if transport == "legacy stream":
        await client.say(get(path="/sse"))
        await client.head()
        await client.chunk()

        async def over_stream(body: bytes) -> bytes:
            await poster.ask(post(body, path="/messages?s=1", headers=MCP_HEADERS))
            return await client.chunk()

        return over_stream

    async def over_http(body: bytes) -> bytes:
        return (await client.ask(post(body, headers=MCP_HEADERS))).body

    return over_http


async def test_over_stdio_nothing_changes(tmp_path: Path) -> None:
    words = (sys.executable, "-c", ECHO, str(tmp_path / "journal"))
    flags = ("--deny", DENY[0], "--rules", policy(tmp_path), "--shadow")
    log = tmp_path / "audit.jsonl"
    lines = [body for body, _ in CALLS]
    got: list[list[bytes]] = []
    reached: list[str] = []
    python = [sys.executable, "-m", "mcp_tool_filter", *flags, "--audit-log", str(log), "--"]
    for before in ((), python):
        (tmp_path / "journal").write_text("")
        with started(*before, *words, home=tmp_path) as client:
            client.opens()
            found = []
            for line in (LIST, *lines):  # all calls have the same id
                client.say(line)
                found.append(client.hears_line())
            got.append(found)
            assert client.leaves() == 0
            if before:
                assert "Warning: nothing is enforced" in client.stderr()
        reached.append((tmp_path / "journal").read_text())
    assert got[0] == got[1]
    assert reached[0] == reached[1]
    check_log(log)


async def test_in_front_of_a_url_over_stdio_nothing_changes(tmp_path: Path) -> None:
    echo = Echo()
    log = tmp_path / "audit.jsonl"
    flags = ("--deny", DENY[0], "--rules", policy(tmp_path), "--audit-log", str(log), "--shadow")
    async with mcp_upstream(tools=[READ, DELETE], respond=echo.respond) as upstream:
        with filtered_stdio(
            *flags, "--stdio", "-u", f"{upstream.url}/mcp", home=tmp_path
        ) as client:
            await asyncio.to_thread(client.opens)
            port = int(upstream.url.rpartition(":")[2])
            async with raw_client(port) as alone:
                direct = await bodies(await asker("JSON", alone, alone), echo)

            async def ask(body: bytes) -> bytes:
                client.say(body)
                return (await asyncio.to_thread(client.hears_line)).removesuffix(b"\n")

            assert await ask(LIST) == tool_list([READ, DELETE], id="7")
            assert await bodies(ask, echo) == direct
            assert await asyncio.to_thread(client.leaves) == 0
    check_log(log)


def test_in_front_of_a_command_over_http_nothing_is_hidden(tmp_path: Path) -> None:
    with served_command(tmp_path, words=("--shadow",)) as client:
        client.opens()
        tools = client.post(LIST).json()["result"]["tools"]
        assert "delete_file" in [tool["name"] for tool in tools]
        assert "result" in client.calls("delete_file", id="3")


async def test_in_a_forward_proxy_nothing_is_hidden(tmp_path: Path) -> None:
    echo = Echo()
    async with mcp_upstream(tools=[READ, DELETE], respond=echo.respond) as upstream:
        given = {"deny": DENY, "shadow": ["true"]}
        running = proxy(ToolFilter(), to=["regular"], home=tmp_path, **given)
        async with running as it, raw_client(it.port) as client:
            whole = f"{upstream.url}/mcp"
            got = await client.ask(post(LIST, path=whole, headers=MCP_HEADERS))
            assert got.body == tool_list([READ, DELETE], id="7")
            called = calling("delete_file")
            await client.ask(post(called, path=whole, headers=MCP_HEADERS))
            assert upstream.asked[-1].body == called


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
    from tests.served import served

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
            text = (
                await asyncio.to_thread(fetched, metrics, "/metrics", authorization="Bearer t")
            )[1]
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
                page.wait_for(
                    "Nothing is enforced", "Tools that would be hidden", "would be refused"
                )
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
