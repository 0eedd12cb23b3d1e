"""Forward proxies: what is MCP is filtered, and the rest keeps its bytes."""

from __future__ import annotations

import asyncio
import gc
import gzip
import re
import ssl
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import h2.config
import h2.connection
import h2.events
import h2.exceptions
import pytest
from mitmproxy.addons.proxyauth import ProxyAuth
from mitmproxy.exceptions import OptionsError
from mitmproxy.http import HTTPFlow

from mcp_tool_filter.rooms.forward import endpoints
from mcp_tool_filter.rooms.mitmproxy.addon import ToolFilter
from tests.filtered import (
    DELETE,
    INITIALIZE,
    LIST,
    READ,
    Filtered,
    Hook,
    call,
    filtered,
    lost,
    not_found,
)
from tests.make import listing
from tests.mcp_upstream import RESULT, McpUpstream
from tests.proxy import SCRIPT, certified, proxy
from tests.raw_client import Answer, H2Client, RawClient, post, raw_client, trusting
from tests.raw_upstream import (
    LAST_CHUNK,
    SSE_HEAD,
    TIMEOUT,
    Peer,
    RawRequest,
    RawUpstream,
    Script,
    answer,
    chunk,
    raw_upstream,
    streaming,
    until,
)
from tests.shapes import Message, Server

JSON = b"Content-Type: application/json\r\nAccept: application/json, text/event-stream\r\n"

hosts = pytest.mark.parametrize("host", ["plain", "lean", "dump"])

ways = pytest.mark.parametrize("way", ["absolute", "tunnel", "tls"])


@dataclass
class Between(Filtered):
    """A client that goes through us to an upstream."""

    prefix: str = ""

    async def ask(
        self, body: bytes, headers: bytes = JSON, path: str = "/mcp", method: str = "POST"
    ) -> Answer:
        return await self.client.ask(self.written(body, path, headers, method))

    def passed(self) -> list[RawRequest]:
        """What the upstream got from the client; the filter fetches lists, too."""
        every = self.upstream.raw.requests
        return [one for one in every if b"user-agent: mcp-tool-filter" not in one.head.lower()]

    def written(
        self, body: bytes, path: str = "/mcp", headers: bytes = JSON, method: str = "POST"
    ) -> bytes:
        host = self.upstream.url.partition("//")[2]
        head = f"{method} {self.prefix}{path} HTTP/1.1\r\nHost: {host}\r\n".encode()
        length = b"Content-Length: %d\r\n" % len(body) if body else b""
        return head + headers + length + b"\r\n" + body


@asynccontextmanager
async def between(
    home: Path, way: str = "tunnel", *scripts: object, mode: str = "regular", **options: Any
) -> AsyncIterator[Between]:
    tls = certified(home) if way == "tls" else None
    async with filtered(home, *scripts, to=[mode], tls=tls, **options) as it:
        prefix = await reach(it.client, it.upstream.url, way)
        yield Between(it.upstream, it.client, it.proxy, prefix)


async def reach(client: RawClient, url: str, way: str = "tunnel") -> str:
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


def listening(home: Path, *scripts: object, **options: Any) -> Any:
    """Run a forward proxy, for an upstream of the test's own."""
    return proxy(
        ToolFilter(), *scripts, to=["regular"], home=home, **{"deny": ["^delete_"], **options}
    )


@asynccontextmanager
async def tunnelled(
    home: Path, script: Script, **options: Any
) -> AsyncIterator[tuple[RawUpstream, RawClient]]:
    """Open a plain tunnel through us to an upstream that speaks as the script says."""
    async with (
        raw_upstream(script) as upstream,
        listening(home, **options) as running,
        raw_client(running.port) as client,
    ):
        await reach(client, upstream.url)
        yield upstream, client


async def echo(asked: RawRequest, peer: Peer) -> None:
    await peer.say(answer(asked.body, kind="application/octet-stream"))


# Forward proxies in a real mitmproxy: no request of MCP passes unfiltered.


@hosts
@ways
async def test_mcp_is_filtered(tmp_path: Path, way: str, host: str) -> None:
    async with between(tmp_path, way, host=host) as it:
        await it.ask(INITIALIZE)
        assert await it.names() == ["read_file"]
        got = await it.ask(call("delete_file"))
        assert (got.status, got.body) == (200, not_found("delete_file"))
        assert (await it.ask(call("read_file"))).status == 200
        assert [one.body for one in it.upstream.of("tools/call")] == [call("read_file")]


METHODS = ["PUT", "PATCH", "GET", "DELETE", "PROPFIND"]
# More bodies that some server reads as a call: tests/rooms/forward/test_recognise.py
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
        whole = it.written(call("delete_file"))
        for part in (whole[:-10], it.written(b"PNG", "/v1")[:-1], whole[:20]):
            async with raw_client(it.port) as client:
                await reach(client, it.upstream.url)
                await client.say(part)
                client.abort()
        assert (await it.ask(b"{}", path="/v1")).body == b"{}"
        assert not it.proxy.errors()


@pytest.mark.parametrize("way", ["absolute", "tunnel"])
async def test_unfinished_bodies_are_held_within_the_budget(tmp_path: Path, way: str) -> None:
    """The largest are given up, before it is clear whether they are MCP."""
    body = b'{"a": "' + b"x" * 9_000_000
    async with between(tmp_path, way) as it, AsyncExitStack() as clients:
        begun = []
        for _ in range(20):
            client = await clients.enter_async_context(raw_client(it.port))
            await reach(client, it.upstream.url, way)
            with suppress(ConnectionError):
                await client.say(it.written(body, "/v1")[:-1])
            begun.append(client)
        with suppress(ConnectionError):
            assert not await begun[0].rest()
        assert (await it.ask(call("delete_file"))).body == not_found("delete_file")
        assert not it.passed()


async def test_forgetting_an_endpoint_frees_its_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoints, "MOST_SITES", 2)
    async with between(tmp_path) as it:
        for number in range(6):
            await it.ask(call("read_file"), path=f"/mcp{number}")
        gc.collect()
        assert len(it.addon.proxy.statistics) <= 3  # the last flow may keep one more


async def test_options_about_one_upstream_are_refused(tmp_path: Path) -> None:
    async with between(tmp_path) as it:
        for option in ({"upstream_headers": ["A: b"]}, {"paths": ["mcp"]}, {"endpoint": ["/a"]}):
            with pytest.raises(OptionsError, match="a forward proxy has many"):
                it.set(**option)


@pytest.mark.parametrize("way", ["absolute", "tunnel"])
async def test_a_script_may_change_a_request_and_nothing_else(way: str, tmp_path: Path) -> None:
    """Neither a tunnel, nor the care for proxy credentials. It says that clients speak HTTP/2."""

    def change(flow: HTTPFlow) -> None:
        flow.request.headers["x-changed"] = "1"
        flow.client_conn.alpn = b"h2"

    async with between(tmp_path, way, Hook("request", change)) as it:
        login = JSON + (b"" if way == "tunnel" else b"Proxy-Authorization: Basic c2VjcmV0\r\n")
        for _ in range(2):
            assert (await it.ask(call("read_file"), login)).status == 200
        asked = it.upstream.of("tools/call")
        assert [one.all("x-changed") for one in asked] == [["1"], ["1"]]
        assert not any(one.all("proxy-authorization") for one in asked)


async def test_a_script_sees_the_answer_of_a_stream_that_proves_to_be_mcp(tmp_path: Path) -> None:
    seen: list[HTTPFlow] = []
    watching = Hook("response", seen.append)
    respond = streaming(b"data: " + call("x") + b"\n\n")
    async with between(tmp_path, "tunnel", watching, respond=respond) as it:
        assert (await it.ask(b"", method="GET")).status == 200
    [flow] = seen
    assert flow.response
    assert flow.response.headers["content-type"] == "text/event-stream"


async def test_a_tunnel_takes_one_seat_and_gives_it_back(tmp_path: Path) -> None:
    async with between(tmp_path, max_clients=["1"]) as it:
        assert await it.names() == ["read_file"]
        it.client.close()
        await until(lambda: not len(it.addon.proxy.crowd.seats))
        async with raw_client(it.port) as client:
            await reach(client, it.upstream.url)
            assert (await client.ask(it.written(call("read_file")))).status == 200


async def test_a_dump_shows_no_secret_of_an_endpoints_url(tmp_path: Path) -> None:
    dump = tmp_path / "dump.flow"
    async with between(tmp_path, "absolute", host="dump", save_stream_file=str(dump)) as it:
        await it.ask(LIST, path="/mcp?api_key=hunter2")
        assert it.upstream.asked[-1].line.startswith("POST /mcp?api_key=hunter2 ")
    assert b"hunter2" not in dump.read_bytes()
    assert b"/mcp?api_key=masked-" in dump.read_bytes()


# Forward proxies: the older transport and GET streams are recognised and filtered.


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
        got = await it.ask(call("read_file"), JSON + origin)
        assert got.all("location") == [f"{it.upstream.url}/m"]
        got = await it.ask(b"", b"", "/sse", "GET")
        assert f"data: {it.upstream.url}/m\n".encode() in got.body
        assert (await it.ask(call("delete_file"), path="/m")).body == not_found("delete_file")


class Knowing(Server):
    """Knows these tools; without any, it answers no request for the list."""

    def _result(self, asked: Message) -> object:
        if asked.get("params", {}).get("name") == "no_such_tool":
            text = {"type": "text", "text": "Unknown tool: no_such_tool"}
            return {"isError": True, "content": [text]}
        return super()._result(asked)

    def _answers(self, body: bytes, request: RawRequest) -> list[bytes]:
        answers = super()._answers(body, request)  # which also notes what it has heard
        return answers if self.tools or b"tools/list" not in body else []


@ways
@pytest.mark.parametrize("lists", [True, False])
async def test_the_older_transport_needs_no_list(tmp_path: Path, way: str, lists: bool) -> None:
    """An agent that knows the tools calls one straight away. If the upstream does not list, one
    call waits for our own request, and the others are judged by the patterns; what the upstream
    says of a tool that it does not know is said in our words."""
    server = Knowing([READ, DELETE] if lists else (), is_legacy=True)
    tls = certified(tmp_path) if way == "tls" else None
    async with (
        raw_upstream(server.serve, tls=tls) as upstream,
        listening(tmp_path, tool_list_timeout=["500"]) as running,
        raw_client(running.port) as stream,
        raw_client(running.port) as poster,
    ):
        await reach(stream, upstream.url, way)
        prefix = await reach(poster, upstream.url, way)
        it = Between(McpUpstream(upstream, ()), poster, running, prefix)
        await stream.say(it.written(b"", "/sse", b"Accept: text/event-stream\r\n", "GET"))
        await stream.head()
        assert b"s=0" in await stream.chunk()
        for name in ("delete_file", "read_file", "delete_file", "no_such_tool"):
            await it.ask(call(name), path="/messages?s=0")
            heard = (await stream.chunk()).partition(b"data: ")[2].strip()
            assert (heard == not_found(name)) is (name != "read_file")
            assert name != "read_file" or b'"text": "read_file"' in heard
    assert "delete_file" not in server.called()
    assert sum(b"tools/list" in one for one in server.heard) == 1


# A forward proxy in front of another proxy: requests in tunnels go through tunnels of that one.

LOGIN = b"Proxy-Authorization: Basic dTpw\r\n"
_LOGIN = re.compile(re.escape(LOGIN), re.IGNORECASE)


@dataclass
class Behind:
    """A proxy that notes what it is asked."""

    heads: list[bytes] = field(default_factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            head = await reader.readuntil(b"\r\n\r\n")
            self.heads.append(head)
            target = head.split(b" ")[1]
            host, _, path = target.removeprefix(b"http://").partition(b"/")
            there = await asyncio.open_connection("127.0.0.1", int(host.rpartition(b":")[2]))
            if head.startswith(b"CONNECT"):
                writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
            else:
                there[1].write(_LOGIN.sub(b"", head.replace(target, b"/" + path)))
            await asyncio.gather(pump(reader, there[1]), pump(there[0], writer))
        writer.close()


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
        writer.close()


@pytest.mark.parametrize("is_direct", [False, True])
@ways
async def test_requests_go_to_the_proxy_behind(way: str, is_direct: bool, tmp_path: Path) -> None:
    behind, urls = Behind(), list[str]()
    async with await asyncio.start_server(behind.serve, "127.0.0.1", 0) as server:
        how: dict[str, Any] = {
            "mode": f"upstream:http://127.0.0.1:{server.sockets[0].getsockname()[1]}",
            "upstream_auth": "u:p",
            "keep_host_header": not is_direct,  # for reverse proxies only
            "host": "dump",
        }
        async with between(
            tmp_path, way, Hook("request", lambda flow: urls.append(flow.request.url)), **how
        ) as it:
            it.addon.interception.is_direct = lambda _host: is_direct
            assert (await it.ask(b"other", path="/other")).status == 200
            assert (await it.ask(call("delete_file"))).body == not_found("delete_file")
            assert (await it.ask(call("read_file"))).status == 200
            requests, peers = it.upstream.raw.requests, it.upstream.raw.peers
    assert bool(behind.heads) is not is_direct
    assert sum(b"tools/list" in one.body for one in requests) == 1  # our own
    assert is_direct or len(behind.heads) == len(peers)
    assert all(LOGIN.lower() in head.lower() for head in behind.heads)
    # Those in the proxy's form have it, too, if it does not look at each request.
    logins = {(" http:" in one.line, len(one.all("proxy-authorization"))) for one in requests}
    assert logins <= {(False, 0), (True, 1)}
    assert {one.partition(":")[0] for one in urls} == {"https" if way == "tls" else "http"}


async def test_what_comes_with_the_tunnel_of_the_proxy_behind_is_no_answer(tmp_path: Path) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.say(b"HTTP/1.1 200 OK\r\n\r\n" + answer(b"early"))

    ping = b'{"jsonrpc":"2.0","id":1,"method":"ping"}'
    async with (
        raw_upstream(script) as behind,
        between(tmp_path, mode=f"upstream:{behind.url}") as it,
    ):
        assert (await it.ask(ping)).body == lost("1")
        [outside] = it.addon._layers.values()
        assert not outside.inner._tls


@pytest.mark.parametrize("login", [b"", LOGIN])
@pytest.mark.parametrize("way", ["absolute", "tunnel"])
async def test_clients_need_the_login_of_mitmproxy(way: str, login: bytes, tmp_path: Path) -> None:
    async with between(tmp_path, "absolute", ProxyAuth(), proxyauth="u:p") as it:
        host = it.upstream.url.partition("//")[2].encode()
        line = b"CONNECT %b" % host if way == "tunnel" else b"GET http://%b/x" % host
        await it.client.say(line + b" HTTP/1.1\r\nHost: x\r\n" + login + b"\r\n")
        head = await it.client.head()
        assert head.split(b" ")[1] == (b"200" if login else b"407")
        assert (b"Proxy-Authenticate: Basic realm=" in head) is not bool(login)
        if login:  # we also ask for the list
            headers = JSON + login if way == "absolute" else JSON
            it.prefix = it.prefix if way == "absolute" else ""
            assert (await it.ask(call("read_file"), headers)).status == 200
        assert not any(one.all("proxy-authorization") for one in it.upstream.raw.requests)


# Forward proxies: bytes that only some servers read as a request, or no HTTP at all.


@pytest.mark.parametrize("greeting", [b"HTTP/1.1 100 Continue\r\n\r\n", b"\r\n", b"H"])
async def test_a_server_that_speaks_first_opens_no_bypass(tmp_path: Path, greeting: bytes) -> None:
    async def script(peer: Peer) -> None:
        peer.writer.write(greeting)
        await peer.writer.drain()
        await peer.request()
        await peer.say(answer(b"delete_file"))

    async with tunnelled(tmp_path, script, connection_strategy="eager") as (upstream, client):
        await asyncio.sleep(0.05)
        await client.say(post(call("delete_file"), headers=b"Host: x\r\n"))
        said = b"-"
        async with asyncio.timeout(TIMEOUT):
            while said and b"delete_file" not in said:  # an answer of ours, or the end
                said = await client.reader.read(65536)
        assert not any(b"delete_file" in one.body for one in upstream.requests)


@pytest.mark.parametrize("record", [b"\x16\x04\x01", b"\x16\x02\x00", b"\x16\x03\x05", b"\x16P "])
async def test_a_strange_tls_record_reaches_no_server(
    record: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Some servers take TLS records that we would not read."""
    async with tunnelled(tmp_path, Peer.left) as (upstream, client):
        await client.say(record + b"\0\x40" + bytes(64))
        async with asyncio.timeout(TIMEOUT):
            assert await client.reader.read() == b""
        assert not upstream.peers
    assert "a strange TLS record" in caplog.text


async def test_what_is_neither_tls_nor_http_does_not_pass(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    heard = asyncio.Event()

    async def script(peer: Peer) -> None:
        if await peer.reader.read(8) == b"SSH-2.0-":
            heard.set()
        await peer.left()

    async with tunnelled(tmp_path, script) as (_, client):
        await client.say(b"SSH-2.0-here\r\n")
        assert b"SSH" not in await client.reader.read(100)
        assert not heard.is_set()
    assert "Closed a connection" in caplog.text


# Forward proxies and HTTP/2: clients get HTTP/1.1 if they can; what speaks only HTTP/2 passes.

GRPC = b"\0\0\0\0\5hello"


def offering(*protocols: str) -> ssl.SSLContext:
    tls = trusting()
    tls.set_alpn_protocols([*protocols])
    return tls


@asynccontextmanager
async def speaking_h2_alone(
    home: Path,
    *scripts: object,
    head: Sequence[tuple[bytes, bytes]] = ((b"content-type", b"application/grpc"),),
    pieces: Sequence[bytes] = (GRPC,),
    **options: Any,
) -> AsyncIterator[tuple[H2Client, list[int]]]:
    """A client of an upstream that says this, and the streams that have reached the upstream."""
    seen: list[int] = []

    async def speak_grpc(peer: Peer) -> None:
        config = h2.config.H2Configuration(client_side=False, header_encoding=None)
        there = h2.connection.H2Connection(config)
        there.initiate_connection()
        with suppress(h2.exceptions.ProtocolError):  # the filter asks for a list over HTTP/1.1
            while data := await peer.reader.read(65536):
                for event in there.receive_data(data):
                    if isinstance(event, h2.events.RequestReceived):
                        seen.append(number := event.stream_id)
                        there.send_headers(number, [(b":status", b"200"), *head])
                        for piece in pieces:
                            there.send_data(number, piece)
                        there.send_headers(number, [(b"grpc-status", b"0")], end_stream=True)
                await peer.say(there.data_to_send())
        peer.close()

    tls = certified(home)
    tls.set_alpn_protocols(["h2"])
    async with (
        raw_upstream(speak_grpc, tls=tls) as upstream,
        listening(home, *scripts, host="dump", **options) as running,
        raw_client(running.port) as raw,
    ):
        await tunnel(raw, upstream.url.partition("//")[2], offering("h2"))
        client = H2Client(raw.reader, raw.writer)
        client.start()
        yield client, seen


async def test_grpc_passes_with_its_trailers(tmp_path: Path) -> None:
    async with speaking_h2_alone(tmp_path) as (client, _):
        kind = [(b"content-type", b"application/grpc"), (b"te", b"trailers")]
        heard = await client.over(client.ask(body=GRPC, headers=kind, content_length=False))
        assert (heard.data, heard.trailers) == (GRPC, {b"grpc-status": b"0"})


async def test_what_speaks_only_http2_goes_to_the_proxy_behind(tmp_path: Path) -> None:
    """MCP or not."""
    behind = Behind()
    async with await asyncio.start_server(behind.serve, "127.0.0.1", 0) as server:
        mode = f"upstream:http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        upstream = filtered(tmp_path, to=[mode], tls=certified(tmp_path), host="dump")
        async with upstream as it:
            await tunnel(it.client, it.upstream.url.partition("//")[2], offering("h2"))
            client = H2Client(it.client.reader, it.client.writer)
            client.start()
            for body in (GRPC, call("read_file")):
                assert (await client.over(client.ask(body=body))).data == RESULT
            assert len(behind.heads) == len(it.upstream.raw.peers) > 1


def stream_all(flow: HTTPFlow) -> None:
    flow.request.stream = True


FORMS: dict[str, tuple[tuple[bytes, bytes], bytes]] = {
    "JSON": ((b"content-type", b"application/json"), call("delete_file")),
    "gRPC": ((b"content-type", b"application/grpc"), call("delete_file")),
    "compressed": ((b"content-encoding", b"gzip"), gzip.compress(call("delete_file"))),
    "compressed, oddly": ((b"content_encoding", b"gzip"), gzip.compress(call("delete_file"))),
}


@pytest.mark.parametrize(("options", "scripts"), [
    ({}, []), ({"stream_large_bodies": "1"}, []), ({}, [Hook("requestheaders", stream_all)]),
], ids=["", "streamed", "streamed by a script"])  # fmt: skip
@pytest.mark.parametrize("form", FORMS)
async def test_mcp_over_http2_alone_is_judged(
    form: str, options: dict[str, Any], scripts: list[object], tmp_path: Path
) -> None:
    (header, body), is_grpc = FORMS[form], form == "gRPC"
    async with speaking_h2_alone(tmp_path, *scripts, **options) as (client, seen):
        stream = client.streams[client.ask(body=body, headers=[header], content_length=not is_grpc)]
        while not (stream.ended or stream.reset is not None or client.closed):
            await client.read()
        assert is_grpc or not seen
        assert form != "JSON" or bytes(stream.data) == not_found("delete_file")


EVENTS = b"data: 1\n\ndata: %b\n\n" * 50
CODINGS: dict[bytes, Callable[[bytes], bytes]] = {b"identity": bytes, b"gzip": gzip.compress}


@pytest.mark.parametrize("coding", [*CODINGS, b"unknown"])
@pytest.mark.parametrize("is_mcp", [True, False])
async def test_events_over_http2_pass_unless_they_are_mcp(
    coding: bytes, is_mcp: bool, tmp_path: Path
) -> None:
    event = listing("secret") if is_mcp else b'{"id":1}'
    body = CODINGS.get(coding, bytes)(EVENTS.replace(b"%b", event))

    head = (b"content-type", b"text/event-stream"), (b"content-encoding", coding)
    pieces = [body[at : at + 30] for at in range(0, len(body), 30)]
    async with speaking_h2_alone(tmp_path, head=head, pieces=pieces) as (client, _):
        stream = client.streams[client.ask("GET")]
        while not (stream.ended or stream.reset is not None or client.closed):
            await client.read()
        passes = coding in CODINGS and not is_mcp
        assert (stream.data == body) is stream.ended is passes
        with suppress(EOFError, OSError):
            stream.data += gzip.decompress(stream.data)
        assert b"secret" not in stream.data


async def test_a_client_that_knows_both_gets_http_1(tmp_path: Path) -> None:
    async with listening(tmp_path) as running, raw_client(running.port) as raw:
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
