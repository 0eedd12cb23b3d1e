"""The demo's own MCP server."""

from __future__ import annotations

import json

import pytest

from mcp_tool_filter.cli.commands.demo_upstream import DemoUpstream, demo_upstream
from tests.raw_client import Answer, get, post, raw_client

DISCOVER = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "server/discover",
    "params": {"_meta": {"io.modelcontextprotocol/protocolVersion": "2026-07-28"}},
}


async def ask(upstream: DemoUpstream, message: object) -> Answer:
    async with raw_client(upstream.port) as client:
        return await client.ask(post(json.dumps(message).encode()))


async def test_the_demos_server_speaks_the_newest_revision() -> None:
    async with demo_upstream() as upstream:
        result = json.loads((await ask(upstream, DISCOVER)).body)["result"]
        assert "2026-07-28" in result["supportedVersions"]
        assert (result["resultType"], result["cacheScope"]) == ("complete", "public")


@pytest.mark.parametrize(
    ("message", "status", "code"),
    [
        ({"jsonrpc": "2.0", "id": 1, "method": "no/such"}, 200, -32601),
        ({**DISCOVER, "method": "no/such"}, 404, -32601),
        (
            {
                **DISCOVER,
                "params": {"_meta": {"io.modelcontextprotocol/protocolVersion": "1999-01-01"}},
            },
            400,
            -32022,
        ),
        (
            {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "x"}},
            200,
            -32602,
        ),
        (["no message"], 400, -32600),
    ],
)
async def test_the_demos_server_refuses_like_a_real_one(
    message: object, status: int, code: int
) -> None:
    async with demo_upstream() as upstream:
        answer = await ask(upstream, message)
    assert (answer.status, json.loads(answer.body)["error"]["code"]) == (status, code)


async def test_the_demos_server_has_no_stream_and_no_other_path() -> None:
    async with demo_upstream() as upstream, raw_client(upstream.port) as client:
        asked = [get(), post(b"{}", path="/other")]
        found = [(await client.ask(one)).status for one in asked]
    assert found == [405, 404]
