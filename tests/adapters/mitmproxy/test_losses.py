"""The upstream is lost: every client hears of it, and the process ends."""

from __future__ import annotations

import asyncio
import socket
import struct
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import pytest

from mcp_tool_filter.adapters.mitmproxy.addon import ToolFilter
from tests.adapters.mitmproxy.filtered import call, lost
from tests.mcp_upstream import RESULT, mcp_upstream, saying, tool, tool_list
from tests.proxy import certified, proxy
from tests.raw_client import MCP_HEADERS, get, post, raw_client
from tests.raw_upstream import RawRequest, answer, free_port, until


def _reset_connection() -> socket.socket:
    """Return one that the other side has broken off already."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        ours = socket.create_connection(listening.getsockname())
        theirs, _ = listening.accept()
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        theirs.close()
    with suppress(OSError):
        while True:
            ours.getpeername()
    return ours


@pytest.mark.parametrize("is_tls", [False, True])
async def test_a_connection_that_is_reset_before_it_is_used_is_a_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_tls: bool
) -> None:
    """It has no address then, on which mitmproxy insists."""
    tls = certified(tmp_path) if is_tls else None
    upstreams = mcp_upstream(tools=[tool("read_file")], respond=saying(RESULT), tls=tls)
    options = {"deny": ["^delete_"], "endpoint": ["/mcp"], "fail_fast": ["false"]}
    open_connection, ask = asyncio.open_connection, post(call("read_file"))

    async def open_reset(*_address: object, **_how: object) -> object:
        return await open_connection(sock=_reset_connection())

    async with (
        upstreams as upstream,
        proxy(ToolFilter(), to=upstream.url, home=tmp_path, **options) as it,
        raw_client(it.port) as early,
        raw_client(it.port) as client,
    ):
        await early.ask(get(path="/other"))  # which waits until the tools are fetched
        with monkeypatch.context() as patched:
            patched.setattr(asyncio, "open_connection", open_reset)
            assert (await client.ask(ask)).body == lost("1")
        assert (await client.ask(ask)).body == RESULT
        assert it.errors() == []


# An upstream that was lost and is back is filtered by its new list; the user reads what is new.


async def test_a_returned_upstream_is_noticed_without_a_client(tmp_path: Path) -> None:
    """One of two is lost, and starts slowly; the other's clients notice nothing."""
    names, is_starting, said = ["stays"], True, list[str]()

    def lists(_request: RawRequest, id: str) -> bytes:
        if is_starting and said:
            return answer(b"starting", status="503 Service Unavailable", kind="text/plain")
        return answer(tool_list([tool(name) for name in names], id=id))

    tool_filter = ToolFilter(report=lambda _text: None, warn=said.append)
    options = {"deny": ["^delete_"], "endpoint": ["/mcp"], "fail_fast": ["false"]}
    ports = free_port(), free_port()
    async with (
        mcp_upstream(respond=saying(RESULT), lists=lists) as lost,
        mcp_upstream(tools=[tool("other")], respond=saying(RESULT)) as there,
    ):
        specs = [
            f"reverse:{one.url}@{port}" for one, port in zip((lost, there), ports, strict=True)
        ]
        async with proxy(tool_filter, to=specs, home=tmp_path, **options):
            await tool_filter.proxy.ready.wait()
            tool_filter.proxy.changes.lose(tool_filter.proxy.sites[specs[0]])
            assert tool_filter.proxy._state()["upstream_up"] is False
            names.append("comes")
            async with raw_client(ports[1]) as client:
                assert (await client.ask(post(call("other"), headers=MCP_HEADERS))).body == RESULT
            assert len(said) == 1
            is_starting = False
            await until(lambda: len(said) >= 2)
            assert tool_filter.proxy._state()["upstream_up"] is True
    gone, back = said
    assert gone == (
        f"Warning: Lost connection to upstream MCP {lost.url}; waiting for it to come back"
    )
    assert back == f"The upstream {lost.url} is back: new tool comes"


async def test_a_kept_client_connection_reaches_a_returned_upstream(tmp_path: Path) -> None:
    """mitmproxy would answer all its requests with the error of the first that failed."""
    tool_filter = ToolFilter(report=lambda _text: None, warn=lambda _text: None)
    options = {"deny": ["^x"], "endpoint": ["/mcp"], "fail_fast": ["false"]}
    request = post(call("read"), headers=MCP_HEADERS)
    port = free_port()
    async with AsyncExitStack() as stack:
        async with mcp_upstream(tools=[tool("read")], respond=saying(RESULT), port=port) as first:
            running = await stack.enter_async_context(
                proxy(tool_filter, to=first.url, home=tmp_path, **options)
            )
            client = await stack.enter_async_context(raw_client(running.port))
            assert (await client.ask(request)).body == RESULT
        for _ in range(2):
            assert b"Upstream connection lost" in (await client.ask(request)).body
        await stack.enter_async_context(
            mcp_upstream(tools=[tool("read")], respond=saying(RESULT), port=port)
        )
        assert (await client.ask(request)).body == RESULT
