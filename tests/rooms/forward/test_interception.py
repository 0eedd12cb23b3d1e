"""Forward proxies: named hosts are filtered, and all other bytes pass unread."""

from __future__ import annotations

import asyncio
import gzip
import logging
import re
import ssl
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from mitmproxy.addons.proxyauth import ProxyAuth
from mitmproxy.exceptions import OptionsError
from mitmproxy.http import HTTPFlow
from mitmproxy.tls import ClientHelloData

from mcp_tool_filter.rooms.mitmproxy import addon
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
from tests.mcp_upstream import RESULT, McpUpstream
from tests.proxy import SCRIPT, certified, proxy, tool
from tests.raw_client import Answer, RawClient, post, raw_client, trusting
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
    until,
)
from tests.shapes import Message, Server

JSON = b"Content-Type: application/json\r\nAccept: application/json, text/event-stream\r\n"

OTHER: dict[str, Any] = {"hosts": ["mcp.example"]}
"""The options of a filter for another host than that of the upstream."""

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
    given = {"hosts": ["127.0.0.1"], **options}
    async with filtered(home, *scripts, to=[mode], tls=tls, **given) as it:
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
    given = {"deny": ["^delete_"], "hosts": ["127.0.0.1"], **options}
    return proxy(ToolFilter(), *scripts, to=["regular"], home=home, **given)


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
            assert (await it.ask(b'{"a": 1}', path="/other")).status == 200
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


@ways
async def test_what_is_unread_goes_to_the_proxy_behind(way: str, tmp_path: Path) -> None:
    """With our login to it, and by the same ways: a tunnel, or the URL."""
    behind = Behind()
    async with await asyncio.start_server(behind.serve, "127.0.0.1", 0) as server:
        mode = f"upstream:http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        how: dict[str, Any] = {"upstream_auth": "u:p", "host": "dump", **OTHER}
        async with between(tmp_path, way, mode=mode, **how) as it:
            assert (await it.ask(call("delete_file"))).status == 200
            assert [one.body for one in it.passed()] == [call("delete_file")]
            assert not it.passed()[0].all("proxy-authorization")
    [head] = behind.heads
    assert head.startswith(b"POST http://127.0.0.1:" if way == "absolute" else b"CONNECT ")
    assert LOGIN.lower() in head.lower()


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


# Other hosts: nobody reads what passes there. (The upstream of a test is at 127.0.0.1.)


async def test_a_tunnel_to_another_host_is_unread(tmp_path: Path) -> None:
    """No certificate of ours, no answer of ours, no flow, and not a word."""
    flows: list[HTTPFlow] = []
    hook = Hook("requestheaders", flows.append)
    setattr(hook, "tcp_start", flows.append)  # noqa: B010
    async with filtered(
        tmp_path, hook, to=["regular"], tls=certified(tmp_path), host="dump", **OTHER
    ) as it:
        theirs = (tmp_path / "upstream-ca-cert.pem").read_text()
        trusted = ssl.create_default_context(cadata=theirs)
        async with raw_client(it.port) as client:
            await tunnel(client, it.upstream.url.partition("//")[2], trusted)
            client_of_theirs = Between(it.upstream, client, it.proxy)
            assert (await client_of_theirs.ask(call("delete_file"))).status == 200
            assert [one.body for one in client_of_theirs.passed()] == [call("delete_file")]
        assert [*it.addon.interception.sites.unread] == ["localhost"]
        assert not it.addon.interception.sites.urls
    assert not flows
    assert not [one for one in it.proxy.said if one.levelno >= logging.WARNING]


@pytest.mark.parametrize("way", ["absolute", "tunnel"])
async def test_plain_requests_to_another_host_are_unread(tmp_path: Path, way: str) -> None:
    flows: list[HTTPFlow] = []
    hook = Hook("requestheaders", flows.append)
    async with between(tmp_path, way, hook, respond=echo, **OTHER) as it:
        for body in (call("delete_file"), b"\0" * 3_000_000, b"x"):
            got = await it.ask(body)
            assert (got.status, got.body) == (200, body)
        [asked, *_] = it.passed()
        assert asked.line == "POST /mcp HTTP/1.1"
        assert asked.all("host") == [it.upstream.url.partition("//")[2]]
        assert asked.all("connection") == ["close"]
    assert not flows


BODIES = {
    "chunked": b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
    "waiting": b"Expect: 100-continue\r\nContent-Length: 3\r\n\r\nabc",
}


@pytest.mark.parametrize("form", BODIES)
async def test_the_body_of_an_unread_request_is_framed(form: str, tmp_path: Path) -> None:
    async with between(tmp_path, "absolute", respond=echo, **OTHER) as it:
        head = f"POST {it.prefix}/a HTTP/1.1\r\nHost: x\r\nConnection: X-Hop\r\nX-Hop: 1\r\n"
        framing, _, body = BODIES[form].partition(b"\r\n\r\n")
        await it.client.say(head.encode() + framing + b"\r\n\r\n")
        if form == "waiting":
            assert b" 100 " in await it.client.head()
        await it.client.say(body)
        assert (await it.client.answer()).body == b"abc"
        [asked] = it.passed()
        assert asked.all("x-hop") == asked.all("expect") == []


ANSWERS: dict[str, tuple[bytes, bytes]] = {
    "no body": (b"HTTP/1.1 204 No Content\r\nX-A: 1\r\n\r\n", b""),
    "chunks": (SSE_HEAD + chunk(b"data: 1\n\n") + LAST_CHUNK, b"data: 1\n\n"),
    "until the end": (b"HTTP/1.0 200 OK\r\n\r\nabc", b"abc"),
    "early hints": (b"HTTP/1.1 103 Early Hints\r\n\r\n" + answer(b"abc"), b"abc"),
    "nothing": (b"", b"The server closed the connection\n"),
    "no HTTP": (b"SSH-2.0-here\r\n", b"The server's answer cannot be read\n"),
    "an upgrade": (
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n",
        b"The server's answer cannot be read\n",
    ),
}


@pytest.mark.parametrize("form", ANSWERS)
async def test_unread_answers_keep_their_meaning(form: str, tmp_path: Path) -> None:
    said, body = ANSWERS[form]

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.say(said)
        peer.close()

    async with (
        raw_upstream(script) as upstream,
        listening(tmp_path, **OTHER) as running,
        raw_client(running.port) as client,
    ):
        for _ in range(2):  # on one connection to us
            got = await client.ask(f"GET {upstream.url}/ HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            assert got.body == body


async def test_a_server_that_is_not_there_is_named(tmp_path: Path) -> None:
    async with listening(tmp_path, **OTHER) as running, raw_client(running.port) as client:
        got = await client.ask(b"GET http://127.0.0.1:1/ HTTP/1.1\r\nHost: x\r\n\r\n")
        assert got.status == 502
        assert got.body.startswith(b"Cannot connect: ")


async def test_one_connection_carries_both_and_nothing_past_the_filter(tmp_path: Path) -> None:
    """A client may keep its connection to a proxy, and name another server with each request."""
    async with between(tmp_path, "absolute") as it, raw_upstream(speak_first) as other:
        unread = other.url.replace("127.0.0.1", "localhost").encode()
        for _ in range(2):
            got = await it.client.ask(b"GET %b/x HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" % unread)
            assert got.body == b"unread"
            assert (await it.ask(call("delete_file"))).body == not_found("delete_file")
            assert (await it.ask(call("read_file"))).status == 200
        assert [one.body for one in it.upstream.of("tools/call")] == [call("read_file")] * 2
        assert not any(b"tools" in one.body for one in other.requests)
        assert {one.all("host")[0] for one in other.requests} == {unread.decode()[len("http://") :]}


async def speak_first(peer: Peer) -> None:
    await peer.request()
    await peer.say(answer(b"unread"))
    await peer.left()


async def test_a_tunnel_is_apart_from_the_requests_before_it(tmp_path: Path) -> None:
    """Their server may still say something on its idle connection, and close it."""
    has_tunnel, has_said = asyncio.Event(), asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.say(answer(b"{}"))
        await has_tunnel.wait()
        with suppress(ConnectionError):
            await peer.say(answer(b"past the filter"))
        peer.close()
        has_said.set()

    async with (
        raw_upstream(script) as before,
        raw_upstream(speak_first) as other,
        listening(tmp_path) as running,
        raw_client(running.port) as client,
    ):
        asked = f"GET {before.url}/ HTTP/1.1\r\nHost: x\r\n\r\n".encode()
        assert (await client.ask(asked)).status == 200
        await reach(client, other.url.replace("127.0.0.1", "localhost"))
        has_tunnel.set()
        await has_said.wait()
        await asyncio.sleep(0.1)
        got = await client.ask(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert got.body == b"unread"
        assert len(other.requests) == 1


@pytest.mark.parametrize("said", [b"QUIT\r\n", b""])
async def test_a_server_may_speak_first(said: bytes, tmp_path: Path) -> None:
    """Also to a client that says nothing, and has closed its half of the connection."""

    async def script(peer: Peer) -> None:
        await peer.say(b"220 ready\r\n")
        assert await peer.reader.readline() == said
        await peer.say(b"221 bye\r\n")
        peer.close()

    async with (
        raw_upstream(script) as upstream,
        listening(tmp_path, **OTHER) as running,
        raw_client(running.port) as client,
    ):
        await reach(client, upstream.url.replace("127.0.0.1", "localhost"))
        async with asyncio.timeout(TIMEOUT):
            assert await client.reader.readline() == b"220 ready\r\n"
            if said:
                await client.say(said)
            else:
                client.writer.write_eof()
            assert await client.reader.read() == b"221 bye\r\n"


# Names that do not agree: a tunnel has up to three.


@pytest.mark.parametrize(
    ("named", "to", "sni"),
    [
        ("localhost", "127.0.0.1", None),  # an address where we have been under its name
        ("127.0.0.1", "localhost", None),
        ("mcp.example", "localhost", "mcp.example"),
        ("localhost", "localhost", "other.example"),
    ],
)
async def test_no_other_name_leads_past_the_filter(
    named: str, to: str, sni: str | None, tmp_path: Path
) -> None:
    async with filtered(tmp_path, to=["regular"], tls=certified(tmp_path), hosts=[named]) as it:
        port = it.upstream.url.rpartition(":")[2]
        if named != "mcp.example":  # which cannot be reached
            async with raw_client(it.port) as client:
                await tunnel(client, f"{named}:{port}", trusting())
                await Between(it.upstream, client, it.proxy).ask(call("read_file"))
            assert it.upstream.of("tools/call")
        with suppress(OSError, EOFError, AssertionError):
            tls = trusting()
            await it.client.say(f"CONNECT {to}:{port} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            assert b" 200 " in await it.client.head()
            await it.client.writer.start_tls(tls, server_hostname=sni or "localhost")
            await Between(it.upstream, it.client, it.proxy).ask(call("delete_file"))
        assert not any(b"delete_file" in one.body for one in it.upstream.raw.requests)


async def test_no_script_opens_a_way_past_the_filter(tmp_path: Path) -> None:
    def ignore(data: ClientHelloData) -> None:
        data.ignore_connection = True

    hook = Hook("tls_clienthello", ignore)
    async with filtered(
        tmp_path, hook, to=["regular"], tls=certified(tmp_path), hosts=["127.0.0.1"]
    ) as it:
        with suppress(OSError, EOFError, AssertionError):
            await tunnel(it.client, it.upstream.url.partition("//")[2], trusting())
            await Between(it.upstream, it.client, it.proxy).ask(call("delete_file"))
        assert not it.upstream.raw.peers


async def test_the_upstream_is_asked_by_the_name_that_the_client_uses(tmp_path: Path) -> None:
    """A client may know the name, and we only the address."""
    named: list[str | None] = []
    tls = certified(tmp_path)
    tls.sni_callback = lambda _socket, name, _context: named.append(name)
    async with filtered(tmp_path, to=["regular"], tls=tls, hosts=["127.0.0.1"]) as it:
        await tunnel(it.client, it.upstream.url.partition("//")[2], trusting())
        assert (
            await Between(it.upstream, it.client, it.proxy).ask(call("read_file"))
        ).status == 200
    assert set(named) == {"localhost"}


async def test_a_request_to_another_host_than_its_tunnel_is_refused(tmp_path: Path) -> None:
    async with between(tmp_path, hosts=["localhost"]) as it:
        port = it.upstream.url.rpartition(":")[2]
        async with raw_client(it.port) as client:
            await reach(client, f"http://localhost:{port}")
            got = await client.ask(post(call("read_file"), headers=b"Host: other.example\r\n"))
            assert got.status == 421
        assert not it.passed()


async def test_a_first_request_to_a_named_host_passes_no_other_tunnel(tmp_path: Path) -> None:
    async with (
        raw_upstream(speak_first) as other,
        listening(tmp_path, **OTHER) as running,
        raw_client(running.port) as client,
    ):
        await reach(client, other.url.replace("127.0.0.1", "localhost"))
        await client.say(post(call("read_file"), headers=b"Host: mcp.example\r\n"))
        assert await client.rest() == b""
        assert not other.requests


async def test_a_tunnel_is_for_one_host_and_http_1_alone(tmp_path: Path) -> None:
    """A client that offers only HTTP/2 gets no protocol."""
    async with between(tmp_path, "tls") as it:
        for offered, agreed in ((("h2", "http/1.1"), "http/1.1"), (("h2",), None)):
            tls = trusting()
            tls.set_alpn_protocols(list(offered))
            async with raw_client(it.port) as client:
                await tunnel(client, it.upstream.url.partition("//")[2], tls)
                chosen = client.writer.get_extra_info("ssl_object").selected_alpn_protocol()
                assert chosen == agreed


# SOCKS, and clients that are redirected to us.


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1"])
@pytest.mark.parametrize("is_named", [True, False])
async def test_socks_clients_are_filtered(name: str, is_named: bool, tmp_path: Path) -> None:
    hosts = [name] if is_named else ["mcp.example"]
    async with filtered(tmp_path, to=["socks5"], hosts=hosts, respond=echo) as it:
        port = int(it.upstream.url.rpartition(":")[2])
        there = (
            b"\x01" + bytes(map(int, name.split(".")))
            if name[0].isdigit()
            else b"\x03" + bytes([len(name)]) + name.encode()
        )
        await it.client.say(b"\x05\x01\x00")
        assert await it.client.reader.readexactly(2) == b"\x05\x00"
        await it.client.say(b"\x05\x01\x00" + there + port.to_bytes(2, "big"))
        assert (await it.client.reader.readexactly(10))[:2] == b"\x05\x00"
        it = Between(it.upstream, it.client, it.proxy)
        got = await it.ask(call("delete_file"))
        assert got.body == (not_found("delete_file") if is_named else call("delete_file"))


async def test_without_a_host_nothing_starts(tmp_path: Path) -> None:
    async with tool("mitmdump", "-s", SCRIPT, "--mode", "regular", home=tmp_path) as it:
        assert await it.exit_code() == 1
    said = "Error: A forward proxy filters named hosts only, and none is named\n"
    assert said + "Name the hosts of your MCP servers: --set hosts=" in it.stderr
    assert "Traceback" not in it.stderr


async def test_without_its_room_a_forward_proxy_does_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(addon, "_FORWARD", "mcp_tool_filter.rooms.no_such_room")
    ended: list[str] = []
    monkeypatch.setattr(ToolFilter, "_leave", lambda _self, why: ended.append(why))
    async with listening(tmp_path) as running, raw_client(running.port) as client:
        await until(lambda: bool(ended))
        assert "no_such_room is not installed" in ended[0]
        with suppress(ConnectionError):
            await client.say(b"CONNECT 127.0.0.1:1 HTTP/1.1\r\nHost: x\r\n\r\n")
        assert b" 200 " not in await client.rest()


async def test_the_last_host_cannot_be_taken_away(tmp_path: Path) -> None:
    async with between(tmp_path) as it:
        with pytest.raises(OptionsError, match="none is named"):
            it.set(hosts=[])
        it.set(hosts=["localhost"])
        assert (await it.ask(call("read_file"))).status == 200


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
        *("--set", "hosts=mcp.example"),
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
