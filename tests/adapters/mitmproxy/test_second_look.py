"""What another script changes after us is judged again, and passes only if it may.

``attacks/test_other_addons.py`` has the scripts that would open a way round.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from mitmproxy.http import HTTPFlow, Response

from mcp_tool_filter.adapters.mitmproxy.addon import ToolFilter
from tests.adapters.mitmproxy.filtered import (
    ANSWERING,
    DELETE,
    LIST,
    READ,
    Filtered,
    call,
    not_found,
)
from tests.mcp_upstream import RESULT, Respond, mcp_upstream, tool_list
from tests.proxy import proxy
from tests.raw_client import get, raw_client
from tests.raw_upstream import LAST_CHUNK, SSE_HEAD, Peer, RawRequest, chunk

type Change = Callable[[HTTPFlow], None]
BOTH = tool_list([READ, DELETE], id="5")


class Script:
    """A script behind the filter."""

    def __init__(self, hook: str, change: Change) -> None:
        setattr(self, hook, change)


@asynccontextmanager
async def filtered_before(
    home: Path, hook: str, change: Change, respond: Respond = ANSWERING
) -> AsyncIterator[Filtered]:
    """Run a filter with a script behind it; ``respond`` is the upstream."""
    async with (
        mcp_upstream(tools=[READ, DELETE], respond=respond) as upstream,
        proxy(
            ToolFilter(),
            Script(hook, change),
            to=upstream.url,
            home=home,
            deny=["^delete_"],
            endpoint=["/mcp"],
            tools_list=["upstream"],
        ) as running,
        raw_client(running.port) as client,
    ):
        yield Filtered(upstream, client, running.port)


def answered(body: bytes, kind: str = "application/json") -> Change:
    def change(flow: HTTPFlow) -> None:
        flow.response = Response.make(200, body, {"content-type": kind})

    return change


def asked(body: bytes) -> Change:
    def change(flow: HTTPFlow) -> None:
        flow.request.content = body

    return change


async def test_a_request_that_becomes_another_allowed_call_passes(tmp_path: Path) -> None:
    other = call("read_file", '{"changed":true}')
    async with filtered_before(tmp_path, "request", asked(other)) as it:
        assert (await it.ask(call("read_file"))).body == RESULT
        assert [one.body for one in it.upstream.of("tools/call")] == [other]


async def test_a_request_that_becomes_a_denied_call_is_answered(tmp_path: Path) -> None:
    async with filtered_before(tmp_path, "request", asked(call("delete_file"))) as it:
        assert (await it.ask(call("read_file"))).body == not_found("delete_file")
        assert it.upstream.of("tools/call") == []


async def test_a_list_that_a_script_puts_into_an_answer_is_filtered(tmp_path: Path) -> None:
    async with filtered_before(tmp_path, "response", answered(BOTH)) as it:
        assert (await it.ask(LIST)).body == tool_list([READ], id="5")


async def test_an_answer_that_a_script_changes_passes_if_it_may(tmp_path: Path) -> None:
    other = RESULT.replace(b"[]", b'[{"type":"text","text":"changed"}]')
    async with filtered_before(tmp_path, "response", answered(other)) as it:
        assert (await it.ask(call("read_file"))).body == other


async def test_an_answer_that_becomes_an_event_stream_is_not_shown(tmp_path: Path) -> None:
    """It is there as a whole, too late to be judged event by event."""
    stream = answered(b"data: " + BOTH + b"\n\n", "text/event-stream")
    async with filtered_before(tmp_path, "response", stream) as it:
        got = await it.ask(LIST)
        assert b"delete_file" not in got.head + got.body
        assert b'"error"' in got.body


async def test_an_answer_to_head_stays_without_a_body(tmp_path: Path) -> None:
    async with filtered_before(tmp_path, "response", answered(BOTH)) as it:
        got = await it.client.ask(get().replace(b"GET", b"HEAD"))
        assert got.status == 200
        assert (await it.ask(LIST)).body == tool_list([READ], id="5")


async def streaming(_request: RawRequest, peer: Peer) -> None:
    await peer.say(SSE_HEAD + chunk(b"data: " + RESULT + b"\n\n") + LAST_CHUNK)


def with_header(name: str, value: str) -> Change:
    def change(flow: HTTPFlow) -> None:
        assert flow.response
        flow.response.headers[name] = value

    return change


async def test_a_header_that_a_script_gives_a_stream_passes_unless_it_carries_a_tool(
    tmp_path: Path,
) -> None:
    for value, passes in (("harmless", True), ('{"name":"delete_file","inputSchema":{}}', False)):
        change = with_header("x-tools", value)
        async with filtered_before(tmp_path, "responseheaders", change, streaming) as it:
            got = await it.ask(call("read_file"))
            assert bool(got.all("x-tools")) is passes
            assert RESULT in got.body


async def test_a_stream_that_a_script_calls_something_else_is_not_shown(tmp_path: Path) -> None:
    """A client would read it in another way than we have judged it."""
    change = with_header("content-type", "application/json")
    async with filtered_before(tmp_path, "responseheaders", change, streaming) as it:
        got = await it.ask(call("read_file"))
        assert b"The server sent an invalid response" in got.body
        assert RESULT not in got.body
