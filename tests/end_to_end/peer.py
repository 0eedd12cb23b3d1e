"""Real SDK upstreams and clients for the tests, each a process in an environment of its own.

    with upstream("mcp1", "--transport", "sse") as server:
        document = play("mcp1", server.url, [{"call": "read_file", "arguments": {"path": "a"}}])
    assert document.outcomes[0]["result"]["content"]
    assert server.calls() == ["read_file"]

`peers/setup` installs them; `peers/scenario.py` says what steps there are and what comes back.
Where a peer is missing, `need` skips the test with a sentence; with FILTER_TESTS_PEERS=required
in the environment, as in .ci/run, it fails.
"""

import json
import os
import queue
import re
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import pytest

SCRIPTS = Path(__file__).resolve().parent / "peers"
INSTALLED = SCRIPTS.parents[2] / ".peers"
NODE = INSTALLED / "node" / "node_modules" / ".bin" / "node"
NODE_PEERS = ("ts1", "ts2", "conformance")
SERVERS = INSTALLED / "servers" / "node_modules" / "@modelcontextprotocol"
PYTHON_SERVERS = INSTALLED / "servers-py" / "bin"
START_TIMEOUT = 30.0
PLAY_TIMEOUT = 90.0

type Step = dict[str, Any]
type Outcome = dict[str, Any]


def missing(name: str) -> str | None:
    """Why a peer (mcp1, mcp2, ts1, ts2, conformance) cannot run here; None if it can."""
    place = "node" if name in NODE_PEERS else name
    if (INSTALLED / f"{place}.stamp").is_file():
        return None
    return f"the peer {name} is not installed: tests/end_to_end/peers/setup {place}"


def need(*names: str) -> None:
    """Skip the test if one of these peers is missing; fail it where peers are required."""
    for name in names:
        if reason := missing(name):
            if os.environ.get("FILTER_TESTS_PEERS") == "required":
                pytest.fail(reason)
            pytest.skip(reason)


@dataclass
class Upstream:
    """A server that runs."""

    port: int
    path: str
    process: subprocess.Popen[str]
    _journal: Path
    _stderr: IO[str]

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        return self.origin + self.path

    def journal(self) -> list[dict[str, Any]]:
        """What reached it: {name, arguments} of each call; again with `cancelled` if it was."""
        # Not splitlines(): U+2028 is no end of a line here.
        lines = self._journal.read_text("utf-8").split("\n")
        return [json.loads(line) for line in lines if line]

    def calls(self) -> list[str]:
        """The names of the tools that were called, oldest first."""
        return [entry["name"] for entry in self.journal() if not entry.get("cancelled")]

    def stderr(self) -> str:
        self._stderr.seek(0)
        return self._stderr.read()


@dataclass(frozen=True)
class Document:
    """What a client saw: see peers/scenario.py."""

    outcomes: list[Outcome]
    notifications: list[dict[str, Any]]
    asked: list[dict[str, Any]]
    server: dict[str, Any] = field(default_factory=dict)
    protocol: str | None = None
    session: str | None = None
    error: dict[str, Any] | None = None
    parting: dict[str, Any] | None = None


@contextmanager
def upstream(name: str, *flags: str, port: int = 0) -> Iterator[Upstream]:
    """Run a server on loopback until the end of the block."""
    need(name.rpartition("_")[2])
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile("w+") as stderr:
        journal = Path(folder) / "journal.jsonl"
        journal.touch()
        command = [*_script(f"server_{name}"), f"--port={port}", f"--journal={journal}", *flags]
        with _started(command, stderr, stdin=subprocess.DEVNULL) as process:
            try:
                port = _announced_port(process)
            except TimeoutError as error:
                stderr.seek(0)
                raise AssertionError(f"{command} did not start: {error}\n{stderr.read()}") from None
            yield Upstream(port, _path(name, flags), process, journal, stderr)


def command_of(name: str, journal: Path) -> list[str]:
    """Return the words that start a server over stdio."""
    need(name)
    return [*_script(f"server_{name}"), "--transport=stdio", f"--journal={journal}"]


def play(name: str, url: str, steps: Sequence[Step], *flags: str) -> Document:
    """Let a client connect, go through the steps and leave; return what it saw."""
    with client(name, url, *flags) as player:
        for step in steps:
            player.tell(step)
    return player.document()


class Client:
    """A client that takes one step after the other."""

    def __init__(self, process: subprocess.Popen[str], stderr: IO[str]) -> None:
        self.process = process
        self._stderr = stderr
        self._said: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._document: Document | None = None
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def do(self, step: Step) -> Outcome:
        """Take a step and return its outcome."""
        self.tell(step)
        return self.outcome()

    def tell(self, step: Step) -> None:
        """Begin a step without waiting for its outcome; steps are taken one after the other."""
        assert self.process.stdin
        with suppress(BrokenPipeError):  # it has left already: the document says why
            self.process.stdin.write(json.dumps(step) + "\n")
            self.process.stdin.flush()

    def outcome(self) -> Outcome:
        """The outcome of the oldest step that was told and not yet asked for."""
        outcome: Outcome = self._next()
        if "outcomes" in outcome and "notifications" in outcome:
            raise AssertionError(f"the client has left: {outcome}\n{self.stderr()}")
        return outcome

    def kill(self) -> None:
        """Go away in the middle of everything, without a word and without a document."""
        self.process.kill()
        self.process.wait()
        self._document = Document(outcomes=[], notifications=[], asked=[])

    def document(self) -> Document:
        """What it saw from beginning to end; waits until it has left."""
        if self._document is None:
            self._close_stdin()
            said: dict[str, Any] = {}
            while "notifications" not in said:
                said = self._next()
            self._document = Document(**said)
        return self._document

    def stderr(self) -> str:
        self._stderr.seek(0)
        return self._stderr.read()

    def _next(self) -> dict[str, Any]:
        try:
            line = self._said.get(timeout=PLAY_TIMEOUT)
        except queue.Empty:
            raise AssertionError(f"the client says nothing\n{self.stderr()}") from None
        if not line:
            raise AssertionError(f"the client broke\n{self.stderr()}")
        said: dict[str, Any] = json.loads(line)
        return said

    def _listen(self) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            self._said.put(line)
        self._said.put("")

    def _close_stdin(self) -> None:
        assert self.process.stdin
        with suppress(BrokenPipeError):
            self.process.stdin.close()


@contextmanager
def client(name: str, url: str, *flags: str) -> Iterator[Client]:
    """Connect a client, to be told step by step; at the end of the block it leaves."""
    need(name.rpartition("_")[2])
    command = [*_script(f"client_{name}"), *flags, "-i", url]
    with (
        tempfile.TemporaryFile("w+") as stderr,
        _started(command, stderr, stdin=subprocess.PIPE) as process,
    ):
        player = Client(process, stderr)
        yield player
        player.document()


def conformance(url: str) -> dict[str, dict[str, str]]:
    """Let the official server suite loose on a URL: {"ping": {"ping": "SUCCESS"}, …}.

    That is scenario -> check -> SUCCESS, FAILURE or WARNING.
    """
    need("conformance")
    suite = INSTALLED / "node/node_modules/@modelcontextprotocol/conformance/dist/index.js"
    with tempfile.TemporaryDirectory() as folder:
        # It exits with 1 if a check failed; what it wrote says more.
        subprocess.run(
            [NODE, suite, "server", f"--url={url}", "--suite=all", f"--output-dir={folder}"],
            check=False,
            capture_output=True,
            timeout=PLAY_TIMEOUT,
            env=_environment(),
        )
        results: dict[str, dict[str, str]] = {}
        for written in sorted(Path(folder).glob("server-*/checks.json")):
            # server-SCENARIO-2026-01-31T10-11-12-123Z
            scenario = re.sub(r"^server-|-\d{4}-\d\d-\d\dT[\d-]+Z$", "", written.parent.name)
            checks = json.loads(written.read_text("utf-8"))
            results[scenario] = {
                check["id"]: check["status"] for check in checks if check["status"] != "INFO"
            }
        return results


def _script(name: str) -> list[str]:
    for python in ("mcp1", "mcp2"):
        if name.endswith(python):
            return [str(INSTALLED / python / "bin" / "python"), str(SCRIPTS / f"{name}.py")]
    packages = (SCRIPTS / "packages.mjs").as_uri()
    return [str(NODE), f"--import={packages}", str(SCRIPTS / f"{name}.mjs")]


def _path(name: str, flags: Sequence[str]) -> str:
    words = " ".join(flags).replace("=", " ")
    return "/sse" if "--transport sse" in words else "/mcp"


def _environment() -> dict[str, str]:
    """Ours, without a proxy: it would not know our loopback."""
    kept = {k: v for k, v in os.environ.items() if not k.lower().endswith("_proxy")}
    return kept | {"PYTHONUTF8": "1", "NODE_NO_WARNINGS": "1"}


@contextmanager
def _started(
    command: Sequence[str], stderr: IO[str], *, stdin: int
) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        command,
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        encoding="utf-8",
        env=_environment(),
    ) as process:
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(timeout=5)
            except subprocess.TimeoutExpired:
                process.kill()


def _announced_port(process: subprocess.Popen[str]) -> int:
    """Wait for the line `listening on PORT`."""
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()
    assert process.stdout
    threading.Thread(target=lambda out=process.stdout: lines.put(out.readline())).start()
    started = time.monotonic()
    while time.monotonic() - started < START_TIMEOUT:
        try:
            line = lines.get(timeout=0.5)
        except queue.Empty:
            continue
        if line.startswith("listening on "):
            return int(line.split()[-1])
        raise TimeoutError(f"it said {line!r}")
    raise TimeoutError(f"nothing said in {START_TIMEOUT} s")
