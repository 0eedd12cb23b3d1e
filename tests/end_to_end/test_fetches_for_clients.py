"""What the filter itself asks for its clients costs descriptors, as what they ask does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from mcp_tool_filter.core.process.proxy import Proxy
from mcp_tool_filter.rooms.mitmproxy.addon import ToolFilter
from tests.cli.commands.proxying import CALL
from tests.mcp_upstream import RESULT
from tests.proxy import proxy
from tests.raw_client import MCP_HEADERS, post, raw_client
from tests.raw_upstream import TIMEOUT, Peer, answer, raw_upstream, until
from tests.served import served

MOST = 8  # connections that are always allowed
CHALLENGE = '401 No\r\nWWW-Authenticate: Bearer resource_metadata="/x"'


REVISION = b"Mcp-Protocol-Version: 2025-11-25\r\n"


@asynccontextmanager
async def hosted(host: str, to: str, home: Path, **more: Any) -> AsyncIterator[tuple[int, Proxy]]:
    """With as few connections as there may be."""
    options = {"endpoint": ["/mcp"], "deny": ["^rm_"], **more}
    if host == "sockets":
        async with served(to=to, **options) as running:
            running.server.room.descriptors = 0
            yield running.port, running.proxy
    else:
        addon = ToolFilter()
        async with proxy(addon, to=to, home=home, max_clients=["100"], **options) as flowing:
            addon.proxy.crowd.descriptors = 0
            yield flowing.port, addon.proxy


@pytest.mark.parametrize("host", ["sockets", "mitmproxy"])
async def test_fetches_for_clients_share_the_connection_limit(host: str, tmp_path: Path) -> None:
    """An upstream that never lists its tools cannot use up our descriptors. A call for which we
    cannot ask is judged by the patterns alone."""
    listing, go_on = 0, asyncio.Event()

    async def users_only(peer: Peer) -> None:
        nonlocal listing
        while True:
            request = await peer.request()
            if not request.all("authorization"):
                await peer.say(answer(b"no", status=CHALLENGE, kind="text/plain"))
            elif b"tools/list" in request.body:
                listing += 1
                await go_on.wait()
                await peer.say(answer(b"", status="500 No"))
            else:
                await peer.say(answer(RESULT))

    async with raw_upstream(users_only) as upstream, hosted(host, upstream.url, tmp_path) as it:
        port, process = it

        async def call(number: int) -> bytes:
            headers = MCP_HEADERS + REVISION + b"Authorization: Bearer %d\r\n" % number
            async with raw_client(port) as client:
                asked = CALL % (1, b"rm_all" if number % 2 else b"read_file")
                return (await client.ask(post(asked, headers=headers))).body

        calls = [asyncio.create_task(call(number)) for number in range(3 * MOST)]
        await until(lambda: sum(one.done() for one in calls) >= 2 * MOST <= 2 * listing)
        assert listing == MOST
        for number, one in enumerate(calls):
            if one.done():
                assert (b"Tool not found" in one.result()) == (number % 2 == 1)
        go_on.set()
        await asyncio.gather(*calls)
        room, taken = process.room, 0
        assert room
        async with asyncio.timeout(TIMEOUT):
            while taken < MOST:  # all is given back, if not at once
                taken += room.take()
                await asyncio.sleep(0.01)


@pytest.mark.parametrize("host", ["sockets", "mitmproxy"])
async def test_a_call_only_hints_can_judge_says_how_to_log_in(host: str, tmp_path: Path) -> None:
    """If the upstream refuses the list of a client without a token. Its metadata is ours."""

    async def users_only(peer: Peer) -> None:
        while True:
            await peer.request()
            challenge = f'{CHALLENGE[:-3]}{peer.upstream.url}/x"\r\nWWW-Authenticate: Basic'
            await peer.say(answer(b"no", status=challenge, kind="text/plain"))

    async with (
        raw_upstream(users_only) as upstream,
        hosted(host, upstream.url, tmp_path, deny_hint=["destructive"]) as (port, _),
        raw_client(port) as client,
    ):
        got = await client.ask(post(CALL % (1, b"read_file"), headers=MCP_HEADERS + REVISION))
    assert got.status == 401
    assert got.all("www-authenticate") == ['Bearer resource_metadata="http://localhost/x"', "Basic"]
    assert b"Unknown session or credentials" in got.body
