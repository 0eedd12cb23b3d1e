r"""HTTP/2, by TLS on the same port: what becomes of it on the way to an upstream with HTTP/1.

What it says in frames, without lines and lengths, must not become lines and lengths of another
request there.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

import h2.exceptions

from tests.attacks.answers import HEAD, TOOLS, Exchange, in_messages, stream
from tests.attacks.corpus import cells
from tests.attacks.hostile_requests import CALL, PARTS, PING, SMUGGLED, bodies
from tests.attacks.readings import shows
from tests.attacks.stage import DENIED, MARK, Stage, in_groups, saying
from tests.mcp_upstream import RESULT
from tests.raw_client import H2Client, H2Stream, h2_client

type Fields = list[tuple[bytes, bytes]]

JSON: Fields = [
    (b"content-type", b"application/json"),
    (b"accept", b"application/json, text/event-stream"),
]
NAME = DENIED.encode()


@dataclass(frozen=True)
class Attack:
    name: str
    body: bytes = b""
    more: tuple[tuple[bytes, bytes], ...] = ()
    pseudo: tuple[tuple[bytes, bytes], ...] = ()
    """Given instead of the ordinary ones."""
    trailers: tuple[tuple[bytes, bytes], ...] = ()


def attacks() -> Iterator[Attack]:
    for label, body in bodies():
        if len(body) < 1000:
            yield Attack(f"body without a length: {label}", body)
    bodies_of = {"call": CALL, "a request": SMUGGLED, "nothing": b"", "ping": PING}
    for label, found in cells("http2", "header fields"):
        headers = tuple(zip(found[::2], found[1::2], strict=True))
        for what, body in bodies_of.items():
            yield Attack(f"{label}, body {what}", body, headers)
    for label, (name, value) in cells("http2", "a field", **PARTS):
        yield Attack(f"{label} with ping", PING, ((name, value),))
        yield Attack(f"{label} with nothing", b"", ((name, value),))
    for label, (name, value) in cells("http2", "pseudo-headers", **PARTS):
        yield Attack(f"{label} with a call", CALL, pseudo=((name, value),))
        yield Attack(f"{label} with a request", SMUGGLED, pseudo=((name, value),))
        yield Attack(f"{label} with nothing", b"", pseudo=((name, value),))
    for method in (b"GET", b"HEAD", b"OPTIONS", b"DELETE", b"PUT", b"TRACE"):
        yield Attack(f"a request on {method.decode()}", SMUGGLED, pseudo=((b":method", method),))
        yield Attack(f"a call on {method.decode()}", CALL, pseudo=((b":method", method),))
    yield Attack("trailers", PING, trailers=((b"mcp-name", NAME), (b"mcp-method", b"tools/call")))
    yield Attack("trailers behind a call", CALL, trailers=((b"x", b"y"),))
    yield Attack("a length in the trailers", SMUGGLED, trailers=((b"content-length", b"2"),))
    yield Attack("pseudo trailers", PING, trailers=((b":path", b"/" + NAME),))
    coding = ((b"content-encoding", b"gzip"),)
    yield Attack("gzip without a length", gzip.compress(CALL), coding)
    yield Attack("gzip twice", gzip.compress(PING) + gzip.compress(CALL), coding)


@in_groups(attacks())
def test_a_call_does_not_get_through(stage: Stage, group: Sequence[Attack]) -> None:
    async def scene(attack: Attack) -> None:
        async with h2_client(stage.port) as client:
            await _over(client, _ask(client, attack))

    through = {}
    for attack in group:
        stage.play(scene(attack))
        if shows(stage.upstream.raw, DENIED):
            through[attack.name] = stage.upstream.raw
    assert through == {}


def _ask(client: H2Client, attack: Attack) -> int:
    pseudo = {b":method": b"POST", b":scheme": b"https", b":path": b"/mcp"}
    pseudo |= {b":authority": b"localhost", **dict(attack.pseudo)}
    client.h2.config.validate_outbound_headers = False
    number = client.h2.get_next_available_stream_id()
    with suppress(h2.exceptions.ProtocolError):  # what our own end refuses to send
        ends = not attack.body and not attack.trailers
        client.h2.send_headers(number, [*pseudo.items(), *JSON, *attack.more], end_stream=ends)
        if attack.body:
            client.h2.send_data(number, attack.body, end_stream=not attack.trailers)
        if attack.trailers:
            client.h2.send_headers(number, attack.trailers, end_stream=True)
    client.flush()
    return number


async def _over(client: H2Client, number: int) -> H2Stream:
    """Read until the stream has ended, well or badly, or the connection."""
    return await client.until(
        number, lambda stream: stream.ended or stream.reset is not None or client.closed
    )


ANSWERS = [one for one in in_messages() if len(one.said[0]) < 2000 and not one.ends]


@in_groups(ANSWERS[::3])
def test_a_definition_does_not_get_through(stage: Stage, group: Sequence[Exchange]) -> None:
    async def scene(one: Exchange) -> bytes:
        async with h2_client(stage.port) as client:
            head, _, body = one.asked.partition(b"\r\n\r\n")
            number = client.ask(head.partition(b" ")[0].decode(), body, headers=JSON)
            return (await _over(client, number)).data

    heard = {one.name: stage.play(scene(one), saying(*one.said)) for one in group}
    assert {name: said for name, said in heard.items() if shows(said, DENIED, MARK)} == {}


def test_no_trailer_of_the_upstream_gets_through(stage: Stage) -> None:
    said = stream(RESULT, head=HEAD, end=b"0\r\nx-tools: %b\r\n\r\n" % TOOLS)

    async def scene() -> H2Stream:
        async with h2_client(stage.port) as client:
            return await _over(client, client.ask(body=PING, headers=JSON))

    heard = stage.play(scene(), saying(said))
    assert (heard.data, heard.trailers, heard.ended) == (RESULT, {}, True)
