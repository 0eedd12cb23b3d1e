"""Requests, and what the upstream asks for with posts of its own."""

from __future__ import annotations

import asyncio
import gc
import json
from pathlib import Path
from typing import Any

import pytest

from mcp_tool_filter.adapters.mitmproxy.addon import ToolFilter
from mcp_tool_filter.adapters.mitmproxy.flows import Picture
from mcp_tool_filter.adapters.mitmproxy.selftest import PROBES, Run
from mcp_tool_filter.engine.client_h1 import H1Client
from mcp_tool_filter.engine.exchange import Answer
from mcp_tool_filter.engine.upstream import Upstream
from tests.adapters.mitmproxy.filtered import INITIALIZE, call, filtered, not_found, stumble
from tests.adapters.mitmproxy.ruled import SECRET, blocked, ruled, streaming, write
from tests.adapters.upstream.mcp_script import introduction, message_in, result
from tests.adapters.upstream.mcp_script import tool_list as listed
from tests.mcp_upstream import RESULT, saying
from tests.proxy import proxy
from tests.raw_upstream import (
    LAST_CHUNK,
    SSE_HEAD,
    TIMEOUT,
    Peer,
    RawRequest,
    answer,
    chunk,
    raw_upstream,
    until,
)
from tests.served import served
from tests.shapes import call as named
from tests.shapes import talking


class TestBatches:
    async def test_our_replies_join_an_event_stream_as_events_without_id(
        self, tmp_path: Path
    ) -> None:
        body = b"[" + call("delete_file", id="7") + b"," + call("read_file") + b"]"

        async def respond(_request: RawRequest, peer: Peer) -> None:
            await peer.say(SSE_HEAD + chunk(b"id: 1\ndata: " + RESULT + b"\n\n") + LAST_CHUNK)

        async with filtered(tmp_path, respond=respond) as between:
            got = await between.ask(body)
            assert got.body == (
                b"data: " + not_found("delete_file", "7") + b"\n\nid: 1\ndata: " + RESULT + b"\n\n"
            )


class TestTheDoor:
    async def test_the_upstream_gets_our_headers_and_is_asked_for_no_coding(
        self, tmp_path: Path
    ) -> None:
        async with filtered(tmp_path, upstream_headers=["Authorization: Bearer ours"]) as between:
            headers = b"Accept-Encoding: gzip\r\nRange: bytes=1-\r\n"
            await between.ask(call("read_file"), headers + b"X-Other: kept\r\n")
            (request,) = between.upstream.asked
            assert request.all("authorization") == ["Bearer ours"]
            assert request.all("accept-encoding") == ["identity"]
            assert request.all("range") == []
            assert request.all("x-other") == ["kept"]

    async def test_credentials_are_replaced_if_the_user_wants_it(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        headers = ["Authorization: Bearer ours"]
        given: dict[str, Any] = {"upstream_headers": headers, "header_override": ["true"]}
        async with filtered(tmp_path, **given) as between:
            await between.ask(call("read_file"), b"Authorization: Bearer theirs\r\n")
            (request,) = between.upstream.asked
            assert request.all("authorization") == ["Bearer ours"]
        warned = [one for one in caplog.messages if "each client acts with the rights" in one]
        assert len(warned) == 1
        assert "Bearer" not in warned[0]


# Messages of our own to the upstream: copies that rules send, and answers to what it asks.


async def test_copies_of_a_renamed_call_have_the_new_name_in_the_header(tmp_path: Path) -> None:
    """An upstream of 2026-07-28 refuses a request whose header says another name than its body. The
    answers to copies are dropped."""
    rules = """
  - {id: rename, conditions: [tool_equals: read_file], actions: [set_param: {field: name, value: delete_file}]}
  - {id: fork, actions: [fork: {copies: 2}]}
"""  # noqa: E501 - one rule, one line
    given: dict[str, Any] = {"rules": [write(tmp_path, rules)], "deny": ["^never$"]}
    async with filtered(tmp_path, respond=saying(SECRET), **given) as between:
        meta = '"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}'
        body = call("read_file").replace(b'"arguments":{}', b'"arguments":{},' + meta.encode())
        headers = b"MCP-Protocol-Version: 2026-07-28\r\nMcp-Method: tools/call\r\n"
        headers += b"User-Agent: c\r\nMcp-Name: read_file\r\nMcp-Session-Id: s\r\n"
        got = await between.ask(body, headers)
        assert got.body == SECRET
        await until(lambda: len(between.upstream.of("tools/call")) == 3)
    asked = between.upstream.of("tools/call")
    assert len({str(json.loads(request.body)["id"]) for request in asked}) == 3
    for request in asked:
        assert request.all("mcp-session-id") == ["s"]
        assert json.loads(request.body)["params"]["name"] == "delete_file"
        assert request.all("mcp-name") == ["delete_file"]
        assert request.all("mcp-method") == ["tools/call"]


async def test_a_request_from_the_upstream_is_answered_for_the_client(tmp_path: Path) -> None:
    rules = """
  - {id: no-sampling, conditions: [from: server, method_equals: sampling/createMessage],
     actions: [block: no models here]}
"""
    ask = b'{"jsonrpc":"2.0","id":77,"method":"sampling/createMessage","params":{}}'
    answered: asyncio.Queue[RawRequest] = asyncio.Queue()

    async def respond(request: RawRequest, peer: Peer) -> None:
        if b"-32001" in request.body:
            answered.put_nowait(request)
            await peer.say(answer(b"", status="202 Accepted"))
        else:
            await streaming(b"data: " + ask + b"\n\n", b"data: " + SECRET + b"\n\n")(request, peer)

    async with ruled(tmp_path, rules, respond=respond) as between:
        headers = b"User-Agent: c\r\nAuthorization: Bearer t\r\n"
        got = await between.ask(call("read_file"), headers)
        assert got.body == b"data: " + SECRET + b"\n\n"
        request = await asyncio.wait_for(answered.get(), TIMEOUT)
        assert request.body == blocked("no-sampling", "no models here", "77")
        assert request.all("authorization") == ["Bearer t"]


# An exchange at which our code raises is refused, never sent on.


@pytest.mark.parametrize(
    ("where", "what"),
    [
        (H1Client, "receive"),
        (Picture, "_make_request"),
        (Picture, "_seen_request"),
        (Picture, "_hide_body"),
    ],
)
def test_an_error_in_our_layer_closes_the_connection(
    monkeypatch: pytest.MonkeyPatch, where: type, what: str
) -> None:
    """mitmproxy would log it, and the client would wait for ever."""
    monkeypatch.setattr(where, what, stumble)
    (probe,) = (one for one in PROBES if one.what == "an allowed call")
    run = Run(probe)
    run.play()
    assert run.has_closed or run.to_client.startswith(b"HTTP/1.1 500")
    assert run.to_upstream == b""


# Answers of the upstream that depend on how it connects them: the older transport, large ones


class TestLegacyStreams:
    """HTTP+SSE: clients ignore the answer to a POST; all messages come on the GET stream."""

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
            async with running as it, talking("legacy stream", it.port, who="Bearer ann") as ann:
                hello = json.loads(INITIALIZE.replace(b"2025-06-18", b"2024-11-05"))
                heard = [await ann.ask(one) for one in (hello, named("mine"), named("unknown", 2))]
        assert [one["id"] for one in heard] == [0, 1, 2]
        assert [one.get("error", {}).get("code") for one in heard] == [None, None, -32601]
        methods = [message_in(one).get("method") for one in upstream.requests]
        assert methods.count("tools/list") == 2
        assert [one.all("authorization") for one in upstream.requests if not one.body] == [
            [], ["Bearer ann"],
        ]  # fmt: skip


@pytest.mark.parametrize("name", ["read_file", "delete_file"])
async def test_an_answer_is_freed_at_once(tmp_path: Path, name: str) -> None:
    """Until garbage collection, the next large answer would need new memory from the system."""
    async with filtered(tmp_path) as on:
        await on.ask(call(name))
        gc.collect()
        gc.disable()
        try:
            await on.ask(call(name))
            assert not [one for one in gc.get_objects() if isinstance(one, Answer)]
        finally:
            gc.enable()


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
