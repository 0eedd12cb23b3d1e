"""Forward proxies in a real mitmproxy: MCP is filtered, everything else passes byte for byte."""

from __future__ import annotations

import asyncio
import gzip
import json
import ssl
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from mcp_tool_filter.adapters.mitmproxy.addon import ToolFilter
from tests.mcp_upstream import RESULT, McpUpstream, Respond, mcp_upstream, tool, tool_list
from tests.proxy import SCRIPT, RunningProxy, certified, proxy
from tests.proxy import tool as tool_process
from tests.raw_client import TIMEOUT, Answer, H2Client, RawClient, raw_client, trusting
from tests.raw_upstream import (
    LAST_CHUNK,
    SSE_HEAD,
    Peer,
    RawRequest,
    answer,
    chunk,
    hang_up,
    raw_upstream,
)
from tests.websocket import accept, connect

READ, DELETE = tool("read_file"), tool("delete_file")
JSON = b"Content-Type: application/json\r\nAccept: application/json, text/event-stream\r\n"

hosts = pytest.mark.parametrize("host", ["plain", "lean", "dump"])
ways = pytest.mark.parametrize("way", ["absolute", "tunnel", "tls"])


def request(method: str, **params: Any) -> bytes:
    said = {"jsonrpc": "2.0", "id": 7, "method": method, "params": params}
    return json.dumps(said).encode()


def call(name: str) -> bytes:
    return request("tools/call", name=name, arguments={})


def not_found(name: str) -> dict[str, Any]:
    error = {"code": -32601, "message": f"Tool not found: {name}"}
    return {"jsonrpc": "2.0", "id": 7, "error": error}


@dataclass
class Between:
    """A client that goes through us to an upstream."""

    upstream: McpUpstream
    proxy: RunningProxy
    client: RawClient
    prefix: str

    async def send(
        self, body: bytes, *, path: str = "/mcp", headers: bytes = JSON, method: str = "POST"
    ) -> Answer:
        return await self.client.ask(self.written(body, path, headers, method))

    def written(self, body: bytes, path: str, headers: bytes, method: str = "POST") -> bytes:
        host = self.upstream.url.partition("//")[2]
        head = f"{method} {self.prefix}{path} HTTP/1.1\r\nHost: {host}\r\n".encode()
        length = b"Content-Length: %d\r\n" % len(body) if body else b""
        return head + headers + length + b"\r\n" + body


@asynccontextmanager
async def between(
    home: Path,
    way: str = "tunnel",
    *,
    host: object = "plain",
    respond: Respond | None = None,
    session: bytes = b"",
    **options: Any,
) -> AsyncIterator[Between]:
    options = {"deny": ["^delete_"], **options}
    tls = certified(home) if way == "tls" else None
    tools = [READ, DELETE]
    async with (
        mcp_upstream(tools=tools, respond=respond, session=session, tls=tls) as upstream,
        proxy(ToolFilter(), to=["regular"], home=home, host=host, **options) as running,
        raw_client(running.port) as client,
    ):
        if way != "absolute":
            await tunnel(client, upstream.url.partition("//")[2], trusting() if tls else None)
        prefix = upstream.url if way == "absolute" else ""
        yield Between(upstream, running, client, prefix)


async def tunnel(client: RawClient, to: str, tls: ssl.SSLContext | None) -> None:
    await client.say(f"CONNECT {to} HTTP/1.1\r\nHost: {to}\r\n\r\n".encode())
    assert b" 200 " in await client.head()
    if tls:
        await client.writer.start_tls(tls, server_hostname="localhost")


async def names_listed(it: Between) -> list[str]:
    got = json.loads((await it.send(request("tools/list"))).body)
    return [one["name"] for one in got["result"]["tools"]]


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


# What is not MCP


async def echo(asked: RawRequest, peer: Peer) -> None:
    await peer.say(answer(asked.body, kind="application/octet-stream"))


OTHERS = {
    "an upload": b"\x89PNG\r\n" + bytes(range(256)) * 1000,
    "JSON of a model's API": json.dumps(
        {"messages": [{"text": '{"jsonrpc": "2.0", "method": "tools/call"}'}], "method": "x"}
    ).encode(),
    "JSON-RPC of others": b'[{"jsonrpc":"2.0","id":1,"method":"eth_call","params":[1]}]',
    "lines of JSON": b'{"index": {}}\n{"jsonrpc_errors": 2}\n',
    "an empty object": b"{}",
    "a form": b"a=1&method=tools/call",
    "text": b"hello jsonrpc tools/call",
}


@ways
@pytest.mark.parametrize("body", OTHERS.values(), ids=OTHERS.keys())
async def test_what_is_not_mcp_passes_byte_for_byte(tmp_path: Path, way: str, body: bytes) -> None:
    """Its head, too: whoever looks must not see that there is a filter."""
    async with between(tmp_path, way, respond=echo) as it:
        headers = b"Content-Type: application/json\r\nAccept-Encoding: br\r\nRange: bytes=0-\r\n"
        for _ in range(2):  # on one connection
            assert (await it.send(body, path="/v1?a=%2F", headers=headers)).body == body
        [asked, _] = it.upstream.raw.requests
        assert asked.body == body
        expected = Between.written(it, body, "/v1?a=%2F", headers)
        assert (
            asked.head.lower()
            == expected.removesuffix(body)
            .replace(it.upstream.url.encode() + b"/v1", b"/v1")
            .lower()
        )


async def test_what_is_not_mcp_is_not_recorded(tmp_path: Path) -> None:
    recording = tmp_path / "recorded.flow"
    async with between(tmp_path, host="dump", respond=echo, save_stream_file=str(recording)) as it:
        await it.send(b'{"model": "private prompt"}', path="/v1")
        await it.send(request("ping", seen="yes"))
    assert b"private prompt" not in recording.read_bytes()
    assert b"seen" in recording.read_bytes()


async def test_a_large_download_is_not_held(tmp_path: Path) -> None:
    """Far more than a message may have, by a server that waits until the client has read."""
    read = asyncio.Event()

    async def respond(_asked: RawRequest, peer: Peer) -> None:
        size = 64 * 1024 * 1024
        await peer.say(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size)
        await peer.say(b"x" * 1024)
        await read.wait()
        for _ in range(64):
            await peer.say(b"x" * 1024 * 1024)

    options: dict[str, Any] = {"store_streamed_bodies": True}
    async with between(tmp_path, respond=respond, **options) as it:
        await it.client.say(it.written(b"", "/big", b"", "GET"))
        await it.client.head()
        assert len(await it.client.reader.readexactly(1024)) == 1024
        read.set()
        left = 64 * 1024 * 1024 - 1024
        while left:
            left -= len(await it.client.reader.read(left))


async def test_a_large_upload_of_json_is_not_held(tmp_path: Path) -> None:
    async with between(tmp_path, respond=echo, message_limit=["1MB"]) as it:
        body = b'{"messages": ["' + b"x" * 3_000_000 + b'"]}'
        assert (await it.send(body, path="/v1")).body == body


async def test_a_message_at_the_end_of_a_large_body_does_not_pass(tmp_path: Path) -> None:
    """The upstream must not get the whole of it."""
    async with between(tmp_path, respond=echo, message_limit=["1MB"]) as it:
        params = b'"params": {"name": "delete_file", "x": "' + b"x" * 3_000_000 + b'"}'
        body = b"{" + params + b', "method": "tools/call", "id": 1, "json\\u0072pc": "2.0"}'
        await it.client.say(it.written(body, "/v1", JSON))
        assert not await it.client.rest()
        assert not it.upstream.asked


async def test_answers_that_are_event_streams_of_others_pass_at_once(tmp_path: Path) -> None:
    go_on = asyncio.Event()

    async def respond(_asked: RawRequest, peer: Peer) -> None:
        await peer.say(SSE_HEAD + chunk(b'event: delta\ndata: {"tools": [1]}\n\n'))
        await go_on.wait()
        await peer.say(chunk(b"data: [DONE]\n\n") + LAST_CHUNK)

    async with between(tmp_path, respond=respond) as it:
        for method, body in (("POST", b'{"stream": true}'), ("GET", b"")):
            go_on.clear()
            await it.client.say(it.written(body, "/v1", JSON, method))
            await it.client.head()
            assert await it.client.chunk() == b'event: delta\ndata: {"tools": [1]}\n\n'
            go_on.set()
            assert await it.client.chunks() == b"data: [DONE]\n\n"


async def test_what_is_not_http_passes_through_a_tunnel(tmp_path: Path) -> None:
    async def script(peer: Peer) -> None:
        peer.writer.write(b"SSH-2.0-server here\r\n")
        peer.writer.write(await peer.reader.readline())
        await peer.writer.drain()

    async with (
        raw_upstream(script) as upstream,
        proxy(ToolFilter(), to=["regular"], home=tmp_path) as running,
        raw_client(running.port) as client,
    ):
        await tunnel(client, upstream.url.partition("//")[2], None)
        await client.say(b"SSH-2.0-client HTTP here\r\n")
        assert await client.until(b"HTTP here\r\n") == (
            b"SSH-2.0-server here\r\nSSH-2.0-client HTTP here\r\n"
        )


# Attacks

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


async def test_a_client_that_leaves_early_harms_nobody(tmp_path: Path) -> None:
    async with between(tmp_path, respond=echo) as it:
        whole = it.written(call("delete_file"), "/mcp", JSON)
        for part in (whole[:-10], it.written(b"PNG", "/v1", JSON)[:-1], whole[:20]):
            async with raw_client(it.proxy.port) as client:
                await tunnel(client, it.upstream.url.partition("//")[2], None)
                await client.say(part)
                client.abort()
        assert (await it.send(b"{}", path="/v1")).body == b"{}"
        assert not it.proxy.errors()


async def test_a_transfer_coding_hides_nothing(tmp_path: Path) -> None:
    async with between(tmp_path) as it:
        coded = gzip.compress(call("delete_file"))
        headers = JSON + b"Transfer-Encoding: gzip, chunked\r\n"
        await it.client.say(it.written(b"", "/mcp", headers) + chunk(coded) + LAST_CHUNK)
        assert b" 400 " in await it.client.head()
        assert not it.upstream.raw.requests


@pytest.mark.parametrize("greeting", [b"HTTP/1.1 100 Continue\r\n\r\n", b"\r\n", b"H"])
async def test_a_server_that_speaks_first_cannot_open_a_way_round(
    tmp_path: Path, greeting: bytes
) -> None:
    async def script(peer: Peer) -> None:
        peer.writer.write(greeting)
        await peer.writer.drain()
        await peer.request()

    async with (
        raw_upstream(script) as upstream,
        proxy(ToolFilter(), to=["regular"], home=tmp_path, deny=["^delete_"]) as running,
        raw_client(running.port) as client,
    ):
        running.master.options.update(connection_strategy="eager")
        await tunnel(client, upstream.url.partition("//")[2], None)
        await asyncio.sleep(0.05)
        body = call("delete_file")
        head = b"POST /mcp HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)
        await client.say(head + body)
        async with asyncio.timeout(TIMEOUT):
            await client.reader.read(1)  # an answer of ours, or the end
        assert not upstream.requests


# Streams and sockets


async def test_the_older_transport_is_found_by_its_first_event(tmp_path: Path) -> None:
    """Nothing in its GET says that it is MCP."""
    peers: list[Peer] = []

    async def respond(asked: RawRequest, peer: Peer) -> None:
        if asked.line.startswith("GET"):
            peers.append(peer)
            await peer.say(SSE_HEAD + chunk(b": hi\n\nevent: endpoint\ndata: /m?s=1\n\n"))
            return
        await peer.say(answer(b"", status="202 Accepted"))
        if b"read_file" in asked.body:
            await peers[0].say(chunk(b"data: " + RESULT + b"\n\n"))
        if b"resources/list" in asked.body:
            await peers[0].say(chunk(b"data: " + tool_list([READ, DELETE], id="7") + b"\n\n"))

    async with (
        between(tmp_path, respond=respond) as it,
        raw_client(it.proxy.port) as poster,
    ):
        host = it.upstream.url.partition("//")[2]
        await tunnel(poster, host, None)
        await it.client.say(it.written(b"", "/sse", b"Accept: text/event-stream\r\n", "GET"))
        await it.client.head()
        assert await it.client.until(b"data: /m?s=1\n\n")
        for body in (call("delete_file"), request("resources/list"), call("read_file")):
            got = await poster.ask(it.written(body, "/m?s=1", JSON))
            assert (got.status, got.body) == (202, b"")
        said = await it.client.until(RESULT + b"\n\n")
        assert b"Tool not found: delete_file" in said
        assert b"read_file" in said
        assert said.count(b"delete_file") == 1
        assert not [one for one in it.upstream.raw.requests if b"delete_file" in one.body]


async def test_a_list_on_the_get_stream_of_an_endpoint_is_filtered(tmp_path: Path) -> None:
    async def respond(_asked: RawRequest, peer: Peer) -> None:
        listed = b"data: " + tool_list([READ, DELETE], id="7") + b"\n\n"
        await peer.say(SSE_HEAD + chunk(listed) + LAST_CHUNK)

    async with between(tmp_path, respond=respond) as it:
        for headers in (b"", b"Mcp-Session-Id: 1\r\n", b"Last-Event-ID: 1\r\n"):
            await it.client.say(it.written(b"", "/mcp", headers, "GET"))
            await it.client.head()
            said = await it.client.chunks()
            assert b"read_file" in said
            assert b"delete_file" not in said


@pytest.mark.parametrize("subprotocol", ["mcp", None])
async def test_mcp_on_a_websocket_is_filtered(tmp_path: Path, subprotocol: str | None) -> None:
    heard: list[bytes] = []

    async def script(peer: Peer) -> None:
        head = await peer.reader.readuntil(b"\r\n\r\n")
        there = await accept(peer.reader, peer.writer, head)
        while (text := await there.hear()) is not None:
            heard.append(text)
            await there.say(text if text == b"hello" else tool_list([READ, DELETE], id="7"))

    async with (
        raw_upstream(script) as upstream,
        proxy(ToolFilter(), to=["regular"], home=tmp_path, deny=["^delete_"]) as running,
        raw_client(running.port) as client,
    ):
        host = upstream.url.partition("//")[2]
        await tunnel(client, host, None)
        offered = [subprotocol] if subprotocol else []
        here = await connect(client.reader, client.writer, subprotocols=offered)
        if not subprotocol:
            await here.say(b"hello")
            assert await here.hear() == b"hello"
        await here.say(request("tools/list"))
        assert b"delete_file" not in (await here.hear() or b"")
        await here.say(call("delete_file"))
        assert json.loads(await here.hear() or b"") == not_found("delete_file")
    assert not [one for one in heard if b"delete_file" in one]


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


@pytest.mark.parametrize("option", [{"upstream_headers": ["A: b"]}, {"paths": ["mcp"]}])
async def test_options_about_one_upstream_are_refused(
    tmp_path: Path, option: dict[str, Any]
) -> None:
    more = [part for name, [value] in option.items() for part in ("--set", f"{name}={value}")]
    async with tool_process("mitmdump", "-s", SCRIPT, *more, home=tmp_path) as it:
        assert await it.exit_code() == 1
        assert "a forward proxy has many" in it.stderr


# Local and transparent mode, HTTP/2, other proxies

_REDIRECTOR = """
import asyncio, sys
from mitmproxy_rs import local

class Redirector:
    def set_intercept(self, spec): pass
    async def wait_closed(self): await asyncio.sleep(SECONDS)

async def start(*_): return Redirector()

local.start_local_redirector = start
from mitmproxy.tools.main import mitmdump
sys.argv[0] = "mitmdump"
mitmdump()
"""


@pytest.mark.parametrize(
    ("seconds", "said"), [(0, "could not start"), (2, "has ended")], ids=["at once", "later"]
)
async def test_the_process_ends_with_local_mode(tmp_path: Path, seconds: int, said: str) -> None:
    """mitmproxy says that it has started, and goes on. (Here it has no rights to start it.)"""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", _REDIRECTOR.replace("SECONDS", str(seconds))),
        *("-s", SCRIPT, "--mode", "local:nobody", "--set", f"confdir={tmp_path}"),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(TIMEOUT):
        _, err = await process.communicate()
    assert process.returncode == 1
    assert f"Error: mitmproxy's local mode {said}" in err.decode()


@pytest.mark.parametrize("tls", [False, True])
async def test_connections_that_the_system_redirects_are_filtered(
    tmp_path: Path, tls: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In transparent mode; local mode has the same layers."""
    context = certified(tmp_path) if tls else None
    async with mcp_upstream(tools=[READ, DELETE], tls=context) as upstream:
        place = ("127.0.0.1", upstream.raw.port)
        monkeypatch.setattr("mitmproxy.platform.original_addr", lambda _socket: place)
        async with (
            proxy(ToolFilter(), to=["transparent"], home=tmp_path, deny=["^delete_"]) as running,
            raw_client(running.port, tls=trusting() if tls else None) as client,
        ):
            it = Between(upstream, running, client, "")
            assert await names_listed(it) == ["read_file"]
            got = await it.send(call("delete_file"))
            assert json.loads(got.body) == not_found("delete_file")
            assert (await it.send(b"{}", path="/v1")).status == 200


@ways
async def test_a_proxy_behind_us_is_used(tmp_path: Path, way: str) -> None:
    """In upstream mode. The proxy behind us is another of ours, in a process of its own."""
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
            proxy(ToolFilter(), to=modes, home=tmp_path, deny=["^delete_"]) as running,
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
        proxy(ToolFilter(), to=["regular"], home=tmp_path, deny=["^delete_"]) as running,
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
