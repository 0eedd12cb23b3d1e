"""The demo shows the truth: it runs the real filter before a real server."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from mcp_tool_filter.cli.commands.demo import TOOLS, DemoUpstream, demo_upstream
from tests.cli.launched import Typed, launched
from tests.make import asking
from tests.raw_client import Answer, get, post, raw_client
from tests.shapes import message


@pytest.mark.parametrize(
    ("words", "count", "refused"),
    [([], 10, "shell_execute"), (["--deny", "^file_"], 15, "file_search")],
)
def test_an_agent_sees_fewer_tools_and_calls_no_other(
    words: list[str], count: int, refused: str, ran: Typed
) -> None:
    out, err = ran("demo", *words)
    assert ("The agent saw 20 tools" in out, err) == (True, "")
    assert f"now it sees {count} tools" in out
    assert f"Tool not found: {refused}\n  (the call did not reach the server)" in out
    assert words or "file_read was called with" in out


async def test_the_demo_can_stay_open_for_other_clients(tmp_path: Path) -> None:
    async with launched("demo", "--stay", home=tmp_path) as it:
        found = await it.says(r"The filter listens at http://127\.0\.0\.1:(\d+)/mcp")
        async with raw_client(int(found[1])) as client:
            answer = await client.ask(post(asking("tools/list")))
        assert len(json.loads(answer.body)["result"]["tools"]) == 10
        it.interrupt(signal.SIGINT)
        assert await it.exit_code() == 0


def of_revision(revision: str) -> dict[str, object]:
    return {"_meta": {"io.modelcontextprotocol/protocolVersion": revision}}


DISCOVER = message("server/discover", **of_revision("2026-07-28"))


async def ask(upstream: DemoUpstream, said: object) -> Answer:
    async with raw_client(upstream.port) as client:
        return await client.ask(post(json.dumps(said).encode()))


async def test_the_demos_server_speaks_the_newest_revision() -> None:
    async with demo_upstream() as upstream:
        result = json.loads((await ask(upstream, DISCOVER)).body)["result"]
        assert "2026-07-28" in result["supportedVersions"]
        assert (result["resultType"], result["cacheScope"]) == ("complete", "public")


@pytest.mark.parametrize(("said", "status", "code"), [
    (message("no/such"), 200, -32601), ({**DISCOVER, "method": "no/such"}, 404, -32601),
    ({**DISCOVER, "params": of_revision("1999-01-01")}, 400, -32022),
    (message("tools/call", name="x"), 200, -32602), (["no message"], 400, -32600),
])  # fmt: skip
async def test_the_demos_server_refuses_like_a_real_one(
    said: object, status: int, code: int
) -> None:
    async with demo_upstream() as upstream:
        answer = await ask(upstream, said)
    assert (answer.status, json.loads(answer.body)["error"]["code"]) == (status, code)


async def test_the_demos_server_has_no_stream_and_no_other_path() -> None:
    async with demo_upstream() as upstream, raw_client(upstream.port) as client:
        asked = [get(), post(b"{}", path="/other")]
        found = [(await client.ask(one)).status for one in asked]
    assert found == [405, 404]


def test_the_demos_tools_look_like_those_of_a_real_server() -> None:
    for tool in TOOLS:
        schema = tool["inputSchema"]
        assert schema["type"] == "object"
        assert set(schema["required"]) <= set(schema["properties"])
    assert len({tool["name"] for tool in TOOLS}) == 20
