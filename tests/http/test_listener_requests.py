"""What a listener does with a client's request."""

from __future__ import annotations

import gzip
import json
import random
import zlib
from base64 import b64encode
from collections.abc import Callable

import brotli
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcp_tool_filter.conversation.conversation import Conversation
from mcp_tool_filter.http.exchange import Answered, Passed
from mcp_tool_filter.http.head import Head
from mcp_tool_filter.http.listener import Listener
from mcp_tool_filter.policy.verdict import Drop, Forward, Reply, Rewrite
from mcp_tool_filter.protocol.messages import ids_in
from tests.http.listening import (
    ATTACKS,
    BOTH_TOOLS,
    JSON,
    SSE,
    ask,
    ask_at,
    listener,
    message_of,
    say,
    send,
)
from tests.make import answering, asking, calling, head, listing, text_of


@pytest.mark.parametrize(
    "raw",
    [
        calling("read"),
        calling(
            "read", id='"a"', arguments='{"name":"rm","NAME":1,"name":2,"n":' + "9" * 5000 + "}"
        ),
        calling("read", arguments='{"x":"\\ud800","__proto__":{"name":"rm"},"y":1.00,"z":-0}'),
        calling("read", arguments="[" * 125 + "]" * 125),
        b' {"params" :{"name":"\\u0072ead"}, "method":"tools\\/call","id":1.0,"jsonrpc":"2.0"}\n',
        '{"jsonrpc":"2.0","id":"\u2028","method":"prompts/get","params":{"name":"rm"}}'.encode(),
        b'{"jsonrpc":"2.0","method":"notifications/initialized"}',
        answering('{"role":"assistant","content":{"type":"text","text":"x"}}', id="9"),
        b"[" + asking("ping") + b"," + calling("read", id="2") + b"]",
        asking("tools/list", params='{"cursor":"x"}'),
    ],
)
def test_an_honest_request_passes_unchanged(raw: bytes) -> None:
    outcome = ask(raw)
    assert isinstance(outcome, Passed)
    assert outcome.body is None


@pytest.mark.parametrize("target", ["/mcp", "/mcp/", "/MCP", "//mcp", "/mcp?x", "/any", "/", "*"])
@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH"])
def test_a_denied_call_is_not_found_on_any_path(target: str, method: str) -> None:
    """An older endpoint may stand beside the new one."""
    outcome = send(listener(), head(method, target, content_type=JSON), calling("rm"))
    assert message_of(outcome) == (200, 1, -32601)


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "", "text/html"]
)
def test_a_denied_call_is_not_found_under_any_label(kind: str) -> None:
    assert message_of(ask(calling("rm"), content_type=kind)) == (200, 1, -32601)


def test_a_denied_notification_is_dropped() -> None:
    raw = b'{"jsonrpc":"2.0","method":"tools/call","params":{"name":"rm"}}'
    assert ask(raw) == Answered(202)


@pytest.mark.parametrize("raw", ATTACKS, ids=ascii)
@pytest.mark.parametrize("target", ["/mcp", "/other"])
def test_a_body_that_some_server_reads_as_a_call_is_refused(raw: bytes, target: str) -> None:
    outcome = ask_at(target, raw)
    refused = isinstance(outcome, Answered) and (outcome.status, ids_in(outcome.body)) != (200, [])
    assert refused or not raw


@pytest.mark.parametrize(
    "headers",
    [
        {"mcp_method": "tools/call"},
        {"mcp_name": "rm"},
        {"mcp_method": "ping", "mcp_name": "rm"},
        {"mcp_method": "tools/call", "mcp_name": "=?base64?cm0=?="},
    ],
)
def test_headers_that_contradict_the_body_get_their_own_error_code(
    headers: dict[str, str],
) -> None:
    assert message_of(ask(asking("ping"), None, **headers)) == (400, 1, -32020)


@pytest.mark.parametrize("raw", [b"", b"{}"])
def test_headers_without_a_message_are_refused(raw: bytes) -> None:
    assert message_of(ask(raw, mcp_method="tools/call", mcp_name="rm")) == (400, None, -32600)


def test_a_refusal_has_the_requests_id_if_it_is_certain() -> None:
    assert message_of(ask(asking("Tools/Call", id='"a"'))) == (400, "a", -32600)


@pytest.mark.parametrize(
    ("request_head", "body"),
    [
        (head("GET", "/sse", accept=SSE), b""),
        (head("GET", "/.well-known/oauth-authorization-server"), b""),
        (head("DELETE", "/mcp", mcp_session_id="1"), b""),
        (head("OPTIONS", "/mcp", origin="http://localhost"), b""),
        (head("POST", "/register", content_type=JSON), b'{"client_name":"x"}'),
        (head("POST", "/token", content_type="application/x-www-form-urlencoded"), b"code=x"),
    ],
)
def test_requests_without_a_message_pass(request_head: Head, body: bytes) -> None:
    outcome = send(listener(), request_head, body)
    assert isinstance(outcome, Passed)
    assert outcome.body is None


@given(raw=st.sampled_from(ATTACKS) | st.binary(max_size=60), at=st.integers(0, 100))
@settings(max_examples=150)
def test_any_bytes_are_forwarded_or_answered(raw: bytes, at: int) -> None:
    """Nothing is raised, and what is passed has no tool's name that is denied."""
    outcome = ask(raw[:at] + raw[at + 1 :])
    passed = isinstance(outcome, Passed)
    assert not (passed and b'"rm"' in raw and b"tools/call" in raw and at > 90)


# Request bodies with a coding, too large, too deep, or where none belongs


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS", "DELETE"])
@pytest.mark.parametrize("raw", [calling("read"), b"x", gzip.compress(b"", mtime=0)])
def test_an_unexpected_body_is_refused(method: str, raw: bytes) -> None:
    """An upstream may take it for the next request."""
    request_head = head(method, content_encoding="gzip" if raw.startswith(b"\x1f") else "identity")
    outcome = send(listener(), request_head, raw)
    assert message_of(outcome)[0] == 400


@pytest.mark.parametrize(
    ("coding", "code"),
    [("gzip", gzip.compress), ("deflate", zlib.compress), ("br", brotli.compress)],
)
def test_an_encoded_request_is_judged_by_its_decoded_body(
    coding: str, code: Callable[[bytes], bytes]
) -> None:
    assert message_of(ask(code(calling("rm")), content_encoding=coding)) == (200, 1, -32601)
    outcome = ask(code(calling("read")), content_encoding=coding)
    assert isinstance(outcome, Passed)
    assert outcome.body is None


@pytest.mark.parametrize("coding", ["utf-7", "quopri", "gzip, gzip", "compress", "rot13"])
def test_a_request_in_an_unknown_coding_is_refused(coding: str) -> None:
    assert message_of(ask(calling("read"), content_encoding=coding))[0] == 400


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


def test_on_a_socket_both_sides_are_judged(door: Listener) -> None:
    socket = Conversation(door.policy)
    assert isinstance(say(socket, calling("rm"), True), Reply)
    assert say(socket, calling("read", id="2"), True) == Forward()
    assert say(socket, answering("{}", id="2"), False) == Forward()
    verdict = say(socket, BOTH_TOOLS, False)
    assert text_of(verdict) == listing("read")


def test_unreadable_messages_on_a_socket_are_answered_or_dropped(door: Listener) -> None:
    socket = Conversation(door.policy)
    assert isinstance(say(socket, b"\xff", True), Reply)
    assert isinstance(say(socket, b"\xff", False), Drop)
    say(socket, asking("ping", id="7"), True)
    verdict = say(socket, b'{"jsonrpc":"2.0","id":7,"result":{},"x', False)
    assert isinstance(verdict, Rewrite)
    assert json.loads(verdict.text)["id"] == 7


def test_a_list_on_a_socket_is_requested_from_the_upstream(door: Listener) -> None:
    assert say(Conversation(door.policy), asking("tools/list"), True) == Forward()
