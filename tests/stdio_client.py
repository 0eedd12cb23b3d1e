"""A client that starts ``mcp-tool-filter`` (or a command itself) and talks to it over stdio.

with relay(*UPSTREAM, deny="^delete_", home=tmp_path) as client:
    client.say(asking("tools/list"))
    assert client.hears() == {...}
"""

from __future__ import annotations

import json
import os
import queue
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

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
        self._lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._stderr: list[bytes] = []
        self._readers = [
            threading.Thread(target=read, daemon=True)
            for read in (self._read_stdout, self._read_stderr)
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
            return self._lines.get(timeout=TIMEOUT)
        except queue.Empty:
            raise AssertionError(f"nothing is heard\n{self.stderr()}") from None

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
        self.ends_input()
        return self.ends()

    def ends_input(self) -> None:
        assert self.process.stdin
        with suppress(OSError):
            self.process.stdin.close()

    def ends(self) -> int:
        """Wait for the end; return the exit code."""
        code = self.process.wait(timeout=TIMEOUT)
        for reader in self._readers:
            reader.join(timeout=TIMEOUT)
        return code

    def rest(self) -> list[bytes]:
        """Return all lines that come up to the end."""
        return list(iter(self.hears_line, b""))

    def stderr(self) -> str:
        return b"".join(self._stderr).decode()

    def said_on_stderr(self, text: str) -> str:
        """Wait until this is on stderr."""
        return self.says(re.escape(text)).string

    def says(self, pattern: str) -> re.Match[str]:
        """Wait until there is a match on stderr; fail if it ends before."""
        end = time.monotonic() + TIMEOUT
        while True:
            is_over = time.monotonic() > end or not self._readers[1].is_alive()
            if found := re.search(pattern, self.stderr()):
                return found
            assert not is_over, self.stderr()
            time.sleep(0.01)

    def _read_stdout(self) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            self.raw.append(line)
            self._lines.put(line)
        self._lines.put(b"")

    def _read_stderr(self) -> None:
        assert self.process.stderr
        for line in self.process.stderr:
            self._stderr.append(line)


@contextmanager
def started(
    *words: str, home: Path, environment: dict[str, str] | None = None, cwd: Path | None = None
) -> Iterator[StdioClient]:
    """Start a command of any kind; kill it at the end of the block if it still runs."""
    with subprocess.Popen(
        words, cwd=cwd, env=surroundings(home, environment),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        client = StdioClient(process)
        try:
            yield client
        finally:
            if process.poll() is None:
                process.kill()
            client.leaves()


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


def write_tools(file: Path, *definitions: str, **more: str) -> list[str]:
    """Write what the upstream lists from now on, and says besides; return the words that start it.

    ``more`` are its ``version`` and its ``instructions``.
    """
    said = [f'"{key}": {json.dumps(value)}' for key, value in more.items()]
    file.write_text("{" + ", ".join([*said, f'"tools": [{", ".join(definitions)}]']) + "}")
    return upstream("--file", str(file))


def is_alive(pid: int) -> bool:
    """Tell whether a process runs; a zombie does not."""
    with suppress(OSError):
        os.kill(pid, 0)
        state = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0]
        return state not in (b"Z", b"X")
    return False
