"""The filter as a user starts it, in a process of its own: mitmdump with our script, or the
launcher."""

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests import stdio_client
from tests.proxy import SCRIPT
from tests.raw_upstream import free_port


@dataclass
class Filter:
    """It runs, and serves."""

    process: subprocess.Popen[bytes]
    port: int

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.port}{path}"


@contextmanager
def mitmdump(upstream: str, **options: str) -> Iterator[Filter]:
    """Filter this upstream (an origin) until the end of the block."""
    sets = [f"--set={name}={value}" for name, value in options.items()]
    with in_mitmproxy("mitmdump", f"{upstream}@{free_port()}", *sets) as it:
        yield it


@contextmanager
def in_mitmproxy(program: str, upstream: str, *words: str) -> Iterator[Filter]:
    command = [str(Path(sys.executable).with_name(program)), "-s", SCRIPT]
    with started(*command, "--mode", f"reverse:{upstream}", *words) as it:
        yield it


@contextmanager
def launcher(upstream: str, **options: str) -> Iterator[Filter]:
    """Filter this upstream (an origin) with our own command until the end of the block."""
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
    command = [sys.executable, "-m", "mcp_tool_filter", "--upstream", upstream, "--port", "0"]
    with started(*command, *flags) as it:
        yield it


HOSTS = {"mitmdump": mitmdump, "launcher": launcher}


@contextmanager
def started(*command: str) -> Iterator[Filter]:
    """Run a filter until the end of the block; it has reported, so it answers."""
    with (
        tempfile.TemporaryDirectory() as home,
        stdio_client.started(*command, home=Path(home)) as it,
    ):
        found = it.says(r"MCP tool filter: http://\S+?:(\d+)(?s:.*)Saved")
        yield Filter(it.process, int(found[1]))
        it.process.terminate()
        it.leaves()
