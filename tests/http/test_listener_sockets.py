"""A WebSocket: both sides are judged, message by message."""

from __future__ import annotations

import json

from mcp_tool_filter.conversation.conversation import Conversation
from mcp_tool_filter.policy.verdict import Drop, Forward, Reply, Rewrite
from tests.http.listening import BOTH_TOOLS, listener, say
from tests.make import answering, asking, calling, listing, text_of


def test_on_a_socket_both_sides_are_judged() -> None:
    door = listener()
    socket = Conversation(door.policy)
    assert isinstance(say(socket, calling("rm"), True), Reply)
    assert say(socket, calling("read", id="2"), True) == Forward()
    assert say(socket, answering("{}", id="2"), False) == Forward()
    verdict = say(socket, BOTH_TOOLS, False)
    assert text_of(verdict) == listing("read")


def test_unreadable_messages_on_a_socket_are_answered_or_dropped() -> None:
    door = listener()
    socket = Conversation(door.policy)
    assert isinstance(say(socket, b"\xff", True), Reply)
    assert isinstance(say(socket, b"\xff", False), Drop)
    say(socket, asking("ping", id="7"), True)
    verdict = say(socket, b'{"jsonrpc":"2.0","id":7,"result":{},"x', False)
    assert isinstance(verdict, Rewrite)
    assert json.loads(verdict.text)["id"] == 7


def test_a_list_on_a_socket_is_requested_from_the_upstream() -> None:
    door = listener()
    assert say(Conversation(door.policy), asking("tools/list"), True) == Forward()
