"""What makes no difference to an upstream."""

from __future__ import annotations

from typing import Any

import pytest

from mcp_tool_filter.http.asker import asker_in, credentials_in, is_like_the_fetch
from mcp_tool_filter.protocol.tools import parse_list_request
from tests.make import asking, head, raw_head, request

ORIGIN = "http://localhost:6274"


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"accept": "x", "content_type": "x", "content_length": "1", "host": "h", "user_agent": "u"},
        {"mcp_session_id": "1", "mcp_protocol_version": "x", "mcp_method": "x", "mcp_name": "x"},
        {"accept_language": "*", "sec_fetch_mode": "cors", "accept_encoding": "br, gzip"},
        {"traceparent": "00-1-1-01", "tracestate": "a=b"},
        {"connection": "keep-alive", "transfer_encoding": "chunked", "te": "trailers"},
    ],
)
def test_headers_that_every_client_sends_do_not_identify_a_user(headers: dict[str, str]) -> None:
    assert is_like_the_fetch(head(**headers))


@pytest.mark.parametrize(
    "name",
    [
        "authorization", "proxy-authorization", "cookie", "x-api-key", "cf-access-jwt-assertion",
        "x-forwarded-user", "x-tenant", "x-anything", "x_real_ip", "forwarded", "via", "from",
        "baggage", "accept-language", "origin", "referer", "mcp-session", "mcp-param-a", "dpop",
        "x-amz-security-token", "tailscale-user-login", "remote-user", "if-none-match", "range",
    ],
)  # fmt: skip
def test_any_other_header_may_identify_a_user(name: str) -> None:
    for spelling in (name, name.upper()):
        assert not is_like_the_fetch(raw_head("POST", "/mcp", ("accept", "x"), (spelling, "x")))


def test_a_page_whose_origin_was_answered_is_no_other_user() -> None:
    page = head(origin=ORIGIN, referer=f"{ORIGIN}/", sec_fetch_site="cross-site")
    assert is_like_the_fetch(page, known_origin=True)
    assert not is_like_the_fetch(page)


def test_a_page_that_sends_more_than_its_origin_may_be_another_user() -> None:
    page = head(origin=ORIGIN, referer=f"{ORIGIN}/tenants/1")
    assert not is_like_the_fetch(page, known_origin=True)


def test_replaced_credentials_do_not_identify_a_user() -> None:
    replaced = frozenset({b"authorization"})
    assert is_like_the_fetch(head(authorization="x"), replaced=replaced)
    assert not is_like_the_fetch(head(authorization="x", cookie="x"), replaced=replaced)


@pytest.mark.parametrize(
    ("params", "is_usual"),
    [
        ("{}", True),
        ('{"_meta":{}}', True),
        ('{"_meta":{"progressToken":1}}', True),
        ('{"_meta":{"io.modelcontextprotocol/clientInfo":{"name":"x"}}}', True),
        ('{"_meta":{"com.example/user":"ann"}}', False),
        ('{"_meta":[]}', False),
        ('{"_meta":"ann"}', False),
        ('{"user":"ann"}', False),
    ],
)
def test_further_params_may_identify_a_user(params: str, is_usual: bool) -> None:
    asked = parse_list_request(request(asking("tools/list", params=params)))
    assert asked.is_usual is is_usual


def test_empty_params_do_not_identify_a_user() -> None:
    assert parse_list_request(request(b'{"jsonrpc":"2.0","id":1,"method":"tools/list"}')).is_usual


@pytest.mark.parametrize(
    "name",
    ["authorization", "cookie", "x-api-key", "apikey", "x-access-key", "cf-access-jwt-assertion"],
)
def test_credentials_differ_by_every_header_that_holds_one(name: str) -> None:
    one, other = (raw_head("POST", "/mcp", (name.title(), value)) for value in "ab")
    assert credentials_in(one) != credentials_in(other)
    assert credentials_in(raw_head("POST", "/mcp", ("X-User", "a"))) == b""


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        (("/mcp",), ("/mcp",), True),
        (("/mcp?token=a",), ("/mcp?token=b",), False),
        (("/mcp",), ("/other/mcp",), False),
        (("/mcp", ("X-Forwarded-User", "a")), ("/mcp", ("X-Forwarded-User", "b")), False),
        (("/mcp", ("X-Tenant", "a")), ("/mcp",), False),
        (("/mcp", ("Accept-Language", "de")), ("/mcp", ("Accept-Language", "fr")), False),
        (("/mcp", ("X-Request-Id", "1")), ("/mcp", ("X-Request-Id", "2")), True),
        (("/mcp", ("X-Forwarded-For", "1.1.1.1")), ("/mcp",), True),
        (("/mcp", ("Mcp-Param-Region", "eu")), ("/mcp", ("Mcp-Param-Region", "us")), True),
        (("/mcp", ("Mcp-Session-Id", "1")), ("/mcp", ("Mcp-Session-Id", "2")), True),
    ],
)
def test_requests_of_the_same_asker_may_share_an_answer(
    one: Any, other: Any, is_same: bool
) -> None:
    assert (asker_in(raw_head("POST", *one)) == asker_in(raw_head("POST", *other))) is is_same
