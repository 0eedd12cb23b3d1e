"""A listener before an upstream with ``read`` and the denied ``rm``; no host, no network."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

from mcp_tool_filter.cli.parsing import parse_config
from mcp_tool_filter.core.conversation.conversation import Conversation
from mcp_tool_filter.core.conversation.memory import Fetched
from mcp_tool_filter.core.conversation.policy_in_force import Judged
from mcp_tool_filter.core.http.asked import Answered, HttpExchange, Passed
from mcp_tool_filter.core.http.head import Head
from mcp_tool_filter.core.http.listener import Listener, open_listener
from mcp_tool_filter.core.messages.limits import R2025_06_18, R2026_07_28
from mcp_tool_filter.core.policy.verdict import Verdict
from tests.attacks.hostile_requests import bodies
from tests.attacks.stage import DENIED
from tests.make import answering, asking, at_once, definition, head, judge_from_upstream, listing

JSON, SSE = "application/json", "text/event-stream"

BOTH = {"accept": f"{JSON}, {SSE}", "content_type": JSON}

RM = definition("rm").decode()

INITIALIZE = asking("initialize", id="0")

INITIALIZED = answering(f'{{"protocolVersion":"{R2025_06_18}","capabilities":{{}}}}', id="0")

_META = f'{{"io.modelcontextprotocol/protocolVersion":"{R2026_07_28}"}}'
MODERN = asking("tools/list", params=f'{{"_meta":{_META}}}')


def listener(
    *pages: bytes, revision: str = R2025_06_18, sessions: bool = True, message_limit: str = "10MB"
) -> Listener:
    """Open a listener before an upstream that has ``read`` and the denied ``rm``."""
    pages = pages or (listing("read", "rm"),)
    return open_listener(
        upstream="http://127.0.0.1:3000",
        config=parse_config(deny=["^rm"], message_limit=message_limit),
        fetched=Fetched(revision=revision, sessions=sessions, server_name="server", pages=pages),
        clock=lambda: 0.0,
    )


def ask(raw: bytes, to: Listener | None = None, **headers: str) -> Passed | Answered:
    return send(to or listener(), head(**{**BOTH, **headers}), raw)


def ask_at(target: str, raw: bytes, to: Listener | None = None) -> Passed | Answered:
    return send(to or listener(), head("POST", target, **BOTH), raw)


def send(door: Listener, request_head: Head, raw: bytes) -> Passed | Answered:
    """Let a request come in; nothing that is decided here has to wait."""
    outcome: Passed | Answered = at_once(door.judge_request(request_head, raw))
    return outcome


def passed(outcome: Passed | Answered) -> Passed:
    """Return what goes to the upstream."""
    assert isinstance(outcome, Passed)
    return outcome


def answer(
    door: Listener,
    to: HttpExchange | Passed | Answered,
    raw: bytes,
    status: int = 200,
    kind: str = JSON,
    coding: str = "",
) -> Answered | None:
    """Let the upstream answer what has passed."""
    exchange = to if isinstance(to, HttpExchange) else passed(to).exchange
    answered: Answered | None = at_once(door.judge_answer(exchange, status, kind, coding, raw))
    return answered


def waiting_for(door: Listener, *asked: bytes) -> HttpExchange:
    """Begin an exchange in which these requests wait."""
    exchange = door.unasked()
    for raw in asked:
        exchange.conversation.from_client(raw)
    return exchange


def say(socket: Conversation, raw: bytes, from_client: bool) -> Verdict:
    """Say something in a conversation."""
    judge = socket.from_client if from_client else partial(judge_from_upstream, socket)
    judged: Judged = at_once(judge(raw))
    return judged.verdict


def asked(raw: bytes, to: Listener, **headers: str) -> HttpExchange:
    return passed(ask(raw, to, **headers)).exchange


def hear(
    raw: bytes, to: bytes = asking("ping"), door: Listener | None = None, **said: Any
) -> Answered | None:
    """Let the upstream answer a request with these bytes."""
    door = door or listener()
    return answer(door, ask(to, door), raw, **said)


def message_of(outcome: Passed | Answered | None) -> tuple[int, object, int]:
    """Return the status of an answer of ours, the id it is for, and its error code."""
    assert isinstance(outcome, Answered)
    body = json.loads(outcome.body)
    return outcome.status, body["id"], body["error"]["code"]


ATTACKS = [raw.replace(DENIED.encode(), b"rm") for _, raw in bodies() if len(raw) < 1000]


def session_with(door: Listener, **headers: str) -> dict[str, str]:
    """Shake hands through the door; return the headers of the session."""
    hello = asked(INITIALIZE, door, **headers)
    door.note_answer_head(hello, 200, "s1")
    assert answer(door, hello, INITIALIZED) is None
    return {"mcp_session_id": "s1", "mcp_protocol_version": R2025_06_18, **headers}


def change_patterns(door: Listener, deny: str) -> None:
    """Edit the patterns, as mitmweb does."""
    config = parse_config(deny=[deny])
    door.policy.adopt(config)
