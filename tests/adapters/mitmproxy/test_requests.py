"""Requests: which are accepted, how they are judged, and what reaches the upstream."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.adapters.mitmproxy.filtered import (
    call,
    filtered,
    not_found,
)
from tests.mcp_upstream import RESULT, saying
from tests.raw_client import post
from tests.raw_upstream import LAST_CHUNK, SSE_HEAD, Peer, RawRequest, chunk


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
