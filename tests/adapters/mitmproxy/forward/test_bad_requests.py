"""Requests too large, ambiguous or malformed: each is answered, or its connection ends."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

from mcp_tool_filter.adapters.mitmproxy.forward.safe.stream import stream_of
from tests.adapters.mitmproxy.filtered import INVALID_REQUEST, filtered
from tests.adapters.mitmproxy.forward.streaming import Streaming, before
from tests.adapters.mitmproxy.forward.upstream_failures import BODY, ok
from tests.proxy import proxy
from tests.raw_client import get, h2_client, post, raw_client
from tests.raw_upstream import chunk, raw_upstream

pytestmark = pytest.mark.usefixtures("our_error_answers")


@pytest.mark.parametrize("declared", ["length", "chunked"])
async def test_a_request_that_is_too_large_is_read_to_its_end_and_answered(
    declared: str, tmp_path: Path
) -> None:
    """A client that is still sending would not see an answer on a connection that is closed."""
    large = b"x" * 3_000_000
    request = post(large)
    if declared == "chunked":
        head = post(b"").replace(b"Content-Length: 0", b"Transfer-Encoding: chunked")
        request = head + chunk(large) + b"0\r\n\r\n"

    addon = Streaming()
    async with (
        before(ok, addon, tmp_path, body_size_limit="1k") as running,
        raw_client(running.port) as client,
    ):
        assert (await client.ask(request)).body == b"ours: request-too-large"
        assert (await client.ask(post(BODY))).body == b"fine"
        assert addon.blamed == [False]
        gc.collect()
        assert stream_of(addon.failures[0]) is None, "it is forgotten"


async def test_a_request_that_is_too_large_is_answered_in_http_2(tmp_path: Path) -> None:
    async with (
        before(ok, Streaming(), tmp_path, body_size_limit="1k") as running,
        h2_client(running.port) as client,
    ):
        first = await client.over(client.ask(body=b"x" * 16_000))
        assert (first.data, first.reset) == (b"ours: request-too-large", None)
        assert (await client.over(client.ask(body=BODY))).data == b"fine"


async def test_a_client_that_waits_for_100_continue_with_too_much_is_answered_and_disconnected(
    tmp_path: Path,
) -> None:
    """After a refusal it may send the body or not: what follows could be no request."""
    request = post(b"x" * 2000, headers=b"Host: localhost\r\nExpect: 100-continue\r\n")

    async with (
        before(ok, Streaming(), tmp_path, body_size_limit="1k") as running,
        raw_client(running.port) as client,
    ):
        await client.say(request[: request.index(b"\r\n\r\n") + 4])
        assert (await client.answer()).body == b"ours: request-too-large"
        assert await client.rest() == b""


async def test_bytes_after_an_ambiguous_request_are_not_read_as_a_request(tmp_path: Path) -> None:
    request = (
        b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    )

    addon = Streaming()
    async with (
        raw_upstream(ok) as upstream,
        proxy(addon, to=upstream.url, home=tmp_path) as running,
        raw_client(running.port) as client,
    ):
        await client.say(request + get(path="/smuggled"))
        assert (await client.answer()).body == b"ours: request-malformed"
        assert await client.rest() == b""
        assert upstream.requests == []
        assert addon.blamed == [False]


@pytest.mark.parametrize("fast", ["true", "false"])
@pytest.mark.parametrize(
    "head",
    [
        b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Length: +4\r\n\r\n",
        b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4, 4\r\n\r\n",
        b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: xchunked\r\n\r\n",
        b"POST /mcp HTTP/1.1\r\nno colon\r\n\r\n",
        b"no request\r\n\r\n",
    ],
)
async def test_a_head_that_cannot_be_read_is_answered_once_and_by_us(
    head: bytes, fast: str, tmp_path: Path
) -> None:
    """mitmproxy would send a page of its own, and ours would follow it on a closed connection."""
    async with filtered(tmp_path, host="dump", fast=[fast]) as between:
        await between.client.say(head)
        answer = await between.client.answer()
        assert (answer.status, answer.body) == (400, INVALID_REQUEST)
        assert b"mitmproxy" not in answer.head
        assert await between.client.rest() == b""
