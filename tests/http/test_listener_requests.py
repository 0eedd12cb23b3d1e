"""What a listener does with a client's request."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcp_tool_filter.http.exchange import Answered, Passed
from mcp_tool_filter.http.head import Head
from mcp_tool_filter.protocol.messages import ids_in
from tests.http.listening import ATTACKS, JSON, SSE, ask, ask_at, listener, message_of, send
from tests.make import answering, asking, calling, head


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
