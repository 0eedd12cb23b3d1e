"""Clients that ask, wait for the answer, and ask again: as quick as Python can on bare sockets.

They live in this process alone, so that a slow one disturbs nobody. One answer is on the way for
each connection, so whatever arrives belongs to it; that it is what was asked for is looked at.
"""

from __future__ import annotations

import json
import re
import select
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

REVISION = "2025-11-25"
PATIENCE = 60.0
_READ = 1 << 20
_HEAD = (
    "{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    "Accept: application/json, text/event-stream\r\n{more}Content-Length: {length}\r\n\r\n"
)
_LENGTH = re.compile(rb"(?i)\r\ncontent-length: *(\d+)")
_SESSION = re.compile(rb"(?i)\r\nmcp-session-id: *(\S+)")
_HELLO = {
    "protocolVersion": REVISION,
    "capabilities": {},
    "clientInfo": {"name": "bench", "version": "1"},
}


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked, and a text that must be in the answer, or one of several."""

    method: str
    params: object
    expects: bytes | tuple[bytes, ...]
    at_least: int = 0
    """Bytes that the answer has."""

    def body(self) -> bytes:
        said = {"jsonrpc": "2.0", "id": 1, "method": self.method, "params": self.params}
        return json.dumps(said).encode()


@dataclass(frozen=True, slots=True)
class Slice:
    """What came of asking for a while."""

    rate: float
    """Answers a second."""
    latencies: tuple[float, ...]
    """Seconds, the shortest first."""

    def quantile(self, part: float) -> float:
        return self.latencies[min(len(self.latencies) - 1, int(part * len(self.latencies)))]


@dataclass(slots=True)
class Client:
    """One connection, with a session of its own."""

    sock: socket.socket
    session: str = ""
    heard: bytearray = field(default_factory=bytearray)
    needed: int = 0
    asked_at: float = 0.0

    def ask(self, request: bytes) -> None:
        self.asked_at = time.perf_counter()
        self.sock.sendall(request)

    def hears_all(self) -> bool:
        """Take in what has come; tell whether the answer is complete."""
        data = self.sock.recv(_READ)
        if not data:
            raise ConnectionError("the connection was closed")
        self.heard += data
        if self.needed == 0 and (end := self.heard.find(b"\r\n\r\n")) >= 0:
            length = _LENGTH.search(self.heard, 0, end)
            self.needed = end + 4 + int(length[1]) if length else -1
        if self.needed > 0:
            return len(self.heard) >= self.needed
        return self.needed < 0 and self.heard.endswith(b"0\r\n\r\n")

    def take(self) -> bytearray:
        heard, self.heard, self.needed = self.heard, bytearray(), 0
        return heard

    def answer(self, request: bytes) -> bytearray:
        """Ask, and wait for it."""
        self.ask(request)
        while not self.hears_all():
            pass
        return self.take()

    def request(self, body: bytes, method: str = "POST", path: str = "/mcp") -> bytes:
        own = f"Mcp-Session-Id: {self.session}\r\n" if self.session else ""
        more = f"{own}MCP-Protocol-Version: {REVISION}\r\n" if self.session else ""
        head = _HEAD.format(method=method, path=path, more=more, length=len(body))
        return head.encode() + body


def connect(port: int) -> Client:
    """Open a connection and a session. Raises OSError."""
    client = Client(socket.create_connection(("127.0.0.1", port), timeout=PATIENCE))
    client.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    renew_session(client)
    return client


def renew_session(client: Client) -> None:
    client.session = ""
    hello = Question("initialize", _HELLO, b"serverInfo")
    answer = client.answer(client.request(hello.body()))
    check(answer, hello)
    session = _SESSION.search(answer)
    client.session = session[1].decode() if session else ""
    client.answer(client.request(b'{"jsonrpc":"2.0","method":"notifications/initialized"}'))


@contextmanager
def connected(port: int, number: int) -> Iterator[list[Client]]:
    clients = []
    try:
        for _ in range(number):
            clients.append(connect(port))  # noqa: PERF401 - those before one that fails are closed
        yield clients
        for client in clients:
            client.answer(client.request(b"", "DELETE"))
    finally:
        for client in clients:
            client.sock.close()


def check(answer: bytes | bytearray, question: Question) -> None:
    expected = question.expects if isinstance(question.expects, tuple) else (question.expects,)
    if not any(one in answer for one in expected) or len(answer) < question.at_least:
        raise AssertionError(f"{question.method}: {bytes(answer[:500])!r}")


def drive(clients: Sequence[Client], question: Question, seconds: float, least: int = 3) -> Slice:
    """Let all of them ask for so long, and at least so many times altogether."""
    requests = {one.sock.fileno(): (one, one.request(question.body())) for one in clients}
    for client, request in requests.values():  # warms up, and is looked at more closely
        check(client.answer(request), question)
    latencies: list[float] = []
    with select.epoll() as poll:
        for number in requests:
            poll.register(number, select.EPOLLIN)
        began = time.perf_counter()
        end = began + seconds
        for client, request in requests.values():
            client.ask(request)
        waiting = len(requests)
        while waiting:
            ready = poll.poll(PATIENCE)
            if not ready:
                raise TimeoutError(question.method)
            for number, _ in ready:
                client, request = requests[number]
                if not client.hears_all():
                    continue
                now = time.perf_counter()
                latencies.append(now - client.asked_at)
                check(client.take(), question)
                if now < end or len(latencies) < least:
                    client.ask(request)
                else:
                    waiting -= 1
    return Slice(len(latencies) / (now - began), tuple(sorted(latencies)))
