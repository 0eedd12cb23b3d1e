"""A recording as an upstream, and gone through again: what it knows, and what a client gets."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from mcp_tool_filter.core.conversation.memory import example
from mcp_tool_filter.core.errors import InvalidPattern, StartError
from mcp_tool_filter.core.http.head import Head
from mcp_tool_filter.core.messages.limits import Transport
from mcp_tool_filter.core.messages.sse import Event, EventParser
from mcp_tool_filter.core.policy.verdict import Drop, Forward, Reason, Reply, Why
from mcp_tool_filter.rooms.recordings import flow_dump
from mcp_tool_filter.rooms.recordings import recorded_upstream as module
from mcp_tool_filter.rooms.recordings import transcript as checks
from mcp_tool_filter.rooms.recordings.flow_dump import (
    Chunk,
    RecordedFlow,
    Recording,
    Said,
    read_recording,
)
from mcp_tool_filter.rooms.recordings.recorded_upstream import (
    RecordedUpstream,
    ToolsUnknown,
    guess_answer,
)
from mcp_tool_filter.rooms.recordings.replay import replay
from mcp_tool_filter.rooms.recordings.transcript import Judgement, RecordedTurn, Transcript
from tests.make import answering, asking, calling, event, head, listing, message, snapshot
from tests.proxy import REPOSITORY
from tests.raw_client import RawClient, get, post, raw_client
from tests.rows import each_row

INITIALIZE = asking("initialize", id="0")


def recording(name: str) -> Recording:
    return flow_dump.read_recording(REPOSITORY / "recordings" / f"{name}.flow")


async def next_data(client: RawClient) -> str:
    while True:
        for line in (await client.chunk()).decode().splitlines():
            if line.startswith("data: "):
                return line[6:]


@asynccontextmanager
async def served(name: str) -> AsyncIterator[tuple[RecordedUpstream, RawClient]]:
    async with (
        module.recorded_upstream(recording(name)) as upstream,
        raw_client(upstream.port) as client,
    ):
        yield upstream, client


async def test_a_call_gets_the_recorded_answer_of_a_similar_call_with_its_own_id() -> None:
    async with served("mcp1-streamable-json") as (upstream, client):
        for id in ("mine", 77):
            call = calling("read_file", id=json.dumps(id), arguments='{"path":"/ä/b.txt"}')
            said = json.loads((await client.ask(post(call, path=upstream.path))).body)
            text = said["result"]["content"][0]["text"]
            assert (said["id"], text) == (id, "contents of /ä/b.txt")


async def test_unrecorded_calls_get_an_error_and_lists_are_answered() -> None:
    async with served("mcp1-streamable-json") as (upstream, client):
        unknown = await client.ask(post(asking("never/asked"), path=upstream.path))
        assert json.loads(unknown.body)["error"]["code"] == -32000
        listed = await client.ask(post(asking("tools/list", id="9"), path=upstream.path))
        assert len(json.loads(listed.body)["result"]["tools"]) == 17
        note = b'{"jsonrpc":"2.0","method":"notifications/never"}'
        assert (await client.ask(post(note, path=upstream.path))).status == 202
        assert (await client.ask(b"PUT / HTTP/1.1\r\nHost: h\r\n\r\n")).status == 405


async def test_each_client_gets_a_session_of_its_own() -> None:
    async with module.recorded_upstream(recording("mcp1-streamable-json")) as upstream:
        ids = []
        for _ in range(2):
            async with raw_client(upstream.port) as client:
                answer = await client.ask(post(INITIALIZE, path=upstream.path))
                ids += answer.all("mcp-session-id")
    assert len(set(ids)) == 2


async def test_the_older_transport_answers_on_the_open_stream() -> None:
    async with served("mcp1-sse") as (upstream, client), raw_client(upstream.port) as stream:
        await stream.say(get(path=upstream.path))
        assert b"text/event-stream" in await stream.head()
        endpoint = await next_data(stream)
        assert (await client.ask(post(INITIALIZE, path=endpoint))).status == 202
        assert json.loads(await next_data(stream))["id"] == 0
        await client.ask(post(asking("never/asked", id="5"), path=endpoint))
        assert json.loads(await next_data(stream))["error"]["code"] == -32000


async def test_a_recording_without_tools_cannot_be_served() -> None:
    empty = replace(recording("mcp1-sse"), flows=(), name="empty")
    with pytest.raises(module.ToolsUnknown, match="Cannot replay the recording empty"):
        async with module.recorded_upstream(empty):
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
    named = tuple((name.encode(), value.encode()) for name, value in fields.items())
    return Said(status=200, headers=named, at=1.0, chunks=(Chunk(1.0, body),), ended=2.0)


def recorded(body: bytes, answer: Said | None, target: str = "/x") -> RecordedFlow:
    return RecordedFlow(
        head=head(target=target), host="h", body=body, at=0.0, upstream="http://h:1", said=answer,
        heard=b"",
    )  # fmt: skip


def test_ids_are_those_of_requests() -> None:
    assert module.ids_asked(batch(asking("x", id='"a"'), NOTIFICATION, answering("{}"))) == {'"a"'}
    assert module.ids_asked(b"no message") == set()


@each_row(
    ("body", "rest"),
    [
        (answering("{}", id="1"), b""), (answering("{}", id="2"), answering("{}", id="2")),
        (batch(answering("1", id="1"), answering("2", id="2")), batch(answering("2", id="2"))),
        (batch(answering("1", id="1")), b""), (NOTIFICATION, NOTIFICATION),
        (b"no message", b"no message"),
    ],
)  # fmt: skip
def test_an_unrequested_answer_is_left_out(body: bytes, rest: bytes) -> None:
    assert module.without_answers(body, {"1"}) == rest
    assert module.without_answers(body, set()) == body
    assert module.answers_nobody_asked_for(only_event(event(body)), {"1"}) == (rest == b"")


def test_lists_are_answered_page_by_page() -> None:
    for params, name in (("{}", "a"), ('{"cursor":"2"}', "b")):
        answer = json.loads(guess_answer(asking("tools/list", id='"x"', params=params), FETCHED))
        assert answer["id"] == "x"
        assert [tool["name"] for tool in answer["result"]["tools"]] == [name]


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
    fetched = module.known_tools(Recording(flows, "mine"))
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
    fetched = module.known_tools(Recording(flows))
    assert fetched
    assert (fetched.transport, fetched.endpoint) == (Transport.LEGACY_SSE, "/sse")
    assert module.endpoint_in(flows[0].said) == "/messages?s=1"
    assert module.endpoint_in(flows[1].said) is None


def test_without_a_list_no_tools_are_known() -> None:
    nobody_asked = recorded(calling("a"), said(listing("a")))
    no_answer = recorded(asking("tools/list", id="5"), None)
    assert module.known_tools(Recording((nobody_asked, no_answer))) is None


# Transcripts of replayed sessions, and the checks that find leaks and changes in them
DENIED = Judgement(None, Reply(b"no", Reason(Why.DENIED, ("b",))), "denied by ^b\nand more")

PASSED = Judgement(message(calling("a")), Forward(), "passes")


def turn(
    asked: bytes = calling("a"),
    reached: bytes | None = b"",
    said: bytes = b'{"said":1}',
    heard: bytes = b"",
    *judgements: Judgement,
) -> RecordedTurn:
    """One turn; what is empty is as it was before."""
    return RecordedTurn(
        head=Head("POST", "/mcp", ()), asked=asked, reached=asked if reached == b"" else reached,
        said=said, is_guess=False, status=200, heard=heard or said,
        content_type="application/json", judgements=judgements,
    )  # fmt: skip


def transcript(*turns: RecordedTurn) -> Transcript:
    return Transcript("name", snapshot("a", "b"), (listing("a", "b"),), turns)


def test_an_unchanged_turn_is_shown_in_short() -> None:
    text = transcript(turn(calling("a"), b"", b'{"said":1}', b"", PASSED)).render()
    said = f"client says     {calling('a').decode()}"
    gets = ['upstream says   {"said":1}', "client gets 200 the same", ""]
    assert text.splitlines() == ["POST /mcp", said, *gets]


def test_a_refusal_is_shown_with_its_reason() -> None:
    one = turn(calling("b"), None, b"", b"no", DENIED)
    assert transcript(one).render().splitlines()[2:6] == [
        "upstream gets   nothing", "client gets 200 no",
        "because         denied by ^b", "                and more",
    ]  # fmt: skip
    assert one.refusals == [DENIED]
    assert (DENIED.why, PASSED.why) == (Why.DENIED, None)
    assert not one.is_untouched


def test_calls_show_whether_they_pass_and_are_known() -> None:
    turns = [turn(), turn(calling("b"), None), replace(turn(calling("c")), is_guess=True)]
    calls = [(one.tool, one.passes, one.is_known) for one in transcript(*turns).calls]
    assert calls == [("a", True, True), ("b", False, True), ("c", True, False)]


def test_both_sides_can_be_searched() -> None:
    asked, full, short = calling("b"), listing("a", "b"), listing("a")
    both = transcript(turn(asked, None, b""), turn(asked, b"", full, short))
    assert '"b"' in both.before
    assert both.listed_before == ["a", "b"]
    assert both.listed_after == ["a"]
    assert full.decode() not in both.after


# The checks of a replayed session find what they are for, and nothing in an honest one.

CHANGED_REQUEST = "turn 1, POST /mcp: the upstream did not get the request that the client sent"

CHANGED_ANSWER = "turn 1, POST /mcp: the client did not get the answer that the upstream sent"

NOT_FOUND = b'{"jsonrpc":"2.0","id":2,"error":{"code":-32601,"message":"Tool not found: b"}}'


def replayed(*turns: RecordedTurn) -> Transcript:
    return Transcript("name", snapshot("a", "b", deny="b"), (listing("a", "b"),), turns)


def stream(said: bytes, heard: bytes) -> RecordedTurn:
    return replace(turn(said=said, heard=heard), content_type="text/event-stream")


BOTH, ONE = batch(calling("a"), calling("b")), b"data: 1\n\n"


@pytest.mark.parametrize(
    ("one", "leaks"),
    [
        (turn(calling("a")), []),
        (turn(calling("b"), None), []),
        (turn(calling("b")), ["a call of the tool b reached the upstream"]),
        (turn(calling("a"), b"", listing("a", "b"), listing("a")), []),
        (turn(calling("a"), b"", listing("a", "b")), ["a client saw the tool b"]),
    ],
)
def test_a_leak_is_found(one: RecordedTurn, leaks: list[str]) -> None:
    assert list(checks.find_leaks(replayed(one))) == leaks


@each_row(
    ("one", "changes"),
    [
        (turn(), []), (turn(calling("a"), calling("a") + b" "), [CHANGED_REQUEST]),
        (turn(BOTH, batch(calling("a"))), []), (turn(BOTH, batch(calling("c"))), [CHANGED_REQUEST]),
        (turn(calling("a"), b"", b'{"n":1}', b'{"n":2}'), [CHANGED_ANSWER]),
        (turn(calling("a"), b"", listing("a", "b"), listing("a")), []),
        (stream(ONE, b"data: 1\r\n\r\n"), []), (stream(ONE, b"data: 2\n\n"), [CHANGED_ANSWER]),
        (stream(ONE, b"data: %s\n\n%s" % (NOT_FOUND, ONE)), []),
        (replace(turn(calling("a"), None), heard=b"ours"), []),
    ],
)  # fmt: skip
def test_a_change_is_found(one: RecordedTurn, changes: list[str]) -> None:
    assert list(checks.find_changes(replayed(one))) == changes


def test_an_invalid_answer_may_be_replaced() -> None:
    invalid = Judgement(None, Drop(Reason(Why.INVALID)), "invalid")
    one = replace(turn(calling("a"), b"", b"{{{", b'{"error":1}'), judgements=(invalid,))
    assert list(checks.find_changes(replayed(one))) == []


# Going through a session again. (With all recordings and policies: tests/recorded.)


@pytest.fixture(scope="module")
def session() -> Recording:
    return read_recording(REPOSITORY / "recordings" / "mcp1-streamable-json.flow")


def test_patterns_may_be_one_text_or_several(session: Recording) -> None:
    for given in ("^read_,^echo$", ["^read_", "^echo$"]):
        listed = replay(session, deny=given).listed_after
        assert listed
        assert {"read_file", "echo"}.isdisjoint(listed)
    assert replay(session, allow="^echo$").listed_after == ["echo"]


@pytest.mark.parametrize(("new_tools", "is_asked"), [("judge", True), ("hide", False)])
def test_other_options_apply_to_a_replay(
    session: Recording, new_tools: str, is_asked: bool
) -> None:
    transcript = replay(session, new_tools=new_tools)
    [turn] = [one for one in transcript.turns if b"tools/list" in one.asked]
    assert (turn.reached is not None) == is_asked


@pytest.mark.parametrize(
    ("options", "error"), [({"deny": "["}, InvalidPattern), ({"message_limit": "many"}, StartError)]
)
def test_wrong_options_are_refused(
    session: Recording, options: dict[str, str], error: type[StartError]
) -> None:
    with pytest.raises(error):
        replay(session, **options)


def test_a_recording_without_tools_is_refused(session: Recording) -> None:
    with pytest.raises(ToolsUnknown):
        replay(replace(session, flows=session.flows[-1:]))


@pytest.mark.parametrize(("method", "status"), [("HEAD", 200), ("POST", 204), ("GET", 304)])
def test_what_can_have_no_body_has_none(session: Recording, method: str, status: int) -> None:
    flow = session.flows[-1]
    at, kind = flow.at + 1, (b"content-type", b"text/plain")
    said = Said(status=status, headers=(kind,), at=at, chunks=(Chunk(at, b"left"),), ended=at)
    asked = replace(flow, head=Head(method, "/readme", ()), body=b"", said=said)
    turn = replay(replace(session, flows=(*session.flows, asked))).turns[-1]
    assert (turn.reached, turn.status, turn.heard) == (b"", status, b"")


def test_a_client_of_an_unknown_host_is_refused(session: Recording) -> None:
    """And the transcript says why."""
    flows = [replace(flow, host="evil.example") for flow in session.flows]
    turns = replay(replace(session, flows=tuple(flows))).turns
    assert {(turn.status, turn.reached) for turn in turns} == {(403, None)}
    assert {one.why for turn in turns for one in turn.judgements} == {Why.FORBIDDEN}
