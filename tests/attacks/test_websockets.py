"""A WebSocket is no way round either: message by message, in both directions, however cut."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from wsproto.events import BytesMessage, Event, Ping, TextMessage

from tests.attacks.answers import messages
from tests.attacks.hostile_requests import HOST, bodies, masked
from tests.attacks.readings import shows
from tests.attacks.stage import DENIED, MARK, Link, Stage, saying
from tests.mcp_upstream import RESULT
from tests.raw_client import raw_client
from tests.raw_upstream import RawRequest, answer
from tests.websocket import WebSocketEnd, accept, connect

type Cut = Callable[[bytes], list[Event]]

END = b'{"jsonrpc":"2.0","id":"the end","method":"ping"}'
BODIES = {label: body for label, body in bodies() if len(body) < 1000}
ANSWERS = [body for label, body in messages() if len(body) < 1500 and "instead of" not in label]
UPGRADE = (
    b"GET /mcp HTTP/1.1\r\n" + HOST + b"Upgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
)


def as_text(body: bytes) -> list[Event]:
    return [TextMessage(body.decode())]


def as_bytes(body: bytes) -> list[Event]:
    return [BytesMessage(body)]


def in_fragments(body: bytes) -> list[Event]:
    size = len(body)
    return [
        BytesMessage(body[n : n + 5], message_finished=n + 5 >= size) for n in range(0, size, 5)
    ]


def between_pings(body: bytes) -> list[Event]:
    half = len(body) // 2
    first = BytesMessage(body[:half], message_finished=False)
    return [first, Ping(b"x"), BytesMessage(body[half:])]


CUTS = [as_text, as_bytes, in_fragments, between_pings]


@pytest.mark.parametrize("cut", CUTS)
def test_a_call_does_not_get_through(stage: Stage, cut: Cut) -> None:
    heard: list[bytes] = []

    async def respond(request: RawRequest, link: Link) -> None:
        end = await accept(link.reader, link.writer, request.head)
        while (message := await end.hear()) is not None:
            heard.append(message)
            if message == END:
                await end.say(END.replace(b'"method":"ping"', b'"result":{}'))

    async def scene() -> None:
        async with stage.client() as client:
            end = await connect(client.reader, client.writer)
            for body in BODIES.values():
                if cut is not as_text or _is_text(body):
                    await _say(end, cut(body))
            await _say(end, as_text(END))
            while (said := await end.hear()) and b'"the end"' not in said:
                assert MARK.encode() not in said

    stage.play(scene(), respond)
    assert heard[-1] == END
    assert not shows(b"\n".join(heard), DENIED), heard


@pytest.mark.parametrize("cut", CUTS)
def test_a_definition_does_not_get_through(stage: Stage, cut: Cut) -> None:
    async def respond(request: RawRequest, link: Link) -> None:
        end = await accept(link.reader, link.writer, request.head)
        for body in ANSWERS:
            await _say(end, cut(body))
        await end.say(RESULT)
        await end.hear()

    async def scene() -> list[bytes]:
        async with stage.client() as client:
            end = await connect(client.reader, client.writer)
            heard = []
            while (said := await end.hear()) != RESULT:
                assert said is not None
                heard.append(said)
            return heard

    heard = stage.play(scene(), respond)
    assert not shows(b"\n".join(heard), DENIED, MARK), heard


def test_messages_right_after_the_upgrade_are_judged(stage: Stage) -> None:
    heard: list[bytes] = []

    async def respond(request: RawRequest, link: Link) -> None:
        end = await accept(link.reader, link.writer, request.head)
        while (message := await end.hear()) is not None:
            heard.append(message)

    async def scene() -> None:
        async with raw_client(stage.port) as client:
            await client.say(UPGRADE + b"\r\n" + masked(BODIES["plain"]) + masked(END))
            await client.head()
            await client.until(b"Tool not found")

    stage.play(scene(), respond)
    assert not shows(b"\n".join(heard), DENIED)


@pytest.mark.parametrize("extension", ["permessage-deflate", "x-unknown", "permessage-deflate, x"])
def test_websocket_extensions_hide_nothing(stage: Stage, extension: str) -> None:
    async def respond(request: RawRequest, link: Link) -> None:
        await accept(link.reader, link.writer, request.head)
        await link.more()

    async def scene() -> None:
        asked = UPGRADE + b"Sec-WebSocket-Extensions: %s\r\n\r\n" % extension.encode()
        frame = masked(BODIES["plain"], first=0xC1)  # as if it were compressed
        await stage.all_that_comes(asked + frame)

    stage.play(scene(), respond)
    assert not shows(stage.upstream.raw, DENIED)


def test_a_refused_upgrade_leaves_no_tunnel(stage: Stage) -> None:
    async def scene() -> None:
        async with raw_client(stage.port) as client:
            with pytest.raises(AssertionError):
                await connect(client.reader, client.writer)
            client.writer.write(masked(BODIES["plain"]))

    stage.play(scene(), saying(answer(b"no", status="400 Bad Request", kind="text/plain")))
    assert not shows(stage.upstream.raw, DENIED)


async def _say(end: WebSocketEnd, events: list[Event]) -> None:
    for event in events:
        end.writer.write(end.connection.send(event))
    await end.writer.drain()


def _is_text(body: bytes) -> bool:
    return body.decode(errors="replace").encode() == body
