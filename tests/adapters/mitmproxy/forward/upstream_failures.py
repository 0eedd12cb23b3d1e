"""Upstreams that fail in different ways, and the answers that clients then get."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
from mitmproxy.http import HTTPFlow, Response

from mcp_tool_filter.adapters.mitmproxy.forward.safe.failures import ErrorAnswer, Failure
from tests.adapters.mitmproxy.forward.streaming import FIRST
from tests.raw_client import h2_client, post, raw_client
from tests.raw_upstream import SSE_HEAD, Peer, answer, chunk

type Ask = Callable[[int], Awaitable[tuple[int, bytes]]]

LAST = b"data: lost\n\n"

BODY = b'{"jsonrpc": "2.0"}'


def answers(_: HTTPFlow, failure: Failure) -> ErrorAnswer:
    headers = {"content-type": "application/json", "x-failure": failure}
    return ErrorAnswer(Response.make(200, b"ours: " + failure.encode(), headers), LAST)


async def h1_ask(port: int) -> tuple[int, bytes]:
    """Ask, and once more over the same connection, for it must still be in order."""
    async with raw_client(port) as client:
        first = await client.ask(post(BODY))
        second = await client.ask(post(BODY))
        assert (second.status, second.body) == (first.status, first.body)
        return first.status, first.body


async def h2_ask(port: int) -> tuple[int, bytes]:
    async with h2_client(port) as client:
        first = await client.over(client.ask(body=BODY))
        second = await client.over(client.ask(body=BODY))
        assert (second.headers, second.data, second.ended) == (first.headers, first.data, True)
        return int(first.headers[b":status"]), first.data


async def hang_up(peer: Peer) -> None:
    await peer.request()
    peer.close()


async def reset(peer: Peer) -> None:
    await peer.request()
    peer.reset()


async def half_a_head(peer: Peer) -> None:
    await peer.request()
    await peer.say(b"HTTP/1.1 200 OK\r\nConte")
    peer.close()


async def half_a_body(peer: Peer) -> None:
    await peer.request()
    await peer.say(answer(BODY)[:-3])
    peer.close()


async def no_http(peer: Peer) -> None:
    await peer.request()
    await peer.say(b"SSH-2.0-OpenSSH_9.6\r\n\r\n")
    await peer.left()


async def bad_chunk(peer: Peer) -> None:
    await peer.request()
    await peer.say(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n")
    await peer.left()


async def two_lengths(peer: Peer) -> None:
    await peer.request()
    await peer.say(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab")
    await peer.left()


async def bad_trailers(peer: Peer) -> None:
    await peer.request()
    await peer.say(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nA b\r\n\r\n")
    await peer.left()


async def early_hints(peer: Peer) -> None:
    """It is no answer, though mitmproxy takes it for one; the answer never comes."""
    await peer.request()
    await peer.say(b"HTTP/1.1 103 Early Hints\r\nLink: </style.css>\r\n\r\n")
    peer.close()


async def too_much(peer: Peer) -> None:
    await peer.request()
    await peer.say(answer(b"x" * 2000))
    await peer.left()


FAILING = [
    (hang_up, Failure.LOST),
    (reset, Failure.LOST),
    (half_a_head, Failure.LOST),
    (half_a_body, Failure.LOST),
    (no_http, Failure.MALFORMED),
    (bad_chunk, Failure.MALFORMED),
    (two_lengths, Failure.MALFORMED),
    (bad_trailers, Failure.MALFORMED),
    (early_hints, Failure.LOST),
    (too_much, Failure.RESPONSE_TOO_LARGE),
]

clients = pytest.mark.parametrize("ask", [h1_ask, h2_ask])

strategies = pytest.mark.parametrize("strategy", ["lazy", "eager"])


async def ok(peer: Peer) -> None:
    while await peer.request():
        await peer.say(answer(b"fine"))


async def one_event(peer: Peer) -> None:
    """Die in the midst of an event stream."""
    await peer.request()
    await peer.say(SSE_HEAD + chunk(FIRST))
    await peer.request()  # the test says when
    peer.reset()


async def mute(peer: Peer) -> None:
    await peer.request()
    await peer.left()
