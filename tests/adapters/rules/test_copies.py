"""Copies of requests: they have our own ids, and their answers are dropped."""

from __future__ import annotations

import asyncio
import json
import logging

import pytest

from mcp_tool_filter.adapters.rules.host import Copies, with_usual
from mcp_tool_filter.policy.rule_effects import SendCopy
from tests.raw_upstream import Peer, answer, free_port, raw_upstream

HEAD, TAIL = '{"jsonrpc":"2.0","id":', ',"method":"ping"}'


def copy(to: str | None) -> SendCopy:
    return SendCopy(HEAD, TAIL, None, to, "fork")


async def test_each_copy_has_an_id_of_its_own() -> None:
    sent: list[bytes] = []
    copies = Copies(lambda text, _effect: sent.append(text))
    copies.send(copy(None))
    copies.send(copy(None))
    ids = [json.loads(one)["id"] for one in sent]
    assert ids == [f"{copies.id_prefix}1", f"{copies.id_prefix}2"]
    assert Copies(lambda *_: None).id_prefix != copies.id_prefix


async def test_a_copy_for_another_server_is_posted_there() -> None:
    arrived = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.say(answer(b"{}"))
        arrived.set()

    async with raw_upstream(script) as upstream:
        copies = Copies(lambda *_: pytest.fail("it is for another server"))
        copies.send(copy(f"{upstream.url}/copies"))
        await arrived.wait()
    [request] = upstream.requests
    assert request.line == "POST /copies HTTP/1.1"
    assert request.all("content-type") == ["application/json"]
    assert json.loads(request.body)["method"] == "ping"


async def test_an_unreachable_server_does_no_harm(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    copies = Copies(lambda *_: None)
    copies.send(copy(f"http://127.0.0.1:{free_port()}/"))
    while not caplog.messages:
        await asyncio.sleep(0.001)
    assert "was not delivered: Connection refused" in caplog.messages[0]


async def test_copies_beyond_the_limit_are_dropped(caplog: pytest.LogCaptureFixture) -> None:
    copies = Copies(lambda *_: None)
    begun: list[int] = []

    async def wait(number: int) -> None:
        begun.append(number)
        await asyncio.sleep(3600)

    for number in range(101):
        copies.begin(wait(number))
    await asyncio.sleep(0)
    assert begun == list(range(100))
    assert "Too many of our own messages" in caplog.messages[0]
    copies.done()
    await asyncio.sleep(0)


def test_headers_that_the_request_has_are_not_added_twice() -> None:
    assert with_usual([(b"accept", b"x")]) == [
        (b"accept", b"x"),
        (b"content-type", b"application/json"),
    ]
