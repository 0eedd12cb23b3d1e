"""Patterns that are edited apply at once, also to what was asked or opened before."""

from __future__ import annotations

import pytest

from mcp_tool_filter.conversation.conversation import Conversation
from mcp_tool_filter.http.exchange import Answered
from mcp_tool_filter.policy.verdict import Reply
from tests.http.listening import JSON, answer, asked, change_patterns, hear, listener, say
from tests.make import asking, calling, definition, event, listing, text_of


def test_a_list_is_judged_again_when_the_patterns_change() -> None:
    door = listener()
    hear(listing("read", "rm"), asking("tools/list"), door)
    change_patterns(door, "^read")
    assert hear(listing("read", "rm"), asking("tools/list"), door) == Answered(200, listing("rm"))


@pytest.mark.parametrize("target", ["/mcp", "/sse"])
def test_an_open_stream_follows_the_patterns_in_force(target: str) -> None:
    """A stream may stay open for days; a tool that is denied meanwhile must not show on it."""
    door = listener()
    waiting = asked(asking("tools/list"), door)
    stream = door.open_stream(waiting, target, None)
    assert stream.feed(event(listing("read", "rm"))) == event(listing("read"))
    change_patterns(door, "^read")
    assert stream.feed(event(listing("read", "rm"))) == event(listing("rm"))
    named = b'event: other\ndata: {"x":' + definition("read") + b"}\n\n"
    assert stream.feed(named) == b""


def test_an_open_socket_and_a_waiting_request_follow_the_patterns_in_force() -> None:
    door = listener()
    socket, waiting = Conversation(door.policy), asked(asking("tools/list"), door)
    say(socket, asking("tools/list"), True)
    change_patterns(door, "^read")
    assert isinstance(say(socket, calling("read"), True), Reply)
    assert text_of(say(socket, listing("read", "rm"), False)) == listing("rm")
    judged = answer(door, waiting, 200, JSON, "", listing("read", "rm"))
    assert judged == Answered(200, listing("rm"))
