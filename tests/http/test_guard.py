"""Hosts and origins that are ours, URLs that stay with us."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_tool_filter.http.urls import UpstreamNames, kept_with_us, may_lead_round
from mcp_tool_filter.policy.config import AllowedHosts

UPSTREAM = UpstreamNames("http://127.0.0.1:3000")


@pytest.mark.parametrize(
    "host",
    [
        "localhost", "LOCALHOST:1", "localhost.", "a.localhost:80", "127.0.0.1:8080", "127.9.9.9",
        "[::1]", "[::1]:8080", "192.168.1.5:8080", "tools.example", "Tools.Example:443",
        "other.example:99",
    ],
)  # fmt: skip
def test_our_own_host_names_are_accepted(host: str) -> None:
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
def test_other_host_names_are_refused(host: str) -> None:
    """A web page may have been led to our address by any name."""
    hosts = AllowedHosts(frozenset({"tools.example", "other.example:99"}))
    assert not hosts.has_host(host, own="192.168.1.5")


@pytest.mark.parametrize("origin", ["http://localhost:5173", "https://[::1]", "http://192.168.1.5"])
def test_pages_of_our_own_host_are_accepted(origin: str) -> None:
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
def test_pages_of_other_hosts_are_refused(origin: str) -> None:
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
def test_a_url_of_the_upstream_is_rewritten_to_us(url: str, kept: str) -> None:
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
        "http://local\u00adhost:3000/m",
        "javascript:alert(1)",
        "ws://127.0.0.1:3001/",
        "file:///etc/passwd",
    ],
)
def test_a_url_to_another_host_is_removed(url: str) -> None:
    assert kept_with_us(url, UPSTREAM) is None


@given(st.text(alphabet="/\\:@?#.[]htp evil\t\n\x01", max_size=30))
def test_a_kept_url_has_no_authority(url: str) -> None:
    """Joined to our own URL, it leads to us."""
    kept = kept_with_us(url, UPSTREAM) or ""
    assert not kept.replace("\\", "/").startswith("//")


@pytest.mark.parametrize(
    "host",
    [
        "local\u00adhost", "local\u200bhost", "\ufefflocalhost", "local\u2060host",
        "local\u034fhost", "local\ufe0fhost", "local\u200dhost", "localhost\u180b",
        "local\U000e0100host", "local\u115fhost", "\u24dbocalhost", "\uff2cocalhost",
        "LOCALHOST", "loc%61lhost", "local%C2%ADhost", "loc%2561lhost", "localhost\u3002",
        "127\u30020\u30020\u30021", "127\uff0e0.0.1", "127\u00ad.0.0.1", "\u2460\u2461\u2466.0.0.1",
        "127.1", "127.0.1", "2130706433", "0x7f000001", "0x7F.0x0.0X0.0x1", "0177.0.0.01",
        "00000000000000000177.1", "0x00000000000000007f.1", "0127.0.0.1", "127.0.0.1.",
        "127.0.0.1..", "017700000001", "[::1]", "[0:0::1]", "[::ffff:127.0.0.1]",
        "[::ffff:7f00:1]", "[::127.0.0.1]", "[::ffff:0:127.0.0.1]", "[64:ff9b::127.0.0.1]",
        "[::]", "0.0.0.0", "0", "0x", "[::1%25lo]", "[::1%lo]", "x.localhost", "127.255.255.254",
        "a@localhost", "evil.example%2f@localhost", "evil.example%23@localhost",
        "evil.example\uff0f@localhost", "evil.example\\@localhost", "a@b@localhost",
        "127.0.0.1.nip.io", "localtest.me", "xn--localhost-",
    ],
)  # fmt: skip
@pytest.mark.parametrize("scheme", ["http", "https", "ws", "HTTP", "x"])
def test_no_spelling_of_the_upstream_passes(host: str, scheme: str) -> None:
    """Soft hyphens, zero-width and other ignored characters, digits of all kinds, escapes."""
    for url in (
        f"{scheme}://{host}:3000/m",
        f"{scheme}:{host}:3000",
        f"//{host}:3000/m",
        f" \t{scheme}:\\\\{host}:003000?x",
        f"\u00a0//{host}:3000/m",
    ):
        assert may_lead_round(url, UPSTREAM), url


@pytest.mark.parametrize(
    "url",
    [
        "http://evil.example:3001/",
        "http://127.0.0.1:3001/",
        "http://127.0.0.1/",
        "https://login.example/authorize?redirect_uri=http://127.0.0.1:3000/cb",
        "https://login.example/#http://localhost:3000",
        "https://www.example/@scope/name",
        "/m?next=http://127.0.0.1:3000/",
        "/http://127.0.0.1:3000/",
        "mailto:a@b.example",
        "javascript:alert(1)",
        "vscode://a.b/c",
        "",
    ],
)
def test_a_url_that_every_reader_resolves_elsewhere_passes(url: str) -> None:
    assert not may_lead_round(url, UPSTREAM)


@pytest.mark.parametrize("port", ["80", "443"])
def test_at_a_usual_port_any_other_host_passes(port: str) -> None:
    scheme = "https" if port == "443" else "http"
    upstream = UpstreamNames(f"{scheme}://localhost:{port}")
    assert not may_lead_round(f"{scheme}://www.example/", upstream)
    assert may_lead_round(f"{scheme}://127.1/", upstream)


@pytest.mark.parametrize(
    ("host", "is_its_own"),
    [
        ("tools.example", True),
        ("TOOLS.example.", True),
        ("192.0.2.7", True),
        ("3221225991", True),
        ("[::ffff:192.0.2.7]", True),
        ("box.local", True),
        ("192.0.2.8", False),
        ("localhost", False),
        ("example", False),
    ],
)
def test_all_names_of_the_upstream_are_its_own(host: str, is_its_own: bool) -> None:
    others = frozenset({"192.0.2.7", "box.local"})
    upstream = UpstreamNames("https://tools.example", others)
    assert may_lead_round(f"https://{host}/", upstream) is is_its_own
    kept = kept_with_us(f"https://{host}/x", upstream)
    assert kept == ("/x" if is_its_own else None)


def test_a_name_in_another_script_is_the_same_in_ascii() -> None:
    upstream = UpstreamNames("https://xn--mnchen-3ya.example")
    for host in ("m\u00fcnchen.example", "M\u00dcNCHEN.example", "xn--mnchen-3ya.example"):
        assert may_lead_round(f"https://{host}/", upstream)


def test_this_machine_has_many_names() -> None:
    upstream = UpstreamNames("http://box.example", frozenset({"10.0.0.5"}), is_here=True)
    assert may_lead_round("http://localhost/", upstream)
    assert may_lead_round("http://10.0.0.5/", upstream)
    assert not may_lead_round("http://10.0.0.6/", upstream)
