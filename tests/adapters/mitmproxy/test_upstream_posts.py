"""Messages of our own to the upstream: copies that rules send, and answers to what it asks."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from tests.adapters.mitmproxy.filtered import call, filtered
from tests.adapters.mitmproxy.ruled import SECRET, blocked, ruled, streaming, write
from tests.mcp_upstream import saying
from tests.raw_upstream import Peer, RawRequest, answer


async def test_fork_sends_a_copy_and_drops_its_answer(tmp_path: Path) -> None:
    rules = "  - {id: f, conditions: [tool_equals: read_file], actions: [fork: {copies: 2}]}\n"

    async with ruled(tmp_path, rules, respond=saying(SECRET)) as between:
        got = await between.ask(call("read_file"), b"User-Agent: c\r\nMcp-Session-Id: s\r\n")
        assert got.body == SECRET
        async with asyncio.timeout(20):
            while len(asked := between.upstream.of("tools/call")) < 3:
                await asyncio.sleep(0.01)
        ids = [json.loads(request.body)["id"] for request in asked]
        assert len(set(map(str, ids))) == 3
        sessions = [request.all("mcp-session-id") for request in asked]
        assert sessions == [["s"]] * 3


async def test_copies_of_a_renamed_call_have_the_new_name_in_the_header(tmp_path: Path) -> None:
    """An upstream of 2026-07-28 refuses a request whose header says another name than its body."""
    rules = """
  - {id: rename, conditions: [tool_equals: read_file], actions: [set_param: {field: name, value: delete_file}]}
  - {id: fork, actions: [fork: {copies: 1}]}
"""  # noqa: E501 - one rule, one line
    given: dict[str, Any] = {"rules": [write(tmp_path, rules)], "deny": ["^never$"]}
    async with filtered(tmp_path, respond=saying(SECRET), **given) as between:
        meta = '"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}'
        body = call("read_file").replace(b'"arguments":{}', b'"arguments":{},' + meta.encode())
        headers = b"MCP-Protocol-Version: 2026-07-28\r\nMcp-Method: tools/call\r\n"
        got = await between.ask(body, headers + b"User-Agent: c\r\nMcp-Name: read_file\r\n")
        assert got.body == SECRET
        async with asyncio.timeout(20):
            while len(asked := between.upstream.of("tools/call")) < 2:
                await asyncio.sleep(0.01)
    for request in asked:
        assert json.loads(request.body)["params"]["name"] == "delete_file"
        assert request.all("mcp-name") == ["delete_file"]
        assert request.all("mcp-method") == ["tools/call"]


async def test_a_request_from_the_upstream_is_answered_for_the_client(tmp_path: Path) -> None:
    rules = """
  - {id: no-sampling, conditions: [from: server, method_equals: sampling/createMessage],
     actions: [block: no models here]}
"""
    ask = b'{"jsonrpc":"2.0","id":77,"method":"sampling/createMessage","params":{}}'
    answered: asyncio.Queue[RawRequest] = asyncio.Queue()

    async def respond(request: RawRequest, peer: Peer) -> None:
        if b"-32001" in request.body:
            answered.put_nowait(request)
            await peer.say(answer(b"", status="202 Accepted"))
        else:
            await streaming(b"data: " + ask + b"\n\n", b"data: " + SECRET + b"\n\n")(request, peer)

    async with ruled(tmp_path, rules, respond=respond) as between:
        headers = b"User-Agent: c\r\nAuthorization: Bearer t\r\n"
        got = await between.ask(call("read_file"), headers)
        assert got.body == b"data: " + SECRET + b"\n\n"
        request = await asyncio.wait_for(answered.get(), 20)
        assert request.body == blocked("no-sampling", "no models here", "77")
        assert request.all("authorization") == ["Bearer t"]
