"""A client of a merged endpoint, or of one server, that sees all messages as bytes."""

from __future__ import annotations

import http.client
import json
import queue
import re
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread
from typing import Any

from tests.raw_upstream import TIMEOUT
from tests.rooms.serve.test_serve import Serving
from tests.rooms.stdio.served_command import Answer

RICH = [sys.executable, str(Path(__file__).with_name("rich_upstream.py"))]
CAPABILITIES = '{"roots":{"listChanged":true},"sampling":{},"elicitation":{},"tasks":{"list":{}}}'
ANSWERS = {
    "elicitation/create": '{"action":"accept","content":{"a":1.50}}',
    "sampling/createMessage": '{"role":"assistant","content":{"type":"text","text":"x"}}',
    "roots/list": '{"roots":[{"uri":"file:///home"}]}',
}
"""What a client answers to a server."""


def rich(name: str, *more: str) -> str:
    """Return the command of a rich server for a file of servers."""
    return f"command = {json.dumps([*RICH, '--name', name, *more])}\n"


@dataclass
class Talking:
    """One client with a session and an open stream."""

    port: int
    path: str
    session: str = ""
    introduction: Any = None
    revision: str = "2025-11-25"
    heard: list[bytes] = field(default_factory=list)
    """What came on the stream, and with answers."""
    news: queue.Queue[bytes] = field(default_factory=queue.Queue)
    _streams: list[http.client.HTTPConnection] = field(default_factory=list)
    _number: int = 0

    def send(self, method: str, body: bytes = b"", **headers: str) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=TIMEOUT)
        connection.request(method, self.path, body, self.headers(headers))
        response = connection.getresponse()
        fields = {name.lower(): value for name, value in response.getheaders()}
        try:
            return Answer(response.status, fields, response.read())
        finally:
            connection.close()

    def headers(self, more: dict[str, str]) -> dict[str, str]:
        usual = {
            "content-type": "application/json",
            "accept": "application/json, text/event-stream",
        }
        session = {"mcp-session-id": self.session} if self.session else {}
        return usual | session | {name.replace("_", "-"): value for name, value in more.items()}

    def opens(self, capabilities: str = CAPABILITIES) -> Talking:
        info = '"clientInfo":{"name":"test","version":"1"}'
        version = f'"protocolVersion":"{self.revision}"'
        params = f'{{{version},"capabilities":{capabilities},{info}}}'
        answer = self.send("POST", asked("initialize", params, "0"))
        self.session = answer.headers.get("mcp-session-id", "")
        self.introduction = answer.messages()[-1]["result"]
        note = b'{"jsonrpc":"2.0","method":"notifications/initialized"}'
        assert self.send("POST", note).status == 202
        return self

    def listens(self, **headers: str) -> Talking:
        """Open a stream; its messages are answered, and come to ``news``."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=TIMEOUT)
        self._streams.append(connection)
        more = {"accept": "text/event-stream", **headers}
        connection.request("GET", self.path, b"", self.headers(more))
        response = connection.getresponse()
        assert response.status == 200, response.read()
        Thread(target=self._read, args=(response,), daemon=True).start()
        return self

    def _read(self, response: http.client.HTTPResponse) -> None:
        with suppress(OSError, ValueError, AttributeError, http.client.HTTPException):
            for message in events_in(response):
                self.take(message)

    def take(self, raw: bytes) -> None:
        """Take a message that answers no request; answer it if it is one."""
        self.heard.append(raw)
        message = json.loads(raw)
        if "method" in message and "id" in message:
            id = json.dumps(message["id"])
            result = ANSWERS.get(message["method"], "{}")
            self.send("POST", f'{{"jsonrpc":"2.0","id":{id},"result":{result}}}'.encode())
        self.news.put(raw)

    def ask(self, method: str, params: str = "{}", id: str = "") -> bytes:
        """Return the answer to a request."""
        self._number += 1
        id = id or str(self._number)
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=TIMEOUT)
        connection.request("POST", self.path, asked(method, params, id), self.headers({}))
        response = connection.getresponse()
        try:
            if response.getheader("content-type") != "text/event-stream":
                return response.read()
            for message in events_in(response):
                if "method" not in json.loads(message):
                    return message
                self.take(message)
            return b""
        finally:
            connection.close()

    def count_from(self, number: int) -> None:
        """Use this number as the next id but one."""
        self._number = number

    def call(self, tool: str, arguments: str = "{}", more: str = "", id: str = "") -> bytes:
        params = f'{{"name":{json.dumps(tool)},"arguments":{arguments}{more}}}'
        return self.ask("tools/call", params, id)

    def notify(self, method: str, params: str = "{}") -> None:
        raw = f'{{"jsonrpc":"2.0","method":"{method}","params":{params}}}'.encode()
        assert self.send("POST", raw).status == 202

    def hears(self, pattern: str) -> bytes:
        """Wait for a message on the stream."""
        seen: list[bytes] = []
        while True:
            try:
                one = self.news.get(timeout=TIMEOUT)
            except queue.Empty:
                raise AssertionError(f"{pattern} is not among {seen}") from None
            if re.search(pattern.encode(), one):
                return one
            seen.append(one)

    def names(self, kind: str = "tools") -> list[str]:
        key = {"resources": "uri"}.get(kind, "name")
        return [one[key] for one in json.loads(self.ask(f"{kind}/list"))["result"][kind]]

    def close(self) -> None:
        for one in self._streams:
            if one.sock:
                one.sock.shutdown(socket.SHUT_RDWR)
            one.close()


def asked(method: str, params: str = "{}", id: str = "1") -> bytes:
    return f'{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{params}}}'.encode()


def events_in(response: http.client.HTTPResponse) -> Iterator[bytes]:
    for line in response:
        if line.startswith(b"data: ") and line.strip() != b"data:":
            yield line[6:].rstrip(b"\n")


@contextmanager
def talking(running: Serving, path: str = "/mcp", **more: Any) -> Iterator[Talking]:
    client = Talking(running.port, path, **more).opens().listens()
    try:
        yield client
    finally:
        client.close()
