"""mitmproxy's messages, checked: what is found is what mitmproxy finds."""

from __future__ import annotations

import gc

import pytest
from mitmproxy.http import Headers, RequestData, ResponseData

from mcp_tool_filter.adapters.mitmproxy.forward.fast.messages import install_quick_checks

install_quick_checks()


def response(**more: object) -> ResponseData:
    given = {
        "http_version": b"HTTP/1.1",
        "status_code": 200,
        "reason": b"OK",
        "headers": Headers(),
        "content": b"",
        "trailers": None,
        "timestamp_start": 1.0,
        "timestamp_end": None,
    }
    return ResponseData(**(given | more))  # type: ignore[arg-type]  # any field


@pytest.mark.parametrize(
    "more", [{}, {"content": None}, {"trailers": Headers()}, {"timestamp_start": 1}]
)
def test_a_message_may_have_the_attributes_that_mitmproxy_allows(more: dict[str, object]) -> None:
    assert response(**more).status_code == 200


@pytest.mark.parametrize(
    "more", [{"content": "a"}, {"headers": {}}, {"status_code": "200"}, {"timestamp_end": "now"}]
)
def test_a_message_may_have_no_other_attributes(more: dict[str, object]) -> None:
    with pytest.raises(TypeError, match=next(iter(more))):
        response(**more)


def test_making_a_message_leaves_no_reference_cycle() -> None:
    gc.collect()
    gc.disable()
    try:
        for _ in range(10):
            response()
        assert gc.collect() == 0
    finally:
        gc.enable()
    assert RequestData.__post_init__ is ResponseData.__post_init__
