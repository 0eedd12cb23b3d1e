"""The header WWW-Authenticate."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_tool_filter.http.login_metadata import bearer_challenge, missing_scopes, parse_challenges


@pytest.mark.parametrize(
    ("header", "params"),
    [
        ("Bearer", {}),
        ("bearer a=b", {"a": "b"}),
        ('BEARER A = "b, c=d" , e=f', {"a": "b, c=d", "e": "f"}),
        ('Bearer a="\\"x\\\\"', {"a": '"x\\'}),
        ('Basic realm="x", Bearer a=b', {"a": "b"}),
        ('Basic realm="Bearer a=c", Bearer a=b', {"a": "b"}),
        ("Negotiate abc==, Bearer a=b", {"a": "b"}),
        ("Digest x=y, Bearer a=b, Basic c=d", {"a": "b"}),
        ('Bearer resource_metadata=https://h/x?y=z, scope="a b"',
         {"resource_metadata": "https://h/x?y=z", "scope": "a b"}),
        ('Bearer a="unfinished', {}),
        ("Bearer a=1, a=2", {"a": "1"}),
        (",, Bearer ,a=b,", {"a": "b"}),
    ],
)  # fmt: skip
def test_a_bearer_challenge_is_found(header: str, params: dict[str, str]) -> None:
    found = bearer_challenge([header])
    assert found
    assert found.params == params


@pytest.mark.parametrize("headers", [[], [""], ["Basic realm=x"], ["=x"], ['"Bearer"']])
def test_headers_without_a_bearer_challenge_give_none(headers: list[str]) -> None:
    assert bearer_challenge(headers) is None


def test_each_header_may_hold_challenges() -> None:
    found = parse_challenges(["Basic realm=x", "Bearer a=b, DPoP algs=c"])
    assert [one.scheme for one in found] == ["basic", "bearer", "dpop"]


@given(st.lists(st.text(max_size=50), max_size=3))
def test_no_header_raises(headers: list[str]) -> None:
    parse_challenges(headers)


def test_a_long_header_is_cut() -> None:
    assert len(parse_challenges(["Bearer a=b, " * 100_000])) < 1000


@pytest.mark.parametrize(
    ("status", "challenge", "scopes"),
    [
        (403, 'Bearer error="insufficient_scope", scope="a b"', ("a", "b")),
        (403, "Bearer error=insufficient_scope, scope=a", ("a",)),
        (403, 'Bearer error="insufficient_scope"', ()),
        (403, 'Bearer error="insufficient_scope", scope="a \x1b[31m \xe9"', ("a",)),
        (403, 'Bearer scope="a"', ()),
        (401, 'Bearer error="insufficient_scope", scope="a"', ()),
    ],
)
def test_a_403_says_which_scopes_are_missing(
    status: int, challenge: str, scopes: tuple[str, ...]
) -> None:
    assert missing_scopes(status, [challenge]) == scopes
