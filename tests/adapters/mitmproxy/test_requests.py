"""Requests, also on WebSockets, and what the upstream asks for with posts of its own."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mcp_tool_filter.adapters.mitmproxy.flows import Picture
from mcp_tool_filter.adapters.mitmproxy.selftest import PROBES, Run
from mcp_tool_filter.engine.client_h1 import H1Client
from mcp_tool_filter.http.listener import Listener
from mcp_tool_filter.policy.effects import Deciding
from tests.adapters.mitmproxy.filtered import (
    DELETE,
    INVALID_REQUEST,
    LIST,
    READ,
    call,
    filtered,
    not_found,
    stumble,
)
from tests.adapters.mitmproxy.ruled import SECRET, blocked, ruled, streaming, write
from tests.mcp_upstream import RESULT, saying, tool_list
from tests.raw_client import MCP_HEADERS, get, post
from tests.raw_upstream import LAST_CHUNK, SSE_HEAD, Peer, RawRequest, answer, chunk
from tests.websocket import accept, connect


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
    async def test_an_allowed_call_passes_byte_for_byte(self, tmp_path: Path, body: bytes) -> None:
        said = b'\n{"id":1.00 ,"result": {"content":[], "a":1, "a":1.0},"jsonrpc":"2.0"}  '

        async with filtered(tmp_path, respond=saying(said)) as between:
            got = await between.ask(body)
            assert got.body == said
            assert [request.body for request in between.upstream.asked] == [body]

    @pytest.mark.parametrize("id", ["1", '"\\u0061"', "null", "1.0", "-0", "9" * 400])
    async def test_a_denied_and_an_unknown_call_get_the_same_answer(
        self, tmp_path: Path, id: str
    ) -> None:
        async with filtered(tmp_path) as between:
            for name in ("delete_file", "no_such"):
                got = await between.ask(call(name, id=id))
                assert (got.status, got.body) == (200, not_found(name, id))
                assert got.all("content-type") == ["application/json"]
            assert between.upstream.asked == []

    async def test_a_denied_notification_is_dropped(self, tmp_path: Path) -> None:
        async with filtered(tmp_path) as between:
            body = call("delete_file").replace(b'"id":1,', b"")
            got = await between.ask(body)
            assert (got.status, got.body) == (202, b"")
            assert between.upstream.asked == []

    @pytest.mark.parametrize("path", ["/", "/other", "/mcp/", "/mcp?a=1", "//mcp", "/%6dcp"])
    async def test_a_denied_call_is_denied_on_every_path(self, tmp_path: Path, path: str) -> None:
        async with filtered(tmp_path) as between:
            assert (await between.ask(call("delete_file"), path=path)).body == not_found(
                "delete_file"
            )
            assert between.upstream.asked == []


class TestBatches:
    async def test_a_batch_without_denied_members_passes_byte_for_byte(
        self, tmp_path: Path
    ) -> None:
        body = b" [" + call("read_file") + b" ,\n" + call("read_file", id="2") + b"]"

        async with filtered(tmp_path) as between:
            assert (await between.ask(body)).body == RESULT
            assert between.upstream.asked[0].body == body

    async def test_a_denied_member_of_a_batch_is_removed_and_answered_with_the_rest(
        self, tmp_path: Path
    ) -> None:
        body = b"[" + call("delete_file", id="7") + b"," + call("read_file") + b"]"

        async with filtered(tmp_path, respond=saying(b"[" + RESULT + b"]")) as between:
            got = await between.ask(body)
            assert between.upstream.asked[0].body == b"[" + call("read_file") + b"]"
            assert got.body == b"[" + RESULT + b"," + not_found("delete_file", "7") + b"]"

    async def test_a_batch_of_denied_calls_never_reaches_the_upstream(self, tmp_path: Path) -> None:
        async with filtered(tmp_path) as between:
            got = await between.ask(b"[" + call("delete_file", id="7") + b"," + call("x") + b"]")
            assert got.body == b"[" + not_found("delete_file", "7") + b"," + not_found("x") + b"]"
            assert between.upstream.asked == []

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
    async def test_only_our_own_hosts_are_accepted(
        self, tmp_path: Path, head: bytes, status: int
    ) -> None:
        """A web page led here by DNS rebinding sends its own host."""

        async with filtered(tmp_path, allowed_hosts=["tools.example"]) as between:
            got = await between.client.ask(post(call("read_file"), headers=head))
            assert got.status == status
            assert len(between.upstream.asked) == (status == 200)

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

    @pytest.mark.parametrize("own", ["Bearer theirs", "garbage", ""])
    async def test_a_clients_own_credentials_are_kept(self, tmp_path: Path, own: str) -> None:
        """Else one user would act with the rights of another."""

        async with filtered(
            tmp_path, upstream_headers=["Authorization: Bearer ours", "X-Tenant: ours"]
        ) as between:
            await between.ask(call("read_file"), f"authorization: {own}\r\n".encode())
            (request,) = between.upstream.asked
            assert request.all("authorization") == [own]
            assert request.all("x-tenant") == ["ours"]

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


class TestPipelining:
    """A client that sends further requests before it has the answer to the first."""

    @pytest.mark.parametrize("number", [2, 3, 20])
    async def test_pipelined_requests_are_answered_in_order(
        self, tmp_path: Path, number: int
    ) -> None:
        async with filtered(tmp_path) as between:
            bodies = [call("read_file", id=str(n)) for n in range(number)]
            denied = post(call("delete_file"))
            await between.client.say(b"".join(post(body) + denied for body in bodies))
            for _ in bodies:
                assert (await between.client.answer()).body == RESULT
                assert (await between.client.answer()).body == not_found("delete_file")
            assert [request.body for request in between.upstream.asked] == bodies

    async def test_many_pipelined_requests_use_no_deeper_stack_than_one(
        self, tmp_path: Path
    ) -> None:
        async with filtered(tmp_path) as between:
            await between.client.say(post(call("delete_file")) * 400)
            for _ in range(400):
                assert (await between.client.answer()).body == not_found("delete_file")


# WebSockets: each message is judged, and no other upgrade is let through.


class TestWebSockets:
    """No standard transport, but some servers have it: it is no way round."""

    @staticmethod
    async def upstream(request: RawRequest, peer: Peer) -> None:
        socket = await accept(peer.reader, peer.writer, request.head)
        while (heard := await socket.hear()) is not None:
            peer.requests.append(RawRequest(b"", heard))
            listed = tool_list([READ, DELETE], id="5")
            await socket.say(listed if b"tools/list" in heard else RESULT)

    async def test_both_sides_are_judged_message_by_message(self, tmp_path: Path) -> None:
        async with filtered(tmp_path, respond=self.upstream) as between:
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

    @pytest.mark.parametrize(
        "upgrade",
        [
            b"Upgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AA\r\n",
            b"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 8\r\n",
            b"Upgrade: H2C, foo\r\nConnection: upgrade\r\n",
            b"Upgrade: anything\r\nConnection: Upgrade\r\n",
        ],
    )
    async def test_no_other_upgrade_reaches_the_upstream(
        self, tmp_path: Path, upgrade: bytes
    ) -> None:
        """What it leads to would be a raw tunnel."""

        async with filtered(tmp_path) as between:
            got = await between.client.ask(get(headers=MCP_HEADERS + upgrade))
            assert got.status == 200
            (request,) = between.upstream.asked
            assert request.all("upgrade") == request.all("http2-settings") == []

    async def test_an_unrequested_101_is_refused(self, tmp_path: Path) -> None:
        async def respond(_request: RawRequest, peer: Peer) -> None:
            await peer.say(b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n")
            await peer.left()

        async with filtered(tmp_path, respond=respond) as between:
            assert (await between.client.ask(get())).status == 502


# Messages of our own to the upstream: copies that rules send, and answers to what it asks.


async def test_fork_sends_a_copy_and_drops_its_answer(tmp_path: Path) -> None:
    rules = "  - {id: f, conditions: [tool_equals: read_file], actions: [fork: {copies: 2}]}\n"

    async with ruled(tmp_path, rules, respond=saying(SECRET)) as between:
        got = await between.ask(call("read_file"), b"User-Agent: c\r\nMcp-Session-Id: s\r\n")
        assert got.body == SECRET
        async with asyncio.timeout(20):
            while len(asked := between.upstream.of("tools/call")) < 3:
                await asyncio.sleep(0.01)
        ids = [json.loads(request.body)["id"] for request in asked]
        assert len(set(map(str, ids))) == 3
        sessions = [request.all("mcp-session-id") for request in asked]
        assert sessions == [["s"]] * 3


async def test_copies_of_a_renamed_call_have_the_new_name_in_the_header(tmp_path: Path) -> None:
    """An upstream of 2026-07-28 refuses a request whose header says another name than its body."""
    rules = """
  - {id: rename, conditions: [tool_equals: read_file], actions: [set_param: {field: name, value: delete_file}]}
  - {id: fork, actions: [fork: {copies: 1}]}
"""  # noqa: E501 - one rule, one line
    given: dict[str, Any] = {"rules": [write(tmp_path, rules)], "deny": ["^never$"]}
    async with filtered(tmp_path, respond=saying(SECRET), **given) as between:
        meta = '"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}'
        body = call("read_file").replace(b'"arguments":{}', b'"arguments":{},' + meta.encode())
        headers = b"MCP-Protocol-Version: 2026-07-28\r\nMcp-Method: tools/call\r\n"
        got = await between.ask(body, headers + b"User-Agent: c\r\nMcp-Name: read_file\r\n")
        assert got.body == SECRET
        async with asyncio.timeout(20):
            while len(asked := between.upstream.of("tools/call")) < 2:
                await asyncio.sleep(0.01)
    for request in asked:
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
        request = await asyncio.wait_for(answered.get(), 20)
        assert request.body == blocked("no-sampling", "no models here", "77")
        assert request.all("authorization") == ["Bearer t"]


# An exchange at which our code raises is refused, never sent on.


def stumble_later(*_args: object, **_given: object) -> Deciding[None]:
    """A decision that waits, and then raises."""
    yield from ()
    raise ZeroDivisionError("a bug")


@pytest.mark.parametrize("judge", [stumble, stumble_later])
async def test_a_request_is_answered_and_not_sent_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, judge: Callable[..., object]
) -> None:
    async with filtered(tmp_path) as between:
        monkeypatch.setattr(Listener, "judge_request", judge)
        assert (await between.ask(call("read_file"))).status == 500
        assert between.upstream.asked == []


@pytest.mark.parametrize("judge", [stumble, stumble_later])
async def test_an_answer_is_not_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, judge: Callable[..., object]
) -> None:
    async with filtered(tmp_path) as between:
        monkeypatch.setattr(Listener, "judge_answer", judge)
        assert (await between.ask(call("read_file"))).body != RESULT


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
