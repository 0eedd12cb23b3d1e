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
import re
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.cli.launched import surroundings
from tests.programs import skip_or_fail
from tests.stdio_client import StdioClient, started

SCRIPTS = Path(__file__).resolve().parent / "peers"
INSTALLED = SCRIPTS.parents[2] / ".peers"
NODE = INSTALLED / "node" / "node_modules" / ".bin" / "node"
NODE_PEERS = ("ts1", "ts2", "conformance")
SERVERS = INSTALLED / "servers" / "node_modules" / "@modelcontextprotocol"
PYTHON_SERVERS = INSTALLED / "servers-py" / "bin"
QUIET = {"NODE_NO_WARNINGS": "1"}

type Step = dict[str, Any]
type Outcome = dict[str, Any]


def need(*names: str) -> None:
    """Skip the test if one of these peers is missing; fail it where peers are required."""
    for name in names:
        place = "node" if name in NODE_PEERS else name
        if not (INSTALLED / f"{place}.stamp").is_file():
            skip_or_fail(f"{name} is not installed: tests/end_to_end/peers/setup {place}")


def calls_in(journal: Path) -> list[str]:
    """Return the tools that were called, oldest first, and not those that were taken back.

    A server writes {name, arguments} of each call; again with `cancelled` if it was.
    """
    # Not splitlines(): U+2028 is no end of a line here.
    lines = journal.read_text("utf-8").split("\n") if journal.exists() else []
    entries = [json.loads(line) for line in lines if line]
    return [entry["name"] for entry in entries if not entry.get("cancelled")]


@dataclass
class Upstream:
    """A server that runs."""

    port: int
    path: str
    process: subprocess.Popen[bytes]
    _journal: Path

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        return self.origin + self.path

    def calls(self) -> list[str]:
        return calls_in(self._journal)


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
    with tempfile.TemporaryDirectory() as folder:
        journal = Path(folder) / "journal.jsonl"
        words = [*script(f"server_{name}"), f"--port={port}", f"--journal={journal}", *flags]
        with started(*words, home=Path(folder), environment=QUIET) as server:
            said = server.hears_line()
            assert said.startswith(b"listening on "), f"{words} did not start\n{server.stderr()}"
            path = "/sse" if "sse" in flags else "/mcp"
            yield Upstream(int(said.split()[-1]), path, server.process, journal)


def command_of(name: str, journal: Path) -> list[str]:
    """Return the words that start a server over stdio."""
    need(name)
    return [*script(f"server_{name}"), "--transport=stdio", f"--journal={journal}"]


def play(name: str, url: str, steps: Sequence[Step], *flags: str) -> Document:
    """Let a client connect, go through the steps and leave; return what it saw."""
    with client(name, url, *flags) as player:
        for step in steps:
            player.tell(step)
        return player.document()


@dataclass
class Client:
    """A client that takes one step after the other."""

    it: StdioClient

    def do(self, step: Step) -> Outcome:
        """Take a step and return its outcome."""
        self.tell(step)
        outcome: Outcome = self.it.hears()
        if "outcomes" in outcome and "notifications" in outcome:
            raise AssertionError(f"the client has left: {outcome}\n{self.it.stderr()}")
        return outcome

    def tell(self, step: Step) -> None:
        """Begin a step without waiting for its outcome; steps are taken one after the other."""
        with suppress(BrokenPipeError):  # it has left already: the document says why
            self.it.say(json.dumps(step).encode())

    def document(self) -> Document:
        """What it saw from beginning to end; waits until it has left."""
        self.it.ends_input()
        said: dict[str, Any] = {}
        while "notifications" not in said:
            said = self.it.hears()
        return Document(**said)


@contextmanager
def client(name: str, url: str, *flags: str) -> Iterator[Client]:
    """Connect a client, to be told step by step; at the end of the block it leaves."""
    need(name.rpartition("_")[2])
    words = [*script(f"client_{name}"), *flags, "-i", url]
    with (
        tempfile.TemporaryDirectory() as home,
        started(*words, home=Path(home), environment=QUIET) as it,
    ):
        yield Client(it)
        it.leaves()


def conformance(url: str) -> dict[str, dict[str, str]]:
    """Let the official server suite loose on a URL: {"ping": {"ping": "SUCCESS"}, …}.

    That is scenario -> check -> SUCCESS, FAILURE or WARNING.
    """
    need("conformance")
    suite = str(INSTALLED / "node/node_modules/@modelcontextprotocol/conformance/dist/index.js")
    with tempfile.TemporaryDirectory() as folder:
        words = [str(NODE), suite, "server", f"--url={url}", "--suite=all", "--output-dir=."]
        # It exits with 1 if a check failed; what it wrote says more.
        env = surroundings(Path(folder), QUIET)
        subprocess.run(words, check=False, capture_output=True, timeout=90, cwd=folder, env=env)
        results: dict[str, dict[str, str]] = {}
        for written in sorted(Path(folder).glob("server-*/checks.json")):
            # server-SCENARIO-2026-01-31T10-11-12-123Z
            scenario = re.sub(r"^server-|-\d{4}-\d\d-\d\dT[\d-]+Z$", "", written.parent.name)
            checks = json.loads(written.read_text("utf-8"))
            results[scenario] = {
                check["id"]: check["status"] for check in checks if check["status"] != "INFO"
            }
        return results


def script(name: str) -> list[str]:
    for python in ("mcp1", "mcp2"):
        if name.endswith(python):
            return [str(INSTALLED / python / "bin" / "python"), str(SCRIPTS / f"{name}.py")]
    packages = (SCRIPTS / "packages.mjs").as_uri()
    return [str(NODE), f"--import={packages}", str(SCRIPTS / f"{name}.mjs")]
