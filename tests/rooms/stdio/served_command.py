"""A filter that serves a command over HTTP, and one client of it."""

from __future__ import annotations

import http.client
import json
import re
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.make import asking, calling
from tests.raw_upstream import TIMEOUT
from tests.stdio_client import StdioClient, filtered, is_alive, upstream
from tests.waiting import eventually

DENY = ("--deny", "^delete_")

TOOLS = ("--tools", "read_file,delete_file,crash,sleep,ask,noise,say,flood,big,env")

INITIALIZE = asking("initialize", params='{"protocolVersion":"2025-11-25","capabilities":{}}')

READY = b'{"jsonrpc":"2.0","method":"notifications/initialized"}'

META = (
    '"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28",'
    '"io.modelcontextprotocol/clientCapabilities":{}%s}'
)


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)

    def events(self) -> list[Any]:
        return [json.loads(data) for data in re.findall(rb"^data: (.*)$", self.body, re.M)]

    def messages(self) -> list[Any]:
        is_stream = self.headers["content-type"] == "text/event-stream"
        return self.events() if is_stream else [self.json()]


@dataclass
class Served:
    """A filter that serves a command, and one client of it."""

    port: int
    process: StdioClient
    session: str | None = None
    more: dict[str, str] = field(default_factory=dict)
    path: str = "/mcp"

    def send(self, method: str, path: str = "", body: bytes = b"", **headers: str) -> Answer:
        with self.asking(method, path or self.path, body, **headers) as response:
            fields = {name.lower(): value for name, value in response.getheaders()}
            return Answer(response.status, fields, response.read())

    @contextmanager
    def asking(
        self, method: str, path: str, body: bytes = b"", **headers: str
    ) -> Iterator[http.client.HTTPResponse]:
        """Ask; yields the answer as soon as its head is there."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=TIMEOUT)
        with closing(connection):
            connection.request(method, path, body, self.headers(headers))
            response = connection.getresponse()
            try:
                yield response
            finally:
                if connection.sock:  # a stream goes on
                    connection.sock.shutdown(socket.SHUT_RDWR)
                response.close()

    def post(self, message: bytes, **headers: str) -> Answer:
        return self.send("POST", body=message, **headers)

    def opens(self) -> Any:
        answer = self.post(INITIALIZE)
        self.session = answer.headers.get("mcp-session-id")
        assert self.post(READY).status == 202, answer
        return answer.messages()[-1]  # events if the command has started slowly

    def calls(self, tool: str, /, *, id: str = "1", **arguments: object) -> Any:
        return self.post(calling(tool, id=id, arguments=json.dumps(arguments))).messages()[-1]

    def tools(self) -> list[str]:
        listed = self.post(asking("tools/list", id="2")).messages()[-1]
        return [tool["name"] for tool in listed["result"]["tools"]]

    @contextmanager
    def stream(self, path: str = "/mcp") -> Iterator[Iterator[str]]:
        """Open a stream; yields its data lines."""
        with self.asking("GET", path, accept="text/event-stream") as response:
            assert response.status == 200
            yield data_in(response)

    def another(self) -> Served:
        return Served(self.port, self.process)

    def children(self) -> list[int]:
        """The processes that the filter runs."""
        found: list[str] = []
        for task in Path(f"/proc/{self.process.process.pid}/task").iterdir():
            with suppress(OSError):  # a thread that has ended meanwhile
                found += (task / "children").read_text().split()
        return [pid for pid in map(int, found) if is_alive(pid)]

    def has_children(self, count: int) -> bool:
        """Wait until there are so many."""
        return eventually(lambda: len(self.children()) == count)

    def headers(self, given: dict[str, str]) -> dict[str, str]:
        usual = {
            "content-type": "application/json",
            "accept": "application/json, text/event-stream",
        }
        session = {"mcp-session-id": self.session} if self.session else {}
        named = {name.replace("_", "-"): value for name, value in given.items()}
        return usual | session | self.more | named


def data_in(response: http.client.HTTPResponse) -> Iterator[str]:
    lines = iter(response.readline, b"")
    return (line[6:-1].decode() for line in lines if line.startswith(b"data: "))


def served_by(process: StdioClient) -> Served:
    """Wait until it serves."""
    said = process.said_on_stderr("Saved:")
    found = re.search(r"http://127.0.0.1:(\d+)/mcp -> ", said)
    assert found, said
    return Served(int(found[1]), process)


@contextmanager
def served(home: Path, *flags: str, words: tuple[str, ...] = ()) -> Iterator[Served]:
    command = upstream(*TOOLS, *flags)
    with filtered(*DENY, "--port", "0", *words, "--", *command, home=home) as process:
        yield served_by(process)
