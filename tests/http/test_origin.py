from __future__ import annotations

import pytest

from mcp_tool_filter.errors import InvalidOption
from mcp_tool_filter.http.urls import parse_origin


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("http://localhost:3000", "localhost:3000"),
        ("http://localhost:80", "localhost"),
        ("https://example.com", "example.com"),
        ("https://example.com:80/", "example.com:80"),
        ("http://[::1]:3000/mcp", "[::1]:3000"),
        ("http://bücher.example", "xn--bcher-kva.example"),
    ],
)
def test_the_host_header_names_the_origin(url: str, host: str) -> None:
    assert parse_origin(url).authority == host


@pytest.mark.parametrize(
    "url", ["localhost:3000", "ftp://x", "http://", "http://x:99999", "http://["]
)
def test_an_invalid_origin_is_refused(url: str) -> None:
    with pytest.raises(InvalidOption):
        parse_origin(url)


@pytest.mark.parametrize(
    ("link", "path"),
    [
        ("messages?a=1", "/v1/messages?a=1"),
        ("/messages", "/messages"),
        ("?a=1", "/v1/sse?a=1"),
        ("", "/v1/sse"),
        ("http://localhost:3000", "/"),
        ("http://LOCALHOST:3000/x#y", "/x"),
        ("http://127.0.0.1:3000/x", "/x"),
        ("http://[::1]:3000/x", "/x"),
        ("//0.0.0.0:3000/x", "/x"),
        ("http://localhost:3001/x", None),
        ("http://localhost/x", None),
        ("https://localhost:3000/x", None),
        ("http://localhost.example:3000/x", None),
        ("//elsewhere.example/x", None),
        ("http://localhost:3000@elsewhere.example/x", None),
        ("http://[", None),
        ("javascript:alert(1)", None),
    ],
)
def test_a_link_is_followed_only_to_the_same_origin(link: str, path: str | None) -> None:
    """A loopback host has many names, and servers say one that the user has not typed."""
    assert parse_origin("http://localhost:3000").path_to(link, at="/v1/sse") == path


def test_only_loopback_has_more_than_one_name() -> None:
    assert parse_origin("http://10.0.0.1:80").path_to("http://localhost/x") is None
