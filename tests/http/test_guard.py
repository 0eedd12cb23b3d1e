"""Hosts and origins that are ours, URLs that stay with us."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_tool_filter.http.guard import kept_with_us
from mcp_tool_filter.policy.allowed_hosts import AllowedHosts

UPSTREAM = "http://127.0.0.1:3000"


@pytest.mark.parametrize(
    "host",
    [
        "localhost", "LOCALHOST:1", "localhost.", "a.localhost:80", "127.0.0.1:8080", "127.9.9.9",
        "[::1]", "[::1]:8080", "192.168.1.5:8080", "tools.example", "Tools.Example:443",
        "other.example:99",
    ],
)  # fmt: skip
def test_our_own_names_are_ours(host: str) -> None:
    """Loopback, the address at which we were reached, and what the user allowed."""
    hosts = AllowedHosts(frozenset({"tools.example", "other.example:99"}))
    assert hosts.has_host(host, own="192.168.1.5")


@pytest.mark.parametrize(
    "host",
    [
        "", "evil.example", "localhost.evil.example", "127.0.0.1.evil.example",
        "localhost@evil.example",
        "evil.example#localhost", "localhost/", "localhost:80:80", "localhost:", "localhost:x",
        "[::1", "[localhost]", "::1", "2130706433", "0x7f.1", "127.1", "192.168.1.6",
        "other.example",
        "other.example:98", "localhost evil.example", "localhost,evil.example", "*",
    ],
)  # fmt: skip
def test_no_other_name_is(host: str) -> None:
    """A web page may have been led to our address by any name."""
    hosts = AllowedHosts(frozenset({"tools.example", "other.example:99"}))
    assert not hosts.has_host(host, own="192.168.1.5")


@pytest.mark.parametrize("origin", ["http://localhost:5173", "https://[::1]", "http://192.168.1.5"])
def test_a_page_of_our_own_host_may_speak_to_us(origin: str) -> None:
    assert AllowedHosts().has_origin(origin, own="192.168.1.5")


@pytest.mark.parametrize(
    "origin",
    [
        "",
        "null",
        "http://evil.example",
        "file://",
        "localhost",
        "ftp://localhost",
        "http://a@localhost",
    ],
)
def test_no_other_page_may(origin: str) -> None:
    assert not AllowedHosts().has_origin(origin)


def test_an_origin_can_be_allowed_as_it_is_written() -> None:
    hosts = AllowedHosts(frozenset({"chrome-extension://abc"}))
    assert hosts.has_origin("chrome-extension://ABC")


def test_a_star_allows_all() -> None:
    hosts = AllowedHosts(frozenset({"*"}))
    assert hosts.has_host("anything")
    assert hosts.has_origin("null")


@pytest.mark.parametrize(
    ("url", "kept"),
    [
        ("/messages?sessionId=1", "/messages?sessionId=1"),
        ("messages", "messages"),
        ("?a=1", "?a=1"),
        ("", ""),
        ("/a?next=http://evil.example/", "/a?next=http://evil.example/"),
        ("http://127.0.0.1:3000/messages?a=1", "/messages?a=1"),
        ("http://localhost:3000/m", "/m"),
        ("HTTP://LOCALHOST:3000/m#x", "/m#x"),
        ("http://127.0.0.1:3000", "/"),
        ("//127.0.0.1:3000/m", "/m"),
        ("///127.0.0.1:3000/m", "/m"),
        ("http:\\\\127.0.0.1:3000\\m", "/m"),
        ("http://127.0.0.1:3000//evil.example/m", "/evil.example/m"),
        ("http://127.0.0.1:3000\\@evil.example/m", "/@evil.example/m"),
        ("https://127.0.0.1:3000/m", "/m"),
        (" \t/m\n", "/m"),
        ("/m\n\t", "/m"),
    ],
)
def test_a_url_of_the_upstream_is_made_to_lead_to_us(url: str, kept: str) -> None:
    assert kept_with_us(url, UPSTREAM) == kept


@pytest.mark.parametrize(
    "url",
    [
        "http://evil.example/m",
        "http://127.0.0.1:3001/m",
        "http://127.0.0.1/m",
        "//evil.example/m",
        "///evil.example/m",
        "////evil.example",
        "\\\\evil.example\\m",
        "/\\evil.example/m",
        "\\/evil.example/m",
        "\t//evil.example/m",
        "/\t/evil.example/m",
        "\x01//evil.example/m",
        "\x00\x1f //evil.example/m",
        "http:///evil.example/m",
        "http:\\evil.example",
        "http:/evil.example",
        "http:evil.example",
        "http://127.0.0.1:3000@evil.example/m",
        "http://user@127.0.0.1:3000/m",
        "http://evil.example\\@127.0.0.1:3000/m",
        "http://127.0.0.1:3000.evil.example/m",
        "http://[::1/m",
        "http://127.0.0.1:x/m",
        "http://127.0.0.1:99999/m",
        "http://①27.0.0.1:3000/m",
        "javascript:alert(1)",
        "ws://127.0.0.1:3001/",
        "file:///etc/passwd",
    ],
)
def test_a_url_that_leads_elsewhere_is_not_kept(url: str) -> None:
    assert kept_with_us(url, UPSTREAM) is None


@given(st.text(alphabet="/\\:@?#.[]htp evil\t\n\x01", max_size=30))
def test_what_is_kept_has_no_authority(url: str) -> None:
    """Whoever joins it to our own URL stays with us."""
    kept = kept_with_us(url, UPSTREAM) or ""
    assert not kept.replace("\\", "/").startswith("//")
