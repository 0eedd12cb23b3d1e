"""One session of a client, by Streamable HTTP or HTTP+SSE, that looks at every answer.

An id is never used twice in a run, and each call has a token of its own; so an answer that went
to another session, or to another call, is noticed.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from tests.bench.soak.ledger import Ledger
from tests.bench.soak.upstream import ALLOWED, DENIED, MARK
from tests.raw_client import MCP_HEADERS, Answer, RawClient, get, post, raw_client

type Json = dict[str, Any]

REVISION = "2025-11-25"

PATIENCE = 30.0

_LOST, _NOT_FOUND = -32000, -32601

_HOWS = ("json", "json", "sse", "sse", "reset", "then reset")

_ids = count(1)


class Broken(Exception):
    """The other side has hung up."""


@asynccontextmanager
async def connected(port: int) -> AsyncIterator[RawClient]:
    """Connect; what fails because the other side hangs up is Broken."""
    try:
        async with raw_client(port) as client:
            yield client
    except (OSError, EOFError) as error:
        raise Broken from error


@dataclass(slots=True)
class Call:
    """Something that is asked, and how to tell that an answer is its own."""

    kind: str
    id: int
    token: str
    body: bytes
    size: int = 0

    def judge(self, message: Json, ledger: Ledger) -> None:
        """Enter an answer into the ledger."""
        if message.get("id") != self.id:
            ledger.note_wrong(f"{self.kind} {self.id}: {message}")
        elif message.get("error", {}).get("code") == _LOST:
            ledger.told += 1
        elif self._is_right(message):
            ledger.answered += 1
        else:
            ledger.note_wrong(f"{self.kind} {self.id}: {message}")

    def _is_right(self, message: Json) -> bool:
        result, error = message.get("result"), message.get("error")
        match self.kind:
            case "call":
                text = self.token + "." * self.size
                return bool(result == {"content": [{"type": "text", "text": text}]})
            case "denied":
                said = {"code": _NOT_FOUND, "message": f"Tool not found: {self.token}"}
                return bool(error == said)
            case "list":
                names = [tool["name"] for tool in result["tools"]] if result else []
                return names == [ALLOWED] and MARK not in json.dumps(message)
            case _:
                return result is not None


def asking(kind: str, method: str, params: Json, token: str = "", size: int = 0) -> Call:
    id = next(_ids)
    said = {"jsonrpc": "2.0", "id": id, "method": method, "params": params}
    return Call(kind, id, token, json.dumps(said).encode(), size)


def calling(*, how: str = "json", size: int = 100, delay: float = 0.0) -> Call:
    token = f"token-{next(_ids)}-{random.getrandbits(64):x}"
    arguments = {"token": token, "how": how, "size": size, "delay": delay}
    params = {"name": ALLOWED, "arguments": arguments}
    return asking("call", "tools/call", params, token, size)


def calling_denied() -> Call:
    name = random.choice((DENIED, "no_such_tool"))
    return asking("denied", "tools/call", {"name": name, "arguments": {}}, name)


def any_call() -> Call:
    """Return one of the calls that clients make all the time."""
    match random.randrange(10):
        case 0 | 1:
            return calling_denied()
        case 2:
            return asking("list", "tools/list", {})
        case 3:
            return asking("ping", "ping", {})
        case _:
            how, size = random.choice(_HOWS), random.choice((10, 1000, 50_000))
            return calling(how=how, size=size, delay=random.choice((0, 0, 0.01, 0.2)))


def initializing() -> Call:
    info = {"name": "soak", "version": "1"}
    params = {"protocolVersion": REVISION, "capabilities": {}, "clientInfo": info}
    return asking("initialize", "initialize", params)


def messages_in(answer: Answer) -> list[Json]:
    if "event-stream" not in "".join(answer.all("content-type")):
        return [json.loads(answer.body)]
    return [json.loads(data) for name, data in _events_in(answer.body) if name == "message"]


def _events_in(body: bytes) -> list[tuple[str, bytes]]:
    events = []
    for block in body.split(b"\n\n"):
        lines = dict(line.split(b": ", 1) for line in block.split(b"\n") if b": " in line)
        if b"data" in lines:
            events.append((lines.get(b"event", b"message").decode(), lines[b"data"]))
    return events


@dataclass(slots=True)
class Streamable:
    """One session of Streamable HTTP, on one connection and one for its stream."""

    port: int
    ledger: Ledger
    connection: RawClient
    id: str = ""

    @property
    def headers(self) -> bytes:
        own = f"Mcp-Session-Id: {self.id}\r\nMCP-Protocol-Version: {REVISION}\r\n" * bool(self.id)
        return MCP_HEADERS + own.encode()

    def posting(self, body: bytes) -> bytes:
        return post(body, path=self.ledger.path, headers=self.headers)

    async def ask(self, call: Call) -> Answer:
        """Ask and enter what comes of it."""
        self.ledger.made[call.kind] += 1
        try:
            async with asyncio.timeout(PATIENCE):
                answer = await self.connection.ask(self.posting(call.body))
                messages = messages_in(answer)
        except (OSError, EOFError, AssertionError, ValueError) as error:
            self.ledger.note_lost(f"{call.kind} {call.body[:200]!r}: {error!r}")
            raise Broken from error
        if len(messages) == 1:
            call.judge(messages[0], self.ledger)
        else:
            self.ledger.note_wrong(f"{call.kind} {call.id}: {messages}")
        return answer

    async def open(self) -> None:
        answer = await self.ask(initializing())
        self.id = "".join(answer.all("mcp-session-id"))
        said = b'{"jsonrpc":"2.0","method":"notifications/initialized"}'
        await self.connection.ask(self.posting(said))
        self.ledger.sessions += 1

    async def close(self) -> None:
        await self.connection.ask(self.posting(b"").replace(b"POST", b"DELETE", 1))

    async def listen(self) -> None:
        """Read the stream again and again: all is for us, and nothing is missing."""
        while True:
            with suppress(Broken):
                await self._listen_once()
            await asyncio.sleep(0.1)

    async def _listen_once(self) -> None:
        heard, expected = b"", 0
        async with connected(self.port) as connection:
            self.ledger.connections += 1
            await connection.say(get(path=self.ledger.path, headers=self.headers))
            await connection.head()
            while chunk := await connection.chunk():
                *whole, heard = (heard + chunk).split(b"\n\n")
                for _, data in _events_in(b"\n\n".join(whole)):
                    params = json.loads(data).get("params")
                    if params != {"session": self.id, "number": expected}:
                        self.ledger.note_wrong(f"notification {expected} of {self.id}: {data!r}")
                    expected += 1
                    self.ledger.notifications += 1


@asynccontextmanager
async def streamable(port: int, ledger: Ledger) -> AsyncIterator[Streamable]:
    async with connected(port) as connection:
        ledger.connections += 1
        session = Streamable(port, ledger, connection)
        await session.open()
        yield session


@dataclass(slots=True)
class Legacy:
    """One session of HTTP+SSE: its answers come on the stream, in any order."""

    port: int
    ledger: Ledger
    stream: RawClient
    posting: RawClient
    endpoint: str = ""
    waiting: dict[int, tuple[Call, asyncio.Event]] = field(default_factory=dict)
    given_up: set[int] = field(default_factory=set)
    found: asyncio.Event = field(default_factory=asyncio.Event)

    async def read(self) -> None:
        """Give each answer to who waits for it."""
        heard = b""
        with suppress(OSError, EOFError):
            while chunk := await self.stream.chunk():
                *whole, heard = (heard + chunk).split(b"\n\n")
                for name, data in _events_in(b"\n\n".join(whole)):
                    self._take(name, data)

    def _take(self, name: str, data: bytes) -> None:
        if name == "endpoint":
            self.endpoint = data.decode()
            self.found.set()
            return
        message = json.loads(data)
        call, answered = self.waiting.pop(message.get("id"), (None, None))
        if call and answered:
            call.judge(message, self.ledger)
            answered.set()
        elif message.get("id") not in self.given_up:
            self.ledger.note_wrong(f"nobody has asked for it: {message}")

    async def ask(self, call: Call) -> None:
        self.ledger.made[call.kind] += 1
        answered = asyncio.Event()
        self.waiting[call.id] = call, answered
        try:
            async with asyncio.timeout(PATIENCE):
                await self.found.wait()
                await self.posting.ask(post(call.body, path=self.endpoint))
                await answered.wait()
        except (OSError, EOFError, AssertionError) as error:
            if self.waiting.pop(call.id, None):
                self.ledger.note_lost(f"legacy {call.kind} {call.body[:200]!r}: {error!r}")
            raise Broken from error


@asynccontextmanager
async def legacy(port: int, ledger: Ledger) -> AsyncIterator[Legacy]:
    async with connected(port) as stream, connected(port) as posting:
        ledger.connections += 2
        await stream.say(get(path="/sse"))
        await stream.head()
        session = Legacy(port, ledger, stream, posting)
        reading = asyncio.create_task(session.read())
        try:
            await session.ask(initializing())
            ledger.sessions += 1
            yield session
        finally:
            reading.cancel()
            with suppress(asyncio.CancelledError):
                await reading
