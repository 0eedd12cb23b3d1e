"""What a listener does with the upstream's answer."""

from __future__ import annotations

import gzip
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcp_tool_filter.http.exchange import Answered, Passed
from mcp_tool_filter.http.listener import Listener
from tests.http.listening import (
    ATTACKS,
    BOTH_TOOLS,
    JSON,
    RM,
    answer,
    ask,
    asked,
    hear,
    listener,
    message_of,
    send,
)
from tests.make import answering, asking, calling, head, listing


@pytest.mark.parametrize("to", [asking("tools/list"), asking("ping"), asking("initialize", id="9")])
@pytest.mark.parametrize("status", [200, 202, 400, 404, 500])
def test_a_list_is_filtered_in_the_answer_to_any_request(to: bytes, status: int) -> None:
    outcome = hear(listing("read", "rm"), to, status=status)
    assert outcome == Answered(status, listing("read"))


@pytest.mark.parametrize("is_gone", [False, True])
@pytest.mark.parametrize(
    ("text", "is_shown"),
    [
        (f"callback({RM})", False),
        (f"<pre>{RM.replace('"', '&quot;')}</pre>", False),
        ("- name: rm\n  inputSchema:\n    type: object\n", False),
        ("<h1>rm</h1>", True),
        ("rm: removes a file", True),
    ],
)
def test_text_shows_no_denied_tool_also_if_the_list_has_lost_it(
    text: str, *, is_shown: bool, is_gone: bool
) -> None:
    door = listener()
    if is_gone:
        door.policy.kinds.note_change_for_all()
        hear(listing("read"), asking("tools/list"), door)
        assert not door.snapshot.denied
    outcome = send(door, head("GET", "/any"), b"")
    assert isinstance(outcome, Passed)
    shown = answer(door, outcome.exchange, 200, "text/plain", "", text.encode())
    assert (shown is None) is is_shown


def test_a_body_that_some_clients_read_as_a_stream_is_not_shown(door: Listener) -> None:
    """The TypeScript SDK looks for the words anywhere in the content type."""
    outcome = send(door, head("GET", "/mcp"), b"")
    assert isinstance(outcome, Passed)
    kind = "text/plain; x=text/event-stream"
    judged = answer(door, outcome.exchange, 200, kind, "", b"data: hidden\n\n")
    assert message_of(judged) == (502, None, -32603)


def test_an_encoded_answer_is_forwarded_decoded() -> None:
    """The client did not ask us for it, and may not undo it."""
    coded = gzip.compress(b"<html></html>")
    assert hear(coded, status=404, kind="text/html", coding="gzip") == Answered(
        404, b"<html></html>", content_type="text/html"
    )
    assert hear(gzip.compress(BOTH_TOOLS), coding="gzip") == Answered(200, listing("read"))


def test_a_too_large_answer_becomes_an_error() -> None:
    door = listener(message_limit="1KB")
    waiting = asked(asking("ping"), door)
    judged = answer(door, waiting, 200, JSON, "", answering('"' + "x" * 12_000 + '"'))
    assert message_of(judged) == (200, 1, -32603)


def test_the_answers_of_removed_batch_members_are_added(door: Listener) -> None:
    outcome = ask(b"[" + asking("ping", id="1") + b"," + calling("rm", id="2") + b"]", door)
    assert isinstance(outcome, Passed)
    assert outcome.body == b"[" + asking("ping", id="1") + b"]"
    judged = answer(door, outcome.exchange, 200, JSON, "", b"[ " + answering("{}") + b" ]")
    assert isinstance(judged, Answered)
    assert [answer["id"] for answer in json.loads(judged.body)] == [1, 2]


@pytest.mark.parametrize(
    ("status", "raw"), [(202, b""), (200, answering("{}")), (200, b"[]"), (200, b"x"), (502, b"")]
)
def test_a_batch_gets_its_missing_answers_unless_the_upstream_failed(
    door: Listener, status: int, raw: bytes
) -> None:
    notification = b'{"jsonrpc":"2.0","method":"notifications/x"}'
    outcome = ask(b"[" + notification + b"," + calling("rm", id="2") + b"]", door)
    assert isinstance(outcome, Passed)
    judged = answer(door, outcome.exchange, status, JSON, "", raw)
    owed = judged is not None and b'"id":2,"error"' in judged.body
    assert owed or status == 502


def test_when_the_upstream_is_lost_the_waiting_client_gets_an_error(door: Listener) -> None:
    waiting = asked(asking("ping", id='"a"'), door)
    (reply,) = door.lost_replies(waiting)
    assert json.loads(reply) == {
        "jsonrpc": "2.0",
        "id": "a",
        "error": {"code": -32000, "message": "Upstream connection lost"},
    }
    assert door.lost_replies(waiting) == ()


@given(raw=st.binary(max_size=80) | st.sampled_from(ATTACKS), status=st.integers(200, 599))
@settings(max_examples=150)
def test_no_answer_of_the_upstream_raises(raw: bytes, status: int) -> None:
    outcome = hear(raw, status=status)
    assert outcome is None or outcome.status in (200, status)
