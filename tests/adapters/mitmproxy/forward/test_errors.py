"""What a client gets when there is no answer of the upstream that could be passed on."""

from __future__ import annotations

import json

import pytest
from mitmproxy.http import Request
from mitmproxy.test.tflow import tflow

from mcp_tool_filter.adapters.mitmproxy.forward.errors import (
    error_answer,
    full_response,
    invalid_answer,
)
from mcp_tool_filter.adapters.mitmproxy.forward.safe.failures import ErrorAnswer, Failure
from mcp_tool_filter.http.exchange import HttpExchange
from mcp_tool_filter.http.listener import Listener
from tests.http.listening import listener, waiting_for
from tests.make import asking, calling

ONE, OTHER = calling("read", id='"\\u0061"'), asking("ping", id="2")


def answered(failure: Failure, *waiting: bytes, method: str = "POST") -> ErrorAnswer:
    """Let an exchange fail in which these requests wait."""
    door = listener()
    return failing(failure, door, waiting_for(door, *waiting), method)


def failing(
    failure: Failure, door: Listener | None, exchange: HttpExchange | None, method: str = "POST"
) -> ErrorAnswer:
    flow = tflow(req=Request.make(method, "http://localhost:3000/mcp"))
    return error_answer(flow, failure, door, exchange)


def said(answer: ErrorAnswer) -> tuple[int, object, object]:
    """Return the status, the ids and the codes of an answer."""
    body = json.loads(answer.response.content or b"")
    several = body if isinstance(body, list) else [body]
    return (
        answer.response.status_code,
        [one["id"] for one in several],
        {one["error"]["code"] for one in several},
    )


def test_every_failure_has_an_answer_without_internals() -> None:
    for failure in Failure:
        answer = failing(failure, None, None)
        assert answer.response.status_code >= 400
        assert set(json.loads(answer.response.content or b"")) == {"jsonrpc", "id", "error"}
        assert answer.response.headers["content-type"] == "application/json"


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (Failure.LOST, -32000),
        (Failure.CONNECT_FAILED, -32000),
        (Failure.MALFORMED, -32603),
        (Failure.RESPONSE_TOO_LARGE, -32603),
        (Failure.OVER_BUDGET, -32603),
    ],
)
def test_each_waiting_request_gets_an_error_with_its_id(failure: Failure, code: int) -> None:
    """With status 200: a 4xx or 5xx ends the session of some clients."""
    assert said(answered(failure, ONE)) == (200, ["a"], {code})
    assert said(answered(failure, ONE, OTHER)) == (200, ["a", 2], {code})


@pytest.mark.parametrize("failure", [Failure.LOST, Failure.MALFORMED, Failure.OVER_BUDGET])
def test_a_stream_ends_with_the_same_errors_as_events(failure: Failure) -> None:
    events = answered(failure, ONE, OTHER).last
    assert events.startswith(b"data: ")
    assert b'"\\u0061"' in events
    assert b'"id":2' in events


def test_a_post_of_the_older_transport_is_answered_on_its_stream() -> None:
    door = listener()
    exchange = waiting_for(door, ONE)
    exchange.is_legacy = True
    assert said(failing(Failure.LOST, door, exchange)) == (502, [None], {-32000})


def test_an_answer_to_head_has_no_body() -> None:
    flow = tflow(req=Request.make("HEAD", "http://localhost:3000/mcp"))
    assert invalid_answer(flow, None, None) == (502, b"")


def test_a_client_without_room_is_asked_to_retry_on_another_connection() -> None:
    response = full_response()
    assert response.status_code == 503
    assert (response.headers["connection"], response.headers["retry-after"]) == ("close", "1")
