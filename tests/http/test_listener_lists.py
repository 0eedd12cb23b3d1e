"""When a listener answers tools/list from its snapshot, and when it asks the upstream."""

from __future__ import annotations

import pytest

from mcp_tool_filter.conversation.conversation import Conversation
from mcp_tool_filter.errors import FetchFailed
from mcp_tool_filter.http.exchange import Answered, Passed
from mcp_tool_filter.http.listener import Listener
from mcp_tool_filter.policy.config import parse_config
from mcp_tool_filter.policy.verdict import Reply
from mcp_tool_filter.protocol.limits import R2026_07_28
from tests.http.listening import (
    BOTH,
    INITIALIZE,
    INITIALIZED,
    JSON,
    MODERN,
    RM,
    answer,
    ask,
    asked,
    change_patterns,
    hear,
    listener,
    say,
    send,
    session_with,
)
from tests.make import answering, asking, calling, definition, event, head, listing, text_of


def test_a_list_is_answered_at_once_in_a_session_that_was_opened_here(door: Listener) -> None:
    assert ask(asking("tools/list", id="5"), door, **session_with(door)) == Answered(
        200, listing("read", id="5")
    )


def test_replaced_credentials_make_no_difference(door: Listener) -> None:
    headers = ["Authorization: Bearer ours"]
    door.policy.config = parse_config(
        deny=["^rm"], upstream_headers=headers, header_override="true"
    )
    named = {**session_with(door, authorization="x"), "authorization": "Bearer theirs"}
    assert isinstance(ask(asking("tools/list"), door, **named), Answered)


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_session_belongs_to_the_first_user_with_credentials(door: Listener, method: str) -> None:
    headers = session_with(door)
    with_token = {**BOTH, **headers, "authorization": "Bearer x"}
    send(door, head(method, **with_token), b"" if method == "GET" else asking("ping"))
    assert isinstance(ask(asking("tools/list"), door, **headers), Passed)


def test_a_stateless_list_is_answered_at_once() -> None:
    page = answering('{"resultType":"complete","tools":[' + RM + '],"ttlMs":7}')
    door = listener(page, revision=R2026_07_28, sessions=False)
    modern = {"mcp_protocol_version": R2026_07_28, "mcp_method": "tools/list"}
    assert ask(MODERN, door, **modern) == Answered(
        200, answering('{"resultType":"complete","tools":[],"ttlMs":7}')
    )


def test_the_first_list_of_a_revision_gives_the_result_its_other_members() -> None:
    door = listener(revision=R2026_07_28, sessions=False)
    headers = {"mcp_protocol_version": "2025-11-25", "mcp_session_id": ""}
    first = asked(asking("tools/list"), door, **headers)
    raw = listing("read", "rm", more=',"_meta":{"a":1}')
    judged = answer(door, first, 200, JSON, "", raw)
    assert judged == Answered(200, listing("read", more=',"_meta":{"a":1}'))
    again = ask(asking("tools/list", id="2"), door, **headers)
    assert again == Answered(200, listing("read", id="2", more=',"_meta":{"a":1}'))


@pytest.mark.parametrize(
    "page", [b"{}", answering("{}"), answering('{"tools":{}}'), b"[1]", answering('{"Tools":[]}')]
)
def test_a_fetched_list_that_cannot_be_read_stops_the_start(page: bytes) -> None:
    with pytest.raises(FetchFailed):
        listener(page)


def test_the_same_patterns_give_the_same_snapshot(door: Listener) -> None:
    again = parse_config(deny=["^rm"], message_limit="1MB")
    before = door.snapshot
    door.policy.adopt(again)
    assert door.snapshot is before


def test_a_long_list_is_read_from_its_first_tool_to_its_last() -> None:
    names = [f"{'rm' if number % 7 == 0 else 'read'}_{number}" for number in range(1000)]
    door = listener(listing(*names[:900], more=',"nextCursor":"2"'), listing(*names[900:]))
    kept = [name for name in names if name.startswith("read")]
    assert list(door.snapshot.allowed) == kept
    assert door.snapshot.allowed.tools == b"[" + b",".join(map(definition, kept)) + b"]"
    assert len(door.snapshot.denied) == len(names) - len(kept)


def test_a_handshake_on_a_stream_opens_a_session_too(door: Listener) -> None:
    hello = asked(INITIALIZE, door)
    door.note_answer_head(hello, 200, "s1")
    door.open_stream(hello, "/mcp", None).feed(event(INITIALIZED))
    headers = {"mcp_session_id": "s1"}
    assert isinstance(ask(asking("tools/list"), door, **headers), Answered)


# Patterns that are edited apply at once, also to what was asked or opened before


def test_a_list_is_judged_again_when_the_patterns_change(door: Listener) -> None:
    hear(listing("read", "rm"), asking("tools/list"), door)
    change_patterns(door, "^read")
    assert hear(listing("read", "rm"), asking("tools/list"), door) == Answered(200, listing("rm"))


@pytest.mark.parametrize("target", ["/mcp", "/sse"])
def test_an_open_stream_follows_the_patterns_in_force(door: Listener, target: str) -> None:
    """A stream may stay open for days; a tool that is denied meanwhile must not show on it."""
    waiting = asked(asking("tools/list"), door)
    stream = door.open_stream(waiting, target, None)
    assert stream.feed(event(listing("read", "rm"))) == event(listing("read"))
    change_patterns(door, "^read")
    assert stream.feed(event(listing("read", "rm"))) == event(listing("rm"))
    named = b'event: other\ndata: {"x":' + definition("read") + b"}\n\n"
    assert stream.feed(named) == b""


def test_an_open_socket_and_a_waiting_request_follow_the_patterns_in_force(door: Listener) -> None:
    socket, waiting = Conversation(door.policy), asked(asking("tools/list"), door)
    say(socket, asking("tools/list"), True)
    change_patterns(door, "^read")
    assert isinstance(say(socket, calling("read"), True), Reply)
    assert text_of(say(socket, listing("read", "rm"), False)) == listing("rm")
    judged = answer(door, waiting, 200, JSON, "", listing("read", "rm"))
    assert judged == Answered(200, listing("rm"))
