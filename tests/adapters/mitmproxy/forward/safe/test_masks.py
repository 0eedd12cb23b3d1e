"""Secrets leave a flow for a mask, and come back only on the wire, in the place where they were."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mitmproxy.http import Request, Response

from mcp_tool_filter.adapters.mitmproxy.forward.safe.masks import FlowMasks
from mcp_tool_filter.observers.redaction.finder import SecretFinder

TOKEN = b"Bearer s3cret-t0ken"


def masked_header(masks: FlowMasks, message: Request | Response, name: bytes) -> None:
    """Hide a header's secret as ``hidden.py`` does."""
    place = masks.place_of(message, name)
    message.headers.fields = tuple(
        (one, masks.hide(value, SecretFinder().in_header(one.decode(), value.decode()), place))
        if one.lower() == name
        else (one, value)
        for one, value in message.headers.fields
    )


@given(data=st.binary(min_size=1, max_size=40), other=st.binary(min_size=1, max_size=40))
def test_a_mask_is_replaced_only_in_its_place(data: bytes, other: bytes) -> None:
    masks = FlowMasks()
    hidden = masks.hide_all(data, masks.BODY)
    assert masks.show(hidden, masks.BODY) == data
    for place in (masks.PATH, masks.ANSWER, other):
        assert masks.show(hidden, place) == hidden


def test_the_same_secret_has_the_same_mask_in_all_flows() -> None:
    assert FlowMasks().hide_all(b"one", b"x") == FlowMasks().hide_all(b"one", b"y")
    assert FlowMasks().hide_all(b"one", b"x") != FlowMasks().hide_all(b"two", b"x")


def test_a_flow_does_not_show_the_secrets_of_another() -> None:
    hidden = FlowMasks().hide_all(b"one", b"x")
    assert FlowMasks().show(hidden, b"x") == hidden


def test_text_hidden_twice_is_restored_in_one_step() -> None:
    masks = FlowMasks()
    hidden = masks.hide_all(masks.hide_all(b"one", b"x"), b"x")
    assert masks.show(hidden, b"x") == b"one"


def test_an_empty_text_stays_empty() -> None:
    assert FlowMasks().hide_all(b"", FlowMasks.BODY) == b""


def test_a_request_goes_out_with_its_secrets_and_the_flow_keeps_its_masks() -> None:
    masks = FlowMasks()
    request = Request.make(
        "POST", "http://h/token?code=abc", b"code=abc", [(b"authorization", TOKEN)]
    )
    masked_header(masks, request, b"authorization")
    request.data.path = masks.hide_all(request.data.path, masks.PATH)
    request.content = masks.hide_all(b"code=abc", masks.BODY)
    masks.is_login = True
    real = masks.request_with_secrets(request)
    assert real.headers["authorization"] == TOKEN.decode()
    assert real.path == "/token?code=abc"
    assert real.content == b"code=abc"
    assert real.headers["content-length"] == "8"
    assert b"s3cret" not in repr(request.get_state()).encode()
    assert b"abc" not in request.data.path


def test_request_and_answer_headers_are_different_places() -> None:
    """Else an upstream that echoes a mask would get the token for it."""
    masks = FlowMasks()
    request = Request.make("GET", "http://h/", headers=[(b"x-token", TOKEN)])
    masked_header(masks, request, b"x-token")
    response = Response.make(200, b"", {"x-token": request.headers["x-token"]})
    masks.place_of(response, b"x-token")
    assert "s3cret" not in masks.answer_with_secrets(response).headers["x-token"]


@pytest.mark.parametrize("in_answer", [True, False])
def test_masks_in_an_answers_body_are_replaced_by_the_secrets(in_answer: bool) -> None:
    masks = FlowMasks()
    response = Response.make(200, masks.hide_all(b'{"access_token":"x"}', masks.ANSWER))
    masks.in_answer = in_answer
    real = masks.answer_with_secrets(response)
    assert (real.content == b'{"access_token":"x"}') == in_answer
    assert real.headers["content-length"] == str(len(real.content or b""))
