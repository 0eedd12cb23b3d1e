"""What the attacks are played on: an upstream, the real addon before it, and clients, all sockets.

Whatever reaches either end is kept as the bytes that came over the wire. The proxy stays up from
one attack to the next, so that one which breaks it is noticed by those behind it:

    stage.play(attack(Upstream(...)))
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import batched
from pathlib import Path
from typing import Any

import pytest

from tests.mcp_upstream import RESULT, tool, tool_list
from tests.proxy import CRASHES, RunningProxy, proxy
from tests.raw_client import RawClient, post, raw_client
from tests.raw_upstream import TIMEOUT, RawRequest, answer, hang_up
from tests.served import RunningSockets, served
from tests.waiting import PATIENT, patience

DENIED = "wipe_disk"

MARK = "burns-it-all"
"""Stands in the description of the denied tool and nowhere else."""

ALLOWED_TOOL = tool("read_file")

DENIED_TOOL = tool(DENIED, f', "description":"{MARK} \\u00e9"')

PING = b'{"jsonrpc":"2.0","id":1,"method":"ping"}'

PROBE = post(PING, path="/mcp?probe")


def in_groups(rows: Iterable[Any]) -> pytest.MarkDecorator:
    """Give a test a ``group`` of rows at a time: a case for each row would cost more than the row.
    The test collects what fails by name, so that one row hides no other."""
    groups = [pytest.param(group, id=group[0].name) for group in batched(rows, 12)]
    return pytest.mark.parametrize("group", groups)


type Respond = Callable[[RawRequest, Link], Awaitable[None]]


@dataclass
class Link:
    """A connection that the proxy opened to the upstream."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    raw: bytearray = field(default_factory=bytearray)
    """Every byte that came."""
    over: asyncio.Event = field(default_factory=asyncio.Event)

    async def say(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def more(self) -> bool:
        """Read on; False when the proxy has hung up."""
        data = await self.reader.read(65536)
        self.raw += data
        return bool(data)


def saying(*pieces: bytes, ends: bool = False) -> Respond:
    """Answer with these bytes, piece by piece; then hang up, if it ``ends``."""

    async def respond(_request: RawRequest, link: Link) -> None:
        for piece in pieces:
            await link.say(piece)
        if ends:
            link.writer.write_eof()

    return respond


answering = saying(answer(RESULT))


@dataclass
class Upstream:
    """Reads requests as leniently as it can, and lets ``respond`` answer them."""

    respond: Respond = answering
    links: list[Link] = field(default_factory=list)
    requests: list[RawRequest] = field(default_factory=list)
    _answering: int = 0
    port: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def raw(self) -> bytes:
        """All that has come since the last attack."""
        return b"\n".join(bytes(link.raw) for link in self.links)

    def forget(self) -> None:
        self.links.clear()
        self.requests.clear()
        self.respond = answering

    def is_busy_saying(self) -> bool:
        """Tell whether it has not written all of an answer yet."""
        return self._answering > 0

    async def settled(self) -> None:
        """Wait until the proxy has hung up on every connection: nothing more can come."""
        async with asyncio.timeout(TIMEOUT):
            for link in list(self.links):
                await link.over.wait()

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = Link(reader, writer)
        self.links.append(link)
        try:
            with suppress(ValueError):  # chunks that are none
                await self._serve(link)
            while await link.more():
                pass
        except ConnectionError:
            pass
        finally:
            link.over.set()
            writer.close()

    async def _serve(self, link: Link) -> None:
        read = 0
        while True:
            while (end := link.raw.find(b"\r\n\r\n", read)) < 0:
                if not await link.more():
                    return
            head = bytes(link.raw[read : end + 4])
            body, read = await self._body(link, head, end + 4)
            request = RawRequest(head, body)
            if b"mcp-tool-filter" in head.lower() or b'"mcp-tool-filter"' in body:
                await link.say(_to_the_fetch(body))
                continue
            if head.startswith(b"POST /mcp?probe"):
                await answering(request, link)
                continue
            self.requests.append(request)
            self._answering += 1
            try:
                await self.respond(request, link)
            finally:
                self._answering -= 1

    async def _body(self, link: Link, head: bytes, start: int) -> tuple[bytes, int]:
        if re.search(rb"(?im)^transfer-encoding:.*chunked", head):
            return await self._chunks(link, start)
        length = re.search(rb"(?im)^content-length:\s*(\d+)", head)
        end = start + int(length[1]) if length else start
        while len(link.raw) < end and await link.more():
            pass
        return bytes(link.raw[start:end]), end

    async def _chunks(self, link: Link, at: int) -> tuple[bytes, int]:
        body = b""
        while True:
            while (end := link.raw.find(b"\r\n", at)) < 0 and await link.more():
                pass
            size = int(link.raw[at:end].partition(b";")[0], 16)
            at = end + 2 + size + 2
            while len(link.raw) < at and await link.more():
                pass
            body += link.raw[end + 2 : at - 2]
            if not size:
                return body, at


def _to_the_fetch(body: bytes) -> bytes:
    """Shake hands as a server of an older revision would, and list two tools."""
    asked = json.loads(body or b"{}")
    match asked.get("method"):
        case "initialize":
            hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "serverInfo": {}}
            said = {"jsonrpc": "2.0", "id": asked["id"], "result": hello}
            return answer(json.dumps(said).encode())
        case "tools/list":
            return answer(tool_list([ALLOWED_TOOL, DENIED_TOOL], id=json.dumps(asked["id"])))
        case "notifications/initialized":
            return answer(b"", status="202 Accepted")
    return answer(b"", status="404 Not Found")


@dataclass
class Stage:
    upstream: Upstream
    proxy: RunningProxy | RunningSockets
    runner: asyncio.Runner

    @property
    def port(self) -> int:
        return self.proxy.port

    def play[T](self, scene: Coroutine[Any, Any, T], respond: Respond = answering) -> T:
        """Run one attack or exchange, then see that the proxy is as well as before."""
        return self.runner.run(self._play(scene, respond))

    def hears(
        self,
        asked: bytes,
        *said: bytes,
        ends: bool = False,
        answers: int = 1,
        patient: bool = False,
    ) -> bytes:
        """Let a client ask, and the upstream answer with this; return what the client hears."""
        scene = self.all_that_comes(asked, answers=answers, patient=patient)
        return self.play(scene, saying(*said, ends=ends))

    async def _play[T](self, scene: Coroutine[Any, Any, T], respond: Respond) -> T:
        self.upstream.forget()
        self.upstream.respond = respond
        try:
            async with asyncio.timeout(TIMEOUT):
                got = await scene
                if isinstance(self.proxy, RunningSockets):
                    await self.proxy.hang_up_on_upstream()
                await self.upstream.settled()
        finally:
            self.upstream.respond = answering
        await self._check_health()
        return got

    async def _check_health(self) -> None:
        async with raw_client(self.port) as client:
            got = await client.ask(PROBE)
            assert got.body == RESULT, "the proxy serves no more"
        crashed = [text for text in self.proxy.errors() if CRASHES.search(text)]
        assert not crashed, crashed

    @asynccontextmanager
    async def client(self) -> AsyncIterator[RawClient]:
        async with raw_client(self.port) as client:
            yield client

    async def all_that_comes(
        self, request: bytes, *, answers: int = 1, patient: bool = False
    ) -> bytes:
        """Send bytes; return what comes back: so many answers, or all until it is quiet.

        (Who is ``patient`` waits for them however quiet it is.)
        """
        busy = self.upstream.is_busy_saying
        return await speak(self.port, request, answers=answers, patient=patient, is_busy=busy)


async def speak(
    port: int,
    request: bytes,
    *,
    answers: int = 1,
    patient: bool = False,
    is_busy: Callable[[], bool] = bool,
) -> bytes:
    """Send bytes; return what comes back: so many answers, or all until it is quiet."""
    heard = bytearray()
    async with raw_client(port) as client, raw_client(port) as other:
        listening = asyncio.create_task(listen(client, heard))
        try:
            await client.say(request)
            quiet = 0
            while quiet < 5 and not listening.done() and finals_in(bytes(heard)) < answers:
                before = len(heard)
                await other.ask(PROBE)  # others are served meanwhile
                is_quiet = len(heard) == before and not (patient or is_busy())
                quiet = quiet + 1 if is_quiet else 0
        except (ConnectionError, asyncio.IncompleteReadError):  # it hung up before it had heard all
            await listening
        finally:
            listening.cancel()
    return bytes(heard)


async def listen(client: RawClient, heard: bytearray) -> None:
    with suppress(ConnectionError):
        while data := await client.reader.read(65536):
            heard += data


def finals_in(raw: bytes) -> int:
    """Count the whole answers in what a client has heard."""
    count = at = 0
    while (end := raw.find(b"\r\n\r\n", at)) >= 0:
        head, at = raw[at:end], end + 4
        if re.match(rb"HTTP/1\.\d 1(?!01)", head):
            continue
        if re.match(rb"HTTP/1\.\d (?:204|304)", head):
            count += 1
            continue
        if re.search(rb"(?im)^transfer-encoding:.*chunked", head):
            done = re.compile(rb"(?:^|(?<=\r\n))0\r\n\r\n").search(raw, at)
            if not done:
                return count
            at = done.end()
        elif length := re.search(rb"(?im)^content-length:\s*(\d+)", head):
            at += int(length[1])
            if len(raw) < at:
                return count
        count += 1
    return count


@asynccontextmanager
async def listening() -> AsyncIterator[Upstream]:
    upstream = Upstream()
    server = await asyncio.start_server(upstream.connected, "127.0.0.1", 0)
    upstream.port = server.sockets[0].getsockname()[1]
    try:
        yield upstream
    finally:
        server.close()
        await hang_up(link.writer for link in upstream.links)


_USUAL = {"deny": [f"^{DENIED}$"], "endpoint": ["/mcp"], "fail_fast": ["false"], **PATIENT}


@asynccontextmanager
async def raised(
    home: Path, *addons: object, **options: Any
) -> AsyncIterator[tuple[Upstream, RunningProxy]]:
    """Run an upstream and a proxy before it, with our addon if no others are given."""
    given = {**_USUAL, **options}
    from mcp_tool_filter.rooms.mitmproxy.addon import ToolFilter  # tests/core has no rooms

    chosen = addons or (ToolFilter(),)
    async with listening() as upstream, proxy(*chosen, to=upstream.url, home=home, **given) as it:
        for addon in chosen:
            if isinstance(addon, ToolFilter):
                async with patience():
                    await addon.proxy.ready.wait()
        upstream.forget()
        yield upstream, it


@asynccontextmanager
async def raised_on_sockets(
    home: Path, **options: Any
) -> AsyncIterator[tuple[Upstream, RunningSockets]]:
    """Run an upstream and the launcher's host before it."""
    given = {**_USUAL, **options}
    async with listening() as upstream, served(to=upstream.url, home=home, **given) as it:
        upstream.forget()
        yield upstream, it


def open_stage(
    runner: asyncio.Runner, home: Path, *, host: str = "mitmproxy", **options: Any
) -> tuple[Stage, AsyncExitStack]:
    """Raise a stage that stands until the stack is closed."""
    stack = AsyncExitStack()
    opened: Any = raised_on_sockets if host == "sockets" else raised
    upstream, running = runner.run(stack.enter_async_context(opened(home, **options)))
    return Stage(upstream, running, runner), stack
