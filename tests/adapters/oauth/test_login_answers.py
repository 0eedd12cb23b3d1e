"""Our answers in the place of an authorization server."""

from __future__ import annotations

import json

import pytest

from mcp_tool_filter.adapters.oauth.through import (
    LoginAnswer,
    error_answer,
    json_answer,
    passed_on,
    redirect_to,
)
from mcp_tool_filter.adapters.oauth.web import WebAnswer, WebFailed


def test_an_answer_passes_with_its_status_and_the_changed_body() -> None:
    said = passed_on(WebAnswer(400, b'{"error":"invalid_grant"}'), b'{"error":"x"}')
    assert (said.status, said.body) == (400, b'{"error":"x"}')


@pytest.mark.parametrize("status", [300, 302, 399])
def test_a_redirect_does_not_pass(status: int) -> None:
    """A client would post its code to wherever it leads."""
    with pytest.raises(WebFailed, match="redirect"):
        passed_on(WebAnswer(status, b"{}"), b"{}")


@pytest.mark.parametrize("body", [b"<html>", b"[]", b"", b"{} {}"])
def test_an_answer_that_is_no_json_object_does_not_pass(body: bytes) -> None:
    with pytest.raises(WebFailed):
        passed_on(WebAnswer(200, body), body)


@pytest.mark.parametrize(
    "said",
    [json_answer(200, b"{}"), redirect_to("http://x/"), error_answer(400, "e", "d")],
    ids=["JSON", "redirect", "error"],
)
def test_no_cache_keeps_an_answer(said: LoginAnswer) -> None:
    """It may hold a token or a code."""
    assert dict(said.headers)["cache-control"] == "no-store"


def test_a_redirect_does_not_tell_where_it_came_from() -> None:
    said = redirect_to("http://127.0.0.1:1/callback?code=c")
    assert said.status == 302
    assert dict(said.headers)["location"] == "http://127.0.0.1:1/callback?code=c"
    assert dict(said.headers)["referrer-policy"] == "no-referrer"


def test_an_error_is_written_as_oauth_defines_it() -> None:
    said = error_answer(413, "invalid_request", 'Too "large"')
    assert said.status == 413
    assert json.loads(said.body) == {
        "error": "invalid_request",
        "error_description": 'Too "large"',
    }
