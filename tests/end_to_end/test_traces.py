"""The spans of a running filter, as a real collector gets them over OTLP."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.cli.launched import launched, surroundings
from tests.collector import Collector, attributes, collector
from tests.hosts import HOSTS, LAUNCHER, Filtering, filtering
from tests.make import asking
from tests.mcp_upstream import saying
from tests.raw_client import MCP_HEADERS, post, raw_client
from tests.session_upstream import session_upstream
from tests.stdio_client import filtered, upstream

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
CONTEXT = f"00-{TRACE}-{PARENT}-01"
FAILED = b'{"jsonrpc":"2.0","id":7,"error":{"code":-32602,"message":"No such file"}}'


def call(name: str, id: int = 7, **meta: str) -> bytes:
    """A call in bytes that no serialiser would write, with this ``_meta``."""
    params = (
        f'"name" : {json.dumps(name)}, "_meta":{json.dumps(meta)},"arguments":{{"s":"\\u65e5"}}'
    )
    return f'{{"jsonrpc":"2.0","id":{id},"method":"tools/call","params":{{{params}}} }}'.encode()


@asynccontextmanager
async def traced(
    host: str, home: Path, answer: bytes = FAILED, env: Mapping[str, str] = {}, **how: Any
) -> AsyncIterator[tuple[Filtering, Collector]]:
    """Run a filter that sends its traces to a collector."""
    with collector(**how) as sent_to:
        options, environment = ("deny=^rm$", "otel=true"), {**sent_to.environment, **env}
        respond = saying(answer)
        async with filtering(host, home, *options, respond=respond, environment=environment) as it:
            yield it, sent_to


@pytest.mark.parametrize("host", HOSTS)
async def test_each_request_is_a_span_in_the_clients_trace(host: str, tmp_path: Path) -> None:
    async with traced(host, tmp_path) as (it, sent_to):
        asked = [call("read", traceparent=CONTEXT), call("rm", 8)]
        headers = MCP_HEADERS + b"Mcp-Protocol-Version: 2025-06-18\r\n"
        await it.hear(*(post(body, headers=headers) for body in asked))
        spans = await asyncio.to_thread(sent_to.wait_for, 2)
    read, refused = spans
    assert sent_to.services == {"mcp-tool-filter"}
    assert (read.trace_id.hex(), read.parent_span_id.hex()) == (TRACE, PARENT)
    assert (read.name, refused.name) == ("tools/call read", "tools/call")
    said = attributes(read)
    assert said.items() >= {
        "mcp.method.name": "tools/call", "gen_ai.tool.name": "read", "jsonrpc.request.id": "7",
        "gen_ai.operation.name": "execute_tool", "mcp.protocol.version": "2025-06-18",
        "network.transport": "tcp", "client.address": "127.0.0.1",
    }.items()  # fmt: skip
    assert {one.key: one.value.int_value for one in read.attributes}["client.port"] > 0
    assert said["error.type"] == said["rpc.response.status_code"] == "-32602"
    assert read.status.message == "No such file"
    assert refused.trace_id != read.trace_id
    said = attributes(refused)
    assert said["mcp_tool_filter.pattern"] == "^rm$"
    assert said["error.type"] == "-32601"
    assert len(it.upstream.of("tools/call")) == 1


@pytest.mark.parametrize("host", HOSTS)
async def test_our_span_replaces_the_clients_as_the_upstreams_parent(
    host: str, tmp_path: Path
) -> None:
    """Nothing else of the message changes."""
    async with traced(host, tmp_path) as (it, sent_to):
        in_meta = call("read", traceparent=CONTEXT, tracestate="a=b")
        in_header = MCP_HEADERS + f"traceparent: {CONTEXT}\r\ntracestate: c=d\r\n".encode()
        await it.hear(post(in_meta), post(call("read"), headers=in_header))
        await it.hear(post(call("read")))
        spans = await asyncio.to_thread(sent_to.wait_for, 3)
    ours = [f"00-{span.trace_id.hex()}-{span.span_id.hex()}-01" for span in spans]
    first, second, third = it.upstream.of("tools/call")
    assert first.body == in_meta.replace(CONTEXT.encode(), ours[0].encode())
    assert first.all("traceparent") == []
    assert second.body == call("read")
    assert second.all("traceparent") == [ours[1]]
    assert second.all("tracestate") == ["c=d"]
    assert spans[1].trace_state == "c=d"
    assert third.body == call("read")
    # A trace that we begin has an id of random bits, which its flags say.
    assert third.all("traceparent") == [ours[2].removesuffix("01") + "03"]


async def test_a_message_and_its_http_request_may_belong_to_two_traces(tmp_path: Path) -> None:
    """The message's own is the parent, the request's is linked, and goes on as it came."""
    other = f"00-{'a' * 32}-{'b' * 16}-01"
    async with traced(LAUNCHER, tmp_path) as (it, sent_to):
        headers = MCP_HEADERS + f"traceparent: {other}\r\n".encode()
        await it.hear(post(call("read", traceparent=CONTEXT), headers=headers))
        (span,) = await asyncio.to_thread(sent_to.wait_for, 1)
    assert span.trace_id.hex() == TRACE
    assert [one.trace_id.hex() for one in span.links] == ["a" * 32]
    assert it.upstream.of("tools/call")[0].all("traceparent") == [other]


async def test_an_unrecorded_trace_passes_unchanged(tmp_path: Path) -> None:
    not_sampled = f"00-{TRACE}-{PARENT}-00"
    async with traced(LAUNCHER, tmp_path) as (it, sent_to):
        body = call("read", traceparent=not_sampled)
        await it.hear(post(body), post(call("read")))
        await asyncio.to_thread(sent_to.wait_for, 1)
    assert it.upstream.of("tools/call")[0].body == body
    assert len(sent_to.spans) == 1


def timed_by(sent_to: Collector, name: str) -> dict[tuple[str, str, str], int]:
    """Return how often a method and a tool were timed, by their errors."""
    counts = {}
    for point in sent_to.durations.get(name, []):
        said = attributes(point)
        key = said["mcp.method.name"], said.get("gen_ai.tool.name", ""), said.get("error.type", "")
        counts[key] = point.count
    return counts


SERVER_TIMES, CLIENT_TIMES = (f"mcp.{side}.operation.duration" for side in ("server", "client"))


@pytest.mark.parametrize("host", HOSTS)
async def test_audit_entries_and_durations_are_sent_too(host: str, tmp_path: Path) -> None:
    """Also without an audit log; clients cannot make up series or see arguments there."""
    secret = call("read").replace(b'"s":"', b'"s":"hunter2')
    async with traced(host, tmp_path) as (it, sent_to):
        await it.hear(*map(post, (call("read"), call("rm", 8), call("made-up", 5), secret)))
        await asyncio.to_thread(sent_to.until, lambda one: len(one.logs) >= 4)
        await asyncio.to_thread(
            sent_to.until, lambda one: sum(timed_by(one, SERVER_TIMES).values()) >= 4
        )
    entries = [json.loads(one.body.string_value) for one in sent_to.logs]
    said = {(one["tool"], one["verdict"], one.get("why")) for one in entries}
    assert said == {
        ("read", "forwarded", None),
        ("rm", "refused", "denied"),
        ("made-up", "refused", "unknown"),
    }
    assert "hunter2" not in str(entries)
    refused = next(one for one in sent_to.logs if "made-up" in one.body.string_value)
    assert refused.severity_text == "WARN"
    assert attributes(refused)["mcp_tool_filter.verdict"] == "refused"
    assert attributes(refused)["gen_ai.tool.name"] == "made-up"
    assert timed_by(sent_to, SERVER_TIMES) == {
        ("tools/call", "read", "-32602"): 2,
        ("tools/call", "", "-32601"): 2,
    }
    assert timed_by(sent_to, CLIENT_TIMES) == {("tools/call", "read", "-32602"): 2}
    [point, *_] = sent_to.durations[SERVER_TIMES]
    assert list(point.explicit_bounds) == [
        0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120, 300,
    ]  # fmt: skip
    assert 0 < point.sum < 10
    assert "server.address" not in attributes(point)
    [point] = sent_to.durations[CLIENT_TIMES]
    assert attributes(point)["server.address"] == "127.0.0.1"
    ports = [one.value.int_value for one in point.attributes if one.key == "server.port"]
    assert ports == [int(it.upstream.url.rpartition(":")[2])]


async def test_no_secret_of_a_uri_or_an_error_is_sent(tmp_path: Path) -> None:
    token = "ghp_" + "Ab3dE6gH9j" * 4
    failed = FAILED.replace(b"No such file", f"No rights for {token}".encode())
    uri = f"https://bob:hunter2@files.example/a?key={token}"
    read = asking("resources/read", id="7", params=json.dumps({"uri": uri}))
    async with traced(LAUNCHER, tmp_path, failed) as (it, sent_to):
        await it.hear(post(read))
        assert uri in it.upstream.of("resources/read")[0].body.decode()
        [span] = await asyncio.to_thread(sent_to.wait_for, 1)
        await asyncio.to_thread(sent_to.until, lambda one: len(one.logs) >= 1)
    assert attributes(span)["mcp.resource.uri"] == "https://…@files.example/a?key=…"
    assert span.status.message.startswith("No rights for ")
    said = f"{span} {sent_to.logs}"
    assert "hunter2" not in said
    assert token[4:] not in said


async def test_the_length_of_sessions_is_sent_when_they_end(tmp_path: Path) -> None:
    names = [f"mcp.{side}.session.duration" for side in ("server", "client")]
    with collector() as sent_to, session_upstream() as upstream:
        words = ["-u", upstream.url, "-d", "^rm$", "--otel"]
        env = sent_to.environment
        async with launched(*words, home=tmp_path, environment=env) as it:
            async with raw_client(await it.serving()) as client:
                hello = asking("initialize", params='{"protocolVersion":"2025-06-18"}')
                assert (await client.ask(post(hello))).all("mcp-session-id") == [upstream.session]
                session = f"Mcp-Session-Id: {upstream.session}\r\n".encode()
                in_session = MCP_HEADERS + session
                await client.ask(post(call("echo"), headers=in_session))
                ending = post(b"", headers=in_session).replace(b"POST", b"DELETE", 1)
                assert (await client.ask(ending)).status in (200, 204)
            await asyncio.to_thread(
                sent_to.until, lambda one: all(one.durations.get(name) for name in names)
            )
            for name in names:
                [point] = sent_to.durations[name]
                assert (point.count, point.sum >= 0) == (1, True)
                assert attributes(point)["network.transport"] == "tcp"


OFF = {"OTEL_LOGS_EXPORTER": "none", "OTEL_METRICS_EXPORTER": "none"}


@pytest.mark.parametrize(
    ("collecting", "env", "reason"),
    [
        ({"takes": "/v1/traces"}, {}, "404"),
        ({"takes": "/v1/traces"}, OFF, None),
        ({"status": 400}, {}, "400"),
    ],
)
async def test_a_collector_that_refuses_costs_one_warning_and_delays_nothing(
    collecting: dict[str, Any], env: dict[str, str], reason: str | None, tmp_path: Path
) -> None:
    async with traced(LAUNCHER, tmp_path, env=env, **collecting) as (it, sent_to):
        for _ in range(5):
            await it.hear(post(call("read")))
            await asyncio.sleep(0.2)
    assert len(sent_to.spans) == (5 if "takes" in collecting else 0)
    assert it.stderr.count("Cannot send traces") == (reason is not None)
    assert "sent again" not in it.stderr
    assert "Traceback" not in it.stderr
    if reason:
        [said] = re.findall("until it works: Failed to export.*", it.stderr)
        assert reason in said


@pytest.mark.parametrize("is_deaf", [True, False])
async def test_a_collector_that_is_not_there_costs_one_warning(
    is_deaf: bool, tmp_path: Path
) -> None:
    """Also if the process ends before an attempt to send has failed."""
    with socket.socket() as hole:
        hole.bind(("127.0.0.1", 0))
        if is_deaf:  # it accepts connections and says nothing
            hole.listen()
        env = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{hole.getsockname()[1]}"}
        async with traced(LAUNCHER, tmp_path, env=env) as (it, _):
            await it.hear(post(call("read")))
    assert it.stderr.count("Cannot send traces") == 1
    assert "Traceback" not in it.stderr


def test_our_span_reaches_the_upstream_over_stdio_too(tmp_path: Path) -> None:
    with collector() as sent_to:
        words = ("-d", "^rm$", "--otel", "--", *upstream(journal=tmp_path / "seen"))
        said = [call("read_file", 1, traceparent=CONTEXT), call("rm", 2)]
        with filtered(*words, home=tmp_path, environment=sent_to.environment) as client:
            client.say(*said)
            assert client.leaves() == 0
        assert len(client.raw) == 2
        read, refused = sent_to.wait_for(2)
    assert (read.trace_id.hex(), read.parent_span_id.hex()) == (TRACE, PARENT)
    assert attributes(read)["network.transport"] == "pipe"
    assert attributes(refused)["mcp_tool_filter.why"] == "denied"
    ours = f"00-{TRACE}-{read.span_id.hex()}-01".encode()
    assert (tmp_path / "seen").read_bytes() == said[0].replace(CONTEXT.encode(), ours) + b"\n"


def test_a_missing_extra_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "opentelemetry.py").write_text("raise ImportError")
    script = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r});"
        "from mcp_tool_filter.cli.launcher import main;"
        "sys.exit(main(['-d', 'x', '--otel', '--', 'true']))"
    )
    said = "Error: Traces need OpenTelemetry\nInstall it: pip install '.[otel]' (in your clone)\n"
    assert python(tmp_path, script) == (1, "", said)


def python(home: Path, script: str) -> tuple[int, str, str]:
    words, env = [sys.executable, "-c", script], surroundings(home)
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60, env=env)
    return done.returncode, done.stdout, done.stderr


def test_tracing_is_not_imported_unless_it_is_on(tmp_path: Path) -> None:
    script = (
        "import sys, mcp_tool_filter.rooms.mitmproxy.addon, mcp_tool_filter.rooms.stdio.command,"
        "mcp_tool_filter.rooms.stdio.relay;"
        "print([n for n in sys.modules if n.startswith(('opentelemetry', 'google.protobuf'))])"
    )
    assert python(tmp_path, script)[:2] == (0, "[]\n")
