"""What rules do with messages on a WebSocket."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from tests.adapters.mitmproxy.filtered import call
from tests.adapters.mitmproxy.ruled import BLOCK, HIDDEN, PING, REDACT, SECRET, WAIT, blocked, ruled
from tests.raw_upstream import Peer, RawRequest
from tests.websocket import accept, connect


async def test_websocket_messages_are_judged(tmp_path: Path) -> None:
    rules = BLOCK + REDACT + WAIT

    async def respond(request: RawRequest, peer: Peer) -> None:
        socket = await accept(peer.reader, peer.writer, request.head)
        while await socket.hear() is not None:
            await socket.say(SECRET)

    async with ruled(tmp_path, rules, respond=respond) as between:
        socket = await connect(between.client.reader, between.client.writer)
        await socket.say(call("read_file", '{"path":"/etc/x"}'))
        assert await socket.hear() == blocked("no-etc", "not there")
        await socket.say(call("read_file"))
        assert await socket.hear() == HIDDEN


NO_SAMPLING = """
  - {id: no-sampling, conditions: [from: server, method_equals: sampling/createMessage],
     actions: [block: no models here]}
"""

SAMPLE = b'{"jsonrpc":"2.0","id":%s,"method":"sampling/createMessage","params":{}}'


@pytest.mark.parametrize("waits", [False, True])
async def test_requests_of_the_upstream_in_a_batch_over_a_websocket_are_answered(
    tmp_path: Path, waits: bool
) -> None:
    heard: asyncio.Queue[bytes | None] = asyncio.Queue()

    async def respond(request: RawRequest, peer: Peer) -> None:
        socket = await accept(peer.reader, peer.writer, request.head)
        await socket.say(b"[" + SAMPLE % b"7" + b"," + PING + b"," + SAMPLE % b"8" + b"]")
        await socket.say(b"[" + SAMPLE % b"10" + b"]")
        while (message := await socket.hear()) is not None:
            heard.put_nowait(message)

    slow = "  - {id: slow, priority: 1, conditions: [from: server], actions: [delay: 50ms]}\n"
    async with ruled(tmp_path, NO_SAMPLING + (slow if waits else ""), respond=respond) as between:
        socket = await connect(between.client.reader, between.client.writer)
        assert await socket.hear() == b"[" + PING + b"]"
        async with asyncio.timeout(20):
            answers = [await heard.get() for _ in range(3)]
        assert answers == [
            blocked("no-sampling", "no models here", "7"),
            blocked("no-sampling", "no models here", "8"),
            b"[" + blocked("no-sampling", "no models here", "10") + b"]",
        ]


@pytest.mark.parametrize("on_sockets", [False, True], ids=["mitmproxy", "sockets"])
async def test_fork_works_over_a_websocket(on_sockets: bool, tmp_path: Path) -> None:
    """A copy is not judged again, or it would be forked too; its answer is dropped."""
    rules = "  - {id: f, conditions: [tool_equals: read_file], actions: [fork: {copies: 2}]}\n"
    heard: list[bytes] = []

    async def respond(request: RawRequest, peer: Peer) -> None:
        socket = await accept(peer.reader, peer.writer, request.head)
        while (message := await socket.hear()) is not None:
            heard.append(message)
            id = json.dumps(json.loads(message)["id"])
            await socket.say(SECRET.replace(b'"id":1', b'"id":' + id.encode()))

    async with ruled(tmp_path, rules, respond=respond, on_sockets=on_sockets) as between:
        socket = await connect(between.client.reader, between.client.writer)
        await socket.say(call("read_file", '{"a":1}'))
        assert await socket.hear() == SECRET
        async with asyncio.timeout(20):
            while len(heard) < 3:
                await asyncio.sleep(0.01)
        await socket.say(PING)
        answer = json.loads(await socket.hear() or b"")
        assert answer["id"] == 9
        assert len(heard) == 4
        copies = [json.loads(one) for one in heard if b"read_file" in one]
        assert len({str(one["id"]) for one in copies}) == 3
        assert [one["params"] for one in copies] == [
            {"name": "read_file", "arguments": {"a": 1}}
        ] * 3
