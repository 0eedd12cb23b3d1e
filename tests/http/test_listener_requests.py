"""What a listener does with a client's request."""

from __future__ import annotations

import gzip
import json
import random
from base64 import b64encode

import brotli
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcp_tool_filter.conversation.conversation import Conversation
from mcp_tool_filter.http.exchange import Answered, Passed
from mcp_tool_filter.http.listener import Listener
from mcp_tool_filter.policy.verdict import Drop, Reply
from tests.http.listening import ATTACKS, ask, listener, message_of, say, send
from tests.make import asking, calling, head, rewritten


def test_a_denied_notification_is_dropped() -> None:
    raw = b'{"jsonrpc":"2.0","method":"tools/call","params":{"name":"rm"}}'
    assert ask(raw) == Answered(202)


@pytest.mark.parametrize(
    "headers",
    [
        {"mcp_method": "tools/call"},
        {"mcp_name": "rm"},
        {"mcp_method": "ping", "mcp_name": "rm"},
        {"mcp_method": "tools/call", "mcp_name": "=?base64?cm0=?="},
    ],
)
def test_headers_that_contradict_the_body_get_their_own_error_code(headers: dict[str, str]) -> None:
    assert message_of(ask(asking("ping"), None, **headers)) == (400, 1, -32020)


@pytest.mark.parametrize("raw", [b"", b"{}"])
def test_headers_without_a_message_are_refused(raw: bytes) -> None:
    assert message_of(ask(raw, mcp_method="tools/call", mcp_name="rm")) == (400, None, -32600)


def test_a_refusal_has_the_requests_id_if_it_is_certain() -> None:
    assert message_of(ask(asking("Tools/Call", id='"a"'))) == (400, "a", -32600)


@given(raw=st.sampled_from(ATTACKS) | st.binary(max_size=60), at=st.integers(0, 200))
@settings(max_examples=150)
def test_any_bytes_are_forwarded_or_answered(raw: bytes, at: int) -> None:
    """Nothing is raised, and no call of the denied tool passes that was not damaged."""
    outcome = ask(raw[:at] + raw[at + 1 :])
    if isinstance(outcome, Passed) and raw in ATTACKS and at >= len(raw):
        assert b"rm" not in (outcome.body or raw)


# Request bodies with a coding, too large, too deep, or where none belongs


def test_an_encoded_request_that_could_be_read_as_json_is_forwarded_decoded() -> None:
    """An upstream that does not undo codings would read another message."""
    text = b64encode(random.Random(1).randbytes(100_000)).decode()
    raw = calling("read", arguments=f'{{"x":"{text}"}}')
    coded = brotli.compress(raw)
    assert coded[:1] == b"["  # as of every stream of this size
    outcome = ask(coded, content_encoding="br")
    assert isinstance(outcome, Passed)
    assert outcome.body == raw


def test_a_body_that_decodes_to_nothing_is_refused() -> None:
    """A gzip head has room for a message; a server that does not decode could read it."""
    assert message_of(ask(gzip.compress(b""), content_encoding="gzip"))[0] == 400


def test_a_too_large_request_gets_an_error_with_its_id_if_that_can_be_read() -> None:
    """A 4xx ends the session of some clients."""
    door = listener(message_limit="1KB")
    raw = calling("read", id='"a"', arguments='{"id":5,"x":"' + "x" * 12_000 + '"}')
    assert message_of(ask(raw, door)) == (200, "a", -32600)
    assert message_of(ask(b"x" * 2000, door)) == (413, None, -32600)
    assert message_of(ask(b'{"id":1,"id":2' + b" " * 2000, door)) == (413, None, -32600)


def test_a_too_deep_request_gets_an_error_too() -> None:
    raw = calling("rm", id="7", arguments="[" * 200 + "]" * 200)
    assert message_of(ask(raw)) == (200, 7, -32600)
    assert message_of(ask(b"[" * 1_000_000)) == (413, None, -32600)


def test_a_decompression_bomb_is_too_large() -> None:
    bomb = gzip.compress(bytes(20_000_000))
    assert message_of(ask(bomb, content_encoding="gzip"))[0] == 413


def test_an_overlong_id_is_refused() -> None:
    id = '"' + "\\u0061" * 12_000 + '"'
    assert message_of(ask(asking("ping", id=id))) == (400, None, -32600)


def test_a_head_that_is_too_long_is_answered_clearly() -> None:
    said = head("POST", "/mcp", content_type="charset" * 9000)
    outcome = send(listener(), said, asking("ping"))
    text = "Request too large: a header longer than 32768 bytes"
    assert message_of(outcome) == (431, None, -32600)
    assert isinstance(outcome, Answered)
    assert json.loads(outcome.body)["error"]["message"] == text


def test_a_batch_that_is_too_long_is_answered_clearly() -> None:
    batch = b"[" + b",".join(calling("read", id=str(id)) for id in range(1001)) + b"]"
    outcome = ask(batch)
    assert message_of(outcome) == (413, None, -32600)
    assert isinstance(outcome, Answered)
    text = "Request too large: more than 1000 messages in one batch"
    assert json.loads(outcome.body)["error"]["message"] == text


def test_json_that_is_no_message_may_have_any_number_of_elements() -> None:
    telemetry = b"[" + b",".join([b'{"event":"x"}'] * 30_000) + b"]"
    head_elsewhere = head("POST", "/events", content_type="application/json")
    assert isinstance(send(listener(), head_elsewhere, telemetry), Passed)
    wide = b"{" + b",".join(b'"%d":0' % number for number in range(30_000)) + b"}"
    assert isinstance(send(listener(), head_elsewhere, wide), Passed)


# A WebSocket: both sides are judged, message by message


def test_unreadable_messages_on_a_socket_are_answered_or_dropped(door: Listener) -> None:
    socket = Conversation(door.policy)
    assert isinstance(say(socket, b"\xff", True), Reply)
    assert isinstance(say(socket, b"\xff", False), Drop)
    say(socket, asking("ping", id="7"), True)
    verdict = say(socket, b'{"jsonrpc":"2.0","id":7,"result":{},"x', False)
    assert json.loads(rewritten(verdict))["id"] == 7
