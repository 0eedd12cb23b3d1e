"""A client that starts ``mcp-tool-filter`` (or a command itself) and talks to it over stdio.

with relay(*UPSTREAM, deny="^delete_", home=tmp_path) as client:
    client.say(asking("tools/list"))
    assert client.hears() == {...}
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from tests.cli.launched import surroundings
from tests.make import asking
from tests.raw_upstream import TIMEOUT

UPSTREAM = str(Path(__file__).parent / "stdio_upstream.py")


class StdioClient:
    """Says lines and hears lines."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self.raw: list[bytes] = []
        """All lines that it heard."""
        self._lines: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._stderr: list[bytes] = []
        assert process.stdout
        assert process.stderr
        self._readers = [
            threading.Thread(target=self._read_stdout, args=(process.stdout,), daemon=True),
            threading.Thread(target=self._read_stderr, args=(process.stderr,), daemon=True),
        ]
        for reader in self._readers:
            reader.start()

    def say(self, *lines: bytes) -> None:
        self.say_bytes(b"".join(line + b"\n" for line in lines))

    def say_bytes(self, data: bytes) -> None:
        assert self.process.stdin
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def hears_line(self) -> bytes:
        """Wait for the next line; b"" at the end."""
        try:
            line = self._lines.get(timeout=TIMEOUT)
        except queue.Empty:
            raise AssertionError(f"nothing is heard\n{self.stderr()}") from None
        return line or b""

    def hears(self) -> Any:
        """Wait for the next line and read it."""
        line = self.hears_line()
        assert line, f"the end\n{self.stderr()}"
        return json.loads(line)

    def asks(self, method: str, *, id: str = "1", params: str = "{}") -> Any:
        self.say(asking(method, id=id, params=params))
        return self.hears()

    def calls(self, tool: str, /, *, id: str = "1", **arguments: object) -> Any:
        params = json.dumps({"name": tool, "arguments": arguments})
        return self.asks("tools/call", id=id, params=params)

    def opens(self) -> Any:
        """Shake hands."""
        params = '{"protocolVersion":"2025-11-25","capabilities":{}}'
        answer = self.asks("initialize", id='"open"', params=params)
        self.say(b'{"jsonrpc":"2.0","method":"notifications/initialized"}')
        return answer

    def leaves(self) -> int:
        """Close stdin; return the exit code."""
        assert self.process.stdin
        with suppress(OSError):
            self.process.stdin.close()
        return self.ends()

    def ends(self) -> int:
        """Wait for the end; return the exit code."""
        code = self.process.wait(timeout=TIMEOUT)
        for reader in self._readers:
            reader.join(timeout=TIMEOUT)
        return code

    def close(self) -> None:
        """Close what it read from, once that has ended."""
        for reader in self._readers:
            reader.join(timeout=TIMEOUT)
        assert self.process.stdout
        assert self.process.stderr
        self.process.stdout.close()
        self.process.stderr.close()

    def rest(self) -> list[bytes]:
        """Return all lines that come up to the end."""
        return list(iter(self.hears_line, b""))

    def stderr(self) -> str:
        return b"".join(self._stderr).decode()

    def said_on_stderr(self, text: str) -> str:
        """Wait until this is on stderr."""
        end = time.monotonic() + TIMEOUT
        while text not in self.stderr():
            assert time.monotonic() < end, self.stderr()
            time.sleep(0.01)
        return self.stderr()

    def _read_stdout(self, stream: IO[bytes]) -> None:
        for line in stream:
            self.raw.append(line)
            self._lines.put(line)
        self._lines.put(None)

    def _read_stderr(self, stream: IO[bytes]) -> None:
        for line in stream:
            self._stderr.append(line)


@contextmanager
def started(
    *words: str, home: Path, environment: dict[str, str] | None = None
) -> Iterator[StdioClient]:
    """Start a command of any kind; kill it at the end of the block if it still runs."""
    process = subprocess.Popen(
        words,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=surroundings(home, environment),
    )
    client = StdioClient(process)
    try:
        yield client
    finally:
        if process.poll() is None:
            process.kill()
        with suppress(OSError):
            assert process.stdin
            process.stdin.close()
        client.ends()
        client.close()


@contextmanager
def filtered(
    *words: str, home: Path, environment: dict[str, str] | None = None
) -> Iterator[StdioClient]:
    """Start ``mcp-tool-filter`` with these words."""
    command = (sys.executable, "-m", "mcp_tool_filter", *words)
    with started(*command, home=home, environment=environment) as client:
        yield client


def upstream(*flags: str, journal: Path | None = None) -> list[str]:
    """Return the words that start the upstream of ``tests/stdio_upstream.py``."""
    more = ["--journal", str(journal)] if journal else []
    return [sys.executable, UPSTREAM, *more, *flags]


def is_alive(pid: int) -> bool:
    """Tell whether a process runs; a zombie does not."""
    with suppress(OSError):
        os.kill(pid, 0)
        state = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0]
        return state not in (b"Z", b"X")
    return False
