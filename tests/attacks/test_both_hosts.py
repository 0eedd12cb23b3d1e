"""Clients and upstreams get the same bytes from both hosts, whatever is said.

python -m tests.attacks.test_both_hosts 0 10000     tries more, for as long as it takes
"""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.attacks.hosts import hosted
from tests.attacks.made_up import Talk, talk
from tests.attacks.readings import shows
from tests.attacks.stage import DENIED, MARK, Link, Upstream, listen, listening
from tests.raw_client import raw_client
from tests.raw_upstream import TIMEOUT, RawRequest, answer

pytestmark = pytest.mark.rest

A_FEW = range(150)
END = b"the end"


@dataclass(frozen=True)
class Heard:
    """What the client and the upstream have heard. (Where chunks end has no meaning.)"""

    client: bytes
    upstream: list[tuple[bytes, bytes]]


@dataclass
class Side:
    port: int
    upstream: Upstream

    async def play(self, one: Talk) -> Heard:
        self.upstream.forget()
        answers = iter(one.answers)

        async def respond(request: RawRequest, link: Link) -> None:
            known = not request.line.startswith("GET /end ")
            for piece in next(answers) if known else [answer(END)]:
                await link.say(piece)
                await asyncio.sleep(0)

        self.upstream.respond = respond
        heard = bytearray()
        async with asyncio.timeout(TIMEOUT), raw_client(self.port) as client:
            listening = asyncio.create_task(listen(client, heard))
            with suppress(ConnectionError):  # it has hung up on what it cannot read
                for piece in one.asked:
                    await client.say(piece)
                    await asyncio.sleep(0)
            await listening
        own = b"127.0.0.1:%d" % self.upstream.port
        asked = [(each.head.replace(own, b"us"), each.body) for each in self.upstream.requests]
        return Heard(_without_chunk_sizes(bytes(heard)), asked)


def are_same(one: Heard, other: Heard) -> bool:
    """Compare them. A client that is still sending when we hang up may lose the last answers."""
    short, long = sorted((one.client, other.client), key=len)
    is_cut = long.startswith(short) and not short.endswith(END)
    return one.upstream == other.upstream and (short == long or is_cut)


def goes_on(heard: bytes) -> bool:
    """Tell whether an answer follows one that says that it is the last."""
    return re.search(rb"(?i)\r\nConnection: close\r\n.*HTTP/1\.1 ", heard, re.DOTALL) is not None


def is_denied_shown(heard: Heard) -> bool:
    """Tell whether a denied definition reached the client, or a denied call the upstream."""
    return shows(heard.client, MARK) or any(shows(body, DENIED) for _, body in heard.upstream)


def _without_chunk_sizes(raw: bytes) -> bytes:
    return re.sub(rb"(?<=\r\n)[0-9a-f]+\r\n|\r\n(?=[0-9a-f]+\r\n)", b"", raw)


async def differences(home: Path, numbers: Sequence[int]) -> list[str]:
    """Let both play each talk; tell what went past us, and which they heard differently."""
    found = []
    async with AsyncExitStack() as stack:
        sides = []
        for host, option in (("launcher", "keep_running"), ("mitmdump", "fail_fast=false")):
            upstream = await stack.enter_async_context(listening())
            running = hosted(host, upstream.url, home / host, option)
            sides.append(Side((await stack.enter_async_context(running)).port, upstream))
        for number in numbers:
            both = await asyncio.gather(*(side.play(talk(number)) for side in sides))
            if not are_same(*both) or any(goes_on(one.client) for one in both):
                found.append(f"{number}: {both}")
            if any(is_denied_shown(one) for one in both):
                found.append(f"{number} went past us: {both}")
    return found


async def test_both_hosts_send_the_same(tmp_path: Path) -> None:
    assert await differences(tmp_path, A_FEW) == []


if __name__ == "__main__":
    with TemporaryDirectory() as home:
        first, last = map(int, sys.argv[1:3])
        print(*asyncio.run(differences(Path(home), range(first, last))), sep="\n")  # noqa: T201 - a command
