"""Is our launcher, with the filter, faster and smaller than mitmdump without it?

    python tests/bench/launcher.py [rounds]

Each program stands before the same upstream, one after the other, in several rounds; the best of
each counts. Compare within one run only: the ratios hold on every machine.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import statistics
import sys
import tempfile
import time
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ADDON = Path(__file__).resolve().parent.parent.parent / "addon"
PATIENCE = 30.0
REQUESTS = 2000
MCP = (
    "Host: 127.0.0.1\r\nContent-Type: application/json\r\n"
    "Accept: application/json, text/event-stream\r\nMCP-Protocol-Version: 2025-11-25\r\n"
)


@dataclass(frozen=True)
class Measured:
    start: float  # milliseconds until the first client has its answer
    one: float  # requests a second, one after the other
    sixteen: float  # requests a second, 16 clients at once
    idle: float  # megabytes after the first answer
    loaded: float  # megabytes after all of them


def body(method: str, params: object) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode()


CALL = body("tools/call", {"name": "file_read", "arguments": {"path": "a.txt"}})


async def post(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, said: bytes) -> bytes:
    head = f"POST /mcp HTTP/1.1\r\n{MCP}Content-Length: {len(said)}\r\n\r\n"
    writer.write(head.encode() + said)
    answer = await reader.readuntil(b"\r\n\r\n")
    length = re.search(rb"(?i)content-length: *(\d+)", answer)
    assert answer.startswith(b"HTTP/1.1 200"), answer
    assert length, answer
    return await reader.readexactly(int(length[1]))


async def first_answer(port: int) -> None:
    end = time.monotonic() + PATIENCE
    while True:
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            break
        except OSError:
            assert time.monotonic() < end
            await asyncio.sleep(0.002)
    await post(reader, writer, CALL)
    writer.close()


async def client(port: int, requests: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for _ in range(requests):
        await post(reader, writer, CALL)
    writer.close()


async def speed(port: int, clients: int) -> float:
    began = time.perf_counter()
    await asyncio.gather(*(client(port, REQUESTS // clients) for _ in range(clients)))
    return REQUESTS / (time.perf_counter() - began)


def megabytes(process: Process) -> float:
    status = Path(f"/proc/{process.pid}/status").read_text()
    found = re.search(r"VmRSS:\s+(\d+)", status)
    return int(found[1]) / 1024 if found else 0.0


async def measure(command: Sequence[str], port: int) -> Measured:
    began = time.perf_counter()
    process = await asyncio.create_subprocess_exec(
        sys.executable, *command, stdout=DEVNULL, stderr=DEVNULL, env=environment()
    )
    try:
        await first_answer(port)
        start = (time.perf_counter() - began) * 1000
        idle = megabytes(process)
        one, sixteen = await speed(port, 1), await speed(port, 16)
        return Measured(start, one, sixteen, idle, megabytes(process))
    finally:
        process.kill()
        await process.wait()


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ADDON)}


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def programs(upstream: str, home: str) -> dict[str, tuple[list[str], int]]:
    ports = [free_port() for _ in range(3)]
    run = "import sys; from mitmproxy.tools.main import mitmdump; mitmdump()"
    dump = [
        "-c",
        run,
        "--listen-host",
        "127.0.0.1",
        "--set",
        f"confdir={home}",
        "--mode",
        f"reverse:{upstream}",
    ]
    deny = "^file_(?:write|move)$,_database$"
    script = ["-s", str(ADDON / "tool_filter.py"), "--set", f"deny={deny}"]
    ours = ["-m", "mcp_tool_filter", "--upstream", f"{upstream}/mcp", "--deny", deny]
    return {
        "mitmdump": ([*dump, "-p", str(ports[0])], ports[0]),
        "mitmdump -s": ([*dump, "-p", str(ports[1]), *script], ports[1]),
        "mcp-tool-filter": ([*ours, "-p", str(ports[2])], ports[2]),
    }


async def upstream_beside_us() -> tuple[Process, str]:
    run = (
        "import asyncio; from mcp_tool_filter.cli.demo_upstream import demo_upstream\n"
        "async def main():\n"
        "    async with demo_upstream() as it:\n"
        "        print(it.port, flush=True)\n"
        "        await asyncio.sleep(3600)\n"
        "asyncio.run(main())"
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", run, stdout=asyncio.subprocess.PIPE, env=environment()
    )
    assert process.stdout
    return process, f"http://127.0.0.1:{int(await process.stdout.readline())}"


async def main(rounds: int) -> None:
    upstream, url = await upstream_beside_us()
    measured: dict[str, list[Measured]] = {}
    with tempfile.TemporaryDirectory() as home:
        for _ in range(rounds):
            for name, (command, port) in programs(url, home).items():
                measured.setdefault(name, []).append(await measure(command, port))
        upstream.kill()
        await upstream.wait()
    print(f"{'':16} first answer    1 client  16 clients   RSS idle   loaded")
    for name, runs in measured.items():
        print(
            f"{name:16} {min(run.start for run in runs):9.0f} ms"
            f" {max(run.one for run in runs):9.0f}/s {max(run.sixteen for run in runs):9.0f}/s"
            f" {statistics.median(run.idle for run in runs):7.1f} MB"
            f" {statistics.median(run.loaded for run in runs):5.1f} MB"
        )


asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 3))
