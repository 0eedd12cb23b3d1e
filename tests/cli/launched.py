"""``mcp-tool-filter`` in a process of its own, as a person starts it.

async with launched("--upstream", upstream.url, home=tmp_path) as it:
    await it.serving()
    ...  # it.port, it.stderr, it.interrupt()
"""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from tests.proxy import REPOSITORY, RunningTool

ADDON = REPOSITORY / "addon"


class Said(NamedTuple):
    """What a command has printed."""

    out: str
    err: str


type Typed = Callable[..., Said]
"""How a test runs a command in its own process: see the fixture ``typed``."""


@dataclass
class RunningLauncher(RunningTool):
    def read(self) -> None:
        """Begin to take in what it says."""
        assert self.process.stdout
        assert self.process.stderr
        self._readers += [
            asyncio.create_task(self._read(self.process.stdout, self._stdout)),
            asyncio.create_task(self._read(self.process.stderr, self._stderr)),
        ]

    async def end(self) -> None:
        """End it if it has not ended by itself."""
        if self.process.returncode is None:
            self.process.kill()
        await asyncio.wait(self._readers)
        await self.process.wait()

    async def serving(self) -> int:
        """Wait until it serves; the port."""
        found = await self.says(r"MCP tool filter: http://\S*:(\d+)\S* -> (?s:.*)Saved: ")
        self.port = int(found[1])
        return self.port


@asynccontextmanager
async def launched(
    *arguments: str, home: Path, environment: dict[str, str] | None = None
) -> AsyncIterator[RunningLauncher]:
    """Start it; on a free port unless the arguments name one."""
    own = [] if {"-p", "--port"} & set(arguments) else ["--port", "0"]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "mcp_tool_filter", *arguments, *own, stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        env=surroundings(home, environment),
    )  # fmt: skip
    running = RunningLauncher(process)
    running.read()
    try:
        yield running
    finally:
        await running.end()


async def ended(
    *arguments: str, home: Path, environment: dict[str, str] | None = None
) -> tuple[int, str, str]:
    """Run it to its end; return the exit status, stdout and stderr."""
    async with launched(*arguments, home=home, environment=environment) as it:
        return await it.exit_code(), it.stdout, it.stderr


def run(
    *arguments: str,
    home: Path,
    environment: dict[str, str] | None = None,
    python: str = sys.executable,
) -> subprocess.CompletedProcess[str]:
    """Run a command that ends by itself."""
    return subprocess.run(
        [python, "-m", "mcp_tool_filter", *arguments], stdin=subprocess.DEVNULL,
        capture_output=True, text=True, encoding="utf-8", timeout=60, check=False,
        env=surroundings(home, environment),
    )  # fmt: skip


def surroundings(home: Path, more: dict[str, str] | None = None) -> dict[str, str]:
    """An environment without our settings and without a proxy, with its own home."""
    kept = {k: v for k, v in os.environ.items() if not re.match("MCP_TOOL_F|(?i:.*_proxy$)", k)}
    own = {"HOME": str(home), "PYTHONPATH": str(ADDON), "PYTHONUTF8": "1"}
    return {**kept, **own, **(more or {})}
