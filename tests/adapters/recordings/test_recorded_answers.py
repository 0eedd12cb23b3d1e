"""What a recorded upstream knows, and what it cannot have said."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from mcp_tool_filter.adapters.recordings.flow_dump import (
    Chunk,
    RecordedFlow,
    Recording,
    Said,
)
from mcp_tool_filter.adapters.recordings.recorded_upstream import (
    answers_nobody_asked_for,
    endpoint_in,
    guess_answer,
    ids_asked,
    known_tools,
    without_answers,
)
from mcp_tool_filter.conversation.memory import example
from mcp_tool_filter.protocol.limits import Transport
from mcp_tool_filter.protocol.sse import Event, EventParser
from tests.make import answering, asking, calling, event, head, listing

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
