"""Two proxies whose rules share one Redis, which is killed and comes back."""

from __future__ import annotations

import json
from pathlib import Path

from tests.adapters.effects.test_redis_state import Server
from tests.mcp_upstream import mcp_upstream, saying, tool
from tests.proxy import SCRIPT
from tests.proxy import tool as running_tool
from tests.raw_client import MCP_HEADERS, RawClient, post, raw_client

RULES = """
interceptor:
  chain: {{on_error: {on_error}, timeout: 2s}}
  state: {{url: "{url}"}}
  rules:
    - id: budget
      conditions: [method_equals: vendor/costly]
      actions: [rate_limit: {{key: all, limit: 3, window: 1h}}]
    - id: keep
      conditions: [method_equals: vendor/get]
      actions: [cache: {{key: all, ttl: 1h}}]
"""
OK = b'{"jsonrpc":"2.0","id":1,"result":{"x":1}}'


def asking(method: str) -> bytes:
    return post(f'{{"jsonrpc":"2.0","id":1,"method":"{method}"}}'.encode(), headers=MCP_HEADERS)


async def outcome(client: RawClient, method: str) -> str:
    """Return what came of a request: ok, or the action of the rule that refused it."""
    body = json.loads((await client.ask(asking(method))).body)
    if "result" in body:
        return "ok"
    action: str = body["error"]["data"]["action"]
    return action


async def test_limits_and_caches_are_shared_and_a_lost_redis_is_reported(tmp_path: Path) -> None:
    redis = Server(tmp_path)
    redis.start()
    rules = tmp_path / "rules.yaml"
    rules.write_text(RULES.format(url=redis.url, on_error="block"))
    try:
        async with mcp_upstream(tools=[tool("read_file")], respond=saying(OK)) as upstream:
            words = (
                "mitmdump", "-s", SCRIPT, "--mode", f"reverse:{upstream.url}",
                "--listen-host", "127.0.0.1", "--listen-port", "0", "--set", "endpoint=/mcp",
                "--set", f"rules={rules}",
            )  # fmt: skip
            async with (
                running_tool(*words, home=tmp_path / "a") as one,
                running_tool(*words, home=tmp_path / "b") as two,
                raw_client(await one.listening()) as a,
                raw_client(await two.listening()) as b,
            ):
                heard = [await outcome(client, "vendor/costly") for client in (a, b, a, b, a)]
                assert heard == ["ok", "ok", "ok", "rate_limit", "rate_limit"]
                assert [await outcome(client, "vendor/get") for client in (a, b, a)] == ["ok"] * 3
                assert len(upstream.of("vendor/get")) == 1

                redis.kill()
                assert await outcome(a, "vendor/costly") == "error"
                assert await outcome(a, "vendor/other") == "ok"
                await one.says("Rule 'budget'.*cannot be reached")

                redis.start()  # empty: nothing was saved
                assert await outcome(a, "vendor/costly") == "ok"
                assert await outcome(b, "vendor/costly") == "ok"
    finally:
        redis.kill()
