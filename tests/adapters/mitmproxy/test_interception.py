"""Forward proxies: what is MCP is filtered, and the rest keeps its bytes."""

from __future__ import annotations

import asyncio
import gc
import gzip
import json
import ssl
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from mitmproxy.addons.proxyauth import ProxyAuth
from mitmproxy.addons.upstream_auth import UpstreamAuth
from mitmproxy.exceptions import OptionsError
from mitmproxy.http import HTTPFlow, Response

from mcp_tool_filter.adapters.mitmproxy.addon import ToolFilter
from mcp_tool_filter.adapters.serving import endpoints
from tests.adapters.mitmproxy.filtered import Script
from tests.h2_upstream import UpstreamStream, h2_upstream
from tests.mcp_upstream import RESULT, McpUpstream, Respond, mcp_upstream, tool
from tests.proxy import SCRIPT, RunningProxy, certified, proxy
from tests.raw_client import Answer, H2Client, RawClient, raw_client, trusting
from tests.raw_upstream import (
    LAST_CHUNK,
    SSE_HEAD,
    TIMEOUT,
    Peer,
    RawRequest,
    RawUpstream,
    answer,
    chunk,
    raw_upstream,
    until,
)

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

    @property
    def addon(self) -> Any:
        return self.proxy.master.addons.get("toolfilter")

    async def send(
        self, body: bytes, *, path: str = "/mcp", headers: bytes = JSON, method: str = "POST"
    ) -> Answer:
        return await self.client.ask(self.written(body, path, headers, method))

    def passed(self) -> list[RawRequest]:
        """What the upstream got from the client; the filter fetches lists, too."""
        every = self.upstream.raw.requests
        return [one for one in every if b"user-agent: mcp-tool-filter" not in one.head.lower()]

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
    mode: str = "regular",
    scripts: Sequence[object] = (),
    **options: Any,
) -> AsyncIterator[Between]:
    options = {"deny": ["^delete_"], **options}
    tls = certified(home) if way == "tls" else None
    async with (
        mcp_upstream(tools=[READ, DELETE], respond=respond, tls=tls) as upstream,
        proxy(ToolFilter(), *scripts, to=[mode], home=home, host=host, **options) as running,
        raw_client(running.port) as client,
    ):
        prefix = await reach(client, upstream.url, way)
        yield Between(upstream, running, client, prefix)


async def reach(client: RawClient, url: str, way: str) -> str:
    """Open a tunnel if this is the way; return what stands before each path."""
    if way == "absolute":
        return url
    await tunnel(client, url.partition("//")[2], trusting() if way == "tls" else None)
    return ""


async def tunnel(client: RawClient, to: str, tls: ssl.SSLContext | None) -> None:
    await client.say(f"CONNECT {to} HTTP/1.1\r\nHost: {to}\r\n\r\n".encode())
    assert b" 200 " in await client.head()
    if tls:
        await client.writer.start_tls(tls, server_hostname="localhost")


@asynccontextmanager
async def tunnelled(
    home: Path, script: Callable[[Peer], Awaitable[None]], **options: Any
) -> AsyncIterator[tuple[RawUpstream, RawClient]]:
    """Open a plain tunnel through us to an upstream that speaks as the script says."""
    given = {"to": ["regular"], "deny": ["^delete_"], **options}
    async with (
        raw_upstream(script) as upstream,
        proxy(ToolFilter(), home=home, **given) as running,
        raw_client(running.port) as client,
    ):
        await tunnel(client, upstream.url.partition("//")[2], None)
        yield upstream, client


async def names_listed(it: Between) -> list[str]:
    got = json.loads((await it.send(request("tools/list"))).body)
    return [one["name"] for one in got["result"]["tools"]]


async def echo(asked: RawRequest, peer: Peer) -> None:
    await peer.say(answer(asked.body, kind="application/octet-stream"))


# Forward proxies in a real mitmproxy: no request of MCP passes unfiltered.


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


METHODS = ["PUT", "PATCH", "GET", "DELETE", "PROPFIND"]
# More bodies that some server reads as a call: tests/http/test_recognise.py
TRICKS = {
    "compressed, as an upload": (
        gzip.compress(b" " * 100_000 + call("delete_file")),
        b"Content-Encoding: x-gzip\r\nContent-Type: image/png\r\n",
    ),
    "UTF-16": (call("delete_file").decode().encode("utf-16"), JSON),
    "a batch with others first": (b'[1, {"a": 1}, ' + call("delete_file") + b"]", JSON),
    "Expect": (call("delete_file"), b"Expect: 100-continue\r\n"),
    **{method: (call("delete_file"), JSON) for method in METHODS},
}


@pytest.mark.parametrize("way", ["absolute", "tls"])
@pytest.mark.parametrize("trick", TRICKS)
async def test_a_denied_call_does_not_pass(tmp_path: Path, way: str, trick: str) -> None:
    (body, headers), method = TRICKS[trick], trick if trick in METHODS else "POST"
    async with between(tmp_path, way) as it:
        await it.client.say(it.written(body, "/any/path", headers, method))
        got = await it.client.head()
        if b" 100 " in got:
            got = await it.client.head()
        assert b"delete_file" not in got
        assert not it.passed()


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
        assert not it.passed()


async def test_forgetting_an_endpoint_frees_its_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoints, "MOST_SITES", 2)
    async with between(tmp_path) as it:
        for number in range(6):
            await it.send(call("read_file"), path=f"/mcp{number}")
        gc.collect()
        assert len(it.addon.proxy.watchers.statistics) <= 3  # the last flow may keep one more


async def test_options_about_one_upstream_are_refused(tmp_path: Path) -> None:
    async with between(tmp_path) as it:
        for option in ({"upstream_headers": ["A: b"]}, {"paths": ["mcp"]}, {"endpoint": ["/a"]}):
            with pytest.raises(OptionsError, match="a forward proxy has many"):
                it.proxy.master.options.update(**option)


@pytest.mark.parametrize("way", ["absolute", "tunnel"])
async def test_a_script_may_change_a_request_and_takes_nothing_from_the_engine(
    way: str, tmp_path: Path
) -> None:
    """Neither a tunnel, nor the care for proxy credentials. It says that clients speak HTTP/2."""

    def change(flow: HTTPFlow) -> None:
        flow.request.headers["x-changed"] = "1"
        flow.client_conn.alpn = b"h2"

    async with between(tmp_path, way, scripts=[Script("request", change)]) as it:
        login = JSON + (b"" if way == "tunnel" else b"Proxy-Authorization: Basic c2VjcmV0\r\n")
        for _ in range(2):
            assert (await it.send(call("read_file"), headers=login)).status == 200
        asked = it.upstream.of("tools/call")
        assert [one.all("x-changed") for one in asked] == [["1"], ["1"]]
        assert not any(one.all("proxy-authorization") for one in asked)


async def test_a_script_sees_the_answer_of_a_stream_that_turns_out_to_be_mcp(
    tmp_path: Path,
) -> None:
    async def respond(_asked: RawRequest, peer: Peer) -> None:
        await peer.say(SSE_HEAD + chunk(b"data: " + request("tools/x") + b"\n\n") + LAST_CHUNK)

    def note(flow: HTTPFlow) -> None:
        seen.append(flow.response)

    seen: list[Response | None] = []
    async with between(tmp_path, respond=respond, scripts=[Script("response", note)]) as it:
        assert (await it.send(b"", method="GET")).status == 200
    assert [one.headers["content-type"] for one in seen if one] == ["text/event-stream"]


async def test_a_tunnel_takes_one_seat_and_gives_it_back(tmp_path: Path) -> None:
    async with between(tmp_path, max_clients=["1"]) as it:
        assert await names_listed(it) == ["read_file"]
        it.client.close()
        seats = it.addon.proxy.crowd.seats
        await until(lambda: not len(seats))
        async with raw_client(it.proxy.port) as client:
            to = it.upstream.url.partition("//")[2]
            await tunnel(client, to, None)
            await client.say(it.written(call("read_file"), "/mcp", JSON))
            assert (await client.answer()).status == 200


async def test_a_dump_shows_no_secret_of_an_endpoints_url(tmp_path: Path) -> None:
    dump = tmp_path / "dump.flow"
    async with between(tmp_path, "absolute", host="dump", save_stream_file=str(dump)) as it:
        await it.send(request("tools/list"), path="/mcp?api_key=hunter2")
        assert it.upstream.asked[-1].line.startswith("POST /mcp?api_key=hunter2 ")
    assert b"hunter2" not in dump.read_bytes()
    assert b"/mcp?api_key=masked-" in dump.read_bytes()


# Forward proxies: the older transport, GET streams and WebSockets are recognised and filtered.


async def test_no_url_is_rewritten(tmp_path: Path) -> None:
    """Clients call the upstream by its own name, and find us all the same."""
    urls: list[str] = []

    async def respond(asked: RawRequest, peer: Peer) -> None:
        urls.append(f"{it.upstream.url}/m")
        if asked.line.startswith("GET"):
            event = f"event: endpoint\ndata: {urls[0]}\n\n".encode()
            await peer.say(SSE_HEAD + chunk(event) + LAST_CHUNK)
        else:
            found = answer(RESULT).partition(b"\r\n")
            await peer.say(found[0] + f"\r\nLocation: {urls[0]}\r\n".encode() + found[2])

    async with between(tmp_path, respond=respond) as it:
        origin = b"Origin: https://page.example\r\nSec-Fetch-Site: cross-site\r\n"
        got = await it.send(call("read_file"), headers=JSON + origin)
        assert got.all("location") == [f"{it.upstream.url}/m"]
        await it.client.say(it.written(b"", "/sse", b"", "GET"))
        await it.client.head()
        assert f"data: {it.upstream.url}/m\n".encode() in await it.client.chunks()
        got = await it.send(call("delete_file"), path="/m")
        assert json.loads(got.body) == not_found("delete_file")


@ways
@pytest.mark.parametrize("lists", [True, False])
async def test_calls_over_the_older_transport_need_no_list_before_them(
    tmp_path: Path, way: str, lists: bool
) -> None:
    """An agent that knows the tools calls one straight away. If the upstream does not list, one
    call waits for our own request, and the others are judged by the patterns; what the upstream
    says of a tool that it does not know is said in our words."""
    streams: list[Peer] = []

    async def respond(asked: RawRequest, peer: Peer) -> None:
        if asked.line.startswith("GET"):
            streams.append(peer)
            at = f"event: endpoint\ndata: /messages?session={len(streams)}\n\n"
            await peer.say(SSE_HEAD + chunk(at.encode()))
            await peer.left()
            return
        await peer.say(answer(b"Accepted", status="202 Accepted", kind="text/plain"))
        said = json.loads(asked.body)
        result: dict[str, Any] = {"called": said["method"]}
        if said["method"] == "initialize":
            result = {"protocolVersion": "2024-11-05", "capabilities": {}, "serverInfo": {}}
        elif said["method"] == "tools/list":
            result = {"tools": [json.loads(one) for one in (READ, DELETE)]}
        elif b"no_such_tool" in asked.body:
            text = {"type": "text", "text": "Unknown tool: no_such_tool"}
            result = {"isError": True, "content": [text]}
        if "id" in said and (lists or said["method"] != "tools/list"):
            told = json.dumps({"jsonrpc": "2.0", "id": said["id"], "result": result})
            stream = streams[int(asked.line.partition("session=")[2].split()[0]) - 1]
            await stream.say(chunk(f"data: {told}\n\n".encode()))

    async def script(peer: Peer) -> None:
        while True:
            await respond(await peer.request(), peer)

    given: dict[str, Any] = {"deny": ["^delete_"], "tool_list_timeout": ["500"]}
    tls = certified(tmp_path) if way == "tls" else None
    async with (
        raw_upstream(script, tls=tls) as upstream,
        proxy(ToolFilter(), to=["regular"], home=tmp_path, **given) as running,
        raw_client(running.port) as stream,
        raw_client(running.port) as poster,
    ):
        host = upstream.url.partition("//")[2]
        await reach(stream, upstream.url, way)
        prefix = await reach(poster, upstream.url, way)
        head = f"%s {prefix}%s HTTP/1.1\r\nHost: {host}\r\n"
        await stream.say((head % ("GET", "/sse") + "Accept: text/event-stream\r\n\r\n").encode())
        await stream.head()
        assert b"session=1" in await stream.chunk()

        async def ask(body: bytes) -> Any:
            length = f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
            await poster.ask((head % ("POST", "/messages?session=1") + length).encode() + body)
            return json.loads((await stream.chunk()).partition(b"data: ")[2])

        assert await ask(call("delete_file")) == not_found("delete_file")
        assert (await ask(call("read_file")))["result"] == {"called": "tools/call"}
        assert await ask(call("delete_file")) == not_found("delete_file")
        assert await ask(call("no_such_tool")) == not_found("no_such_tool")
        asked = [one.body for one in upstream.requests]
        assert sum(b"tools/list" in one for one in asked) == 1
        assert not [one for one in asked if b"delete_file" in one]


# A forward proxy in front of another proxy: requests in tunnels go through tunnels of that one.

LOGIN = b"Proxy-Authorization: Basic dTpw\r\n"


@dataclass
class Behind:
    """A proxy that notes what it is asked."""

    heads: list[bytes] = field(default_factory=list)
    port: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            head = await reader.readuntil(b"\r\n\r\n")
            self.heads.append(head)
            target = head.split(b" ")[1].decode()
            where = target.removeprefix("http://").partition("/")[0].rpartition(":")
            there = await asyncio.open_connection(where[0], int(where[2]))
            if head.startswith(b"CONNECT"):
                writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
            else:
                there[1].write(
                    head.replace(target.encode(), b"/" + target.encode().split(b"/", 3)[3])
                )
            await asyncio.gather(pump(reader, there[1]), pump(there[0], writer))
        writer.close()


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
        writer.close()


@asynccontextmanager
async def a_proxy() -> AsyncIterator[Behind]:
    behind = Behind()
    server = await asyncio.start_server(behind.serve, "127.0.0.1", 0)
    behind.port = server.sockets[0].getsockname()[1]
    yield behind
    server.close()


@pytest.mark.parametrize("is_direct", [False, True])
@ways
async def test_requests_go_on_to_the_proxy_behind(
    way: str, is_direct: bool, tmp_path: Path
) -> None:
    async with a_proxy() as behind:
        how: dict[str, Any] = {
            "mode": f"upstream:http://127.0.0.1:{behind.port}",
            "upstream_auth": "u:p",
            "keep_host_header": not is_direct,  # for reverse proxies only
        }
        async with between(tmp_path, way, scripts=[UpstreamAuth()], **how) as it:
            it.addon.interception.is_direct = lambda _host: is_direct
            assert (await it.send(b"other", path="/other")).status == 200
            assert json.loads((await it.send(call("delete_file"))).body) == not_found("delete_file")
            assert (await it.send(call("read_file"))).status == 200
            requests, peers = it.upstream.raw.requests, it.upstream.raw.peers
    assert bool(behind.heads) is not is_direct
    assert sum(b"tools/list" in one.body for one in requests) == 1  # our own
    assert is_direct or len(behind.heads) == len(peers)
    assert all(LOGIN.lower() in head.lower() for head in behind.heads)
    # Requests of plain HTTP have it, too: they are in the proxy's form.
    assert way != "tls" or all(b"roxy-auth" not in one.head for one in requests)


@pytest.mark.parametrize("login", [b"", LOGIN])
@pytest.mark.parametrize("way", ["absolute", "tunnel"])
async def test_a_client_needs_the_login_that_mitmproxys_option_asks_for(
    way: str, login: bytes, tmp_path: Path
) -> None:
    how: dict[str, Any] = {"scripts": [ProxyAuth()], "proxyauth": "u:p"}
    async with between(tmp_path, "absolute", **how) as it:
        host = it.upstream.url.partition("//")[2].encode()
        line = b"CONNECT %b" % host if way == "tunnel" else b"GET http://%b/x" % host
        await it.client.say(line + b" HTTP/1.1\r\nHost: x\r\n" + login + b"\r\n")
        head = await it.client.head()
        assert head.split(b" ")[1] == (b"200" if login else b"407")
        assert (b"Proxy-Authenticate: Basic realm=" in head) is not bool(login)
        if login and way == "tunnel":
            it.prefix = ""
            assert (await it.send(call("read_file"))).status == 200
        assert not any(b"roxy-auth" in one.head for one in it.upstream.raw.requests)


# Forward proxies: bytes that only some servers read as a request, or no HTTP at all.


@pytest.mark.parametrize("greeting", [b"HTTP/1.1 100 Continue\r\n\r\n", b"\r\n", b"H"])
async def test_a_server_that_speaks_first_cannot_open_a_bypass(
    tmp_path: Path, greeting: bytes
) -> None:
    async def script(peer: Peer) -> None:
        peer.writer.write(greeting)
        await peer.writer.drain()
        await peer.request()
        await peer.say(answer(b"delete_file"))

    async with tunnelled(tmp_path, script, connection_strategy="eager") as (upstream, client):
        await asyncio.sleep(0.05)
        body = call("delete_file")
        head = b"POST /mcp HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)
        await client.say(head + body)
        said = b"-"
        async with asyncio.timeout(TIMEOUT):
            while said and b"delete_file" not in said:  # an answer of ours, or the end
                said = await client.reader.read(65536)
        assert not upstream.requests


@pytest.mark.parametrize("record", [b"\x16\x04\x01", b"\x16\x02\x00", b"\x16\x03\x05", b"\x16P "])
async def test_a_strange_tls_record_reaches_no_server(
    record: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Some servers take TLS records that we would not read."""

    async def script(peer: Peer) -> None:
        await peer.left()

    async with tunnelled(tmp_path, script) as (upstream, client):
        await client.say(record + b"\0\x40" + bytes(64))
        async with asyncio.timeout(TIMEOUT):
            assert await client.reader.read() == b""
        assert not upstream.peers
    assert "a strange TLS record" in caplog.text


@pytest.mark.parametrize("is_named", [True, False])
async def test_what_is_neither_tls_nor_http_passes_only_to_named_hosts(
    is_named: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    heard = asyncio.Event()

    async def script(peer: Peer) -> None:
        if await peer.reader.read(8) == b"SSH-2.0-":
            heard.set()
            await peer.say(b"SSH-2.0-there\r\n")
        await peer.left()

    hosts = {"raw_hosts": ["127.0.0.1,::1"]} if is_named else {}
    async with tunnelled(tmp_path, script, **hosts) as (_, client):
        await client.say(b"SSH-2.0-here\r\n")
        assert (b"SSH-2.0-there" in await client.reader.read(100)) is is_named
        assert heard.is_set() is is_named
    assert ("--raw-hosts" in caplog.text) is not is_named


# Forward proxies and HTTP/2: clients get HTTP/1.1 if they can; what speaks only HTTP/2 passes.

GRPC = b"\0\0\0\0\5hello"


async def script(stream: UpstreamStream) -> None:
    stream.head([(b":status", b"200"), (b"content-type", b"application/grpc")])
    stream.say(GRPC)
    stream.connection.h2.send_headers(stream.number, [(b"grpc-status", b"0")], end_stream=True)
    stream.connection.flush()


def offering(*protocols: str) -> ssl.SSLContext:
    tls = trusting()
    tls.set_alpn_protocols([*protocols])
    return tls


@asynccontextmanager
async def speaking_h2_alone(
    home: Path, *scripts: object, **options: Any
) -> AsyncIterator[tuple[H2Client, list[UpstreamStream]]]:
    seen: list[UpstreamStream] = []

    async def noting(stream: UpstreamStream) -> None:
        seen.append(stream)
        await script(stream)

    async with (
        h2_upstream(noting, tls=certified(home)) as upstream,
        proxy(
            ToolFilter(), *scripts, to=["regular"], home=home, deny=["^delete_"], host="dump",
            **options,
        ) as running,
        raw_client(running.port) as raw,
    ):  # fmt: skip
        await tunnel(raw, upstream.url.partition("//")[2], offering("h2"))
        client = H2Client(raw.reader, raw.writer)
        client.start()
        yield client, seen


async def test_grpc_passes_with_its_trailers(tmp_path: Path) -> None:
    async with speaking_h2_alone(tmp_path) as (client, _):
        kind = [(b"content-type", b"application/grpc"), (b"te", b"trailers")]
        heard = await client.over(client.ask(body=GRPC, headers=kind, content_length=False))
        assert (heard.data, heard.trailers) == (GRPC, {b"grpc-status": b"0"})


def stream_all(flow: HTTPFlow) -> None:
    flow.request.stream = True


FORMS: dict[str, tuple[tuple[bytes, bytes], bytes]] = {
    "JSON": ((b"content-type", b"application/json"), call("delete_file")),
    "gRPC": ((b"content-type", b"application/grpc"), call("delete_file")),
    "compressed": ((b"content-encoding", b"gzip"), gzip.compress(call("delete_file"))),
    "compressed, oddly": ((b"content_encoding", b"gzip"), gzip.compress(call("delete_file"))),
}


@pytest.mark.parametrize(
    ("options", "scripts"),
    [({}, []), ({"stream_large_bodies": "1"}, []), ({}, [Script("requestheaders", stream_all)])],
    ids=["", "streamed", "streamed by a script"],
)
@pytest.mark.parametrize("form", FORMS)
async def test_mcp_over_http2_alone_is_judged(
    form: str, options: dict[str, str], scripts: list[object], tmp_path: Path
) -> None:
    (header, body), is_grpc = FORMS[form], form == "gRPC"
    async with speaking_h2_alone(tmp_path, *scripts, **options) as (client, seen):
        number = client.ask(body=body, headers=[header], content_length=not is_grpc)
        stream = client.streams[number]
        while not (stream.ended or stream.reset is not None or client.closed):
            await client.read()
        assert is_grpc or not seen
        assert form != "JSON" or json.loads(bytes(stream.data)) == not_found("delete_file")


async def test_a_client_that_knows_both_gets_http_1(tmp_path: Path) -> None:
    async with (
        proxy(ToolFilter(), to=["regular"], home=tmp_path, deny=["^x"]) as running,
        raw_client(running.port) as raw,
    ):
        await tunnel(raw, "localhost:1", offering("h2", "http/1.1"))
        assert raw.writer.get_extra_info("ssl_object").selected_alpn_protocol() == "http/1.1"


# The process ends with mitmproxy's local mode, which mitmproxy itself does without.

_REDIRECTOR = """
import asyncio, pathlib, sys
from mitmproxy_rs import local

class Redirector:
    def set_intercept(self, spec): pass
    async def wait_closed(self):
        while not pathlib.Path(sys.argv[-1], "closed").exists():
            await asyncio.sleep(0.01)

async def start(*_): return Redirector()

local.start_local_redirector = start
from mitmproxy.tools.main import mitmdump
sys.argv[0] = "mitmdump"
mitmdump()
"""


@pytest.mark.parametrize(
    ("at_once", "said"), [(True, "could not start"), (False, "has ended")], ids=["at once", "later"]
)
async def test_the_process_ends_with_local_mode(tmp_path: Path, at_once: bool, said: str) -> None:
    """mitmproxy says that it has started, and goes on. (Here it has no rights to start it.)"""
    closed = tmp_path / "closed"
    if at_once:
        closed.touch()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", _REDIRECTOR.replace("sys.argv[-1]", repr(str(tmp_path)))),
        *("-s", SCRIPT, "--mode", "local:nobody", "--set", f"confdir={tmp_path}"),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stderr
    async with asyncio.timeout(TIMEOUT):
        err = b"" if at_once else await process.stderr.readuntil(b"Filtering MCP of local programs")
        closed.touch()
        err += (await process.communicate())[1]
    assert process.returncode == 1
    assert f"Error: mitmproxy's local mode {said}" in err.decode()
