"""What the fuzzer talks to: one listener, and what any request that passes it must keep."""

from __future__ import annotations

import contextlib
import json
from typing import Any, assert_never

from mcp_tool_filter.cli.parsing import parse_config
from mcp_tool_filter.cli.rooms import ROOMS
from mcp_tool_filter.core.conversation.conversation import exchange_for
from mcp_tool_filter.core.conversation.memory import Fetched
from mcp_tool_filter.core.errors import ProtocolError
from mcp_tool_filter.core.http.asked import Answered, HttpExchange, Passed
from mcp_tool_filter.core.http.bodies import decode_body
from mcp_tool_filter.core.http.event_stream import EventStream
from mcp_tool_filter.core.http.head import Head
from mcp_tool_filter.core.http.listener import Listener
from mcp_tool_filter.core.http.listener import open_listener as open_listener_for
from mcp_tool_filter.core.messages.limits import R2025_06_18, Transport
from mcp_tool_filter.core.messages.messages import parse_message, singles
from mcp_tool_filter.core.policy.effects import Decision, Together, waits
from mcp_tool_filter.core.process import plugs
from tests.fuzz.oracle import no_call_but_of, no_call_in_head, no_tool_but_of, require
from tests.make import asking, definition, listing, message

BETWEEN = b"\0\0"

DENIED, ALLOWED = "wipe_disk", "read_file"

MARK = b"burns-it-all"
SECRET = "sk-burns"
"""Stands in the description of the denied tool and nowhere else."""

PAGES = listing().replace(
    b"[]",
    b"[%s,%s]" % (definition(ALLOWED), definition(DENIED, f',"description":"{MARK.decode()}"')),
)

CODINGS = ("", "gzip", "deflate", "br", "zstd", "identity", "GZip", "gzip, br")

ASKED = ("tools/list", "tools/call", "ping", "")


def open_listener(**options: Any) -> Listener:
    return open_listener_for(
        upstream="http://127.0.0.1:3000",
        config=plugs.settled(ROOMS, parse_config(deny=["^wipe"], **options)),
        fetched=Fetched(
            transport=Transport.STREAMABLE,
            revision=R2025_06_18,
            endpoint="/mcp",
            server_name="server",
            server_version="1",
            sessions=True,
            pages=(PAGES,),
        ),
        clock=lambda: 0.0,
    )


LISTENER = open_listener()

SNAPSHOT = LISTENER.snapshot


def settled(outcome: Decision[Any]) -> Any:
    """Give a decision that waits for the list of its asker that list, and let others wait."""
    if not waits(outcome):
        return outcome
    try:
        effect = next(outcome)
        while True:
            if isinstance(effect, Together):
                effect = outcome.send([settled(one) for one in effect.decisions])
            else:
                effect = outcome.send((PAGES,))
    except StopIteration as made:
        return made.value


def check_request(head: Head, raw: bytes, outcome: Passed | Answered) -> None:
    match outcome:
        case Passed(_, body):
            left = raw if body is None else body
            kind = head.get(b"content-type") or ""
            no_call_but_of(SNAPSHOT.allowed, left, kind)
            no_call_in_head(SNAPSHOT.allowed, head.target, head.headers)
            with contextlib.suppress(ProtocolError):
                coding = head.get(b"content-encoding") or ""
                decoded = decode_body(raw, coding, limit=1 << 20)
                _check_rewritten(decoded, body)
                no_call_but_of(SNAPSHOT.allowed, decoded if body is None else body, kind)
        case Answered(status, body):
            require(MARK not in body, "the mark in an answer of ours", body)
            if status == 200:
                require(bool(body), "an empty answer")
            if body:
                json.loads(body, parse_int=str)
        case unexpected:
            assert_never(unexpected)


def _check_rewritten(came: bytes, left: bytes | None) -> None:
    """What is left of a batch is its own members, as they were written."""
    if left is None or left == came:
        return
    kept = [one.place.raw for one in singles(parse_message(left))]
    require(left == b"[" + b",".join(kept) + b"]", "a batch put together otherwise", left)
    at = 0
    for member in kept:
        at = came.find(member, at)
        require(at >= 0, "a member that is not the client's", member)
        at += len(member)


def check_learned() -> None:
    """What was learned from an answer shows up in lists that we answer ourselves."""
    session = LISTENER.sessions.open("s", 0.0)
    session.revision = R2025_06_18
    fields = {"mcp-session-id": "s", "accept": "application/json, text/event-stream"}
    headers = tuple((name.encode(), value.encode()) for name, value in fields.items())
    outcome = settled(LISTENER.judge_request(Head("POST", "/mcp", headers), asking("tools/list")))
    if isinstance(outcome, Answered):
        no_tool_but_of(SNAPSHOT.allowed, DENIED, outcome.body, is_list=True)


def begun_with(method: str) -> HttpExchange:
    exchange = LISTENER.unasked()
    conversation = exchange.conversation
    conversation.client.said_revision = R2025_06_18
    if method and (begun := exchange_for(message(asking(method)), 0, 0.0)):
        conversation.exchanges.open(begun)
    return exchange


def whole_of(stream: EventStream, heard: bytes) -> bytes:
    left = stream.feed(heard) + (stream.finish() or b"")
    if stream.failure is not None:
        raise stream.failure
    return left
