"""What a span says of a request; arguments and results are never in it."""

from __future__ import annotations

import json

import pytest

from mcp_tool_filter.adapters.watch.tracing import (
    attributes_of,
    error_attributes,
    name_of,
    outcome_of,
)
from mcp_tool_filter.conversation.policy_in_force import Judged
from mcp_tool_filter.policy.exchange import Client, Direction, Via
from mcp_tool_filter.policy.snapshot import take_snapshot
from mcp_tool_filter.policy.verdict import Forward, Reason, Reply, Rewrite, Verdict, Why
from mcp_tool_filter.protocol.messages import Request, Response, parse_message

REFUSED = Reply(b"", Reason(Why.BLOCKED, ("x",), rule="no-x"))


def request(method: str, id: object = 1, **params: object) -> Request:
    said = {"jsonrpc": "2.0", "id": id, "method": method, "params": params}
    message = parse_message(json.dumps(said).encode())
    assert isinstance(message, Request)
    return message


def judged(message: Request | Response, verdict: Verdict, via: Via = Via.HTTP) -> Judged:
    client = Client(via, said_revision="2025-06-18")
    return Judged(Direction.FROM_CLIENT, message, verdict, client, take_snapshot([], deny=[]))


@pytest.mark.parametrize(
    ("message", "verdict", "name"),
    [
        (request("tools/call", name="read"), Forward(), "tools/call read"),
        (request("prompts/get", name="greet"), Forward(), "prompts/get greet"),
        (request("resources/read", uri="file:///a"), Forward(), "resources/read"),
        (request("tools/call", name="anything"), REFUSED, "tools/call"),
        (request("tools/call", name=""), Forward(), "tools/call"),
        (request("x\x1b[2J"), Forward(), r"x\x1b[2J"),
    ],
)
def test_a_span_name_has_few_values(message: Request, verdict: Verdict, name: str) -> None:
    """A URI, or what is refused, may be anything; a backend keeps each name as a series."""
    assert name_of(message, judged(message, verdict)) == name


@pytest.mark.parametrize(
    ("via", "transport", "protocol"),
    [
        (Via.HTTP, "tcp", "http"),
        (Via.LEGACY_SSE, "tcp", "http"),
        (Via.WEBSOCKET, "tcp", "websocket"),
        (Via.STDIO, "pipe", None),
    ],
)
def test_each_transport_has_its_attributes(via: Via, transport: str, protocol: str | None) -> None:
    message = request("ping")
    said = attributes_of(message, judged(message, Forward(), via))
    assert (said["network.transport"], said.get("network.protocol.name")) == (transport, protocol)


def test_a_long_text_is_cut_and_a_refusal_has_its_rule() -> None:
    message = request("resources/read", id="i" * 900, uri="file:///" + "a" * 900)
    said = attributes_of(message, judged(message, REFUSED))
    assert max(map(len, said.values())) <= 256
    assert said["mcp_tool_filter.rule"] == "no-x"


@pytest.mark.parametrize(
    ("answer", "verdict", "outcome"),
    [
        (b'"result":{"isError":true}', Forward(), {"error.type": "tool_error"}),
        (b'"result":{"isError":false}', Forward(), {}),
        (
            b'"result":{}',
            Rewrite(b"", Reason(Why.HIDDEN)),
            {"mcp_tool_filter.answer_why": "hidden"},
        ),
        (
            b'"error":{"code":-1,"message":"a\\u001bb"}',
            Forward(),
            {"error.type": "-1", "rpc.response.status_code": "-1"},
        ),
    ],
)
def test_an_answers_attributes_tell_its_outcome(
    answer: bytes, verdict: Verdict, outcome: dict[str, str]
) -> None:
    message = parse_message(b'{"jsonrpc":"2.0","id":1,%b}' % answer)
    assert isinstance(message, Response)
    said, text = outcome_of(judged(message, verdict), message)
    assert said == outcome
    assert "\x1b" not in text


@pytest.mark.parametrize("answer", [b"", b"x", b"[]", b'{"error":7}', b'{"error":{}}', b"{}"])
def test_a_success_has_no_error_code(answer: bytes) -> None:
    assert error_attributes(answer) == ({}, "")
