"""The audit log of a running filter, in mitmdump and in the launcher."""

from __future__ import annotations

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
from tests.raw_client import get, post, raw_client

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
async def test_each_message_that_matters_is_one_line(host: str, tmp_path: Path) -> None:
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


async def test_arguments_can_be_entered_in_full_but_for_secrets(tmp_path: Path) -> None:
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
async def test_what_rules_log_is_entered(host: str, tmp_path: Path) -> None:
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


async def test_a_file_that_cannot_be_written_stops_the_start(tmp_path: Path) -> None:
    async with mcp_upstream(tools=[tool("a")]) as upstream:
        words = ["-u", upstream.url, "-d", "x", "--audit-log", str(tmp_path / "none" / "a")]
        async with launched(*words, home=tmp_path) as it:
            assert await it.exit_code() == 1
            assert "Error: Cannot write the audit log" in it.stderr
            assert "Traceback" not in it.stderr
