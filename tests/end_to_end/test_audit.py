"""The audit log of a running filter, in mitmdump and in the launcher."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import jsonschema
import pytest

from mcp_tool_filter.cli.launcher import main
from tests.cli.launched import launched
from tests.mcp_upstream import mcp_upstream, saying, tool
from tests.proxy import SCRIPT, RunningTool
from tests.proxy import tool as started
from tests.raw_client import MCP_HEADERS, get, post, raw_client
from tests.raw_upstream import TIMEOUT, Peer, RawRequest, answer, free_port

HIDDEN = "delete_file"
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


async def audited(host: str, home: Path, *options: str) -> list[dict[str, object]]:
    """Say it all to a filter; return the entries of its audit log."""
    file = home / "audit.jsonl"
    async with mcp_upstream(
        tools=[tool("read_file"), tool(HIDDEN)], respond=saying(ANSWER)
    ) as upstream:
        if host == "mitmdump":
            sets = [f"deny={HIDDEN}", f"audit_log={file}", *options]
            words = [word for each in sets for word in ("--set", each)]
            words = ["-s", SCRIPT, "--mode", f"reverse:{upstream.url}", *words]
        else:
            pairs = [each.split("=", 1) for each in options]
            flags = [f"--{name.replace('_', '-')}={value}" for name, value in pairs]
            words = ["-u", f"{upstream.url}/mcp", "-d", HIDDEN, f"--audit-log={file}", *flags]
        async with _started(host, *words, home=home) as (it, port):
            async with raw_client(port) as client:
                for body in SAID:
                    await client.ask(post(body))
                await client.ask(get(path="/not-mcp"))
            it.interrupt()
            assert await it.exit_code() == 0
    return [json.loads(line) for line in file.read_bytes().splitlines()]


@asynccontextmanager
async def _started(host: str, *words: str, home: Path) -> AsyncIterator[tuple[RunningTool, int]]:
    if host == "mitmdump":
        async with started(host, *words, home=home) as it:
            yield it, await it.listening()
    else:
        async with launched(*words, home=home) as it:
            yield it, await it.serving()


@pytest.mark.parametrize("host", ["mitmdump", "mcp-tool-filter"])
async def test_each_relevant_message_is_one_line(host: str, tmp_path: Path) -> None:
    entries = await audited(host, tmp_path)
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
    for one in entries:
        jsonschema.validate(one, SCHEMA)
    call, denied = entries[0], entries[1]
    assert call["answered"]
    assert call["client"]
    assert denied["pattern"] == HIDDEN
    assert {one["class"] for one in entries} == {"review", "log"}
    assert b"s3cret" not in (tmp_path / "audit.jsonl").read_bytes()
    assert main(["audit", "verify", str(tmp_path / "audit.jsonl")]) == 0


async def test_arguments_can_be_logged_in_full_except_secrets(tmp_path: Path) -> None:
    call = (await audited("mcp-tool-filter", tmp_path, "audit_arguments=full"))[0]
    assert isinstance(call["arguments"], dict)
    assert isinstance(call["result"], dict)
    assert '"/a"' in call["arguments"]["text"]
    assert "s3cret-key" not in call["arguments"]["text"]
    assert "it is" in call["result"]["text"]


async def test_arguments_can_be_left_out(tmp_path: Path) -> None:
    call = (await audited("mcp-tool-filter", tmp_path, "audit_arguments=none"))[0]
    assert not {"arguments", "result"} & call.keys()


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


@pytest.mark.parametrize("host", ["mitmdump", "mcp-tool-filter"])
async def test_a_rules_log_line_is_audited(host: str, tmp_path: Path) -> None:
    rules = tmp_path / "rules.yaml"
    rules.write_text(LOGS)
    entries = await audited(host, tmp_path, f"rules={rules}")
    told, after = [one for one in entries if "event" in one]
    assert (told["event"], told["rule"], told["level"]) == ("rule", "tell", "debug")
    assert str(told["message"]).startswith(r"read /a\x1b by client-")
    assert (told["method"], told["tool"], told["id"]) == ("tools/call", "read_file", "7")
    assert (after["rule"], after["level"], after["message"]) == ("after", "info", "done")
    assert told["session"] == after["session"] is not None
    for one in entries:
        jsonschema.validate(one, SCHEMA)
    assert [one.get("tool") for one in entries if "event" not in one][:2] == ["read_file", HIDDEN]
    assert main(["audit", "verify", str(tmp_path / "audit.jsonl")]) == 0


@pytest.mark.parametrize("host", ["mitmdump", "mcp-tool-filter"])
async def test_requests_refused_before_they_are_read_are_entered(host: str, tmp_path: Path) -> None:
    """Nobody read of a request that was too large, as its head said, or that was no HTTP."""
    file = tmp_path / "audit.jsonl"
    sets = ["deny=^x", f"audit_log={file}", "message_limit=2KB"]
    async with mcp_upstream(tools=[tool("read_file")]) as upstream:
        if host == "mitmdump":
            words = ["-s", SCRIPT, "--mode", f"reverse:{upstream.url}"]
            words += [word for each in sets for word in ("--set", each)]
        else:
            pairs = [each.split("=", 1) for each in sets]
            words = ["-u", f"{upstream.url}/mcp"]
            words += [f"--{name.replace('_', '-')}={value}" for name, value in pairs]
        async with _started(host, *words, home=tmp_path) as (it, port):
            async with raw_client(port) as client:
                too_large = message("tools/call", name="read_file", arguments={"x": "y" * 9000})
                assert (await client.ask(post(too_large))).status == 413
            async with raw_client(port) as client:
                two_lengths = MCP_HEADERS + b"Content-Length: 1\r\n"
                assert (await client.ask(post(b"{}", headers=two_lengths))).status == 400
            async with raw_client(port) as client:
                evil = post(message("ping")).replace(b"localhost", b"evil.example")
                assert (await client.ask(evil)).status == 403
            it.interrupt()
            assert await it.exit_code() == 0
    entries = [json.loads(line) for line in file.read_bytes().splitlines()]
    assert [(one["verdict"], one["why"]) for one in entries] == [
        ("refused", "oversized"), ("refused", "malformed"), ("refused", "forbidden"),
    ]  # fmt: skip
    assert entries[2]["detail"] == "Host"
    for one in entries:
        jsonschema.validate(one, SCHEMA)


async def test_entries_say_which_of_several_upstreams_a_call_went_to(tmp_path: Path) -> None:
    file = tmp_path / "audit.jsonl"
    async with mcp_upstream(tools=[tool("a")]) as one, mcp_upstream(tools=[tool("a")]) as other:
        ports = [free_port(), free_port()]
        words = ["-s", SCRIPT, "--set", "deny=^x", "--set", f"audit_log={file}"]
        for upstream, port in zip((one, other), ports, strict=True):
            words += ["--mode", f"reverse:{upstream.url}@{port}"]
        async with started("mitmdump", *words, home=tmp_path) as it:
            for port in ports:
                await it.says(rf"listening at 127\.0\.0\.1:{port}")
                async with raw_client(port) as client:
                    await client.ask(post(message("tools/call", name="a")))
            it.interrupt()
            assert await it.exit_code() == 0
        entries = [json.loads(line) for line in file.read_bytes().splitlines()]
        assert [entry["upstream"] for entry in entries] == [f"{one.url}/mcp", f"{other.url}/mcp"]


TOOLS = [tool("hang"), tool("fail"), tool("reset")]


async def fails(request: RawRequest, peer: Peer) -> None:
    if b"hang" in request.body:
        await peer.left()
    elif b"reset" in request.body:
        peer.reset()
    else:
        await peer.say(answer(b"oops", status="500 Broken", kind="text/plain"))


@pytest.mark.parametrize("host", ["mitmdump", "mcp-tool-filter"])
async def test_a_call_that_gets_no_answer_is_entered_while_the_filter_runs(
    host: str, tmp_path: Path
) -> None:
    """It was entered when the filter ended, which may be months later."""
    file = tmp_path / "audit.jsonl"
    async with mcp_upstream(tools=TOOLS, respond=fails) as upstream:
        if host == "mitmdump":
            sets = ["--set", "deny=^x", "--set", f"audit_log={file}"]
            words = ["-s", SCRIPT, "--mode", f"reverse:{upstream.url}", *sets]
        else:
            words = ["-u", f"{upstream.url}/mcp", "-d", "^x", f"--audit-log={file}"]
        async with _started(host, *words, home=tmp_path) as (it, port):
            async with raw_client(port) as client:
                assert (await client.ask(post(message("tools/call", name="fail")))).status == 500
            async with raw_client(port) as client:
                lost = await client.ask(post(message("tools/call", name="reset")))
                assert b"Upstream connection lost" in lost.body
            async with raw_client(port) as leaving:
                await leaving.say(post(message("tools/call", name="hang")))
                async with asyncio.timeout(TIMEOUT):
                    while not any(b"hang" in one.body for one in upstream.asked):
                        await asyncio.sleep(0.05)
            async with asyncio.timeout(TIMEOUT):
                while file.read_bytes().count(b"\n") < 3:
                    await asyncio.sleep(0.05)
            entries = [json.loads(line) for line in file.read_bytes().splitlines()]
            it.interrupt()
            assert await it.exit_code() == 0
    told = {one["tool"]: (one["answered"], one.get("status"), one.get("answer_why"))
            for one in entries}  # fmt: skip
    assert told == {
        "fail": (False, 500, None),
        "reset": (False, None, "upstream_failed"),
        "hang": (False, None, "client_left"),
    }
    for one in entries:
        jsonschema.validate(one, SCHEMA)


async def test_a_file_that_cannot_be_written_stops_the_start(tmp_path: Path) -> None:
    async with mcp_upstream(tools=[tool("a")]) as upstream:
        words = ["-u", upstream.url, "-d", "x", "--audit-log", str(tmp_path / "none" / "a")]
        async with launched(*words, home=tmp_path) as it:
            assert await it.exit_code() == 1
            assert "Error: Cannot write the audit log" in it.stderr
            assert "Traceback" not in it.stderr
