"""Short makers: what a test is about stands in the test, the rest is made here."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from mcp_tool_filter.cli.parsing import parse_config
from mcp_tool_filter.core.conversation.conversation import Conversation
from mcp_tool_filter.core.conversation.memory import example
from mcp_tool_filter.core.conversation.policy_in_force import PolicyInForce
from mcp_tool_filter.core.errors import ProtocolError
from mcp_tool_filter.core.http.head import Head
from mcp_tool_filter.core.messages.limits import Limits
from mcp_tool_filter.core.messages.messages import Batch, Request, Single, parse_message
from mcp_tool_filter.core.messages.tool_requests import ToolCall
from mcp_tool_filter.core.messages.tools import Definition, Listing, parse_listing
from mcp_tool_filter.core.policy.config import Config
from mcp_tool_filter.core.policy.effects import Deciding, Decision, waits
from mcp_tool_filter.core.policy.situation import Link
from mcp_tool_filter.core.policy.snapshot import Snapshot
from mcp_tool_filter.core.policy.taking import take_snapshot
from mcp_tool_filter.core.policy.verdict import Drop, Forward, Reply, Rewrite, Verdict


def at_once(decision: Decision[Any]) -> Any:
    """Return what was decided: nothing had to wait."""
    assert not waits(decision)
    return decision


def judge_from_upstream(between: Conversation, raw: bytes, origin: object = None) -> Decision[Any]:
    """Decide on a message; if it cannot be judged, the waiting client gets an error."""

    def judging() -> Deciding[Any]:
        try:
            return (yield from decision)  # type: ignore[misc]  # it waits
        except ProtocolError as error:
            return between.unreadable_from_upstream(raw, str(error), origin=origin)

    try:
        decision = between.from_upstream(raw, origin)
    except ProtocolError as error:
        return between.unreadable_from_upstream(raw, str(error), origin=origin)
    return judging() if waits(decision) else decision


def policy(
    *names: str, deny: str = "", limits: Limits | None = None, links: tuple[Link, ...] = ()
) -> PolicyInForce:
    """Put a policy in force for an upstream with these tools."""
    choice = parse_config(deny=[deny] if deny else None).choice
    config = Config(choice=choice, limits=limits or Limits())
    fetched = replace(example(), pages=(listing(*names),))
    return PolicyInForce(config=config, fetched=fetched, links=links)


def call(tool_name: str, *, id: str | None = "1") -> ToolCall:
    return ToolCall(tool_name, id)


def message(raw: bytes) -> Single:
    """Read one message that is no batch."""
    parsed = parse_message(raw)
    assert not isinstance(parsed, Batch)
    return parsed


def request(raw: bytes) -> Request:
    parsed = message(raw)
    assert isinstance(parsed, Request)
    return parsed


def asking(method: str, *, id: str = "1", params: str = "{}") -> bytes:
    """Write a request; what is given is JSON."""
    return f'{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{params}}}'.encode()


def calling(tool_name: str, *, id: str = "1", arguments: str = "{}") -> bytes:
    """Write a call of a tool."""
    return asking("tools/call", id=id, params=f'{{"name":"{tool_name}","arguments":{arguments}}}')


def definition(name: str, more: str = "") -> bytes:
    """Write a tool's definition; ``more`` are further members."""
    return f'{{"name":"{name}","inputSchema":{{"type":"object"}}{more}}}'.encode()


def listing(*names: str, id: str = "1", more: str = "") -> bytes:
    """Write an answer to tools/list; ``more`` are further members of its result."""
    return listing_of(*map(definition, names), id=id, more=more)


def listing_of(*definitions: bytes, id: str = "1", more: str = "") -> bytes:
    """Write an answer to tools/list with these definitions."""
    return answering(f'{{"tools":[{b",".join(definitions).decode()}]{more}}}', id=id)


def answering(result: str, *, id: str = "1") -> bytes:
    """Write a response; what is given is JSON."""
    return f'{{"jsonrpc":"2.0","id":{id},"result":{result}}}'.encode()


def page(raw: bytes) -> Listing:
    """Read an answer to tools/list."""
    found = parse_listing(message(raw))
    assert found is not None
    return found


def snapshot(*names: str, deny: str = "", allow: str = "") -> Snapshot:
    """Take a snapshot of an upstream with these tools."""
    return snapshot_of(listing(*names), deny=deny, allow=allow)


def snapshot_of(*pages: bytes, deny: str = "", allow: str = "") -> Snapshot:
    """Take a snapshot of an upstream whose list has these pages."""
    config = parse_config(deny=[deny] if deny else None, allow=[allow] if allow else None)
    return take_snapshot([page(raw) for raw in pages], config.choice)


def one_definition(raw: bytes) -> Definition:
    """Read one element of a tool list."""
    return page(listing_of(raw)).definitions[0]


def head(method: str = "POST", target: str = "/mcp", **headers: str) -> Head:
    """Write the head of a request; an underscore in a header's name is a hyphen."""
    named = [(name.replace("_", "-"), value) for name, value in headers.items()]
    return raw_head(method, target, *named)


def raw_head(method: str, target: str, *headers: tuple[str, str]) -> Head:
    fields = tuple((name.encode(), value.encode("latin-1")) for name, value in headers)
    return Head(method, target, fields)


def event(data: bytes) -> bytes:
    """Write an event as most servers do."""
    return b"event: message\ndata: " + data + b"\n\n"


def chunks(stream: bytes, sizes: Sequence[int]) -> list[bytes]:
    """Cut a stream: the sizes come round again until it is used up."""
    cut: list[bytes] = []
    at = 0
    while at < len(stream):
        size = sizes[len(cut) % len(sizes)]
        cut.append(stream[at : at + size])
        at += size
    return cut


def error_in(verdict: Verdict) -> tuple[int, str]:
    """Return the code and message of the error that a verdict replies with."""
    error = json.loads(text_of(verdict))["error"]
    return error["code"], error["message"]


def text_of(verdict: Verdict) -> bytes:
    """Return what goes out instead of the message; nothing, if it is dropped."""
    match verdict:
        case Reply(text) | Rewrite(text):
            return text
        case Drop():
            return b""
        case Forward():
            raise AssertionError("it is forwarded as it came")


def rewritten(verdict: Verdict) -> bytes:
    """Return what goes on in the place of the message."""
    assert isinstance(verdict, Rewrite)
    return verdict.text


def replied(verdict: Verdict) -> bytes:
    """Return our own answer."""
    assert isinstance(verdict, Reply)
    return verdict.text


def refuses(raw: bytes) -> bool:
    """Tell whether a message is refused when it is read."""
    try:
        parse_message(raw)
    except ProtocolError:
        return True
    return False
