"""The metrics of a running filter, scraped as Prometheus does it, and by a real Prometheus."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, closing, contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote

import pytest

from mcp_tool_filter.core.errors import StartError
from mcp_tool_filter.core.policy.config import AllowedHosts, MetricsAt
from mcp_tool_filter.rooms.telemetry import metrics
from mcp_tool_filter.rooms.telemetry.metrics import OTHER, Metrics, MetricsServer
from tests.cli.launched import launched
from tests.hosts import HOSTS, LAUNCHER, Filtering, filtering
from tests.make import asking, calling
from tests.mcp_upstream import mcp_upstream, tool
from tests.programs import need_program
from tests.proxy import REPOSITORY
from tests.raw_client import post, raw_client
from tests.raw_upstream import TIMEOUT, free_port
from tests.rows import each_row
from tests.stdio_client import filtered
from tests.waiting import eventually

DASHBOARD = REPOSITORY / "addon" / "mcp_tool_filter" / "docs" / "grafana.json"


TOKEN = "opens-all"


def fetched(port: int, path: str, *, authorization: str = "") -> tuple[int, str]:
    headers = {"Authorization": authorization} if authorization else {}
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as error:
        with error:
            return error.code, error.read().decode()


async def read(port: int, path: str, authorization: str = "") -> tuple[int, str]:
    return await asyncio.to_thread(fetched, port, path, authorization=authorization)


async def status_of(
    port: int, path: str, head: str, *, method: str = "GET", host: str = "127.0.0.1"
) -> int:
    async with raw_client(port, host=host) as client:
        return (await client.ask(f"{method} {path} HTTP/1.1\r\n{head}\r\n\r\n".encode())).status


def value_of(text: str, series: str) -> float:
    found = re.search(rf"^{re.escape(series)} (\S+)$", text, re.M)
    return float(found[1]) if found else 0.0


def counting(host: str, metrics: int, home: Path) -> AbstractAsyncContextManager[Filtering]:
    options = ["deny=^rm$", "deny_prompts=^secret", f"metrics_port={metrics}"]
    options += ["allowed_hosts=localhost,tools.example", "metrics_token=$OPENS"]
    return filtering(host, home, *options, environment={"OPENS": TOKEN})


@pytest.mark.parametrize("host", HOSTS)
async def test_calls_and_refusals_are_counted(host: str, tmp_path: Path) -> None:
    metrics = free_port()
    async with counting(host, metrics, tmp_path) as it:
        asked = [*map(calling, ("read", "rm", "read")), asking("ping")]
        await it.hear(*map(post, [*asked, asking("prompts/get", params='{"name":"secret"}')]))
        status, text = await read(metrics, "/metrics", f"Bearer {TOKEN}")
        assert status == 200
        assert value_of(text, 'mcp_tool_filter_calls_total{tool="read"}') == 2
        for refused in (
            'refusals_total{tool="rm",why="denied"}',
            'refused_things_total{kind="prompt",name="secret"}',
        ):
            assert value_of(text, f"mcp_tool_filter_{refused}") == 1
        for wrong in ("", "Bearer x", f"Basic {TOKEN}", f"Bearer {TOKEN}x", "Bearer", TOKEN):
            status, text = await read(metrics, "/metrics", wrong)
            assert status == 200
            assert '"rm"' not in text
            assert "read" not in text.replace("ready", "")
            assert value_of(text, "mcp_tool_filter_calls_total") == 2
            assert value_of(text, 'mcp_tool_filter_refusals_total{why="denied"}') == 1
            assert value_of(text, 'mcp_tool_filter_refused_things_total{kind="prompt"}') == 1
        passed = 'mcp_tool_filter_messages_total{class="pass",method="ping",verdict="forwarded"}'
        assert value_of(text, passed) == 1
        assert value_of(text, "mcp_tool_filter_upstream_up") == 1
        assert value_of(text, "mcp_tool_filter_upstream_seconds_count") == 3
        for name, status in (("tools.example", 200), ("evil.example", 403)):
            assert await status_of(metrics, "/metrics", f"Host: {name}") == status
        for path, said in (("/healthz", "ok\n"), ("/livez", "ok\n"), ("/readyz", "ready\n")):
            assert await read(metrics, path) == (200, said)
        assert (await read(metrics, "/nothing"))[0] == 404


@each_row(
    ("head", "statuses"),
    [
        ("Host: evil.example", {"/metrics": 403, "/livez": 200}),
        ("Host: evil.example:9464", {"/metrics": 403, "/": 403}),
        ("Host: localhost:9464", {"/metrics": 200, "/": 404}),
        ("Host: [::1]", {"/metrics": 200}),
        ("Host: Tools.Example", {"/metrics": 200}),
        ("Host: localhost\r\nSec-Fetch-Site: cross-site", {"/metrics": 403}),
        ("Host: localhost\r\nOrigin: http://evil.example", {"/metrics": 403}),
    ],
)
async def test_only_known_hosts_read_the_metrics(head: str, statuses: dict[str, int]) -> None:
    """A page whose name resolves to us must not read the names of hidden tools."""
    hosts = AllowedHosts(frozenset({"tools.example"}))
    with closing(MetricsServer(Metrics(dict), MetricsAt(port=0), hosts)) as server:
        for path, status in {"/healthz": 200, "/readyz": 503, **statuses}.items():
            assert await status_of(server.port, path, head) == status, path


async def test_no_body_is_read_for_the_metrics() -> None:
    with closing(MetricsServer(Metrics(dict), MetricsAt(port=0))) as server:
        for method, size, status in (("POST", 20_000_000, 405), ("GET", 300_000, 413)):
            head = f"Host: localhost\r\nContent-Length: {size}"
            assert await status_of(server.port, "/metrics", head, method=method) == status


def test_names_that_a_client_makes_up_crowd_out_no_others() -> None:
    """One client that calls a thousand tools must not take all tools out of the charts."""
    counted = Metrics(dict)
    for number in range(1000):
        refused = {"verdict": "refused", "why": "unknown", "tool": f"t{number}"}
        counted.show({"method": f"x/{number}", "tool": f"t{number}", **refused})
    call: dict[str, object] = {"method": "tools/call", "tool": "read"}
    counted.show({**call, "verdict": "forwarded"})
    counted.show({**call, "verdict": "forwarded", "answer_rule": "redact"})
    counted.show({**call, "tool": "rm", "verdict": "refused", "why": "denied", "rule": "no-rm"})
    samples = [sample for metric in counted.registry.collect() for sample in metric.samples]
    names = {tuple(sample.labels.values()) for sample in samples}
    assert {("read",), ("rm", "denied"), ("no-rm",), ("redact",), (OTHER, "unknown")} <= names
    assert len([one for one in names if one[1:] == ("unknown",)]) == 201


STUBBORN = """
import signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
sys.stdin.read()
time.sleep(60)
"""


def test_a_session_over_stdio_is_ready_until_it_gets_a_signal(tmp_path: Path) -> None:
    port = free_port()
    words = ["--metrics-port", str(port), "--", sys.executable, "-c", STUBBORN]
    with filtered(*words, home=tmp_path) as client:
        eventually(lambda: status_at(port, "/readyz") == 200)
        client.process.terminate()
        eventually(lambda: status_at(port, "/readyz") == 503)
        client.ends()


def status_at(port: int, path: str) -> int:
    """Return 0 while it is still starting."""
    with suppress(OSError):
        return fetched(port, path)[0]
    return 0


@contextmanager
def prometheus(scraped: int, home: Path) -> Iterator[int]:
    """Run a Prometheus that scrapes a port; its own port."""
    need_program("prometheus")
    config, port = home / "prometheus.yml", free_port()
    config.write_text(
        "global: {scrape_interval: 200ms, scrape_timeout: 200ms}\n"
        "scrape_configs:\n"
        f"- {{job_name: f, authorization: {{credentials: {TOKEN}}}, static_configs:"
        f" [{{targets: ['127.0.0.1:{scraped}']}}]}}\n"
    )
    command = [
        "prometheus", f"--config.file={config}", f"--storage.tsdb.path={home / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}", "--log.level=error",
    ]  # fmt: skip
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        try:
            yield port
        finally:
            process.terminate()


def queried(port: int, query: str) -> list[dict[str, Any]] | None:
    """Ask Prometheus; None if it does not answer yet."""
    with suppress(OSError):
        status, text = fetched(port, f"/api/v1/query?query={quote(query)}")
        if status != 503:  # it is still starting
            assert status == 200, text
            result: list[dict[str, Any]] = json.loads(text)["data"]["result"]
            return result
    return None


async def result_of(port: int, query: str) -> list[dict[str, Any]]:
    """Ask until there is a result."""
    return await asyncio.to_thread(eventually, lambda: queried(port, query)) or []


@pytest.mark.rest
async def test_a_real_prometheus_scrapes_it_and_the_dashboards_queries_work(tmp_path: Path) -> None:
    metrics = free_port()
    async with counting(LAUNCHER, metrics, tmp_path) as it:
        with prometheus(metrics, tmp_path) as asked:
            await result_of(asked, "mcp_tool_filter_ready == 1")
            await it.hear(post(calling("read")), post(calling("rm")))
            calls = await result_of(asked, 'mcp_tool_filter_calls_total{tool="read"} == 1')
            assert calls[0]["metric"]["job"] == "f"
            await result_of(asked, "sum(mcp_tool_filter_refusals_total) == 1")
            panels = json.loads(DASHBOARD.read_text())["panels"]
            queries = [target["expr"] for panel in panels for target in panel.get("targets", [])]
            assert len(queries) >= 6
            for query in queries:
                known = query.replace("$__rate_interval", "1m")
                names = set(re.findall(r"mcp_tool_filter_\w+", known))
                assert names
                text = (await read(metrics, "/metrics"))[1]
                assert all(f"\n{name}" in text for name in names), names
                assert await asyncio.to_thread(queried, asked, known) is not None


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--metrics-token", "$NOT_SET"], "The environment variable NOT_SET is not set"),
        (["--metrics-token", "s3cret one"], "one word of visible ASCII"),
        (["--metrics-token", "${EMPTY}"], "one word of visible ASCII"),
        (["--metrics-host", ""], "It must be an address"),
        (["--metrics-host", "256.0.0.1"], "Cannot serve metrics on 256.0.0.1:"),
    ],
)
async def test_bad_settings_stop_the_start(flags: list[str], said: str, tmp_path: Path) -> None:
    async with mcp_upstream(tools=[tool("read")]) as upstream:
        words = ["-u", upstream.url, "-d", "^rm$", "--metrics-port", "0", *flags]
        async with launched(*words, home=tmp_path, environment={"EMPTY": ""}) as it:
            assert await it.exit_code() == (1 if said.startswith("Cannot serve") else 2)
            assert said in it.stderr
            assert "s3cret" not in it.stderr
            assert "Traceback" not in it.stderr


async def test_the_address_of_the_metrics_may_ask_for_them() -> None:
    """As Prometheus does in Kubernetes; a name that resolves to it may not."""
    at = MetricsAt(port=0, host="127.0.0.2")
    with closing(MetricsServer(Metrics(dict), at)) as server:
        for name, status in (("127.0.0.2", 200), ("10.0.0.9", 403), ("evil.example", 403)):
            head = f"Host: {name}"
            assert await status_of(server.port, "/metrics", head, host=at.host) == status, name


async def test_the_chosen_free_port_is_reported(tmp_path: Path) -> None:
    async with mcp_upstream(tools=[tool("read")]) as upstream:
        flags = ["-u", upstream.url, "-d", "^rm$", "--metrics-port", "0", "--quiet"]
        async with launched(*flags, home=tmp_path) as it:
            address = (await it.says(r"Metrics: (http://\S+)"))[1]
            port = int(address.split(":")[2].partition("/")[0])
            assert await read(port, "/healthz") == (200, "ok\n")


def test_the_port_of_a_filter_that_is_about_to_end_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A client that restarts its servers starts the new one before the old one has ended."""
    tries = list[int]()
    listen = asyncio.start_server

    async def note(serve: Any, host: str, port: int, **more: Any) -> asyncio.Server:
        tries.append(port)
        if len(tries) == 3:
            held.close()
        return await listen(serve, host, port, **more)

    monkeypatch.setattr(asyncio, "start_server", note)
    held = socket.create_server(("127.0.0.1", 0))
    port = held.getsockname()[1]
    with closing(MetricsServer(Metrics(dict), MetricsAt(port=port))) as server:
        assert server.port == port
        assert tries == [port] * 3


def test_a_port_that_stays_taken_stops_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "_PATIENCE", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as held:
        at = MetricsAt(port=held.getsockname()[1])
        with pytest.raises(StartError, match="Address already in use"):
            MetricsServer(Metrics(dict), at)
