"""The hooks in a real mitmproxy, between sockets whose every byte we see."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from mitmproxy import ctx
from mitmproxy.exceptions import OptionsError

from mcp_tool_filter.adapters.fetch.upstream import Target, fetch
from mcp_tool_filter.adapters.mitmproxy.addon import ToolFilter
from mcp_tool_filter.adapters.mitmproxy.requests import Requests
from mcp_tool_filter.conversation.fetched import Fetched
from mcp_tool_filter.conversation.kinds import ALL_CAPABILITIES
from mcp_tool_filter.http.listener import Listener
from tests.mcp_upstream import RESULT, McpUpstream, Respond, mcp_upstream, saying, tool, tool_list
from tests.proxy import proxy
from tests.raw_client import MCP_HEADERS, Answer, RawClient, get, post, raw_client
from tests.raw_upstream import LAST_CHUNK, SSE_HEAD, Peer, RawRequest, answer, chunk, free_port
from tests.websocket import accept, connect

READ, DELETE = tool("read_file"), tool("delete_file", ', "description":"gone \\u00e9"')
ENDPOINT = ["/mcp"]
ANSWERING = saying(RESULT)
INITIALIZE = (
    b'{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-06-18",'
    b'"capabilities":{},"clientInfo":{"name":"c","version":"1"}}}'
)
DECLARING_ALL = INITIALIZE.replace(b"{},", ALL_CAPABILITIES.encode() + b",", 1)


@dataclass
class Filtered:
    upstream: McpUpstream
    client: RawClient
    port: int

    async def ask(self, body: bytes, headers: bytes = b"", path: str = "/mcp") -> Answer:
        return await self.client.ask(post(body, path=path, headers=MCP_HEADERS + headers))


def run(home: Path, test: Callable[[Filtered], Coroutine[Any, Any, None]], **options: Any) -> None:
    """Run a test between an upstream with two tools, one of them denied, and a client."""

    async def main() -> None:
        async with filtered(home, **options) as between:
            await test(between)

    asyncio.run(main())


@asynccontextmanager
async def filtered(
    home: Path,
    *,
    respond: Respond = ANSWERING,
    lists: Callable[[RawRequest, str], bytes] | None = None,
    session: bytes = b"",
    **options: Any,
) -> AsyncIterator[Filtered]:
    given = {"deny": ["^delete_"], "endpoint": ENDPOINT, **options}
    upstreams = mcp_upstream(tools=[READ, DELETE], respond=respond, lists=lists, session=session)
    async with (
        upstreams as upstream,
        proxy(ToolFilter(), to=upstream.url, home=home, **given) as it,
        raw_client(it.port) as client,
    ):
        yield Filtered(upstream, client, it.port)


def call(name: str, arguments: str = "{}", id: str = "1") -> bytes:
    params = f'{{"name":{json.dumps(name)},"arguments":{arguments}}}'
    return f'{{"jsonrpc":"2.0","id":{id},"method":"tools/call","params":{params}}}'.encode()


def not_found(name: str, id: str = "1") -> bytes:
    error = f'{{"code":-32601,"message":"Tool not found: {name}"}}'
    return f'{{"jsonrpc":"2.0","id":{id},"error":{error}}}'.encode()


INVALID_REQUEST = b'{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"Invalid Request"}}'


def stumble(*_args: object) -> None:
    raise ZeroDivisionError("a bug")


def lost(id: str) -> bytes:
    error = '{"code":-32000,"message":"Upstream connection lost"}'
    return f'{{"jsonrpc":"2.0","id":{id},"error":{error}}}'.encode()


LIST = b'{"jsonrpc":"2.0","id":5,"method":"tools/list"}'


class TestCalls:
    @pytest.mark.parametrize(
        "body",
        [
            call(
                "read_file", '{"a": 1.00, "a":1e400,"b":"\\u00e9\\ud800", "n":' + "9" * 5000 + "}"
            ),
            b' {\n"method" : "tools\\/call","id":"\\u0061","params":{"name":"read_fil\\u0065"},'
            b'"jsonrpc":"2.0"}\r\n ',
            call("read_file", '{"name":"delete_file","method":"tools/call","name":["x"]}', "1.0"),
        ],
    )
    def test_an_allowed_one_passes_byte_for_byte(self, tmp_path: Path, body: bytes) -> None:
        said = b'\n{"id":1.00 ,"result": {"content":[], "a":1, "a":1.0},"jsonrpc":"2.0"}  '

        async def test(between: Filtered) -> None:
            got = await between.ask(body)
            assert got.body == said
            assert [request.body for request in between.upstream.asked] == [body]

        run(tmp_path, test, respond=saying(said))

    @pytest.mark.parametrize("id", ["1", '"\\u0061"', "null", "1.0", "-0", "9" * 400])
    def test_a_denied_and_an_unknown_one_get_the_same_answer(self, tmp_path: Path, id: str) -> None:
        async def test(between: Filtered) -> None:
            for name in ("delete_file", "no_such"):
                got = await between.ask(call(name, id=id))
                assert (got.status, got.body) == (200, not_found(name, id))
                assert got.all("content-type") == ["application/json"]
            assert between.upstream.asked == []

        run(tmp_path, test)

    def test_a_denied_notification_is_swallowed(self, tmp_path: Path) -> None:
        async def test(between: Filtered) -> None:
            body = call("delete_file").replace(b'"id":1,', b"")
            got = await between.ask(body)
            assert (got.status, got.body) == (202, b"")
            assert between.upstream.asked == []

        run(tmp_path, test)

    @pytest.mark.parametrize("path", ["/", "/other", "/mcp/", "/mcp?a=1", "//mcp", "/%6dcp"])
    def test_a_denied_one_is_denied_on_every_path(self, tmp_path: Path, path: str) -> None:
        async def test(between: Filtered) -> None:
            assert (await between.ask(call("delete_file"), path=path)).body == not_found(
                "delete_file"
            )
            assert between.upstream.asked == []

        run(tmp_path, test)


class TestLists:
    def test_one_is_answered_from_the_snapshot_without_the_upstream(self, tmp_path: Path) -> None:
        """The session was opened through us, and the client has no credentials of its own.

        The first list of a kind of asker comes from the upstream: our own fetch declares more.
        """

        async def test(between: Filtered) -> None:
            session = b"Mcp-Session-Id: s\r\nMCP-Protocol-Version: 2025-06-18\r\n"
            for initialize, asked in [(INITIALIZE, 1), (INITIALIZE, 1), (DECLARING_ALL, 1)]:
                await between.ask(initialize)
                got = await between.ask(LIST, session)
                assert READ in got.body
                assert b"delete" not in got.body
                assert len(between.upstream.of("tools/list")) == asked
            assert got.body == (
                b'{"jsonrpc":"2.0","id":5,"result":{"_meta" : {"n":1e2},"tools": [' + READ + b"]}}"
            )

        run(tmp_path, test, session=b"s")

    @pytest.mark.parametrize(
        ("headers", "body"),
        [
            (b"Mcp-Session-Id: unknown\r\n", LIST),
            (b"Mcp-Session-Id: s\r\nAuthorization: Bearer x\r\n", LIST),
            (b"Mcp-Session-Id: s\r\nCookie: a=b\r\n", LIST),
            (b"Mcp-Session-Id: s\r\nX-API-Key: x\r\n", LIST),
            (b"Mcp-Session-Id: s\r\nMCP-Protocol-Version: 1999-01-01\r\n", LIST),
            (b"Mcp-Session-Id: s\r\n", LIST[:-1] + b',"params":{"cursor":"2"}}'),
        ],
    )
    def test_others_are_forwarded_and_rewritten(
        self, tmp_path: Path, headers: bytes, body: bytes
    ) -> None:
        async def test(between: Filtered) -> None:
            await between.ask(INITIALIZE)
            got = await between.ask(body, headers)
            assert got.body == tool_list([READ], id="5")
            assert [request.body for request in between.upstream.of("tools/list")] == [body]

        run(tmp_path, test, session=b"s")

    def test_both_ways_show_the_same_definitions(self, tmp_path: Path) -> None:
        async def test(between: Filtered) -> None:
            got = await between.ask(LIST)
            assert READ in got.body
            assert b"delete" not in got.body

        run(tmp_path, test, tools_list=["upstream"])
        run(tmp_path, test, tools_list=["cache"])

    def test_a_page_keeps_its_cursor_even_when_nothing_is_left_on_it(self, tmp_path: Path) -> None:
        def lists(request: RawRequest, id: str) -> bytes:
            if b"cursor" in request.body:
                return answer(tool_list([READ], id=id))
            return answer(tool_list([DELETE], id=id, more=b',"nextCursor":"2"'))

        async def test(between: Filtered) -> None:
            got = await between.ask(LIST)
            assert got.body == tool_list([], id="5", more=b',"nextCursor":"2"')

        run(tmp_path, test, lists=lists, tools_list=["upstream"])

    def test_a_tool_of_later_is_not_exposed_and_a_changed_one_stays(self, tmp_path: Path) -> None:
        lists = iter([[READ, DELETE], [tool("new"), tool("read_file", ', "title":"new"'), DELETE]])

        async def test(between: Filtered) -> None:
            got = await between.ask(LIST)
            assert got.body == tool_list([READ], id="5")

        later: Callable[[RawRequest, str], bytes] = lambda _request, id: answer(  # noqa: E731
            tool_list(next(lists), id=id)
        )
        run(tmp_path, test, lists=later, tools_list=["upstream"])

    def test_one_in_an_event_stream_is_rewritten_in_place(self, tmp_path: Path) -> None:
        async def respond(_request: RawRequest, peer: Peer) -> None:
            listed = tool_list([DELETE, READ], id='"q"')
            await peer.say(
                SSE_HEAD + chunk(b": hi\nid: 7\nevent: message\ndata: " + listed + b"\n\n")
            )
            await peer.say(chunk(b"data: " + RESULT + b"\n\n") + LAST_CHUNK)

        async def test(between: Filtered) -> None:
            got = await between.client.ask(get())
            listed = tool_list([READ], id='"q"')
            assert got.body == (
                b": hi\nid: 7\nevent: message\ndata: " + listed + b"\n\ndata: " + RESULT + b"\n\n"
            )

        run(tmp_path, test, respond=respond)


class TestBatches:
    def test_one_without_denied_members_passes_byte_for_byte(self, tmp_path: Path) -> None:
        body = b" [" + call("read_file") + b" ,\n" + call("read_file", id="2") + b"]"

        async def test(between: Filtered) -> None:
            assert (await between.ask(body)).body == RESULT
            assert between.upstream.asked[0].body == body

        run(tmp_path, test)

    def test_a_denied_member_is_taken_out_and_answered_with_the_rest(self, tmp_path: Path) -> None:
        body = b"[" + call("delete_file", id="7") + b"," + call("read_file") + b"]"

        async def test(between: Filtered) -> None:
            got = await between.ask(body)
            assert between.upstream.asked[0].body == b"[" + call("read_file") + b"]"
            assert got.body == b"[" + RESULT + b"," + not_found("delete_file", "7") + b"]"

        run(tmp_path, test, respond=saying(b"[" + RESULT + b"]"))

    def test_one_of_denied_members_only_never_reaches_the_upstream(self, tmp_path: Path) -> None:
        async def test(between: Filtered) -> None:
            got = await between.ask(b"[" + call("delete_file", id="7") + b"," + call("x") + b"]")
            assert got.body == b"[" + not_found("delete_file", "7") + b"," + not_found("x") + b"]"
            assert between.upstream.asked == []

        run(tmp_path, test)

    def test_replies_of_ours_join_an_event_stream_as_events_without_id(
        self, tmp_path: Path
    ) -> None:
        body = b"[" + call("delete_file", id="7") + b"," + call("read_file") + b"]"

        async def respond(_request: RawRequest, peer: Peer) -> None:
            await peer.say(SSE_HEAD + chunk(b"id: 1\ndata: " + RESULT + b"\n\n") + LAST_CHUNK)

        async def test(between: Filtered) -> None:
            got = await between.ask(body)
            assert got.body == (
                b"data: " + not_found("delete_file", "7") + b"\n\nid: 1\ndata: " + RESULT + b"\n\n"
            )

        run(tmp_path, test, respond=respond)


class TestLegacyStreams:
    """HTTP+SSE: clients ignore what a POST answers; all is said on the GET stream."""

    @staticmethod
    async def upstream(request: RawRequest, peer: Peer) -> None:
        if request.line.startswith("GET /sse"):
            event = b"event: endpoint\ndata: " + TestLegacyStreams.endpoint(peer) + b"\n\n"
            await peer.say(SSE_HEAD + chunk(event))
            await peer.left()
        else:
            await peer.say(answer(b"Accepted", status="202 Accepted", kind="text/plain"))

    @staticmethod
    def endpoint(peer: Peer) -> bytes:
        return peer.upstream.url.encode() + b"/messages?session=1"

    def test_a_refused_call_is_answered_on_the_stream(self, tmp_path: Path) -> None:
        async def test(between: Filtered) -> None:
            await between.client.say(get(path="/sse"))
            await between.client.head()
            assert await between.client.chunk() == b"event: endpoint\ndata: /messages?session=1\n\n"
            async with raw_client(between.port) as poster:
                target = "/messages?session=1"
                got = await poster.ask(post(call("delete_file", id='"z"'), path=target))
                assert (got.status, got.body) == (202, b"")
                event = await between.client.chunk()
                assert event == b"data: " + not_found("delete_file", '"z"') + b"\n\n"
                got = await poster.ask(post(call("read_file"), path=target))
                assert (got.status, got.body) == (202, b"Accepted")
            assert [r.body for r in between.upstream.of("tools/call")] == [call("read_file")]

        run(tmp_path, test, respond=self.upstream)

    def test_two_sessions_get_each_their_own(self, tmp_path: Path) -> None:
        async def respond(request: RawRequest, peer: Peer) -> None:
            number = request.line.split("?")[-1][0].encode()
            if request.line.startswith("GET"):
                await peer.say(SSE_HEAD + chunk(b"event: endpoint\ndata: /m?" + number + b"\n\n"))
                await peer.left()

        async def test(between: Filtered) -> None:
            async with raw_client(between.port) as other, raw_client(between.port) as poster:
                for client, path in ((between.client, "/sse?1"), (other, "/sse?2")):
                    await client.say(get(path=path))
                    await client.head()
                    await client.chunk()
                await poster.ask(post(call("delete_file", id="22"), path="/m?2"))
                await poster.ask(post(call("delete_file", id="11"), path="/m?1"))
                assert await other.chunk() == b"data: " + not_found("delete_file", "22") + b"\n\n"
                mine = await between.client.chunk()
                assert mine == b"data: " + not_found("delete_file", "11") + b"\n\n"

        run(tmp_path, test, respond=respond)


class TestLosses:
    def test_all_who_wait_on_a_stream_are_told_each_in_an_event(self, tmp_path: Path) -> None:
        async def test(between: Filtered) -> None:
            async with raw_client(between.port) as poster:
                await between.client.say(get(path="/sse"))
                await between.client.head()
                await between.client.chunk()
                for id in ("1", "2"):
                    body = call("read_file", id=id)
                    await poster.ask(post(body, path="/messages?session=1"))
            await between.upstream.raw.stop()
            heard, clean = await between.client.rest_of_chunks()
            assert clean
            assert heard == b"".join(b"data: " + lost(id) + b"\n\n" for id in ("1", "2"))

        run(tmp_path, test, respond=TestLegacyStreams.upstream, fail_fast=["false"])

    def test_a_kept_connection_that_closes_in_passing_is_no_loss(self, tmp_path: Path) -> None:
        """The upstream may close a quiet connection just as the next request is under way."""

        async def respond(request: RawRequest, peer: Peer) -> None:
            if len(peer.requests) > 1:
                peer.close()
            else:
                await peer.say(answer(RESULT))

        async def test(between: Filtered) -> None:
            assert (await between.ask(call("read_file"))).body == RESULT
            assert (await between.ask(call("read_file"))).body == lost("1")
            async with raw_client(between.port) as client:
                assert (await client.ask(post(call("read_file")))).body == RESULT

        run(tmp_path, test, respond=respond)


class TestTheDoor:
    @pytest.mark.parametrize(
        ("head", "status"),
        [
            (b"Host: localhost\r\n", 200),
            (b"Host: 127.0.0.1:99\r\nOrigin: http://localhost:5173\r\n", 200),
            (b"Host: evil.example\r\n", 403),
            (b"Host: localhost\r\nOrigin: http://evil.example\r\n", 403),
            (b"Host: localhost\r\nOrigin: null\r\n", 403),
            (b"Host: localhost.evil.example\r\n", 403),
            (b"Host: tools.example\r\n", 200),
        ],
    )
    def test_only_hosts_of_ours_may_speak(self, tmp_path: Path, head: bytes, status: int) -> None:
        """A web page led here by DNS rebinding sends its own host."""

        async def test(between: Filtered) -> None:
            got = await between.client.ask(post(call("read_file"), headers=head))
            assert got.status == status
            assert len(between.upstream.asked) == (status == 200)

        run(tmp_path, test, allowed_hosts=["tools.example"])

    def test_the_upstream_gets_our_headers_and_no_codings(self, tmp_path: Path) -> None:
        async def test(between: Filtered) -> None:
            headers = b"Accept-Encoding: gzip\r\nRange: bytes=1-\r\n"
            await between.ask(call("read_file"), headers + b"X-Other: kept\r\n")
            (request,) = between.upstream.asked
            assert request.all("authorization") == ["Bearer ours"]
            assert request.all("accept-encoding") == ["identity"]
            assert request.all("range") == []
            assert request.all("x-other") == ["kept"]

        run(tmp_path, test, upstream_headers=["Authorization: Bearer ours"])

    @pytest.mark.parametrize("own", ["Bearer theirs", "garbage", ""])
    def test_a_clients_own_credentials_are_kept(self, tmp_path: Path, own: str) -> None:
        """Else one user would act with the rights of another."""

        async def test(between: Filtered) -> None:
            await between.ask(call("read_file"), f"authorization: {own}\r\n".encode())
            (request,) = between.upstream.asked
            assert request.all("authorization") == [own]
            assert request.all("x-tenant") == ["ours"]

        run(tmp_path, test, upstream_headers=["Authorization: Bearer ours", "X-Tenant: ours"])

    def test_they_are_replaced_where_the_user_wants_it(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        async def test(between: Filtered) -> None:
            await between.ask(call("read_file"), b"Authorization: Bearer theirs\r\n")
            (request,) = between.upstream.asked
            assert request.all("authorization") == ["Bearer ours"]

        headers = ["Authorization: Bearer ours"]
        run(tmp_path, test, upstream_headers=headers, header_override=["true"])
        warned = [one for one in caplog.messages if "each client acts with the rights" in one]
        assert len(warned) == 1
        assert "Bearer" not in warned[0]


class TestInvalidAnswers:
    @pytest.mark.parametrize(
        "said",
        [
            answer(b"not json"),
            answer(RESULT + RESULT),
            answer(b'{"jsonrpc":"2.0","id":1,"result":{},"result":{}}'),
            answer(tool_list([DELETE]).replace(b'"tools"', b'"Tools"')),
            answer(b"\x1f\x8b", kind="application/json\r\nContent-Encoding: gzip"),
            answer(tool_list([DELETE]), status="206 Partial Content"),
            answer(tool_list([DELETE]), kind="application/json; charset=utf-16"),
        ],
    )
    def test_who_waits_gets_an_error_that_tells_nothing(self, tmp_path: Path, said: bytes) -> None:
        async def respond(_request: RawRequest, peer: Peer) -> None:
            await peer.say(said)

        async def test(between: Filtered) -> None:
            got = await between.ask(b'{"jsonrpc":"2.0","id":1,"method":"resources/list"}')
            error = b'{"code":-32603,"message":"The server sent an invalid response"}'
            assert got.body == b'{"jsonrpc":"2.0","id":1,"error":' + error + b"}"
            assert got.status == 200

        run(tmp_path, test, respond=respond)

    def test_a_compressed_event_stream_is_not_passed_blind(self, tmp_path: Path) -> None:
        async def respond(_request: RawRequest, peer: Peer) -> None:
            head = SSE_HEAD.replace(b"Cache-Control: no-cache", b"Content-Encoding: gzip")
            await peer.say(head + chunk(b"\x1f\x8b"))
            await peer.left()

        async def test(between: Filtered) -> None:
            got = await between.ask(b'{"jsonrpc":"2.0","id":1,"method":"resources/list"}')
            assert json.loads(got.body)["error"]["code"] == -32603

        run(tmp_path, test, respond=respond)


class TestWebSockets:
    """No standard transport, but some servers have it: it is no way round."""

    @staticmethod
    async def upstream(request: RawRequest, peer: Peer) -> None:
        socket = await accept(peer.reader, peer.writer, request.head)
        while (heard := await socket.hear()) is not None:
            peer.requests.append(RawRequest(b"", heard))
            listed = tool_list([READ, DELETE], id="5")
            await socket.say(listed if b"tools/list" in heard else RESULT)

    def test_both_sides_are_judged_message_by_message(self, tmp_path: Path) -> None:
        async def test(between: Filtered) -> None:
            socket = await connect(between.client.reader, between.client.writer)
            for said, heard in [
                (call("delete_file", id="3"), not_found("delete_file", "3")),
                (call("read_file"), RESULT),
                (b"not json", INVALID_REQUEST),
                (LIST, tool_list([READ], id="5")),
            ]:
                await socket.say(said)
                assert await socket.hear() == heard
            reached = [one.body for one in between.upstream.raw.peers[-1].requests[1:]]
            assert reached == [call("read_file"), LIST]

        run(tmp_path, test, respond=self.upstream)

    @pytest.mark.parametrize(
        "upgrade",
        [
            b"Upgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AA\r\n",
            b"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 8\r\n",
            b"Upgrade: H2C, foo\r\nConnection: upgrade\r\n",
            b"Upgrade: anything\r\nConnection: Upgrade\r\n",
        ],
    )
    def test_no_other_upgrade_reaches_the_upstream(self, tmp_path: Path, upgrade: bytes) -> None:
        """What it leads to would be a raw tunnel."""

        async def test(between: Filtered) -> None:
            got = await between.client.ask(get(headers=MCP_HEADERS + upgrade))
            assert got.status == 200
            (request,) = between.upstream.asked
            assert request.all("upgrade") == request.all("http2-settings") == []

        run(tmp_path, test)

    def test_a_101_that_nobody_asked_for_is_refused(self, tmp_path: Path) -> None:
        async def respond(_request: RawRequest, peer: Peer) -> None:
            await peer.say(b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n")
            await peer.left()

        async def test(between: Filtered) -> None:
            assert (await between.client.ask(get())).status == 502

        run(tmp_path, test, respond=respond)


class TestConnections:
    def test_events_arrive_one_by_one_and_a_client_that_leaves_is_noticed(
        self, tmp_path: Path
    ) -> None:
        left = asyncio.Event()

        async def respond(_request: RawRequest, peer: Peer) -> None:
            await peer.say(SSE_HEAD)
            await peer.say_event(RESULT)
            await peer.left()
            left.set()

        async def test(between: Filtered) -> None:
            await between.client.say(get())
            await between.client.head()
            assert await between.client.chunk() == b"data: " + RESULT + b"\n\n"
            between.client.close()
            await asyncio.wait_for(left.wait(), 10)

        run(tmp_path, test, respond=respond)

    def test_a_comment_without_a_blank_line_is_not_held_back(self, tmp_path: Path) -> None:
        """It is all that keeps a quiet stream alive."""

        async def respond(_request: RawRequest, peer: Peer) -> None:
            await peer.say(SSE_HEAD + chunk(b":\r\n"))
            await peer.left()

        async def test(between: Filtered) -> None:
            await between.client.say(get())
            await between.client.head()
            assert await between.client.chunk() == b":\r\n"

        run(tmp_path, test, respond=respond)

    def test_twenty_calls_in_flight_are_answered_each_with_its_own(self, tmp_path: Path) -> None:
        async def respond(request: RawRequest, peer: Peer) -> None:
            id = json.loads(request.body)["id"]
            await asyncio.sleep(0.02 * (20 - id))
            await peer.say(answer(RESULT.replace(b'"id":1', b'"id":%d' % id)))

        async def test(between: Filtered) -> None:
            async def one(number: int) -> int:
                async with raw_client(between.port) as client:
                    got = await client.ask(post(call("read_file", id=str(number))))
                    return int(json.loads(got.body)["id"])

            assert await asyncio.gather(*map(one, range(20))) == list(range(20))

        run(tmp_path, test, respond=respond)

    def test_each_listener_has_its_own_upstream_and_snapshot(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with (
                mcp_upstream(tools=[tool("one"), tool("delete_1")]) as one,
                mcp_upstream(tools=[tool("two"), tool("delete_2")]) as two,
                proxy(
                    ToolFilter(),
                    to=[f"reverse:{each.url}@{free_port()}" for each in (one, two)],
                    home=tmp_path,
                    deny=["^delete_"],
                    endpoint=ENDPOINT,
                ) as it,
            ):
                for server, mine, other in zip(
                    it.server.servers, ("one", "two"), ("two", "one"), strict=True
                ):
                    async with raw_client(server.listen_addrs[0][1]) as client:
                        listed = (await client.ask(post(LIST))).body
                        assert [t["name"] for t in json.loads(listed)["result"]["tools"]] == [mine]
                        got = await client.ask(post(call(other)))
                        assert got.body == not_found(other)
                        assert (await client.ask(post(call(mine)))).body == RESULT

        asyncio.run(main())

    def test_requests_wait_until_the_tools_are_known(self, tmp_path: Path) -> None:
        gate = asyncio.Event()

        async def slowly(target: Target) -> Fetched:
            await gate.wait()
            return await fetch(target)

        async def main() -> None:
            async with (
                mcp_upstream(tools=[READ, DELETE]) as upstream,
                proxy(
                    ToolFilter(fetch=slowly), to=upstream.url, home=tmp_path, deny=["^delete_"]
                ) as it,
                raw_client(it.port) as client,
            ):
                await client.say(post(call("delete_file")))
                await asyncio.sleep(0.05)
                gate.set()
                assert (await client.answer()).body == not_found("delete_file")
                assert upstream.asked == []

        asyncio.run(main())


class TestEditedOptions:
    """mitmweb and the console let a user edit options while we run."""

    def test_other_patterns_take_effect_at_once(self, tmp_path: Path) -> None:
        async def test(between: Filtered) -> None:
            assert (await between.ask(call("read_file"))).body == RESULT
            ctx.options.update(deny=["^read_"])
            assert (await between.ask(call("read_file"))).body == not_found("read_file")
            assert (await between.ask(call("delete_file"))).body == RESULT

        run(tmp_path, test)

    def test_a_stream_that_is_already_open_follows_them(self, tmp_path: Path) -> None:
        """A list may be asked for, or said again, on a stream that was opened before the edit."""
        streams: list[Peer] = []

        async def respond(request: RawRequest, peer: Peer) -> None:
            if not request.line.startswith("GET /sse"):
                await peer.say(answer(b"Accepted", status="202 Accepted", kind="text/plain"))
                return
            streams.append(peer)
            await peer.say(SSE_HEAD + chunk(b"event: endpoint\ndata: /messages?session=1\n\n"))
            await peer.left()

        async def test(between: Filtered) -> None:
            await between.client.say(get(path="/sse"))
            await between.client.head()
            await between.client.chunk()
            said = chunk(b"data: " + tool_list([READ, DELETE], id="5") + b"\n\n")
            await streams[0].say(said)
            assert await between.client.chunk() == b"data: " + tool_list([READ], id="5") + b"\n\n"
            ctx.options.update(deny=["^read_"])
            await streams[0].say(said)
            shown = await between.client.chunk()
            assert shown == b"data: " + tool_list([DELETE], id="5") + b"\n\n"

        run(tmp_path, test, respond=respond)

    @pytest.mark.parametrize(
        "bad", [{"deny": ["("]}, {"deny": ["(a+)+"]}, {"tools_list": ["x"]}, {"fail_fast": ["?"]}]
    )
    def test_a_bad_value_is_refused_and_the_old_filter_stays(
        self, tmp_path: Path, bad: dict[str, list[str]]
    ) -> None:
        async def test(between: Filtered) -> None:
            with pytest.raises(OptionsError, match=r"^Error: "):
                ctx.options.update(**bad)
            assert (await between.ask(call("delete_file"))).body == not_found("delete_file")

        run(tmp_path, test)

    def test_what_would_open_a_way_round_is_refused(self, tmp_path: Path) -> None:
        async def test(between: Filtered) -> None:
            with pytest.raises(OptionsError, match="stream_large_bodies"):
                ctx.options.update(stream_large_bodies="1k")
            assert (await between.ask(call("delete_file"))).body == not_found("delete_file")

        run(tmp_path, test)


class TestBugsOfOurs:
    """mitmproxy would log what a hook raises, and send the flow on."""

    def test_a_request_that_we_stumble_over_is_answered_and_not_sent_on(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(Listener, "judge_request", stumble)

        async def test(between: Filtered) -> None:
            assert (await between.ask(call("read_file"))).status == 500
            assert between.upstream.asked == []

        run(tmp_path, test)

    def test_an_answer_that_we_stumble_over_is_not_shown(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(Listener, "judge_answer", stumble)

        async def test(between: Filtered) -> None:
            error = json.loads((await between.ask(call("read_file"))).body)
            assert (error["id"], error["error"]["code"]) == (1, -32603)

        run(tmp_path, test)

    def test_what_we_cannot_even_refuse_is_cut(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(Listener, "judge_request", stumble)
        monkeypatch.setattr(Requests, "refuse", stumble)

        async def test(between: Filtered) -> None:
            await between.client.say(post(call("read_file")))
            assert await between.client.rest() == b""
            assert between.upstream.asked == []

        run(tmp_path, test)


class TestTooMuch:
    def test_a_large_request_is_answered_on_its_own_id(self, tmp_path: Path) -> None:
        """A 4xx ends the session of some SDKs."""

        async def test(between: Filtered) -> None:
            got = await between.ask(call("read_file", json.dumps({"a": "x" * 3000}), id="77"))
            error = json.loads(got.body)
            assert (got.status, error["id"], error["error"]["code"]) == (200, 77, -32600)
            assert between.upstream.asked == []
            assert (await between.ask(call("read_file"))).body == RESULT

        run(tmp_path, test, message_limit=["2KB"])

    def test_a_large_answer_is_an_error_for_who_waits(self, tmp_path: Path) -> None:
        body = RESULT.replace(b"[]", b'["' + b"x" * 3000 + b'"]')

        async def test(between: Filtered) -> None:
            error = json.loads((await between.ask(call("read_file"))).body)
            assert (error["id"], error["error"]["code"]) == (1, -32603)

        run(tmp_path, test, respond=saying(body), message_limit=["2KB"])

    def test_a_large_event_is_an_error_for_who_waits_and_the_stream_goes_on(
        self, tmp_path: Path
    ) -> None:
        body = RESULT.replace(b"[]", b'["' + b"x" * 9000 + b'"]')
        hello = b'{"jsonrpc":"2.0","method":"notifications/message","params":{}}'

        async def respond(_request: RawRequest, peer: Peer) -> None:
            await peer.say(SSE_HEAD)
            await peer.say_event(body)
            await peer.say_event(hello)
            await peer.say(LAST_CHUNK)

        async def test(between: Filtered) -> None:
            events = (await between.ask(call("read_file"))).body.split(b"\n\n")
            error = json.loads(events[0].removeprefix(b"data: "))
            assert (error["id"], error["error"]["code"]) == (1, -32603)
            assert events[1:] == [b"data: " + hello, b""]

        run(tmp_path, test, respond=respond, message_limit=["2KB"])


class TestPipelining:
    """A client that sends further requests before it has the answer to the first."""

    @pytest.mark.parametrize("number", [2, 3, 20])
    def test_requests_that_come_at_once_are_answered_in_turn(
        self, tmp_path: Path, number: int
    ) -> None:
        async def test(between: Filtered) -> None:
            bodies = [call("read_file", id=str(n)) for n in range(number)]
            denied = post(call("delete_file"))
            await between.client.say(b"".join(post(body) + denied for body in bodies))
            for _ in bodies:
                assert (await between.client.answer()).body == RESULT
                assert (await between.client.answer()).body == not_found("delete_file")
            assert [request.body for request in between.upstream.asked] == bodies

        run(tmp_path, test)

    def test_many_that_we_answer_ourselves_are_no_deeper_than_one(self, tmp_path: Path) -> None:
        async def test(between: Filtered) -> None:
            await between.client.say(post(call("delete_file")) * 400)
            for _ in range(400):
                assert (await between.client.answer()).body == not_found("delete_file")

        run(tmp_path, test)
