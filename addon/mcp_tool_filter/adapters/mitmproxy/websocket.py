"""A WebSocket's messages: no standard transport of MCP, but some servers have it."""

from __future__ import annotations

import logging
from typing import assert_never

from mitmproxy import ctx
from mitmproxy.http import HTTPFlow
from mitmproxy.websocket import WebSocketMessage

from mcp_tool_filter.http.exchange import Asked
from mcp_tool_filter.http.listener import Listener
from mcp_tool_filter.policy.verdict import Drop, Forward, Reply, Rewrite

log = logging.getLogger(__name__)


def newest_message(flow: HTTPFlow) -> WebSocketMessage:
    """Return the message that has just come; mitmproxy would keep every one before it."""
    assert flow.websocket
    message = flow.websocket.messages[-1]
    del flow.websocket.messages[:-1]
    return message


def judge_message(
    flow: HTTPFlow, message: WebSocketMessage, listener: Listener, asked: Asked
) -> None:
    """Pass on a message, another one in its place, or none."""
    verdict = listener.judge_spoken(asked, message.content, message.from_client)
    match verdict:
        case Forward():
            pass
        case Rewrite(text, _, owed):
            message.content = text
            for reply in owed:
                _say_to_client(flow, reply)
        case Reply(text):
            message.drop()
            _say_to_client(flow, text)
        case Drop():
            message.drop()
        case unexpected:
            assert_never(unexpected)


def _say_to_client(flow: HTTPFlow, text: bytes) -> None:
    ctx.master.commands.call("inject.websocket", flow, True, text, True)
