"""Proxies whose rules share one Redis, which is killed and comes back."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.cli.launched import launched
from tests.make import answering, asking, calling
from tests.mcp_upstream import mcp_upstream, saying, tool
from tests.proxy import SCRIPT
from tests.proxy import tool as running_tool
from tests.raw_client import RawClient, post, raw_client
from tests.rooms.rules.test_redis_state import Server
from tests.rooms.stdio.relaying import text_in
from tests.rooms.stdio.served_command import served_by
from tests.session_upstream import session_upstream
from tests.stdio_client import StdioClient, filtered, upstream

RULES = """
interceptor:
  chain: {{on_error: {on_error}, timeout: 2s}}
  state: {{url: "{url}"}}
  rules:
    - id: budget
      conditions: [method_equals: {method}]
      actions: [rate_limit: {{key: all, limit: {limit}, window: 1h}}]
    - id: keep
      conditions: [method_equals: vendor/get]
      actions: [cache: {{key: all, ttl: 1h}}]
"""
OK = answering('{"x":1}')
COSTLY, OTHER, GET = (asking(f"vendor/{name}") for name in ("costly", "other", "get"))


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path)
    yield server
    server.kill()


async def outcome(client: RawClient, said: bytes) -> str:
    """Return what came of a request: ok, or the action of the rule that refused it."""
    body = json.loads((await client.ask(post(said))).body)
    return "ok" if "result" in body else str(body["error"]["data"]["action"])


async def test_limits_and_caches_are_shared_and_a_lost_redis_is_reported(
    redis: Server, tmp_path: Path
) -> None:
    rules = tmp_path / "rules.yaml"
    rules.write_text(RULES.format(url=redis.url, on_error="block", method="vendor/costly", limit=3))
    async with mcp_upstream(tools=[tool("read_file")], respond=saying(OK)) as upstream:
        sets = ("--set", "endpoint=/mcp", "--set", f"rules={rules}")
        words = ("mitmdump", "-s", SCRIPT, "--mode", f"reverse:{upstream.url}", *sets)
        async with (
            running_tool(*words, home=tmp_path / "a") as one,
            running_tool(*words, home=tmp_path / "b") as two,
            raw_client(await one.listening()) as a,
            raw_client(await two.listening()) as b,
        ):
            heard = [await outcome(client, COSTLY) for client in (a, b, a, b, a)]
            assert heard == ["ok", "ok", "ok", "rate_limit", "rate_limit"]
            assert [await outcome(client, GET) for client in (a, b, a)] == ["ok"] * 3
            assert len(upstream.of("vendor/get")) == 1

            redis.kill()
            assert await outcome(a, COSTLY) == "error"
            assert await outcome(a, OTHER) == "ok"
            await one.says("Rule 'budget'.*cannot be reached")

            redis.start()  # empty: nothing was saved
            assert await outcome(a, COSTLY) == "ok"
            assert await outcome(b, COSTLY) == "ok"


async def outcomes(ports: list[int], clients: int, calls: int) -> Counter[str]:
    """Let some clients of each replica call a tool at the same time; count what they get."""

    async def visit(port: int) -> list[str]:
        async with raw_client(port) as client:
            return [await outcome(client, calling("read_file")) for _ in range(calls)]

    heard = await asyncio.gather(*map(visit, ports * clients))
    return Counter(one for each in heard for one in each)


@pytest.mark.parametrize(("on_error", "without"), [("block", "error"), ("allow", "ok")])
async def test_a_limit_is_exact_over_three_replicas_at_once(
    on_error: str, without: str, redis: Server, tmp_path: Path
) -> None:
    """Without Redis, ``on_error`` decides, in each of them."""
    file = tmp_path / "rules.yaml"
    file.write_text(RULES.format(url=redis.url, on_error=on_error, method="tools/call", limit=20))
    async with (
        mcp_upstream(tools=[tool("read_file")], respond=saying(OK)) as up,
        AsyncExitStack() as stack,
    ):
        flags = ("-u", f"{up.url}/mcp", "-d", "^rm_", "--rules", str(file))
        replicas = [
            await stack.enter_async_context(launched(*flags, home=tmp_path)) for _ in range(3)
        ]
        ports = [await one.serving() for one in replicas]
        assert await outcomes(ports, clients=4, calls=10) == {"ok": 20, "rate_limit": 100}
        assert len(up.of("tools/call")) == 20
        redis.kill()
        assert await outcomes(ports, clients=1, calls=2) == {without: 6}
        for one in replicas:
            await one.says("Rule 'budget'.*cannot be reached")


@pytest.fixture
def policy(redis: Server, tmp_path: Path) -> str:
    """A policy with a cache in a Redis of its own."""
    path = tmp_path / "cache.yaml"
    path.write_text(
        f"interceptor: {{state: {{url: '{redis.url}'}}, rules: [{{id: keep, "
        "conditions: [method_equals: tools/call], "
        "actions: [cache: {key: '${params_hash}', ttl: 1h}]}]}"
    )
    return str(path)


def asked(client: StdioClient, is_http: bool, tool: str = "env") -> str:
    """Call a tool that tells the variable TOKEN, or another one; let the filter end."""
    there = served_by(client) if is_http else client
    there.opens()
    text = text_in(there.calls(tool, name="TOKEN"))
    if is_http:
        client.process.terminate()  # what is to be stored is stored before the end
        client.ends()
    else:
        assert client.leaves() == 0
    return text


@pytest.mark.parametrize("is_http", [False, True])
def test_a_cache_in_front_of_commands_is_kept_for_each_user(
    policy: str, tmp_path: Path, is_http: bool
) -> None:
    """The environment says who the user of a command is."""
    journal = tmp_path / "journal"
    words = ("--rules", policy, *(("--port", "0") if is_http else ()), "--")
    command = upstream("--tools", "env", journal=journal)
    heard = []
    for name in ("alice", "bob", "alice"):
        with filtered(*words, *command, home=tmp_path, environment={"TOKEN": name}) as client:
            heard.append(asked(client, is_http))
    assert heard == ["alice", "bob", "alice"]
    assert journal.read_text().count("tools/call") == 2


@pytest.mark.parametrize("is_http", [False, True])
def test_a_cache_in_front_of_urls_is_kept_for_each_header_of_the_operator(
    policy: str, tmp_path: Path, is_http: bool
) -> None:
    with session_upstream() as http:
        for name in ("alice", "bob", "alice", "bob"):
            way = ("--port", "0") if is_http else ("--stdio",)
            words = (*way, "-u", http.url, "--rules", policy, "--header", f"X-Who: {name}")
            with filtered(*words, home=tmp_path) as client:
                asked(client, is_http, "read_file")
        assert [seen.headers["x-who"] for seen in http.calls()] == ["alice", "bob"]
