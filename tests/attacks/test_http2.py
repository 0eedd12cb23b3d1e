r"""HTTP/2, by TLS on the same port: what becomes of it on the way to an upstream with HTTP/1.

What it says in frames, without lines and lengths, must not become lines and lengths of another
request there.
"""

from __future__ import annotations

import base64
import gzip
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

import h2.exceptions

from tests.attacks import answers
from tests.attacks.answers import in_messages
from tests.attacks.hostile_requests import CALL, PING, SMUGGLED, bodies
from tests.attacks.readings import shows
from tests.attacks.stage import DENIED, MARK, Link, Stage, in_groups
from tests.mcp_upstream import RESULT
from tests.raw_client import H2Client, H2Stream, h2_client
from tests.raw_upstream import RawRequest, chunk

type Fields = list[tuple[bytes, bytes]]

JSON: Fields = [
    (b"content-type", b"application/json"),
    (b"accept", b"application/json, text/event-stream"),
]
NAME = DENIED.encode()
END = b" HTTP/1.1\r\nHost: x\r\n\r\n" + SMUGGLED


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
    length = b"%d" % len(CALL)
    for label, headers in {
        "a length": ((b"content-length", length),),
        "a length too short": ((b"content-length", b"2"),),
        "a length too long": ((b"content-length", b"9999"),),
        "length 0": ((b"content-length", b"0"),),
        "two lengths": ((b"content-length", b"0"), (b"content-length", length)),
        "a length with a plus": ((b"content-length", b"+" + length),),
        "transfer-encoding": ((b"transfer-encoding", b"chunked"),),
        "Transfer-Encoding": ((b"Transfer-Encoding", b"chunked"),),
        "transfer_encoding": ((b"transfer_encoding", b"chunked"),),
        "te": ((b"te", b"chunked"),),
        "connection": ((b"connection", b"upgrade"), (b"upgrade", b"h2c")),
        "keep-alive": ((b"keep-alive", b"x"), (b"proxy-connection", b"x")),
        "expect": ((b"expect", b"100-continue"),),
        "a coding": ((b"content-encoding", b"gzip"),),
    }.items():
        bodies_of = {"call": CALL, "a request": SMUGGLED, "nothing": b"", "ping": PING}
        for what, body in bodies_of.items():
            yield Attack(f"{label}, body {what}", body, headers)
    for label, field in {
        "CRLF in a value": (b"x", b"y\r\nMcp-Name: " + NAME),
        "LF in a value": (b"x", b"y\nMcp-Name: " + NAME),
        "CR in a value": (b"x", b"y\rMcp-Name: " + NAME),
        "NUL in a value": (b"x", b"y\0Mcp-Name: " + NAME),
        "a request in a value": (b"x", b"y\r\n\r\n" + SMUGGLED),
        "CRLF in a name": (b"x: y\r\nmcp-name", NAME),
        "colon in a name": (b"mcp-name: " + NAME, b"x"),
        "space in a name": (b"mcp-name ", NAME),
        "empty name": (b"", NAME),
        "upper case": (b"Mcp-Name", NAME),
        "pseudo behind": (b":path", b"/mcp?name=" + NAME),
        "unknown pseudo": (b":name", NAME),
        "Mcp-Name": (b"mcp-name", NAME),
        "Mcp-Name in base64": (b"mcp-name", b"=?base64?" + base64.b64encode(NAME) + b"?="),
        "mcp_name": (b"mcp_name", NAME),
        "host beside": (b"host", b"evil.example"),
    }.items():
        yield Attack(f"{label} with ping", PING, (field,))
        yield Attack(f"{label} with nothing", b"", (field,))
    for label, name, value in [
        ("CRLF in the path", b":path", b"/mcp" + END),
        ("LF in the path", b":path", b"/mcp HTTP/1.1\nX: y\n\n" + SMUGGLED),
        ("space in the path", b":path", b"/mcp?method=tools/call&name=" + NAME + b" HTTP/1.1"),
        ("path with a fragment", b":path", b"/mcp#" + END),
        ("absolute path", b":path", b"http://evil.example/" + NAME),
        ("no slash", b":path", b"mcp?method=tools/call&name=" + NAME),
        ("empty path", b":path", b""),
        ("asterisk", b":path", b"*"),
        ("CRLF in the method", b":method", b"GET /" + END),
        ("space in the method", b":method", b"GET /mcp?method=tools/call&name=" + NAME),
        ("lower case method", b":method", b"post"),
        ("CONNECT", b":method", b"CONNECT"),
        ("PRI", b":method", b"PRI"),
        ("CRLF in the authority", b":authority", b"localhost\r\nMcp-Name: " + NAME),
        ("another authority", b":authority", b"evil.example"),
        ("user in the authority", b":authority", b"localhost@evil.example"),
        ("no authority", b":authority", b""),
        ("scheme", b":scheme", b"http\r\nMcp-Name: " + NAME),
        ("file scheme", b":scheme", b"file"),
        ("protocol", b":protocol", b"websocket"),
        ("path twice", b":path", b"/mcp\0/" + NAME),
    ]:
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
def test_a_definition_does_not_get_through(stage: Stage, group: Sequence[answers.Attack]) -> None:
    async def scene(attack: answers.Attack) -> bytes:
        async def respond(_request: RawRequest, link: Link) -> None:
            for piece in attack.said:
                await link.say(piece)

        stage.upstream.respond = respond
        method = attack.asked.partition(b" ")[0].decode()
        async with h2_client(stage.port) as client:
            number = client.ask(method, attack.asked.partition(b"\r\n\r\n")[2], headers=JSON)
            return (await _over(client, number)).data

    heard = {attack.name: stage.play(scene(attack)) for attack in group}
    assert {name: said for name, said in heard.items() if shows(said, DENIED, MARK)} == {}


def test_no_trailer_of_the_upstream_gets_through(stage: Stage) -> None:
    async def respond(_request: RawRequest, link: Link) -> None:
        head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
        head += b"Transfer-Encoding: chunked\r\n\r\n"
        await link.say(head + chunk(RESULT) + b"0\r\nx-tools: %b\r\n\r\n" % answers.TOOLS)

    async def scene() -> H2Stream:
        stage.upstream.respond = respond
        async with h2_client(stage.port) as client:
            return await _over(client, client.ask(body=PING, headers=JSON))

    heard = stage.play(scene())
    assert (heard.data, heard.trailers, heard.ended) == (RESULT, {}, True)
