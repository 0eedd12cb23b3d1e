"""The audit log of a running filter, in mitmdump and in the launcher."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from mcp_tool_filter.cli.launcher import main
from tests.hosts import HOSTS, LAUNCHER, Filtering, filtering
from tests.mcp_upstream import Respond, mcp_upstream, saying, tool
from tests.proxy import SCRIPT
from tests.proxy import tool as started
from tests.raw_client import MCP_HEADERS, get, post, raw_client
from tests.raw_upstream import Peer, RawRequest, answer, free_port, until

HIDDEN = "delete_file"
TOOLS = (tool("read_file"), tool(HIDDEN))
DOCS = Path(__file__).parents[2] / "addon" / "mcp_tool_filter" / "docs"
SCHEMA = json.loads((DOCS / "audit-line.schema.json").read_text())
ANSWER = b'{"jsonrpc":"2.0","id":7,"result":{"content":[{"type":"text","text":"it is s3cret"}]}}'


def message(method: str, id: int | None = 7, **params: object) -> bytes:
    said: dict[str, object] = {"jsonrpc": "2.0", "method": method, "params": params}
    return json.dumps(said if id is None else said | {"id": id}).encode()


SAID = [
    message("tools/call", name="read_file", arguments={"path": "/a", "api_key": "s3cret-key"}),
    message("tools/call", name=HIDDEN, arguments={"path": "/b"}),
    message("tools/call", name="no_such\x1b[31m"),
    message("resources/read", uri="file:///c"),
    message("vendor.acme/custom"),
    message("ping"),
    message("notifications/cancelled", None, requestId=1),
    b'{"jsonrpc":"2.0","id":7,"id":8,"method":"ping"}',
]


def filtered(
    host: str, home: Path, *options: str, tools: Sequence[bytes] = TOOLS, respond: Respond
) -> AbstractAsyncContextManager[Filtering]:
    options = (f"deny={HIDDEN}", f"audit_log={home / 'audit.jsonl'}", *options)
    return filtering(host, home, *options, tools=tools, respond=respond)


def entries_in(home: Path) -> list[dict[str, Any]]:
    """Return what is in the log, which is as its schema says."""
    entries = [json.loads(line) for line in (home / "audit.jsonl").read_bytes().splitlines()]
    for one in entries:
        jsonschema.validate(one, SCHEMA)
    return entries


async def audited(host: str, home: Path, *options: str) -> list[dict[str, Any]]:
    """Say it all to a filter; return the entries of its audit log."""
    async with filtered(host, home, *options, respond=saying(ANSWER)) as it:
        await it.hear(*map(post, SAID), get(path="/not-mcp"))
    assert main(["audit", "verify", str(home / "audit.jsonl")]) == 0
    return entries_in(home)


LOGS = """
interceptor:
  rules:
    - id: tell
      conditions: [tool_equals: read_file]
      actions: [log: {level: debug, message: "read ${params.arguments.path}\\e by ${session_id}"}]
    - id: after
      on: response
      conditions: [tool_equals: read_file]
      actions: [log: {message: done}]
"""


@pytest.mark.parametrize("host", HOSTS)
async def test_each_relevant_message_and_each_log_line_of_a_rule_is_one_line(
    host: str, tmp_path: Path
) -> None:
    rules = tmp_path / "rules.yaml"
    rules.write_text(LOGS)
    every = await audited(host, tmp_path, f"rules={rules}")
    entries = [one for one in every if "event" not in one]
    rows = [
        (one.get("method"), one.get("tool") or one.get("uri"), one["verdict"], one.get("why"))
        for one in entries
    ]
    assert rows == [
        ("tools/call", "read_file", "forwarded", None),
        ("tools/call", HIDDEN, "refused", "denied"),
        ("tools/call", "no_such\\x1b[31m", "refused", "unknown"),
        ("resources/read", "file:///c", "forwarded", None),
        ("vendor.acme/custom", None, "forwarded", None),
        (None, None, "refused", "malformed"),
    ]
    call, denied = entries[0], entries[1]
    assert call["answered"]
    assert call["client"]
    assert denied["pattern"] == HIDDEN
    assert {one["class"] for one in entries} == {"review", "log"}
    assert b"s3cret" not in (tmp_path / "audit.jsonl").read_bytes()

    told, after = [one for one in every if "event" in one]
    assert (told["event"], told["rule"], told["level"]) == ("rule", "tell", "debug")
    assert str(told["message"]).startswith(r"read /a\x1b by client-")
    assert (told["method"], told["tool"], told["id"]) == ("tools/call", "read_file", "7")
    assert (after["rule"], after["level"], after["message"]) == ("after", "info", "done")
    assert told["session"] == after["session"] is not None


@pytest.mark.parametrize("how", ["full", "none"])
async def test_arguments_can_be_logged_in_full_except_secrets_or_left_out(
    how: str, tmp_path: Path
) -> None:
    call = (await audited(LAUNCHER, tmp_path, f"audit_arguments={how}"))[0]
    if how == "none":
        assert not {"arguments", "result"} & call.keys()
    else:
        assert '"/a"' in call["arguments"]["text"]
        assert "s3cret-key" not in call["arguments"]["text"]
        assert "it is" in call["result"]["text"]


@pytest.mark.parametrize("host", HOSTS)
async def test_requests_refused_before_they_are_read_are_entered(host: str, tmp_path: Path) -> None:
    """Nobody read of a request that was too large, as its head said, or that was no HTTP."""
    limit = "message_limit=2KB"
    async with filtered(host, tmp_path, limit, respond=saying(ANSWER)) as it:
        too_large = message("tools/call", name="read_file", arguments={"x": "y" * 9000})
        two_lengths = post(b"{}", headers=MCP_HEADERS + b"Content-Length: 1\r\n")
        evil = post(message("ping")).replace(b"localhost", b"evil.example")
        for asked, status in ((post(too_large), 413), (two_lengths, 400), (evil, 403)):
            async with raw_client(it.port) as client:
                assert (await client.ask(asked)).status == status
    entries = entries_in(tmp_path)
    assert [(one["verdict"], one["why"]) for one in entries] == [
        ("refused", "oversized"), ("refused", "malformed"), ("refused", "forbidden"),
    ]  # fmt: skip
    assert entries[2]["detail"] == "Host"


async def test_entries_say_which_of_several_upstreams_a_call_went_to(tmp_path: Path) -> None:
    async with mcp_upstream(tools=[tool("a")]) as one, mcp_upstream(tools=[tool("a")]) as other:
        ports = [free_port(), free_port()]
        modes = [f"reverse:{one.url}@{ports[0]}", f"reverse:{other.url}@{ports[1]}"]
        words = ["--set=deny=^x", f"--set=audit_log={tmp_path / 'audit.jsonl'}"]
        words += [f"--mode={mode}" for mode in modes]
        async with started("mitmdump", "-s", SCRIPT, *words, home=tmp_path) as it:
            for port in ports:
                await it.says(rf"listening at 127\.0\.0\.1:{port}")
                async with raw_client(port) as client:
                    await client.ask(post(message("tools/call", name="a")))
            it.interrupt()
            assert await it.exit_code() == 0
        upstreams = [entry["upstream"] for entry in entries_in(tmp_path)]
        assert upstreams == [f"{one.url}/mcp", f"{other.url}/mcp"]


async def fails(request: RawRequest, peer: Peer) -> None:
    if b"hang" in request.body:
        await peer.left()
    elif b"reset" in request.body:
        peer.reset()
    else:
        await peer.say(answer(b"oops", status="500 Broken", kind="text/plain"))


@pytest.mark.parametrize("host", HOSTS)
async def test_a_call_that_gets_no_answer_is_entered_while_the_filter_runs(
    host: str, tmp_path: Path
) -> None:
    """It was entered when the filter ended, which may be months later."""
    tools = [tool("hang"), tool("fail"), tool("reset")]
    async with filtered(host, tmp_path, tools=tools, respond=fails) as it:
        async with raw_client(it.port) as client:
            assert (await client.ask(post(message("tools/call", name="fail")))).status == 500
        async with raw_client(it.port) as client:
            lost = await client.ask(post(message("tools/call", name="reset")))
            assert b"Upstream connection lost" in lost.body
        async with raw_client(it.port) as leaving:
            await leaving.say(post(message("tools/call", name="hang")))
            await until(lambda: any(b"hang" in one.body for one in it.upstream.asked))
        await until(lambda: (tmp_path / "audit.jsonl").read_bytes().count(b"\n") >= 3)
        entries = entries_in(tmp_path)
    told = {one["tool"]: (one["answered"], one.get("status"), one.get("answer_why"))
            for one in entries}  # fmt: skip
    assert told == {
        "fail": (False, 500, None),
        "reset": (False, None, "upstream_failed"),
        "hang": (False, None, "client_left"),
    }
