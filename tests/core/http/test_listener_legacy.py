"""The older transport: answers come on a stream of their own."""

from __future__ import annotations

import pytest

from mcp_tool_filter.core.http.asked import Answered, HttpExchange, Passed
from mcp_tool_filter.core.http.listener import Listener
from mcp_tool_filter.core.policy.effects import FetchTools, waits
from tests.core.conversation.asking_kinds import finished
from tests.core.http import listening
from tests.core.http.listening import INITIALIZE, INITIALIZED, JSON, SSE, listener, message_of, send
from tests.make import answering, asking, calling, event, head, listing


class Client:
    """A client of the older transport, with its GET stream open."""

    def __init__(self, door: Listener, named: bytes = b"/messages?s=1", **headers: str) -> None:
        self.door = door
        self.heard: list[bytes] = []
        outcome = send(door, head("GET", "/sse", accept=SSE, **headers), b"")
        self.asked = listening.passed(outcome).exchange
        self.stream = door.open_stream(self.asked, "/sse", self._send)
        self.said = self.stream.feed(b"event: endpoint\ndata: " + named + b"\n\n")

    def _send(self, raw: bytes) -> bool:
        self.heard.append(raw)
        return True

    def post(self, raw: bytes, target: str = "/messages?s=1") -> Passed | Answered:
        return send(self.door, head("POST", target, content_type=JSON), raw)


@pytest.mark.parametrize(("tool", "is_there"), [("mine", True), ("read", False)])
def test_a_call_before_the_first_list_waits_for_the_users_own(tool: str, is_there: bool) -> None:
    """It is not judged by the list that we fetched at start: another user may have other tools."""
    client = Client(listener(), authorization="Bearer ann")
    client.post(INITIALIZE)
    client.stream.feed(event(INITIALIZED))
    asks = head("POST", "/messages?s=1", content_type=JSON, authorization="Bearer ann")
    assert isinstance(client.door.judge_request(asks, calling("rm", id="0")), Answered)
    decision = client.door.judge_request(asks, calling(tool))
    assert waits(decision)
    effect = next(decision)
    assert isinstance(effect, FetchTools)
    assert isinstance(effect.arrival, HttpExchange)
    assert effect.arrival.stream is not None
    outcome = finished(decision, (listing("mine", "rm"),))
    assert isinstance(outcome, Passed if is_there else Answered)


def test_an_answer_to_us_stays_with_us() -> None:
    """Also on a stream that carries answers to the client, and in any pieces."""
    client = Client(listener())
    client.post(calling("read", id="4"))
    theirs, ours = answering("{}", id="4"), listing("read", "rm", id="77")
    conversation = client.stream.conversation
    heard: list[bytes] = []
    conversation.ours = {"77": heard.append, "78": heard.append}
    said = event(listing("rm", id="76")) + event(ours) + event(theirs) + event(ours)
    got = b"".join(client.stream.feed(said[at : at + 7]) for at in range(0, len(said), 7))
    assert heard == [ours]
    assert b"rm" not in got
    assert event(theirs) in got
    client.door.legacy.close(conversation)
    assert heard == [ours, b""]


def test_a_list_is_answered_on_the_stream_too() -> None:
    client = Client(listener())
    assert isinstance(client.post(INITIALIZE), Passed)
    client.stream.feed(event(INITIALIZED))
    outcome = client.post(asking("tools/list"))
    assert isinstance(outcome, Answered)
    assert outcome.body == listing("read")
    assert outcome.stream is not None


def test_an_allowed_call_goes_on_and_its_answer_comes_on_the_stream() -> None:
    client = Client(listener())
    outcome = client.post(calling("read", id="4"))
    assert listening.answer(client.door, outcome, b"Accepted", 202, "text/plain") is None
    said = event(answering('{"tools":{"hammer":1}}', id="4"))
    assert client.stream.feed(said) == said


def test_a_batch_gets_our_answers_on_the_stream() -> None:
    client = Client(listener())
    outcome = client.post(b"[" + asking("ping") + b"," + calling("rm", id="2") + b"]")
    assert listening.passed(outcome).exchange.owed == ()
    assert b"Tool not found: rm" in client.heard[0]


@pytest.mark.parametrize("named", [
    b"messages?s=1", b"../messages?s=1", b"/messages?s=1#x", b"http://127.0.0.1:3000/messages?s=1",
])  # fmt: skip
def test_an_endpoint_is_resolved_as_clients_do(named: bytes) -> None:
    client = Client(listener(), named)
    assert b"127.0.0.1" not in client.said
    outcome = client.post(calling("rm"))
    assert isinstance(outcome, Answered)
    assert outcome.stream is not None


def test_a_stream_has_one_endpoint_at_a_time() -> None:
    """Else an upstream could make us remember without end."""
    client = Client(listener())
    for number in range(100):
        client.stream.feed(b"event: endpoint\ndata: /messages?s=%d\n\n" % number)
    assert [one.target for one in client.door.legacy] == ["/messages?s=99"]


def test_clients_with_the_same_endpoint_never_get_each_other_s_answers(door: Listener) -> None:
    """Requests cannot be assigned to a stream, so our answer goes back on the POST."""
    one, other = Client(door), Client(door)
    one.post(INITIALIZE)
    one.stream.feed(event(INITIALIZED))
    for raw in (calling("rm"), b"[" + asking("ping") + b"," + calling("rm", id="2") + b"]"):
        outcome = other.post(raw)
        assert isinstance(outcome, Passed) or outcome.stream is None
        if isinstance(outcome, Answered):
            assert message_of(outcome) == (200, 1, -32601)
        else:
            assert len(outcome.exchange.owed) == 1
    assert isinstance(other.post(asking("tools/list")), Passed)
    door.tell_of_loss("/messages?s=1", asking("ping"))
    assert one.heard == other.heard == []


def test_a_shared_endpoint_stays_shared_until_its_last_stream_ends(door: Listener) -> None:
    """The client whose stream has ended may still post."""
    one, other = Client(door), Client(door)
    door.close_stream(one.asked)
    outcome = one.post(calling("rm"))
    assert isinstance(outcome, Answered)
    assert outcome.stream is None
    door.close_stream(other.asked)
    assert len(door.legacy.endpoints) == 0
    assert isinstance(Client(door).post(calling("rm")), Answered)


def test_an_overlong_endpoint_is_not_remembered() -> None:
    client = Client(listener(), b"/messages?s=" + b"x" * 10_000)
    assert client.said == b""
    assert len(client.door.legacy.endpoints) == 0
