"""Do others frame HTTP/1 as the engine does? Change requests and answers at random, and compare.

    python -m tests.fuzz.framing [SECONDS [SEED]]

The engine may refuse anything. But of the bytes that it has taken, no reader may make other
messages: another number of them, another method, target, status, or body. A reader that refuses
what the engine takes is fine.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from unittest.mock import patch

from mcp_tool_filter.core.engine.exchange import Exchange
from mcp_tool_filter.core.engine.upstream import Upstream
from mcp_tool_filter.core.engine.wire import (
    END,
    AnswerHead,
    AnswerWire,
    End,
    Fault,
    RequestHead,
    RequestWire,
)
from tests.attacks.corpus import rows
from tests.attacks.hostile_requests import in_framing
from tests.core.engine.table import PING, PONG, Table
from tests.fuzz.http_readers import Node, Read, by_h11, by_mitmproxy, node
from tests.raw_upstream import answer

_INNER = b"GET /inner HTTP/1.1\r\nHost: x\r\n\r\n"
_REQUESTS = [raw for _, raw in rows("framing", "requests", PING=PING, INNER=_INNER)]
_ANSWERS = [raw for _, raw in rows("framing", "answers", PING=PING)]
_TOKENS = [
    b"\r\n", b"\n", b"\r", b"\r\r\n", b"\n\r\n", b"\r\n\r\n", b"\n\n", b" ", b"\t", b"\x00",
    b"\x0b", b"\x0c", b"\x1f", b"\x7f", b"\x80", b"\x85", b"\xa0", b"\xff", b":", b";", b",", b'"',
    b"+", b"-", b"_", b"0", b"1", b"5", b"00", b"0x", b"11", b"a", b"/", b"*", b"#", b"chunked",
    b"CHUNKED", b"identity", b"gzip, chunked", b"chunked, chunked",
    b"\r\nTransfer-Encoding: chunked", b"\r\nTransfer-Encoding: identity", b"\r\nContent-Length: 0",
    b"\r\nContent-Length: 17", b"\r\nContent-Length: +17", b"\r\nContent-Length: 17, 17",
    b"\r\nContent-Length: 017", b"\r\nContent-Length : 5", b"\r\nContent_Length: 5",
    b"\r\nTransfer-Encoding:\r\n chunked", b"\r\nTransfer-Encoding\r\n: chunked",
    b"\r\n Content-Length: 5", b"\r\nConnection: close", b"\r\nConnection: keep-alive",
    b"\r\nConnection: content-length", b"\r\nConnection: upgrade\r\nUpgrade: x", b"\r\nHost: y",
    b"\r\nTE: trailers", b"\r\nExpect: 100-continue", b"\r\n: x", b"\r\nx", b"HTTP/1.1",
    b"HTTP/1.0", b"HTTP/0.9", b"HTTP/2.0", b"HTTP/1.2", b"http/1.1", b"HTTP/11", b"RTSP/1.0",
    b"ICE/1.0", b"GET", b"POST", b"CONNECT", b"PRI", b"get", b"M-SEARCH", b"http://y/z", b"//y/z",
    b"y:80", b"0\r\n\r\n", b"5\r\n12345\r\n", b"ffffffff", b"100000000", b"18446744073709551617",
    b"1;\n", b"5;\r", b'5;a="\r\n"', _INNER,
]  # fmt: skip


@dataclass(frozen=True)
class Taken:
    """What the engine has made of some bytes."""

    messages: list[Read]
    raw: bytes
    """The bytes that it has taken; none of a message that it has refused at its head."""

    @property
    def complete(self) -> list[Read]:
        return [one for one in self.messages if one.is_complete]


def taken(raw: bytes, cuts: Sequence[int] = (), *, method: str = "") -> Taken:
    """Read as the engine's connections do; ``method`` is that of an answer's request."""
    wire: RequestWire | AnswerWire = RequestWire()
    if method:
        wire = AnswerWire()
        wire.asked = method
    found: list[Read] = []
    at = good = 0
    keeps = True
    with suppress(Fault):
        for end in [*cuts, len(raw)]:
            wire.receive(raw[at:end])
            at = end
            while (event := wire.next()) is not None:
                keeps = _note(event, found, keeps)
                good = at - wire.ahead
                if event is END:
                    if method or not keeps:
                        return Taken(found, raw[:good])
                    wire.state = "head"
        if method:
            wire.eof()
            while (event := wire.next()) is not None:
                _note(event, found, keeps)
    return Taken(found, raw[:good])


def _note(event: RequestHead | AnswerHead | bytes | End, found: list[Read], keeps: bool) -> bool:
    """Add an event; return whether the connection is read behind this message."""
    match event:
        case RequestHead():
            found.append(Read(event.method, event.target))
            return event.keeps
        case AnswerHead():
            if event.status >= 200 or event.status == 101:
                found.append(Read("", str(event.status)))
            return event.keeps
        case End():
            found[-1].is_complete = True
        case data:
            found[-1].body += data
    return keeps


def change(raw: bytes, random: Random) -> bytes:
    """Change one place: mostly where lines, names and sizes begin and end."""
    edges = [n for n, byte in enumerate(raw) if byte in b"\r\n: ;,"] or [0]
    at = random.choice(edges) + random.randrange(2) if random.random() < 0.8 else 0
    at = at or random.randrange(len(raw) + 1)
    match random.randrange(6):
        case 0:
            return raw[:at] + raw[at + random.randrange(1, 4) :]
        case 1:
            return raw[:at] + raw[at : at + 1].swapcase() + raw[at + 1 :]
        case 2:  # twice
            end = min(len(raw), at + random.randrange(1, 30))
            return raw[:end] + raw[at:end] + raw[end:]
        case 3:
            token = random.choice(_TOKENS)
            return raw[:at] + token + raw[at + len(token) :]
        case _:
            return raw[:at] + random.choice(_TOKENS) + raw[at:]


def made_up(random: Random, seeds: Sequence[bytes], most: int) -> bytes:
    """Return some messages one behind the other, changed in some places."""
    raw = b"".join(random.choice(seeds) for _ in range(random.randrange(1, most + 1)))
    for _ in range(random.randrange(1, 5)):
        raw = change(raw, random)
    return raw


def seeds() -> list[bytes]:
    return [*_REQUESTS, *(attack.raw for attack in in_framing() if len(attack.raw) < 2000)]


@dataclass(frozen=True)
class Difference:
    reader: str
    raw: bytes
    ours: list[Read]
    theirs: list[Read]


def differs(ours: Sequence[Read], theirs: Sequence[Read]) -> bool:
    """Tell whether a reader makes something else of what the engine has taken."""
    if len(theirs) > len(ours):
        return True
    for mine, other in zip(ours, theirs, strict=False):
        if mine.first != other.first or _plain(mine.second) != _plain(other.second):
            return True
        if other.is_complete and (not mine.is_complete or mine.body != other.body):
            return True
        if not mine.body.startswith(other.body):
            return True
    return False


def _plain(target: str) -> str:
    """Return a target with its scheme in small letters: some readers do not keep it."""
    scheme, colon, rest = target.partition("://")
    return scheme.lower() + colon + rest


def differences(
    raws: Sequence[bytes], reader: Node | None, method: str = ""
) -> Iterator[Difference]:
    """Yield what others read differently in requests, or in answers to requests of a method."""
    passed = [one for one in (taken(raw, method=method) for raw in raws) if one.messages]
    jobs = [(method or "requests", one.raw) for one in passed]
    by_node = reader.read(jobs) if reader and jobs else [[] for _ in passed]
    for one, nodes in zip(passed, by_node, strict=True):
        readings = [("h11", by_h11(one.raw, method)), ("node", nodes)]
        if not one.raw.startswith((b"HTTP/1.1 1", b"HTTP/1.0 1")):  # mitmproxy takes them for final
            readings.append(("mitmproxy", by_mitmproxy(one.raw, method)))
        for name, theirs in readings:
            if differs(one.messages, theirs):
                yield Difference(name, one.raw, one.messages, theirs)


def _sent(raw: bytes, table: Table) -> list[tuple[bytes, list[Read]]]:
    """Let a client say this; return what each connection of the upstream gets: bytes, and what the
    engine means them to be."""
    table.links.clear()
    table.idle.clear()
    meant: dict[Upstream, list[Read]] = {}
    begin = Upstream.begin

    def noted(up: Upstream, exchange: Exchange, *, head: bytes, method: str, body: bytes) -> None:
        target = head.split(b" ", 2)[1].decode("latin-1")
        meant.setdefault(up, []).append(Read(method, target, body, True))
        begin(up, exchange, head=head, method=method, body=body)

    with patch.object(Upstream, "begin", noted):
        client = table.client()
        client.says(raw)
        for _ in range(10):
            if not table.links or table.links[-1] in table.idle:
                break
            table.links[-1].says(answer(PONG))
        client.leaves()
    return [(link.got, meant[link.up]) for link in table.links]


def differences_in_what_is_sent(raws: Sequence[bytes], reader: Node | None) -> Iterator[Difference]:
    """Yield what an upstream could read differently than the engine means it."""
    table = Table()
    sent = [one for raw in raws for one in _sent(raw, table)]
    jobs = [("requests", raw) for raw, _ in sent]
    by_node = reader.read(jobs) if reader and jobs else [meant for _, meant in sent]
    for (raw, meant), nodes in zip(sent, by_node, strict=True):
        readings = (("h11", by_h11(raw)), ("node", nodes), ("mitmproxy", by_mitmproxy(raw)))
        for name, theirs in readings:
            if theirs != meant:
                yield Difference(f"{name}, of what is sent", raw, meant, theirs)


def differences_in_what_is_answered(
    raws: Sequence[bytes], reader: Node | None
) -> Iterator[Difference]:
    """Yield what clients could read differently in the engine's answers."""
    table = Table()
    got: list[bytes] = []
    for raw in raws:
        table.idle.clear()
        client = table.asks(PING)
        table.link.says(raw)
        if table.link.is_open and table.link not in table.idle:
            table.link.ends()
        got.append(client.taken())
        client.leaves()
    by_node = reader.read([("POST", raw) for raw in got]) if reader else None
    for number, raw in enumerate(got):
        ours = by_h11(raw, "POST")
        nodes = by_node[number] if by_node else ours
        for name, theirs in (("node", nodes), ("mitmproxy", by_mitmproxy(raw, "POST"))):
            if theirs != ours or len(ours) != 1 or not ours[0].is_complete:
                said = raws[number] + b" => " + raw
                yield Difference(f"{name}, of what is answered", said, ours, theirs)


def hunt(random: Random, count: int, reader: Node | None) -> Iterator[Difference]:
    """Try so many requests, and a third as many answers; yield what is framed differently."""
    requests = [made_up(random, _SEEDS, 3) for _ in range(count)]
    yield from differences(requests, reader)
    passing = [made_up(random, _REQUESTS, 2) for _ in range(count // 3)]
    passing = [raw.replace(b"Host: x\r\n", b"Host: localhost\r\n") for raw in passing]
    yield from differences_in_what_is_sent(passing, reader)
    answers = [made_up(random, _ANSWERS, 2) for _ in range(count // 3)]
    yield from differences(answers, reader, random.choice(["GET", "POST", "HEAD"]))
    yield from differences_in_what_is_answered(answers[::2], reader)
    for raw in requests[:: max(1, count // 20)]:
        cuts = sorted(random.randrange(len(raw) + 1) for _ in range(4))
        whole, cut = taken(raw), taken(raw, cuts)
        if whole.complete != cut.complete:
            yield Difference(f"cut at {cuts}", raw, whole.messages, cut.messages)


_SEEDS = seeds()


def main(seconds: float, seed: int) -> None:
    random, tried, found = Random(seed), 0, set[tuple[str, bytes]]()
    end = time.monotonic() + seconds
    with node() as reader:
        while time.monotonic() < end:
            for one in hunt(random, 300, reader):
                if (one.reader, one.raw) not in found:
                    found.add((one.reader, one.raw))
                    print(one.reader, one.raw, one.ours, one.theirs, sep="\n  ")  # noqa: T201
            tried += 400
    print(f"{tried} tried, {len(found)} framed differently")  # noqa: T201


if __name__ == "__main__":
    given = [*map(float, sys.argv[1:]), 60.0, 0.0]
    main(given[0], int(given[-1] if len(sys.argv) < 3 else given[1]))
