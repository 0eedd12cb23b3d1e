"""A side that stops reading slows the other one, and our memory does not grow."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from tests.cli.commands.relaying import DENY
from tests.cli.launched import surroundings
from tests.make import asking, calling
from tests.raw_upstream import TIMEOUT
from tests.stdio_client import StdioClient, filtered, upstream


def resident(pid: int) -> int:
    """Return how many bytes a process holds in memory."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def test_a_client_that_stops_reading_slows_the_command(tmp_path: Path) -> None:
    read, write = os.pipe()
    command = [sys.executable, "-m", "mcp_tool_filter", "--", *upstream()]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=write, env=surroundings(tmp_path)
    ) as process:
        os.close(write)
        assert process.stdin
        process.stdin.write(asking("ping") + b"\n")
        process.stdin.flush()
        os.read(read, 1000)
        before = resident(process.pid)
        process.stdin.write(calling("flood", arguments='{"messages":40000}') + b"\n")
        process.stdin.flush()
        time.sleep(1.0)
        assert resident(process.pid) - before < 8_000_000
        last, count = b"", 0
        while count < 40_001 and (chunk := os.read(read, 1 << 20)):
            count += chunk.count(b"\n")
            last = (last + chunk)[-1000:]
        process.stdin.close()  # not before: the command would have 5 s for the rest
        assert b'"flood"' in last
        assert process.wait(timeout=TIMEOUT) == 0
    os.close(read)


def test_a_command_that_never_reads_slows_the_client(tmp_path: Path) -> None:
    with filtered(*DENY, "--", *upstream("--deaf"), home=tmp_path) as client:
        client.say(calling("delete_file"))
        assert "error" in client.hears()  # the filter answers: it has started
        before = resident(client.process.pid)
        written = [0]
        thread = threading.Thread(target=write_much, args=(client, written), daemon=True)
        thread.start()
        time.sleep(0.7)
        assert written[0] < 2_000_000
        assert resident(client.process.pid) - before < 8_000_000
        client.process.terminate()
        assert client.ends() == 128 + signal.SIGTERM
        thread.join()


def write_much(client: StdioClient, written: list[int]) -> None:
    line = calling("read_file", arguments=json.dumps({"x": "y" * 10_000}))
    try:
        for _ in range(5_000):
            client.say(line)
            written[0] += len(line)
    except OSError:
        pass


def test_nothing_deadlocks_when_both_sides_write_much(tmp_path: Path) -> None:
    with filtered(*DENY, "--", *upstream(), home=tmp_path) as client:
        count = 3000
        for number in range(count):
            name = "delete_file" if number % 3 == 0 else "read_file"
            arguments = json.dumps({"x": "y" * 1000})
            client.say(calling(name, id=str(number), arguments=arguments))
        answers = [client.hears() for _ in range(count)]
        assert client.leaves() == 0
        assert sorted(answer["id"] for answer in answers) == list(range(count))
        assert sum("error" in answer for answer in answers) == count // 3
        in_order = [answer["id"] for answer in answers if "result" in answer]
        assert in_order == sorted(in_order)
