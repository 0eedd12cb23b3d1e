"""Forward proxies in a real mitmproxy: no request of MCP passes unfiltered."""

from __future__ import annotations

import asyncio
import gc
import gzip
import json
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from mitmproxy.http import HTTPFlow

from mcp_tool_filter.adapters.mitmproxy.addon import ToolFilter
from mcp_tool_filter.adapters.serving import endpoints
from tests.adapters.mitmproxy.intercepting import (
    JSON,
    READ,
    Between,
    between,
    call,
    echo,
    hosts,
    names_listed,
    not_found,
    request,
    tunnel,
    ways,
)
from tests.mcp_upstream import mcp_upstream, tool, tool_list
from tests.proxy import SCRIPT, proxy
from tests.proxy import tool as tool_process
from tests.raw_client import TIMEOUT, raw_client
from tests.raw_upstream import LAST_CHUNK, RawRequest, answer, chunk


@hosts
@ways
async def test_mcp_is_filtered(tmp_path: Path, way: str, host: str) -> None:
    async with between(tmp_path, way, host=host) as it:
        hello: dict[str, Any] = {
            "protocolVersion": "2025-06-18",
            "capabilities": {},
            "clientInfo": {},
        }
        await it.send(request("initialize", **hello))
        assert await names_listed(it) == ["read_file"]
        got = await it.send(call("delete_file"))
        assert got.status == 200
        assert json.loads(got.body) == not_found("delete_file")
        assert (await it.send(call("read_file"))).status == 200
        assert [one.body for one in it.upstream.of("tools/call")] == [call("read_file")]


@ways
async def test_a_denied_tool_is_not_found_before_any_list(tmp_path: Path, way: str) -> None:
    async with between(tmp_path, way) as it:
        got = await it.send(call("delete_file"))
        assert json.loads(got.body) == not_found("delete_file")
        assert not it.upstream.of("tools/call")


TRICKS = {
    "another content type": (call("delete_file"), b"Content-Type: image/png\r\n"),
    "no content type": (call("delete_file"), b""),
    "compressed": (gzip.compress(call("delete_file")), b"Content-Encoding: gzip\r\n"),
    "compressed, as an upload": (
        gzip.compress(b" " * 100_000 + call("delete_file")),
        b"Content-Encoding: x-gzip\r\nContent-Type: image/png\r\n",
    ),
    "compressed twice": (
        gzip.compress(gzip.compress(call("delete_file"))),
        b"Content-Encoding: gzip, gzip\r\n",
    ),
    "white space": (b" \r\n\t" * 50_000 + call("delete_file"), JSON),
    "UTF-16": (call("delete_file").decode().encode("utf-16"), JSON),
    "UTF-32": (call("delete_file").decode().encode("utf-32-le"), JSON),
    "a byte order mark": (b"\xef\xbb\xbf" + call("delete_file"), JSON),
    "escaped keys": (call("delete_file").replace(b"jsonrpc", b"\\u006asonrpc"), JSON),
    "keys in capitals": (call("delete_file").replace(b"jsonrpc", b"JSONRPC"), JSON),
    "no version": (b'{"id": 7, "method": "tools/call", "params": {"name": "delete_file"}}', JSON),
    "a batch": (b"[" + call("delete_file") + b"]", JSON),
    "a batch with others first": (b'[1, {"a": 1}, ' + call("delete_file") + b"]", JSON),
    "something behind it": (call("delete_file") + b" {]", JSON),
    "something before it": (b"{}\n" + call("delete_file"), JSON),
    "a method twice": (
        call("delete_file").replace(b'"method"', b'"method": "eth_call", "method"'),
        JSON,
    ),
    "deeply nested": (b'{"a": ' + b"[" * 9999 + b"]" * 9999 + b"," + call("delete_file")[1:], JSON),
    "NaN": (b'{"a": NaN,' + call("delete_file")[1:], JSON),
    "a comment": (b"/**/" + call("delete_file"), JSON),
    "Expect": (call("delete_file"), b"Expect: 100-continue\r\n"),
}


@pytest.mark.parametrize("way", ["absolute", "tls"])
@pytest.mark.parametrize(("body", "headers"), TRICKS.values(), ids=TRICKS.keys())
async def test_a_denied_call_does_not_pass(
    tmp_path: Path, way: str, body: bytes, headers: bytes
) -> None:
    async with between(tmp_path, way) as it:
        await it.client.say(it.written(body, "/any/path", headers))
        got = await it.client.head()
        if b" 100 " in got:
            got = await it.client.head()
        assert b"delete_file" not in got
        assert not it.upstream.raw.requests


@pytest.mark.parametrize("method", ["PUT", "PATCH", "GET", "DELETE", "PROPFIND"])
async def test_no_method_lets_a_denied_call_pass(tmp_path: Path, method: str) -> None:
    async with between(tmp_path) as it:
        await it.send(call("delete_file"), method=method)
        assert not it.upstream.raw.requests


async def test_a_body_in_small_chunks_is_recognised(tmp_path: Path) -> None:
    async with between(tmp_path) as it:
        head = it.written(b"", "/mcp", JSON + b"Transfer-Encoding: chunked\r\n")
        await it.client.say(head)
        for at in range(0, len(call("delete_file")), 3):
            await it.client.say(chunk(call("delete_file")[at : at + 3]))
            await asyncio.sleep(0)
        await it.client.say(LAST_CHUNK)
        assert json.loads((await it.client.answer()).body) == not_found("delete_file")
        assert not it.upstream.raw.requests


async def test_a_client_that_leaves_early_does_no_harm(tmp_path: Path) -> None:
    async with between(tmp_path, respond=echo) as it:
        whole = it.written(call("delete_file"), "/mcp", JSON)
        for part in (whole[:-10], it.written(b"PNG", "/v1", JSON)[:-1], whole[:20]):
            async with raw_client(it.proxy.port) as client:
                await tunnel(client, it.upstream.url.partition("//")[2], None)
                await client.say(part)
                client.abort()
        assert (await it.send(b"{}", path="/v1")).body == b"{}"
        assert not it.proxy.errors()


async def test_trailers_of_other_traffic_are_dropped(tmp_path: Path) -> None:
    async with between(tmp_path, respond=echo) as it:
        head = it.written(b"", "/v1", b"Transfer-Encoding: chunked\r\n")
        for _ in range(2):
            got = await it.client.ask(head + chunk(b"hi") + b"0\r\nX-A: b\r\n\r\n")
            assert (got.status, got.body) == (200, b"hi")


@pytest.mark.parametrize("way", ["absolute", "tunnel"])
async def test_unfinished_bodies_are_held_within_the_budget(tmp_path: Path, way: str) -> None:
    """The largest are given up, before it is clear whether they are MCP."""
    body = b'{"a": "' + b"x" * 9_000_000
    async with between(tmp_path, way) as it, AsyncExitStack() as clients:
        begun = []
        for _ in range(20):
            client = await clients.enter_async_context(raw_client(it.proxy.port))
            if way == "tunnel":
                await tunnel(client, it.upstream.url.partition("//")[2], None)
            with suppress(ConnectionError):
                await client.say(it.written(body, "/v1", JSON)[:-1])
            begun.append(client)
        with suppress(ConnectionError):
            assert not await begun[0].rest()
        got = await it.send(call("delete_file"))
        assert json.loads(got.body) == not_found("delete_file")
        assert not it.upstream.raw.requests


async def test_each_endpoint_of_an_origin_has_its_own_snapshot(tmp_path: Path) -> None:
    def lists(asked: RawRequest, id: str) -> bytes:
        is_first = asked.line.startswith("POST /a ")
        return answer(tool_list([READ if is_first else tool("look")], id=id))

    async with (
        mcp_upstream(lists=lists) as upstream,
        proxy(ToolFilter(), to=["regular"], home=tmp_path) as running,
        raw_client(running.port) as client,
    ):
        host = upstream.url.partition("//")[2]
        await tunnel(client, host, None)
        it = Between(upstream, running, client, "")
        first = await it.send(request("tools/list"), path="/a")
        second = await it.send(request("tools/list"), path="/b")
        assert b"read_file" in first.body
        assert b"look" in second.body


async def test_forgetting_an_endpoint_frees_its_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoints, "MOST_SITES", 2)
    async with between(tmp_path) as it:
        for number in range(6):
            await it.send(call("read_file"), path=f"/mcp{number}")
        gc.collect()
        tool_filter = it.proxy.master.addons.get("toolfilter")
        assert len(tool_filter.proxy.watchers.statistics) <= 3  # the last flow may keep one more


@pytest.mark.parametrize("option", [{"upstream_headers": ["A: b"]}, {"paths": ["mcp"]}])
async def test_options_about_one_upstream_are_refused(
    tmp_path: Path, option: dict[str, Any]
) -> None:
    more = [part for name, [value] in option.items() for part in ("--set", f"{name}={value}")]
    async with tool_process(
        "mitmdump", "-s", SCRIPT, "--mode", "regular", *more, home=tmp_path
    ) as it:
        assert await it.exit_code() == 1
        assert "a forward proxy has many" in it.stderr


class _Changing:
    """A script that comes after us."""

    def request(self, flow: HTTPFlow) -> None:
        flow.request.headers["x-changed"] = "1"


async def test_proxy_credentials_are_not_forwarded_when_a_script_changes_the_request(
    tmp_path: Path,
) -> None:
    async with (
        mcp_upstream(tools=[READ]) as upstream,
        proxy(ToolFilter(), _Changing(), to=["regular"], home=tmp_path) as running,
        raw_client(running.port) as client,
    ):
        it = Between(upstream, running, client, upstream.url)
        login = JSON + b"Proxy-Authorization: Basic c2VjcmV0\r\n"
        assert (await it.send(call("read_file"), headers=login)).status == 200
        (asked,) = upstream.of("tools/call")
        assert asked.all("x-changed") == ["1"]
        assert not asked.all("proxy-authorization")


async def test_a_tunnel_takes_one_seat_and_gives_it_back(tmp_path: Path) -> None:
    async with between(tmp_path, max_clients=["1"]) as it:
        assert await names_listed(it) == ["read_file"]
        it.client.close()
        seats = it.proxy.master.addons.get("toolfilter").proxy.crowd.seats
        async with asyncio.timeout(TIMEOUT):
            while len(seats):
                await asyncio.sleep(0.01)
        async with raw_client(it.proxy.port) as client:
            to = it.upstream.url.partition("//")[2]
            await tunnel(client, to, None)
            await client.say(it.written(call("read_file"), "/mcp", JSON))
            assert (await client.answer()).status == 200


async def test_blank_lines_before_a_request_are_none_of_it(tmp_path: Path) -> None:
    async with between(tmp_path, "absolute") as it:
        plain = it.written(b"", "/readme", b"", "GET")
        assert (await it.client.ask(b"\r\n\r\n" + plain)).status != 400
        assert it.upstream.raw.requests[-1].line == "GET /readme HTTP/1.1"


class _Lying:
    """A script that says that the client speaks HTTP/2."""

    def request(self, flow: HTTPFlow) -> None:
        flow.client_conn.alpn = b"h2"


async def test_a_script_cannot_take_a_tunnel_from_the_engine(tmp_path: Path) -> None:
    async with (
        mcp_upstream(tools=[READ]) as upstream,
        proxy(ToolFilter(), _Lying(), to=["regular"], home=tmp_path) as running,
        raw_client(running.port) as client,
    ):
        await tunnel(client, upstream.url.partition("//")[2], None)
        it = Between(upstream, running, client, "")
        assert (await it.send(call("read_file"))).status == 200
        assert (await it.send(call("read_file"))).status == 200


async def test_a_dump_shows_no_secret_of_an_endpoints_url(tmp_path: Path) -> None:
    dump = tmp_path / "dump.flow"
    async with between(tmp_path, "absolute", host="dump", save_stream_file=str(dump)) as it:
        await it.send(request("tools/list"), path="/mcp?api_key=hunter2")
        assert it.upstream.asked[-1].line.startswith("POST /mcp?api_key=hunter2 ")
    assert b"hunter2" not in dump.read_bytes()
    assert b"/mcp?api_key=masked-" in dump.read_bytes()
