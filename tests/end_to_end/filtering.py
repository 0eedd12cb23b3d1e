"""The filter as a user starts it, in a process of its own: mitmdump with our script, or the
launcher."""

import os
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.raw_upstream import free_port

SCRIPT = Path(__file__).resolve().parents[2] / "addon" / "tool_filter.py"
START_TIMEOUT = 30.0


@dataclass
class Filter:
    """It runs, and serves."""

    process: subprocess.Popen[str]
    ports: list[int]
    report: str

    def url(self, path: str, number: int = 0) -> str:
        return f"http://127.0.0.1:{self.ports[number]}{path}"


@contextmanager
def mitmdump(*upstreams: str, **options: str | list[str]) -> Iterator[Filter]:
    """Filter these upstreams (origins), one listener each, until the end of the block."""
    with tempfile.TemporaryDirectory() as home:
        command = [str(Path(sys.executable).with_name("mitmdump")), "-s", str(SCRIPT)]
        command += ["--set", f"confdir={home}"]
        command += [
            part for origin in upstreams for part in ("--mode", f"reverse:{origin}@{free_port()}")
        ]
        for name, value in options.items():
            for one in [value] if isinstance(value, str) else value:
                command += ["--set", f"{name}={one}"]
        with started(command, len(upstreams)) as it:
            yield it


@contextmanager
def launcher(upstream: str, **options: str | list[str]) -> Iterator[Filter]:
    """Filter this upstream (an origin) with our own command until the end of the block."""
    command = [sys.executable, "-m", "mcp_tool_filter", "--upstream", upstream, "--port", "0"]
    for name, value in options.items():
        for one in [value] if isinstance(value, str) else value:
            command += [f"--{name.replace('_', '-')}={one}"]
    with started(command, 1) as it:
        yield it


HOSTS = {"mitmdump": mitmdump, "launcher": launcher}


@contextmanager
def started(command: list[str], listeners: int) -> Iterator[Filter]:
    """Run mitmproxy with our script until the end of the block."""
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    try:
        yield introduced(process, listeners)
    finally:
        process.terminate()
        process.communicate()


def introduced(process: subprocess.Popen[str], listeners: int) -> Filter:
    """Wait for the reports: from then on it answers."""
    assert process.stderr
    alarm = threading.Timer(START_TIMEOUT, process.kill)
    alarm.start()
    report = ""
    while (
        len(ports := re.findall(r"^MCP tool filter: http://\S+?:(\d+)", report, re.M)) < (listeners)
        or "Saved" not in report.rpartition("MCP tool filter")[2]
    ):
        line = process.stderr.readline()
        assert line, f"it ended: {process.wait()}\n{report}"
        report += line
    alarm.cancel()
    return Filter(process, [int(port) for port in ports], report)
