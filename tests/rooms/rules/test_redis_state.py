"""State in a real Redis: shared by two proxies, lost and found again."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any

import pytest
import redis
from redis.asyncio import Redis

from mcp_tool_filter.rooms.rules import rule_effects as orders
from mcp_tool_filter.rooms.rules.redis_state import RedisState
from tests.programs import need_program
from tests.raw_upstream import free_port

LIMITS = ((2, 60.0),)


class Server:
    """A redis-server that can be killed and started again."""

    def __init__(self, folder: Path, *, is_in_cluster: bool = False) -> None:
        self.port, self.bus = free_port(), free_port()
        cluster = f"--cluster-enabled yes --cluster-port {self.bus}".split()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        usual = f"--port {self.port} --bind 127.0.0.1 --save".split()
        self._command = [*usual, "", "--dir", str(folder), *(cluster if is_in_cluster else ())]
        self.start()

    def start(self) -> None:
        command = [need_program("redis-server"), *self._command]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        while True:
            with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
                return
            time.sleep(0.05)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path)
    yield server
    server.kill()


async def write(
    state: RedisState, key: str, value: bytes, *, ttl: float = 60.0, most: int = 10_000
) -> None:
    await state.carry_out(orders.WriteCache(key, value, ttl, "g", most))


async def read(state: RedisState, key: str) -> object:
    return await state.carry_out(orders.ReadCache(key, 5.0))


async def check_shared(one: RedisState, two: RedisState) -> None:
    use = orders.CountUse("k", LIMITS, 5.0)
    assert await one.carry_out(use) is None
    assert await two.carry_out(use) is None
    wait: Any = await one.carry_out(use)
    assert 50 < wait <= 60
    await write(one, "c", b"value")
    assert await read(two, "c") == b"value"
    secret = orders.Identify(b"secret")
    who = await one.carry_out(secret)
    assert who == await two.carry_out(secret) == two.at_once(secret)
    assert who != await two.carry_out(orders.Identify(b"other"))


async def test_two_proxies_share_windows_caches_and_hashes(server: Server) -> None:
    one, two = RedisState(server.url, "mcp:"), RedisState(server.url, "mcp:")
    other = RedisState(server.url, "other:")
    await check_shared(one, two)
    assert await other.carry_out(orders.CountUse("k", LIMITS, 5.0)) is None
    assert await read(other, "c") is None
    for state in (one, two, other):
        await state.close()


async def test_several_limits_count_a_use_once_or_not_at_all(server: Server) -> None:
    state = RedisState(server.url, "mcp:")
    use = orders.CountUse("k", ((1, 2.0), (2, 60.0)), 5.0)
    assert await state.carry_out(use) is None
    soon: Any = await state.carry_out(use)
    assert 0 < soon <= 2
    await asyncio.sleep(soon + 0.01)
    assert await state.carry_out(use) is None
    late: Any = await state.carry_out(use)
    assert late > 50
    assert await state.carry_out(orders.CountUse("none", ((0, 7.0),), 5.0)) == 7.0
    await state.close()


async def test_a_group_keeps_the_newest_entries(server: Server) -> None:
    state = RedisState(server.url, "mcp:")
    for number in range(5):
        await write(state, f"c{number}", b"v", most=2)
        await asyncio.sleep(0.005)
    found = [await read(state, f"c{number}") for number in range(5)]
    assert found == [None, None, None, b"v", b"v"]
    await state.close()


async def bytes_in(server: Server) -> int:
    """Return how many bytes all keys take; check that each of them ends by itself."""
    async with Redis.from_url(server.url) as redis:
        keys = [key async for key in redis.scan_iter()]
        assert [key for key in keys if await redis.pttl(key) < 0] in ([], [b"{mcp:}salt"])
        return sum([await redis.memory_usage(key) or 0 for key in keys])


async def test_cached_results_are_bounded_in_bytes(server: Server) -> None:
    """A client chooses how many keys there are, and how large what is stored under them."""
    state = RedisState(server.url, "mcp:", most_bytes=100_000)
    for number in range(1000):
        await write(state, f"c{number}", b"v" * 1000)
    assert await bytes_in(server) < 150_000
    found = [await read(state, f"c{number}") for number in range(1000)]
    kept = [number for number, value in enumerate(found) if value is not None]
    assert kept == list(range(kept[0], 1000))
    assert 50 < len(kept) < 100
    await write(state, "c999", b"w" * 200_000)
    assert await read(state, "c999") == b"v" * 1000  # too large to be kept
    await state.close()


async def test_windows_are_bounded_in_bytes(server: Server) -> None:
    state = RedisState(server.url, "mcp:", most_bytes=100_000)
    long, short = ((2, 3600.0),), ((2, 60.0),)
    assert await state.carry_out(orders.CountUse("k", long, 5.0)) is None
    for number in range(3000):
        assert await state.carry_out(orders.CountUse(f"k{number}", short, 5.0)) is None
    assert await bytes_in(server) < 150_000
    assert await state.carry_out(orders.CountUse("k", long, 5.0)) is None
    assert isinstance(await state.carry_out(orders.CountUse("k", long, 5.0)), float)
    await state.close()


async def test_expired_entries_make_room(server: Server) -> None:
    state = RedisState(server.url, "mcp:", most_bytes=5000)
    for number in range(3):
        await write(state, f"short{number}", b"v" * 1000, ttl=0.05)
    await write(state, "long", b"v" * 1000)
    await asyncio.sleep(0.1)
    for number in range(2):
        await write(state, f"new{number}", b"v" * 1000)
    for key in ("long", "new0", "new1"):
        assert await read(state, key) is not None
    await state.close()


async def test_effects_fail_while_redis_is_lost(server: Server) -> None:
    state = RedisState(server.url, "mcp:")
    use = orders.CountUse("k", LIMITS, 5.0)
    assert await state.carry_out(use) is None
    server.kill()
    with pytest.raises(orders.EffectFailed, match="cannot be reached"):
        await state.carry_out(use)
    server.start()
    assert await state.carry_out(use) is None
    await state.close()


async def test_a_redis_that_hangs_is_not_waited_for(tmp_path: Path) -> None:
    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with closing(writer):
            await asyncio.sleep(60)

    server = await asyncio.start_server(hang, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    state = RedisState(f"redis://127.0.0.1:{port}/0", "mcp:")
    with pytest.raises(orders.EffectFailed):
        await state.carry_out(orders.CountUse("k", LIMITS, 0.2))
    await state.close()
    server.close()


def _join(servers: list[Server]) -> None:
    one: Any = redis.Redis(port=servers[0].port)  # its execute_command has no types
    two: Any = redis.Redis(port=servers[1].port)
    with one, two:
        one.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 8191)
        two.execute_command("CLUSTER", "ADDSLOTSRANGE", 8192, 16383)
        one.execute_command("CLUSTER", "MEET", "127.0.0.1", servers[1].port, servers[1].bus)
        while any("'cluster_state': 'ok'" not in str(node.cluster("INFO")) for node in (one, two)):
            time.sleep(0.05)


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[list[Server]]:
    """A cluster of two nodes, each with half of the slots."""
    with ExitStack() as running:
        servers = []
        for name in ("one", "two"):
            (tmp_path / name).mkdir()
            servers.append(Server(tmp_path / name, is_in_cluster=True))
            running.callback(servers[-1].kill)
        _join(servers)
        yield servers


async def test_proxies_share_their_state_in_a_cluster(nodes: list[Server]) -> None:
    """One of them is given the node that does not have their keys."""
    one, two = (RedisState(node.url, "mcp:", most_bytes=5000) for node in nodes)
    await check_shared(one, two)
    for number in range(10):  # more than there is room for: the oldest are forgotten
        await write(one, f"key{number}", b"x" * 1000)
    assert await read(two, "key0") is None
    assert await read(two, "key9") == b"x" * 1000
    await one.close()
    await two.close()
