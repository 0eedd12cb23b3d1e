"""Filter the messages of a WebSocket, which is not a standard MCP transport, but used by some
servers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import assert_never
from weakref import ref

from mitmproxy import ctx
from mitmproxy.http import HTTPFlow
from mitmproxy.websocket import WebSocketMessage

from mcp_tool_filter.conversation.conversation import Conversation
from mcp_tool_filter.conversation.in_order import CarryOut, InOrder
from mcp_tool_filter.conversation.judged import Judged
from mcp_tool_filter.errors import ProtocolError
from mcp_tool_filter.policy.effects import waits
from mcp_tool_filter.policy.exchange import Client
from mcp_tool_filter.policy.verdict import Drop, Forward, Reply, Rewrite

log = logging.getLogger(__name__)


def newest_message(flow: HTTPFlow) -> WebSocketMessage:
    """Return the newest message, and drop the older ones, which mitmproxy would keep."""
    assert flow.websocket
    message = flow.websocket.messages[-1]
    del flow.websocket.messages[:-1]
    return message


@dataclass(frozen=True, slots=True)
class _Said:
    to_client: bool
    text: bytes
    is_text: bool


class Socket:
    """One WebSocket. A waiting message holds back only later messages from the same side."""

    def __init__(self, flow: HTTPFlow, conversation: Conversation, carry_out: CarryOut) -> None:
        self._conversation = conversation
        most = conversation.policy.config.limits.pending
        say = partial(_say, ref(flow))  # our record of a flow must not keep it alive

        def in_order() -> InOrder[list[_Said]]:
            held: InOrder[list[_Said]] = InOrder(carry_out, lambda: _say_all(held, say), most=most)
            return held

        self._from_client, self._from_upstream = in_order(), in_order()

    def judge(self, flow: HTTPFlow, message: WebSocketMessage) -> None:
        """Forward a message, replace it or drop it, now or later."""
        held = self._from_client if message.from_client else self._from_upstream
        raw = message.content
        if message.from_client:
            judged = self._conversation.from_client(raw, flow)
        else:
            judged = self._conversation.judge_from_upstream(raw, flow)
        is_text = message.is_text
        if waits(judged):
            message.drop()
            held.wait(judged, len(raw), partial(_outcome, raw, message.from_client, is_text))
        elif held.is_waiting:
            message.drop()
            held.add(_outcome(raw, message.from_client, is_text, judged), len(raw))
        else:
            self._apply(flow, message, judged)

    def tell_list_changed(self, flow: HTTPFlow) -> None:
        """Send the notification after the messages that still wait, if the client expects it."""
        for notice in self._conversation.list_changed_notices(in_session=True):
            said = _Said(True, notice, True)
            if self._from_upstream.is_waiting:
                self._from_upstream.add([said], len(notice))
            else:
                _say(ref(flow), said)

    @property
    def client(self) -> Client:
        return self._conversation.client

    def close(self) -> None:
        self._from_client.abandon()
        self._from_upstream.abandon()

    def _apply(self, flow: HTTPFlow, message: WebSocketMessage, judged: Judged) -> None:
        match judged.verdict:
            case Forward():
                return
            case Rewrite(text) as changed:
                message.content = text
                said = list(_replies_beside(changed))
            case Reply() | Drop():
                message.drop()
                said = _outcome(message.content, message.from_client, message.is_text, judged)
            case unexpected:
                assert_never(unexpected)
        for one in said:
            _say(ref(flow), one)


def judge_or_drop(socket: Socket | None, flow: HTTPFlow, message: WebSocketMessage) -> None:
    """Judge a message; drop it if it cannot be judged."""
    try:
        if socket is None:
            raise ProtocolError("a WebSocket that was not requested")
        socket.judge(flow, message)
    except Exception:
        log.exception("cannot judge a WebSocket message")
        message.drop()


def _outcome(
    raw: bytes, from_client: bool, is_text: bool, outcome: Judged | Exception
) -> list[_Said]:
    """Return all messages that result from one."""
    if isinstance(outcome, Exception):
        log.error("cannot judge a WebSocket message", exc_info=outcome)
        return []
    match outcome.verdict:
        case Forward():
            return [_Said(not from_client, raw, is_text)]
        case Rewrite(text) as changed:
            return [_Said(not from_client, text, is_text), *_replies_beside(changed)]
        case Reply(text):
            return [_Said(from_client, text, True)]
        case Drop():
            return []
        case unexpected:
            assert_never(unexpected)


def _replies_beside(changed: Rewrite) -> Iterator[_Said]:
    """Yield our own replies to messages that were removed from a batch, for either side."""
    for to_client, replies in ((True, changed.owed), (False, changed.to_upstream)):
        yield from (_Said(to_client, reply, True) for reply in replies)


def _say_all(held: InOrder[list[_Said]], say: Callable[[_Said], None]) -> None:
    for pieces in held.take():
        for one in pieces:
            say(one)


def _say(flow: ref[HTTPFlow], said: _Said) -> None:
    if (there := flow()) is not None:
        ctx.master.commands.call("inject.websocket", there, said.to_client, said.text, said.is_text)
