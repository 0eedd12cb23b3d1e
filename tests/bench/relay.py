"""What does the relay cost in front of a command? Direct pipe, plain relay and ours, in one run.

    python -m tests.bench.relay [--short]

The plain relay is what anybody would write: it splits lines and copies them, and judges nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

HERE = Path(__file__).resolve()
ECHO = [sys.executable, str(HERE), "echo"]
PLAIN = [sys.executable, str(HERE), "plain", *ECHO]
OURS = [sys.executable, "-m", "mcp_tool_filter", "-q", "--deny", "^delete_", "--", *ECHO]
WAYS = {"direct": ECHO, "plain relay": PLAIN, "mcp-tool-filter": OURS}
TOOLS = [
    {"name": name, "description": "x" * 100, "inputSchema": {"type": "object"}}
    for name in ("read_file", "write_file", "delete_file", *(f"tool_{n}" for n in range(17)))
]


def call(number: int) -> bytes:
    return (
        b'{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"read_file",'
        b'"arguments":{"path":"/notes/2026/one.md","limit":10}}}\n' % number
    )


@dataclass
class Figures:
    start: float
    """Seconds from exec to the answer to initialize."""
    p50: float
    """Seconds of one call, one after the other."""
    rate: float
    """Calls a second, 64 in flight."""
    memory: int
    """Bytes of the process that was started, after all calls."""
    growth: int
    """Bytes that it grew by over the second half of them."""


def measure(command: Sequence[str], *, calls: int) -> Figures:
    begun = time.perf_counter()
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
    assert process.stdin
    assert process.stdout
    ask, hear = process.stdin.fileno(), process.stdout.fileno()
    os.write(ask, b'{"jsonrpc":"2.0","id":"i","method":"initialize","params":{}}\n')
    read_lines(hear, 1)
    start = time.perf_counter() - begun
    os.write(ask, b'{"jsonrpc":"2.0","id":"t","method":"tools/list"}\n')
    read_lines(hear, 1)
    time.sleep(0.3)
    p50 = median(one_call(ask, hear, number) for number in range(calls // 20))
    run_calls(ask, hear, calls)
    before = resident(process.pid)
    rate = run_calls(ask, hear, calls)
    after = resident(process.pid)
    process.stdin.close()
    process.wait()
    process.stdout.close()
    return Figures(start, p50, rate, after, after - before)


def one_call(ask: int, hear: int, number: int) -> float:
    begun = time.perf_counter()
    os.write(ask, call(number))
    read_lines(hear, 1)
    return time.perf_counter() - begun


def run_calls(ask: int, hear: int, calls: int) -> float:
    """Keep 64 calls in flight; return how many a second were answered."""
    room = threading.Semaphore(0)

    def speak() -> None:
        sent = 0
        while sent < calls:
            room.acquire()
            count = 1
            while count < 32 and room.acquire(blocking=False):
                count += 1
            count = min(count, calls - sent)
            os.write(ask, b"".join(call(number) for number in range(sent, sent + count)))
            sent += count

    speaker = threading.Thread(target=speak)
    begun = time.perf_counter()
    speaker.start()
    room.release(64)
    heard = 0
    while heard < calls:
        count = os.read(hear, 1 << 16).count(b"\n")
        heard += count
        room.release(count) if count else None
    seconds = time.perf_counter() - begun
    room.release(calls)
    speaker.join()
    return calls / seconds


def read_lines(hear: int, count: int) -> None:
    while count > 0:
        count -= os.read(hear, 1 << 16).count(b"\n")


def resident(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--short", action="store_true")
    short = parser.parse_args().short
    rounds, calls = (1, 5_000) if short else (5, 50_000)
    found: dict[str, list[Figures]] = {name: [] for name in WAYS}
    for _ in range(rounds):
        for name, command in WAYS.items():
            found[name].append(measure(command, calls=calls))
    head = ("", "start ms", "p50 ms", "calls/s", "RSS MB", "growth MB")
    print("{:16}{:>10}{:>10}{:>10}{:>10}{:>11}".format(*head))
    for name, figures in found.items():
        print(
            f"{name:16}{best(figures, lambda one: one.start) * 1e3:10.1f}"
            f"{best(figures, lambda one: one.p50) * 1e3:10.3f}"
            f"{-best(figures, lambda one: -one.rate):10,.0f}"
            f"{best(figures, lambda one: one.memory) / 1e6:10.1f}"
            f"{best(figures, lambda one: one.growth) / 1e6:11.2f}"
        )


def best(figures: list[Figures], of: Callable[[Figures], float]) -> float:
    """Return the least: the machine has other work to do as well."""
    return min(map(of, figures))


def echo() -> None:
    """A quick upstream: reads what has come, answers all of it at once."""
    import re

    ids = re.compile(rb'"id":([^,]+),"method":"tools/call"').findall
    answer = b'{"jsonrpc":"2.0","id":%b,"result":{"content":[{"type":"text","text":"%b"}]}}\n'
    text = b"ok " * 40
    rest = b""
    while chunk := os.read(0, 1 << 16):
        chunk = rest + chunk
        whole, newline, rest = chunk.rpartition(b"\n")
        if b'"tools/call"' in whole:
            os.write(1, b"".join([answer % (id, text) for id in ids(whole)]))
        elif b'"tools/list"' in whole:
            result = json.dumps({"jsonrpc": "2.0", "id": "t", "result": {"tools": TOOLS}})
            os.write(1, result.encode() + b"\n")
        elif newline:
            os.write(1, b'{"jsonrpc":"2.0","id":"i","result":{"protocolVersion":"2025-11-25"}}\n')


def plain(command: Sequence[str]) -> None:
    """A relay that judges nothing: two threads that copy lines."""
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin
    assert process.stdout
    child_in, child_out = process.stdin, process.stdout

    def down() -> None:
        for line in child_out:
            sys.stdout.buffer.write(line)
            sys.stdout.buffer.flush()

    thread = threading.Thread(target=down)
    thread.start()
    for line in sys.stdin.buffer:
        child_in.write(line)
        child_in.flush()
    child_in.close()
    thread.join()
    process.wait()


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["echo"]:
            echo()
        case ["plain", *command]:
            plain(command)
        case _:
            main()
