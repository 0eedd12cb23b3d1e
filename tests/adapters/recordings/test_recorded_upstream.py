"""An upstream that answers from a recording: what it knows, and what it cannot have said."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from mcp_tool_filter.adapters.recordings.flow_dump import (
    Chunk,
    RecordedFlow,
    Recording,
    Said,
    read_recording,
)
from mcp_tool_filter.adapters.recordings.recorded_upstream import (
    ToolsUnknown,
    answers_nobody_asked_for,
    endpoint_in,
    guess_answer,
    ids_asked,
    known_tools,
    recorded_upstream,
    without_answers,
)
from mcp_tool_filter.conversation.memory import example
from mcp_tool_filter.protocol.limits import Transport
from mcp_tool_filter.protocol.sse import Event, EventParser
from tests.make import answering, asking, calling, event, head, listing
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


# What a recorded upstream knows, and what it cannot have said.

PAGES = (listing("a", more=',"nextCursor":"2"'), listing("b"))

FETCHED = replace(example(), pages=PAGES)

NOTIFICATION = b'{"jsonrpc":"2.0","method":"notifications/x"}'


def batch(*parts: bytes) -> bytes:
    return b"[" + b",".join(parts) + b"]"


def only_event(raw: bytes) -> Event:
    [found] = EventParser().feed(raw)
    assert isinstance(found, Event)
    return found


def said(body: bytes, content_type: str = "application/json", **headers: str) -> Said:
    fields = {"content-type": content_type} | headers
    return Said(
        status=200,
        headers=tuple((name.encode(), value.encode()) for name, value in fields.items()),
        at=1.0,
        chunks=(Chunk(1.0, body),),
        ended=2.0,
    )


def recorded(body: bytes, answer: Said | None, target: str = "/x") -> RecordedFlow:
    return RecordedFlow(
        head=head(target=target),
        host="h",
        body=body,
        at=0.0,
        upstream="http://h:1",
        said=answer,
        heard=b"",
    )


def test_ids_are_those_of_requests() -> None:
    assert ids_asked(batch(asking("x", id='"a"'), NOTIFICATION, answering("{}"))) == {'"a"'}
    assert ids_asked(b"no message") == set()


@pytest.mark.parametrize(
    ("body", "rest"),
    [
        (answering("{}", id="1"), b""),
        (answering("{}", id="2"), answering("{}", id="2")),
        (batch(answering("1", id="1"), answering("2", id="2")), batch(answering("2", id="2"))),
        (batch(answering("1", id="1")), b""),
        (NOTIFICATION, NOTIFICATION),
        (b"no message", b"no message"),
    ],
)
def test_an_unrequested_answer_is_left_out(body: bytes, rest: bytes) -> None:
    assert without_answers(body, {"1"}) == rest
    assert without_answers(body, set()) == body
    assert answers_nobody_asked_for(only_event(event(body)), {"1"}) == (rest == b"")


@pytest.mark.parametrize(
    ("asked", "names"),
    [
        (asking("tools/list", id='"x"'), ["a"]),
        (asking("tools/list", id='"x"', params='{"cursor":"2"}'), ["b"]),
    ],
)
def test_lists_are_answered_page_by_page(asked: bytes, names: list[str]) -> None:
    answer = json.loads(guess_answer(asked, FETCHED))
    assert answer["id"] == "x"
    assert [tool["name"] for tool in answer["result"]["tools"]] == names


@pytest.mark.parametrize(
    "asked", [calling("a"), asking("tools/list", params='{"cursor":"unknown"}')]
)
def test_unrecorded_requests_get_an_error(asked: bytes) -> None:
    error = json.loads(guess_answer(asked, FETCHED))["error"]
    assert error == {"code": -32000, "message": "The recording does not know the answer"}


def test_only_requests_are_answered() -> None:
    assert guess_answer(NOTIFICATION, FETCHED) == b""
    assert guess_answer(b"no message", FETCHED) == b""
    answers = json.loads(guess_answer(batch(calling("a", id="7"), NOTIFICATION), FETCHED))
    assert [one["id"] for one in answers] == [7]


def test_tools_are_found_in_recorded_answers() -> None:
    welcome = answering('{"protocolVersion":"2025-06-18","capabilities":{}}', id="0")
    flows = (
        recorded(asking("initialize", id="0"), said(welcome, **{"mcp-session-id": "s"})),
        recorded(asking("tools/list"), said(event(listing("a")), "text/event-stream")),
        recorded(asking("tools/list"), said(listing("a"))),
    )
    fetched = known_tools(Recording(flows, "mine"))
    assert fetched
    assert (fetched.server_name, fetched.endpoint, fetched.sessions) == ("mine", "/x", True)
    assert (fetched.transport, fetched.revision) == (Transport.STREAMABLE, "2025-06-18")
    assert fetched.pages == (listing("a"),)


def test_the_older_transport_answers_on_its_stream() -> None:
    stream = b"event: endpoint\ndata: /messages?s=1\n\n" + event(listing("a"))
    flows = (
        recorded(b"", said(stream, "text/event-stream"), "/sse"),
        recorded(asking("tools/list"), said(b"Accepted", "text/plain"), "/messages?s=1"),
    )
    fetched = known_tools(Recording(flows))
    assert fetched
    assert (fetched.transport, fetched.endpoint) == (Transport.LEGACY_SSE, "/sse")
    assert endpoint_in(flows[0].said) == "/messages?s=1"
    assert endpoint_in(flows[1].said) is None


def test_without_a_list_no_tools_are_known() -> None:
    nobody_asked = recorded(calling("a"), said(listing("a")))
    no_answer = recorded(asking("tools/list", id="5"), None)
    assert known_tools(Recording((nobody_asked, no_answer))) is None
