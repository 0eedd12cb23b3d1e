"""What a call and a list cost through ``/mcp``: python -m tests.bench.merged

Ten servers with 100 tools each; CPU time of the filter. All figures are of one run: compare them
with each other.
"""

from __future__ import annotations

import asyncio
import json
import re
import socket
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from subprocess import Popen
from typing import Any

from tests.raw_upstream import free_port
from tests.rooms.serve.test_serve import serving
from tests.waiting import eventually

_SERVERS, _TOOLS, _CALLS, _ROUNDS = 10, 100, 1000, 5


class Client:
    """One connection with a session."""

    def __init__(self, port: int, path: str, *, opens: bool = True) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._path, self._session = path, ""
        if not opens:
            return
        info = {"name": "bench", "version": "1"}
        opening = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": info}
        head, _ = self.send(self.request("initialize", opening))
        self._session = re.findall(rb"(?i)mcp-session-id: (\S+)", head)[0].decode()

    def request(self, method: str, params: Any) -> bytes:
        body = json.dumps({"jsonrpc": "2.0", "id": 7, "method": method, "params": params})
        session = f"mcp-session-id: {self._session}\r\n" if self._session else ""
        head = (
            f"POST {self._path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
            f"accept: application/json, text/event-stream\r\n{session}"
            f"content-length: {len(body)}\r\n\r\n"
        )
        return (head + body).encode()

    def send(self, raw: bytes) -> tuple[bytes, bytes]:
        self._socket.sendall(raw)
        said = b""
        while b"\r\n\r\n" not in said:
            said += self._socket.recv(262_144)
        head, _, body = said.partition(b"\r\n\r\n")
        length = int(re.findall(rb"(?i)content-length: (\d+)", head)[0])
        parts, size = [body], len(body)
        while size < length:
            parts.append(self._socket.recv(1 << 20))
            size += len(parts[-1])
        return head, b"".join(parts)


def cost(pid: int, act: Callable[[], object], times: int) -> float:
    """Return the microseconds of CPU time that each act takes in the filter."""
    before = cpu_seconds(pid)
    for _ in range(times):
        act()
    return (cpu_seconds(pid) - before) / times * 1e6


def cpu_seconds(pid: int) -> float:
    """Return the time that all threads of a process have run; much finer than clock ticks."""
    threads = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(one.read_text().split()[0]) for one in threads) / 1e9


def accepts(port: int) -> bool:
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) == 0


def memory(pid: int) -> int:
    """Return the resident memory of a process in KB."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.findall(r"VmRSS:\s+(\d+)", status)[0])


def main() -> None:
    ports = [free_port() for _ in range(_SERVERS)]
    words = [sys.executable, "-m", "tests.bench.merged"]
    servers = [Popen([*words, str(port)]) for port in ports]
    text = "".join(
        f'[servers.s{number}]\nurl = "http://127.0.0.1:{port}/mcp"\n'
        for number, port in enumerate(ports)
    )
    try:
        assert all(eventually(partial(accepts, port)) for port in ports)
        with tempfile.TemporaryDirectory() as folder, serving(Path(folder), text) as it:
            it.says(f"merged: .*{_SERVERS * _TOOLS} tools")
            measure(it.port, it.process.pid)
    finally:
        for one in servers:
            one.kill()


def measure(port: int, pid: int) -> None:
    direct, merged = Client(port, "/s3/mcp"), Client(port, "/mcp")
    own = direct.request("tools/call", {"name": "tool_5", "arguments": {"a": "b"}})
    exposed = merged.request("tools/call", {"name": "s3_tool_5", "arguments": {"a": "b"}})
    assert direct.send(own)[1] == merged.send(exposed)[1]
    one = min(cost(pid, lambda: direct.send(own), _CALLS) for _ in range(_ROUNDS))
    all_of_them = min(cost(pid, lambda: merged.send(exposed), _CALLS) for _ in range(_ROUNDS))
    print(f"a call: /NAME/mcp {one:.0f} us, /mcp {all_of_them:.0f} us: {all_of_them / one:.2f}")
    listing = merged.request("tools/list", {})
    size = len(merged.send(listing)[1])
    took = min(cost(pid, lambda: merged.send(listing), 200) for _ in range(_ROUNDS))
    copying = copied(size)
    times = f"{took / copying:.2f} times what sending these bytes takes: {copying:.0f} us"
    print(f"a list of {size} bytes: {took:.0f} us, {times}")
    before, clients = memory(pid), []
    for _ in range(200):
        client = Client(port, "/mcp")
        client.send(client.request("tools/list", {}))
        client.send(client.request("tools/call", {"name": "s3_tool_5", "arguments": {}}))
        clients.append(client)
    print(f"a session that has listed and called: {(memory(pid) - before) / len(clients):.1f} KB")


def copied(size: int) -> float:
    """Return what it takes a program to send so many bytes again and again, and nothing else."""
    port = free_port()
    with Popen([sys.executable, "-m", "tests.bench.merged", str(port), str(size)]) as process:
        assert eventually(partial(accepts, port))
        client = Client(port, "/", opens=False)
        asked = client.request("tools/list", {})
        took = min(cost(process.pid, lambda: client.send(asked), 200) for _ in range(_ROUNDS))
        process.kill()
    return took


async def send_only(port: int, size: int) -> None:
    """Answer each request with so many bytes."""
    said = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % size
    body = bytes(size)

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while head := await reader.readuntil(b"\r\n\r\n"):
                await reader.readexactly(int(re.findall(rb"(?i)content-length: (\d+)", head)[0]))
                writer.write(said + body)
        writer.close()

    async with await asyncio.start_server(take, "127.0.0.1", port) as server:
        await server.serve_forever()


async def serve(port: int) -> None:
    """Be one of the servers."""

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            await answer_all(reader, writer)
        writer.close()

    async def answer_all(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := await reader.readuntil(b"\r\n\r\n"):
            length = re.findall(rb"(?i)content-length: (\d+)", head)
            body = await reader.readexactly(int(length[0])) if length else b""
            message = json.loads(body) if body else {}
            result = answer_to(message)
            said = json.dumps({"jsonrpc": "2.0", "id": message.get("id"), **result}).encode()
            status = b"200 OK" if "id" in message else b"202 Accepted" if body else b"405 No"
            if "id" not in message:
                said = b""
            writer.write(
                b"HTTP/1.1 %b\r\ncontent-type: application/json\r\nmcp-session-id: a\r\n"
                b"content-length: %d\r\n\r\n%b" % (status, len(said), said)
            )

    async with await asyncio.start_server(take, "127.0.0.1", port) as server:
        await server.serve_forever()


def answer_to(message: Any) -> dict[str, Any]:
    match message.get("method"):
        case "initialize":
            revision = message["params"]["protocolVersion"]
            info = {"name": "bench", "version": "1"}
            said = {"protocolVersion": revision, "capabilities": {"tools": {}}, "serverInfo": info}
            return {"result": said}
        case "tools/list":
            schema = {"type": "object", "properties": {"a": {"type": "string"}}}
            tools = [
                {"name": f"tool_{number}", "description": "x" * 400, "inputSchema": schema}
                for number in range(_TOOLS)
            ]
            return {"result": {"tools": tools}}
        case "tools/call":
            return {"result": {"content": [{"type": "text", "text": "hello"}]}}
    return {"error": {"code": -32601, "message": "Method not found"}}


if __name__ == "__main__":
    match sys.argv[1:]:
        case [port, size]:
            asyncio.run(send_only(int(port), int(size)))
        case [port]:
            asyncio.run(serve(int(port)))
        case _:
            main()
