"""Answers of the upstream: bodies and event streams, judged and rewritten."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mcp_tool_filter.adapters.mitmproxy.addon import ToolFilter
from mcp_tool_filter.engine.upstream import Upstream
from tests.adapters.mitmproxy.filtered import (
    DECLARING_ALL,
    DELETE,
    INITIALIZE,
    LIST,
    READ,
    call,
    filtered,
    legacy_upstream,
    not_found,
)
from tests.adapters.upstream.mcp_script import introduction, message_in, result
from tests.adapters.upstream.mcp_script import tool_list as listed
from tests.mcp_upstream import RESULT, saying, tool, tool_list
from tests.proxy import proxy
from tests.raw_client import MCP_HEADERS, get, post, raw_client
from tests.raw_upstream import LAST_CHUNK, SSE_HEAD, Peer, RawRequest, answer, chunk, raw_upstream
from tests.served import served


class TestLists:
    async def test_a_list_is_answered_from_the_snapshot_without_the_upstream(
        self, tmp_path: Path
    ) -> None:
        """The session was opened through us, and the client has no credentials of its own.

        The first list of a kind of asker comes from the upstream: our own fetch declares more.
        """

        async with filtered(tmp_path, session=b"s") as between:
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
    async def test_other_lists_are_forwarded_and_rewritten(
        self, tmp_path: Path, headers: bytes, body: bytes
    ) -> None:
        async with filtered(tmp_path, session=b"s") as between:
            await between.ask(INITIALIZE)
            got = await between.ask(body, headers)
            assert got.body == tool_list([READ], id="5")
            assert [request.body for request in between.upstream.of("tools/list")] == [body]

    @pytest.mark.parametrize("way", ["upstream", "cache"])
    async def test_both_ways_show_the_same_definitions(self, tmp_path: Path, way: str) -> None:
        async with filtered(tmp_path, tools_list=[way]) as between:
            got = await between.ask(LIST)
            assert READ in got.body
            assert b"delete" not in got.body

    async def test_an_empty_page_keeps_its_cursor(self, tmp_path: Path) -> None:
        def lists(request: RawRequest, id: str) -> bytes:
            if b"cursor" in request.body:
                return answer(tool_list([READ], id=id))
            return answer(tool_list([DELETE], id=id, more=b',"nextCursor":"2"'))

        async with filtered(tmp_path, lists=lists, tools_list=["upstream"]) as between:
            got = await between.ask(LIST)
            assert got.body == tool_list([], id="5", more=b',"nextCursor":"2"')

    async def test_a_later_tool_is_not_exposed_and_a_changed_one_keeps_its_definition(
        self, tmp_path: Path
    ) -> None:
        lists = iter([[READ, DELETE], [tool("new"), tool("read_file", ', "title":"new"'), DELETE]])

        def later(_request: RawRequest, id: str) -> bytes:
            return answer(tool_list(next(lists), id=id))

        async with filtered(tmp_path, lists=later, tools_list=["upstream"]) as between:
            got = await between.ask(LIST)
            assert got.body == tool_list([READ], id="5")

    async def test_a_list_in_an_event_stream_is_rewritten_in_place(self, tmp_path: Path) -> None:
        async def respond(_request: RawRequest, peer: Peer) -> None:
            listed = tool_list([DELETE, READ], id='"q"')
            await peer.say(
                SSE_HEAD + chunk(b": hi\nid: 7\nevent: message\ndata: " + listed + b"\n\n")
            )
            await peer.say(chunk(b"data: " + RESULT + b"\n\n") + LAST_CHUNK)

        async with filtered(tmp_path, respond=respond) as between:
            got = await between.client.ask(get())
            listed = tool_list([READ], id='"q"')
            assert got.body == (
                b": hi\nid: 7\nevent: message\ndata: " + listed + b"\n\ndata: " + RESULT + b"\n\n"
            )


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
    async def test_the_waiting_client_gets_an_error_without_internals(
        self, tmp_path: Path, said: bytes
    ) -> None:
        async def respond(_request: RawRequest, peer: Peer) -> None:
            await peer.say(said)

        async with filtered(tmp_path, respond=respond) as between:
            got = await between.ask(b'{"jsonrpc":"2.0","id":1,"method":"resources/list"}')
            error = b'{"code":-32603,"message":"The server sent an invalid response"}'
            assert got.body == b'{"jsonrpc":"2.0","id":1,"error":' + error + b"}"
            assert got.status == 200

    async def test_a_compressed_event_stream_is_not_passed_uninspected(
        self, tmp_path: Path
    ) -> None:
        async def respond(_request: RawRequest, peer: Peer) -> None:
            head = SSE_HEAD.replace(b"Cache-Control: no-cache", b"Content-Encoding: gzip")
            await peer.say(head + chunk(b"\x1f\x8b"))
            await peer.left()

        async with filtered(tmp_path, respond=respond) as between:
            got = await between.ask(b'{"jsonrpc":"2.0","id":1,"method":"resources/list"}')
            assert json.loads(got.body)["error"]["code"] == -32603


class TestLegacyStreams:
    """HTTP+SSE: clients ignore the answer to a POST; all messages come on the GET stream."""

    async def test_a_refused_call_is_answered_on_the_stream(self, tmp_path: Path) -> None:
        async with filtered(tmp_path, respond=legacy_upstream) as between:
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

    async def test_each_of_two_sessions_gets_its_own_answers(self, tmp_path: Path) -> None:
        async def respond(request: RawRequest, peer: Peer) -> None:
            number = request.line.split("?")[-1][0].encode()
            if request.line.startswith("GET"):
                await peer.say(SSE_HEAD + chunk(b"event: endpoint\ndata: /m?" + number + b"\n\n"))
                await peer.left()

        async with (
            filtered(tmp_path, respond=respond) as between,
            raw_client(between.port) as other,
            raw_client(between.port) as poster,
        ):
            for client, path in ((between.client, "/sse?1"), (other, "/sse?2")):
                await client.say(get(path=path))
                await client.head()
                await client.chunk()
            await poster.ask(post(call("delete_file", id="22"), path="/m?2"))
            await poster.ask(post(call("delete_file", id="11"), path="/m?1"))
            assert await other.chunk() == b"data: " + not_found("delete_file", "22") + b"\n\n"
            mine = await between.client.chunk()
            assert mine == b"data: " + not_found("delete_file", "11") + b"\n\n"

    @pytest.mark.parametrize("on_sockets", [False, True])
    async def test_the_list_of_a_client_does_not_take_its_stream(
        self, tmp_path: Path, on_sockets: bool
    ) -> None:
        """Some upstreams answer only on the latest stream. The client sees no list of ours."""
        streams: list[Peer] = []

        async def script(peer: Peer) -> None:
            while True:
                request = await peer.request()
                if request.line.startswith("GET"):
                    streams.append(peer)
                    await peer.say(SSE_HEAD + chunk(b"event: endpoint\ndata: /m?1\n\n"))
                    continue
                await peer.say(answer(b"Accepted", status="202 Accepted", kind="text/plain"))
                method, names = message_in(request).get("method"), ["read_file", "delete_file"]
                if request.all("authorization"):
                    names.append("mine")
                said = {"initialize": introduction("2024-11-05"), "tools/list": listed(*names)}
                if "id" in message_in(request):
                    assert isinstance(method, str)
                    await streams[-1].say_event(result(request, said.get(method, {})))

        options: dict[str, Any] = {"deny": ["^delete_"], "endpoint": ["/sse"]}
        async with raw_upstream(script) as upstream:
            if on_sockets:
                running: Any = served(to=upstream.url, **options)
            else:
                running = proxy(ToolFilter(), to=upstream.url, home=tmp_path, **options)
            async with running as it, raw_client(it.port) as ann, raw_client(it.port) as poster:
                headers = MCP_HEADERS + b"Authorization: Bearer ann\r\n"
                await ann.say(get(path="/sse", headers=headers))
                await ann.head()
                await ann.chunk()
                for body in (
                    INITIALIZE.replace(b"2025-06-18", b"2024-11-05"),
                    call("mine"),
                    call("unknown", id="2"),
                ):
                    got = await poster.ask(post(body, path="/m?1", headers=headers))
                    assert got.status == 202
                heard = [json.loads((await ann.chunk()).removeprefix(b"data: ")) for _ in range(3)]
        assert [one["id"] for one in heard] == [0, 1, 2]
        assert [one.get("error", {}).get("code") for one in heard] == [None, None, -32601]
        methods = [message_in(one).get("method") for one in upstream.requests]
        assert methods.count("tools/list") == 2
        assert [one.all("authorization") for one in upstream.requests if not one.body] == [
            [], ["Bearer ann"],
        ]  # fmt: skip


class TestTooMuch:
    async def test_a_large_request_gets_an_error_with_its_id(self, tmp_path: Path) -> None:
        """A 4xx ends the session of some SDKs."""

        async with filtered(tmp_path, message_limit=["2KB"]) as between:
            got = await between.ask(call("read_file", json.dumps({"a": "x" * 3000}), id="77"))
            error = json.loads(got.body)
            assert (got.status, error["id"], error["error"]["code"]) == (200, 77, -32600)
            assert between.upstream.asked == []
            assert (await between.ask(call("read_file"))).body == RESULT

    async def test_a_large_answer_becomes_an_error_for_the_waiting_client(
        self, tmp_path: Path
    ) -> None:
        body = RESULT.replace(b"[]", b'["' + b"x" * 3000 + b'"]')

        async with filtered(tmp_path, respond=saying(body), message_limit=["2KB"]) as between:
            error = json.loads((await between.ask(call("read_file"))).body)
            assert (error["id"], error["error"]["code"]) == (1, -32603)

    async def test_a_large_event_becomes_an_error_and_the_stream_goes_on(
        self, tmp_path: Path
    ) -> None:
        body = RESULT.replace(b"[]", b'["' + b"x" * 9000 + b'"]')
        hello = b'{"jsonrpc":"2.0","method":"notifications/message","params":{}}'

        async def respond(_request: RawRequest, peer: Peer) -> None:
            await peer.say(SSE_HEAD)
            await peer.say_event(body)
            await peer.say_event(hello)
            await peer.say(LAST_CHUNK)

        async with filtered(tmp_path, respond=respond, message_limit=["2KB"]) as between:
            events = (await between.ask(call("read_file"))).body.split(b"\n\n")
            error = json.loads(events[0].removeprefix(b"data: "))
            assert (error["id"], error["error"]["code"]) == (1, -32603)
            assert events[1:] == [b"data: " + hello, b""]


async def test_a_large_answer_comes_in_few_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each costs mitmproxy as much as a small answer; it asks for 64 KiB at a time."""
    sizes: list[int] = []
    receive = Upstream.receive

    def noting(self: Upstream, data: bytes) -> None:
        sizes.append(len(data))
        receive(self, data)

    monkeypatch.setattr(Upstream, "receive", noting)
    large = RESULT.replace(b"[]", b'["' + b"x" * 8_000_000 + b'"]')
    async with filtered(tmp_path, respond=saying(large)) as between:
        assert (await between.ask(call("read_file"))).body == large
    assert max(sizes) > 65535
