"""The checks of a replayed session find what they are for, and nothing in an honest one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mcp_tool_filter.adapters.recordings.transcript import (
    Judgement,
    Transcript,
    Turn,
    find_changes,
    find_leaks,
)
from mcp_tool_filter.policy.verdict import Drop, Reason, Why
from tests.adapters.recordings.test_transcript import turn
from tests.make import calling, listing, snapshot

CHANGED_REQUEST = "turn 1, POST /mcp: the upstream did not get the request that the client sent"
CHANGED_ANSWER = "turn 1, POST /mcp: the client did not get the answer that the upstream sent"
NOT_FOUND = b'{"jsonrpc":"2.0","id":2,"error":{"code":-32601,"message":"Tool not found: b"}}'


def transcript(*turns: Turn) -> Transcript:
    return Transcript("name", snapshot("a", "b", deny="b"), (listing("a", "b"),), turns)


def stream(said: bytes, heard: bytes) -> Turn:
    return replace(turn(said=said, heard=heard), content_type="text/event-stream")


def batch(*parts: bytes) -> bytes:
    return b"[" + b",".join(parts) + b"]"


@pytest.mark.parametrize(
    ("one", "leaks"),
    [
        (turn(calling("a")), []),
        (turn(calling("b"), None), []),
        (turn(calling("b")), ["a call of the tool b reached the upstream"]),
        (turn(calling("a"), b"", listing("a", "b"), listing("a")), []),
        (turn(calling("a"), b"", listing("a", "b")), ["a client saw the tool b"]),
    ],
)
def test_a_leak_is_found(one: Turn, leaks: list[str]) -> None:
    assert list(find_leaks(transcript(one))) == leaks


@pytest.mark.parametrize(
    ("one", "changes"),
    [
        (turn(), []),
        (turn(calling("a"), calling("a") + b" "), [CHANGED_REQUEST]),
        (turn(batch(calling("a"), calling("b")), batch(calling("a"))), []),
        (turn(batch(calling("a"), calling("b")), batch(calling("c"))), [CHANGED_REQUEST]),
        (turn(calling("a"), b"", b'{"n":1}', b'{"n":2}'), [CHANGED_ANSWER]),
        (turn(calling("a"), b"", listing("a", "b"), listing("a")), []),
        (stream(b"data: 1\n\n", b"data: 1\r\n\r\n"), []),
        (stream(b"data: 1\n\n", b"data: 2\n\n"), [CHANGED_ANSWER]),
        (stream(b"data: 1\n\n", b"data: %s\n\ndata: 1\n\n" % NOT_FOUND), []),
        (replace(turn(calling("a"), None), heard=b"ours"), []),
    ],
)  # fmt: skip
def test_a_change_is_found(one: Turn, changes: list[str]) -> None:
    assert list(find_changes(transcript(one))) == changes


def test_an_invalid_answer_may_be_replaced() -> None:
    invalid = Judgement(None, Drop(Reason(Why.INVALID)), "invalid")
    one = replace(turn(calling("a"), b"", b"{{{", b'{"error":1}'), judgements=(invalid,))
    assert list(find_changes(transcript(one))) == []
