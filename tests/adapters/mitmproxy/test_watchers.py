"""Which observers get the messages, depending on the options; and how spans begin."""

from __future__ import annotations

import asyncio
import socket
from http.client import HTTPConnection
from pathlib import Path

import pytest

from mcp_tool_filter.adapters.watch.dashboard import Dashboard, Switches, dashboard_server
from mcp_tool_filter.errors import StartError
from mcp_tool_filter.policy.config import parse_config
from tests.adapters.mitmproxy.filtered import call, filtered
from tests.adapters.mitmproxy.test_spans import CALL, CLIENTS, spans_of
from tests.collector import Collector
from tests.raw_upstream import TIMEOUT

OTHERS = f"00-{'c' * 32}-{'3' * 16}-01"
PLAIN_CALL = call("read_file")


@pytest.mark.parametrize(
    ("parents", "trace"),
    [([CLIENTS], "a" * 32), ([OTHERS], "c" * 32), ([CLIENTS, OTHERS], None), ([], None)],
    ids=["one", "another", "two", "none"],
)
async def test_a_span_continues_the_trace_of_the_header_if_it_names_one(
    parents: list[str], trace: str | None, sent_to: Collector, tmp_path: Path
) -> None:
    """Two parents are ambiguous, so a new trace begins."""
    headers = "".join(f"traceparent: {one}\r\n" for one in parents).encode()
    async with filtered(tmp_path, otel=["true"]) as between:
        await between.ask(PLAIN_CALL, headers)
        (span,) = await spans_of(sent_to, 1)
        (seen,) = between.upstream.asked
    if trace:
        assert span.trace_id.hex() == trace
        assert span.parent_span_id
    else:
        assert span.trace_id.hex() not in ("a" * 32, "c" * 32)
        assert not span.parent_span_id
    (ours,) = seen.all("traceparent")
    assert ours.split("-")[1:3] == [span.trace_id.hex(), span.span_id.hex()]


async def test_nothing_is_traced_unless_it_is_on(tmp_path: Path) -> None:
    async with filtered(tmp_path) as between:
        await between.ask(CALL, f"traceparent: {CLIENTS}\r\n".encode())
        (seen,) = between.upstream.asked
    assert seen.body == CALL
    assert seen.all("traceparent") == [CLIENTS]


def dashboard() -> Dashboard:
    config = parse_config(deny=["x"])
    return Dashboard(lambda: {}, Switches(lambda: config, list, lambda *_: ""))


async def test_a_dashboard_says_where_it_is_and_is_served_until_the_end() -> None:
    said: list[str] = []
    async with dashboard_server(dashboard(), 0, said.append):
        (where,) = said
        host = where.partition("http://")[2].partition("/")[0]
        connection = HTTPConnection(host, timeout=TIMEOUT)
        await asyncio.to_thread(connection.request, "GET", "/mcp/state")
        assert (await asyncio.to_thread(connection.getresponse)).status == 403
        connection.close()


async def test_a_port_that_is_taken_is_an_error_for_people() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(StartError, match=f"Cannot serve the dashboard on 127.0.0.1:{port}"):
            async with dashboard_server(dashboard(), port, lambda _text: None):
                pass
