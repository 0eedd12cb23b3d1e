"""A recording answers clients over sockets. (With real SDK clients: tests/recorded.)"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from mcp_tool_filter.adapters.recordings.flow_dump import Recording, read_recording
from mcp_tool_filter.adapters.recordings.recorded_upstream import ToolsUnknown, recorded_upstream
from tests.make import asking
from tests.proxy import REPOSITORY
from tests.raw_client import Answer, RawClient, get, post, raw_client

INITIALIZE = asking("initialize", id="0")
READ = {"method": "tools/call", "params": {"name": "read_file", "arguments": {"path": "/ä/b.txt"}}}


def recording(name: str) -> Recording:
    return read_recording(REPOSITORY / "recordings" / f"{name}.flow")


def asked(message: dict[str, Any], id: object) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": id, **message}).encode()


async def next_data(client: RawClient) -> str:
    while True:
        for line in (await client.chunk()).decode().splitlines():
            if line.startswith("data: "):
                return line[6:]


def text_in(answer: Answer) -> tuple[object, str]:
    message = json.loads(answer.body)
    return message["id"], message["result"]["content"][0]["text"]


async def test_a_call_gets_the_recorded_answer_of_a_similar_call_with_its_own_id() -> None:
    async with (
        recorded_upstream(recording("mcp1-streamable-json")) as upstream,
        raw_client(upstream.port) as client,
    ):
        for id in ("mine", 77):
            answer = await client.ask(post(asked(READ, id), path=upstream.path))
            assert text_in(answer) == (id, "contents of /ä/b.txt")


async def test_unrecorded_calls_get_an_error_and_lists_are_answered() -> None:
    async with (
        recorded_upstream(recording("mcp1-streamable-json")) as upstream,
        raw_client(upstream.port) as client,
    ):
        unknown = await client.ask(post(asking("never/asked"), path=upstream.path))
        assert json.loads(unknown.body)["error"]["code"] == -32000
        listed = await client.ask(post(asking("tools/list", id="9"), path=upstream.path))
        assert len(json.loads(listed.body)["result"]["tools"]) == 17
        note = b'{"jsonrpc":"2.0","method":"notifications/never"}'
        assert (await client.ask(post(note, path=upstream.path))).status == 202
        assert (await client.ask(b"PUT / HTTP/1.1\r\nHost: h\r\n\r\n")).status == 405


async def test_each_client_gets_a_session_of_its_own() -> None:
    async with recorded_upstream(recording("mcp1-streamable-json")) as upstream:
        ids = []
        for _ in range(2):
            async with raw_client(upstream.port) as client:
                answer = await client.ask(post(INITIALIZE, path=upstream.path))
                ids += answer.all("mcp-session-id")
    assert len(set(ids)) == 2


async def test_the_older_transport_answers_on_the_open_stream() -> None:
    async with (
        recorded_upstream(recording("mcp1-sse")) as upstream,
        raw_client(upstream.port) as stream,
        raw_client(upstream.port) as client,
    ):
        await stream.say(get(path=upstream.path))
        assert b"text/event-stream" in await stream.head()
        endpoint = await next_data(stream)
        assert (await client.ask(post(INITIALIZE, path=endpoint))).status == 202
        assert json.loads(await next_data(stream))["id"] == 0
        await client.ask(post(asking("never/asked", id="5"), path=endpoint))
        assert json.loads(await next_data(stream))["error"]["code"] == -32000


async def test_a_recording_without_tools_cannot_be_served() -> None:
    empty = replace(recording("mcp1-sse"), flows=(), name="empty")
    with pytest.raises(ToolsUnknown, match="Cannot replay the recording empty"):
        async with recorded_upstream(empty):
            pass
