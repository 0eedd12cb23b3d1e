"""Each kind of forward proxy that mitmproxy can be, and both versions of HTTP."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from mcp_tool_filter.adapters.mitmproxy.forward.addon import ForwardFilter
from tests.adapters.mitmproxy.forward.intercepting import (
    DELETE,
    JSON,
    READ,
    Between,
    between,
    call,
    echo,
    names_listed,
    not_found,
    tunnel,
    ways,
)
from tests.mcp_upstream import mcp_upstream
from tests.proxy import SCRIPT, certified, proxy
from tests.proxy import tool as tool_process
from tests.raw_client import H2Client, RawClient, raw_client, trusting
from tests.raw_upstream import hang_up


@pytest.mark.parametrize("tls", [False, True])
async def test_transparently_redirected_connections_are_filtered(
    tmp_path: Path, tls: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In transparent mode; local mode has the same layers."""
    context = certified(tmp_path) if tls else None
    async with mcp_upstream(tools=[READ, DELETE], tls=context) as upstream:
        place = ("127.0.0.1", upstream.raw.port)
        monkeypatch.setattr("mitmproxy.platform.original_addr", lambda _socket: place)
        async with (
            proxy(ForwardFilter(), to=["transparent"], home=tmp_path, deny=["^delete_"]) as running,
            raw_client(running.port, tls=trusting() if tls else None) as client,
        ):
            it = Between(upstream, running, client, "")
            assert await names_listed(it) == ["read_file"]
            got = await it.send(call("delete_file"))
            assert json.loads(got.body) == not_found("delete_file")
            assert (await it.send(b"{}", path="/v1")).status == 200


@ways
async def test_a_proxy_behind_us_is_used(tmp_path: Path, way: str) -> None:
    """In upstream mode. The proxy behind us is a second filter in its own process."""
    tls = certified(tmp_path) if way == "tls" else None
    other = tmp_path / "other"
    async with (
        mcp_upstream(tools=[READ, DELETE], tls=tls) as upstream,
        tool_process(
            "mitmdump", "-s", SCRIPT, "--mode", "regular", "--ssl-insecure", home=other
        ) as behind,
    ):
        found = await behind.says(r"use the proxy (http://127.0.0.1:\d+)")
        modes = [f"upstream:{found[1]}"]
        async with (
            proxy(ForwardFilter(), to=modes, home=tmp_path, deny=["^delete_"]) as running,
            raw_client(running.port) as client,
        ):
            if way != "absolute":
                place = upstream.url.partition("//")[2]
                await tunnel(client, place, trusting() if tls else None)
            it = Between(upstream, running, client, upstream.url if way == "absolute" else "")
            assert await names_listed(it) == ["read_file"]
            got = await it.send(call("delete_file"))
            assert json.loads(got.body) == not_found("delete_file")
            assert (await it.send(b"{}", path="/v1")).status == 200
    assert not upstream.of("tools/call")


async def test_requests_on_one_connection_are_told_apart(tmp_path: Path) -> None:
    """Also when the client does not wait for the answers."""
    async with between(tmp_path, respond=echo) as it:
        others = it.written(b"{}", "/v1", JSON)
        await it.client.say(others + it.written(call("delete_file"), "/mcp", JSON) + others)
        assert (await it.client.answer()).body == b"{}"
        assert json.loads((await it.client.answer()).body) == not_found("delete_file")
        assert (await it.client.answer()).body == b"{}"
        assert not it.upstream.of("tools/call")


async def test_http2_is_filtered(tmp_path: Path) -> None:
    tls = certified(tmp_path)
    async with (
        mcp_upstream(tools=[READ, DELETE], tls=tls) as upstream,
        proxy(ForwardFilter(), to=["regular"], home=tmp_path, deny=["^delete_"]) as running,
    ):
        reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
        client = RawClient(reader, writer)
        h2_tls = trusting()
        h2_tls.set_alpn_protocols(["h2"])
        await tunnel(client, upstream.url.partition("//")[2], h2_tls)
        chosen = writer.get_extra_info("ssl_object").selected_alpn_protocol()
        assert chosen == "h2"
        h2 = H2Client(reader, writer)
        h2.start()
        fields = [(b"content-type", b"application/json")]
        denied = await h2.over(h2.ask(body=call("delete_file"), headers=fields))
        assert json.loads(denied.data) == not_found("delete_file")
        other = await h2.over(h2.ask(body=b"{}", path="/v1", headers=fields))
        assert other.headers[b":status"] == b"200"
        await hang_up([writer])
    assert not upstream.of("tools/call")
