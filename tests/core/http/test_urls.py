"""URLs that would lead clients past us, links in headers, and origins."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
from urllib.parse import urljoin, urlsplit

import pytest

from mcp_tool_filter.core.errors import InvalidOption
from mcp_tool_filter.core.http import urls as links
from mcp_tool_filter.core.http.urls import UpstreamNames, kept_with_us, may_lead_round, parse_origin
from mcp_tool_filter.core.policy.config import AllowedHosts
from tests.rows import each_row

UPSTREAM = UpstreamNames("http://127.0.0.1:3000")
HOSTS = AllowedHosts(frozenset({"tools.example", "other.example:99"}))


@each_row("host", [
    "localhost", "LOCALHOST:1", "localhost.", "a.localhost:80", "127.0.0.1:8080", "127.9.9.9",
    "[::1]", "[::1]:8080", "192.168.1.5:8080", "tools.example", "Tools.Example:443",
    "other.example:99",
])  # fmt: skip
def test_our_own_host_names_are_accepted(host: str) -> None:
    """Loopback, the address at which we were reached, and what the user allowed."""
    assert HOSTS.has_host(host, own="192.168.1.5")


@each_row("host", [
    "", "evil.example", "localhost.evil.example", "127.0.0.1.evil.example",
    "localhost@evil.example", "evil.example#localhost", "localhost/", "localhost:80:80",
    "localhost:", "localhost:x", "[::1", "[localhost]", "::1", "2130706433", "0x7f.1", "127.1",
    "192.168.1.6", "other.example", "other.example:98", "localhost evil.example",
    "localhost,evil.example", "*",
])  # fmt: skip
def test_other_host_names_are_refused(host: str) -> None:
    """A web page may have been led to our address by any name."""
    assert not HOSTS.has_host(host, own="192.168.1.5")


@pytest.mark.parametrize("origin", ["http://localhost:5173", "https://[::1]", "http://192.168.1.5"])
def test_pages_of_our_own_host_are_accepted(origin: str) -> None:
    assert AllowedHosts().has_origin(origin, own="192.168.1.5")


@each_row("origin", [
    "", "null", "http://evil.example", "file://", "localhost", "ftp://localhost",
    "http://a@localhost",
])  # fmt: skip
def test_pages_of_other_hosts_are_refused(origin: str) -> None:
    assert not AllowedHosts().has_origin(origin)


def test_an_origin_can_be_allowed_as_it_is_written() -> None:
    hosts = AllowedHosts(frozenset({"chrome-extension://abc"}))
    assert hosts.has_origin("chrome-extension://ABC")


@each_row(("url", "kept"), [
    ("/messages?sessionId=1", "/messages?sessionId=1"),
    ("messages", "messages"), ("?a=1", "?a=1"), ("", ""),
    ("/a?next=http://evil.example/", "/a?next=http://evil.example/"),
    ("http://127.0.0.1:3000/messages?a=1", "/messages?a=1"),
    ("http://localhost:3000/m", "/m"),
    ("HTTP://LOCALHOST:3000/m#x", "/m#x"),
    ("http://127.0.0.1:3000", "/"), ("//127.0.0.1:3000/m", "/m"), ("///127.0.0.1:3000/m", "/m"),
    ("http:\\\\127.0.0.1:3000\\m", "/m"),
    ("http://127.0.0.1:3000//evil.example/m", "/evil.example/m"),
    ("http://127.0.0.1:3000\\@evil.example/m", "/@evil.example/m"),
    ("https://127.0.0.1:3000/m", "/m"),
    (" \t/m\n", "/m"), ("/m\n\t", "/m"),
])  # fmt: skip
def test_a_url_of_the_upstream_is_rewritten_to_us(url: str, kept: str) -> None:
    assert kept_with_us(url, UPSTREAM) == kept


@each_row("url", [
    "http://user@127.0.0.1:3000/m", "http://evil.example\\@127.0.0.1:3000/m", "http://[::1/m",
    "http://127.0.0.1:99999/m", "http://127.0.0.1/m", "http://local\u00adhost:3000/m",
    "\x00\x1f //evil.example/m", "/\t/evil.example/m", "http:evil.example", "x:1",
])  # fmt: skip
def test_a_url_that_may_lead_elsewhere_is_not_made_relative(url: str) -> None:
    assert kept_with_us(url, UPSTREAM) is None


@each_row("host", [
    "local\u00adhost", "local\u200bhost", "\ufefflocalhost", "local\u2060host", "local\u034fhost",
    "local\ufe0fhost", "local\u200dhost", "localhost\u180b", "local\U000e0100host",
    "local\u115fhost", "\u24dbocalhost", "\uff2cocalhost", "LOCALHOST", "loc%61lhost",
    "local%C2%ADhost", "loc%2561lhost", "localhost\u3002", "127\u30020\u30020\u30021",
    "127\uff0e0.0.1", "127\u00ad.0.0.1", "\u2460\u2461\u2466.0.0.1", "127.1", "127.0.1",
    "2130706433", "0x7f000001", "0x7F.0x0.0X0.0x1", "0177.0.0.01", "00000000000000000177.1",
    "0x00000000000000007f.1", "0127.0.0.1", "127.0.0.1.", "127.0.0.1..", "017700000001", "[::1]",
    "[0:0::1]", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[::127.0.0.1]", "[::ffff:0:127.0.0.1]",
    "[64:ff9b::127.0.0.1]", "[::]", "0.0.0.0", "0", "0x", "[::1%25lo]", "[::1%lo]", "x.localhost",
    "127.255.255.254", "a@localhost", "evil.example%2f@localhost", "evil.example%23@localhost",
    "evil.example\uff0f@localhost", "evil.example\\@localhost", "a@b@localhost", "127.0.0.1.nip.io",
    "localtest.me", "xn--localhost-",
])  # fmt: skip
@each_row("scheme", ["http", "https", "ws", "HTTP", "x"])
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


@each_row("url", [
    "http://evil.example:3001/", "http://127.0.0.1:3001/", "http://127.0.0.1/",
    "https://login.example/authorize?redirect_uri=http://127.0.0.1:3000/cb",
    "https://login.example/#http://localhost:3000",
    "https://www.example/@scope/name", "/m?next=http://127.0.0.1:3000/", "/http://127.0.0.1:3000/",
    "mailto:a@b.example", "javascript:alert(1)", "vscode://a.b/c", "",
])  # fmt: skip
def test_a_url_that_every_reader_resolves_elsewhere_passes(url: str) -> None:
    assert not may_lead_round(url, UPSTREAM)


@pytest.mark.parametrize("port", ["80", "443"])
def test_at_a_usual_port_any_other_host_passes(port: str) -> None:
    scheme = "https" if port == "443" else "http"
    upstream = UpstreamNames(f"{scheme}://localhost:{port}")
    assert not may_lead_round(f"{scheme}://www.example/", upstream)
    assert may_lead_round(f"{scheme}://127.1/", upstream)


@each_row(("host", "is_its_own"), [
    ("tools.example", True), ("TOOLS.example.", True), ("192.0.2.7", True), ("3221225991", True),
    ("[::ffff:192.0.2.7]", True), ("box.local", True), ("192.0.2.8", False), ("localhost", False),
    ("example", False),
])  # fmt: skip
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


# The headers of an answer that hold URLs


US = "http://us.example:8080/a/mcp"
NODE = shutil.which("node")


def kept(name: str, value: str) -> str | None:
    fields = links.keep_links([(name.encode(), value.encode())], UPSTREAM)
    return fields[0][1].decode() if fields else None


@each_row("value", [
    "/a", "a/b?c=d#e", "", "?x", "#y", "../z", " /a ", "/a\\b", "/a;b,c", "/\u00e9",
    "https://login.example/authorize?redirect_uri=http%3A%2F%2F127.0.0.1%3A3000%2Fcb",
    "https://other.example/", "vscode://x/y", "http://127.0.0.1:3001/",
])  # fmt: skip
@each_row("name", ["Location", "content-location", "SourceMap", "X-Accel-Redirect"])
def test_relative_and_foreign_urls_stay_unchanged(name: str, value: str) -> None:
    assert kept(name, value) == value


@each_row(("name", "value", "expected"), [
    ("Location", "http://127.0.0.1:3000/a?b", "/a?b"),
    ("LOCATION", "http://localhost:3000", "/"),
    ("Location", "http://local\u00adhost:3000/", None),
    ("Location", "//a@127.1:3000/", None),
    ("Alt-Svc", 'h3=":443"', None), ("Refresh", "5", "5"),
    ("Refresh", "5; url=/a", "5; url=/a"),
    ("Refresh", "5; url=http://localhost:3000/a", "5; url=/a"),
    ("Refresh", "5;URL='http://localhost:3000/a'", "5;URL=/a"),
    ("Refresh", '0, url = "http://localhost:3000/a" x', "0, url = /a"),
    ("Refresh", "http://localhost:3000/a", "/a"),
    ("Refresh", "url=http://localhost:3000/a", "url=/a"),
    ("Refresh", "+1; url=http://localhost:3000/a", None),
    ("Refresh", "5; url=http://local\u00adhost:3000/a", None),
    ("Refresh", "5; url=https://other.example/", "5; url=https://other.example/"),
    ("Link", "</a>; rel=x, <b,;c>; rel=y", "</a>; rel=x, <b,;c>; rel=y"),
    ("Link", "<http://localhost:3000/a>; rel=x, </b>", "</a>; rel=x, </b>"),
    ("Link", "</b>, <http://a;b,c@127.0.0.1:3000/a>; rel=x", None),
    ("Link", "<http://a;b@other.example/a>; rel=x", "<http://a;b@other.example/a>; rel=x"),
    ("Link", '</a>; anchor="http://localhost:3000/x"', None),
    ("Link", "http://localhost:3000/x", None),
    ("Link", "</a>; rel=x, <http://localhost:3000/", None),
    ("X-Other", "http://127.0.0.1:3000/", "http://127.0.0.1:3000/"),
])  # fmt: skip
def test_upstream_urls_become_relative_or_go(name: str, value: str, expected: str | None) -> None:
    assert kept(name, value) == expected


def test_a_header_that_is_not_utf8_is_read_as_latin_1() -> None:
    assert links.keep_links([(b"location", b"http://local\xadhost:3000/")], UPSTREAM) == []
    assert links.keep_links([(b"location", b"/\xe9")], UPSTREAM) == [(b"location", b"/\xe9")]


def test_a_redirect_leads_away_if_any_reader_finds_a_host_in_it() -> None:
    assert links.leads_away([(b"Location", b"https://other.example/")])
    assert links.leads_away([(b"a", b"b"), (b"location", b"\\\\other.example")])
    assert not links.leads_away([(b"location", b"/a"), (b"link", b"<https://other.example/>")])


# URLs put together at random, read by node as browsers do and by Python

_PIECES = [
    "http:", "https:", "ws:", "HTTP:", "//", "/", "\\", "///", ":", "@", "?", "#", ".", "..", "%",
    "127.0.0.1", "localhost", "127.1", "0x7f.1", "[::1]", "[::ffff:127.0.0.1]", "2130706433",
    "0177.0.0.1", "0", "0.0.0.0", "[::]", "other.example", "a", "b:c", "3000", ":3000", ":03000",
    "local", "host", "%6c", "%2f", "%40", "%00", "%C2%AD", "\u00ad", "\u200b", "\ufeff", "\u2060",
    "\u3002", "\uff0e", "\uff11", "\u24db", "\ufe0f", "\u200d", "\u0301", "\t", " ", "\u00a0",
    "x.localhost", "evil.example", "user:pass@", ";", ",", "&", "=", "~", "\U000e0100", "xn--a",
]  # fmt: skip


def random_urls(number: int, seed: int) -> list[str]:
    chance = random.Random(seed)
    urls = []
    for _ in range(number):
        pieces = chance.choices(_PIECES, k=chance.randint(1, 7))
        if chance.random() < 0.7:
            start = chance.choice(["http://", "//", "http:", "\\\\", "https:/", "ws://", "/\t/"])
            pieces = [start, *pieces, chance.choice(["", ":3000", ":3000/x", ":03000?y"])]
        urls.append("".join(pieces))
    return urls


def node_hosts(urls: list[str]) -> list[tuple[str, str, str]]:
    """Ask node where URLs lead from our own: scheme, host and port; empty if nowhere."""
    script = (
        "const urls = JSON.parse(require('fs').readFileSync(0, 'utf8'));"
        "const where = (url) => { try { const u = new URL(url, process.argv[1]);"
        " return [u.protocol, u.hostname, u.port] } catch { return ['', '', ''] } };"
        "console.log(JSON.stringify(urls.map(where)))"
    )
    assert NODE
    asked = json.dumps(urls)
    done = subprocess.run([NODE, "-e", script, US], input=asked, capture_output=True, text=True)
    return [(scheme, host, port) for scheme, host, port in json.loads(done.stdout)]


def is_upstream(host: str, port: str) -> bool:
    """Tell it otherwise than the code: node and Python have already read the host."""
    loopback = host in ("localhost", "[::1]", "::1", "0.0.0.0", "[::]", "::", "[::ffff:7f00:1]")
    named = host.rstrip(".").endswith(".localhost") or host.startswith("127.")
    return (loopback or named or host.rstrip(".") == "localhost") and port == "3000"


@pytest.mark.skipif(NODE is None, reason="node is not installed")
@pytest.mark.parametrize("seed", range(4))
def test_passed_urls_never_lead_a_browser_to_the_upstream(seed: int) -> None:
    urls = random_urls(5000, seed)
    passed = [one for url in urls if (one := links.kept_url(url, UPSTREAM)) is not None]
    for url, (_, host, port) in zip(passed, node_hosts(passed), strict=True):
        assert not is_upstream(host, port), ascii(url)
    led = [where for where in node_hosts(urls) if is_upstream(*where[1:])]
    assert len(led) > 100  # else the test says nothing


@pytest.mark.parametrize("seed", range(4))
def test_passed_urls_never_lead_python_to_the_upstream(seed: int) -> None:
    led = 0
    for url in random_urls(12_000, seed):  # Python 3.14 refuses half of those that lead there
        led += python_leads_to_upstream(url)
        passed = links.kept_url(url, UPSTREAM)
        assert passed is None or not python_leads_to_upstream(passed), ascii(url)
    assert led > 100


def python_leads_to_upstream(url: str) -> bool:
    try:
        parts = urlsplit(urljoin(US, url))
        host, port = parts.hostname or "", parts.port
    except ValueError:
        return False
    ours = {"127.0.0.1", "localhost", "::1"}
    return port == 3000 and not links.plain_hosts(host).isdisjoint(ours)


@pytest.mark.skipif(NODE is None, reason="node is not installed")
def test_only_urls_of_the_upstream_are_made_relative() -> None:
    made = [url for url in random_urls(20_000, 5) if kept_with_us(url, UPSTREAM) is not None]
    for url, (_, host, _) in zip(made, node_hosts(made), strict=True):
        is_ours = host in ("", urlsplit(US).hostname)
        assert is_ours or may_lead_round(url, UPSTREAM), ascii(url)
    relative = [kept_with_us(url, UPSTREAM) or "" for url in made]
    assert {host for _, host, _ in node_hosts(relative)} == {urlsplit(US).hostname}


@pytest.mark.skipif(NODE is None, reason="node is not installed")
def test_a_url_that_a_browser_reads_as_relative_stays_unchanged() -> None:
    urls = [url for url in random_urls(5000, 9) if url[:1] in "/?#" or url[:1].isalnum()]
    plain = [url for url in urls if url.isascii() and url.isprintable() and url[:2].isalnum()]
    relative = [url for url in plain if ":" not in url and "\\" not in url]
    assert len(relative) > 20
    assert [links.kept_url(url, UPSTREAM) for url in relative] == relative


@each_row(("url", "host"), [
    ("http://localhost:3000", "localhost:3000"),
    ("http://localhost:80", "localhost"),
    ("https://example.com", "example.com"),
    ("https://example.com:80/", "example.com:80"),
    ("http://[::1]:3000/mcp", "[::1]:3000"),
    ("http://bücher.example", "xn--bcher-kva.example"),
])  # fmt: skip
def test_the_host_header_names_the_origin(url: str, host: str) -> None:
    assert parse_origin(url).authority == host


@pytest.mark.parametrize(
    "url", ["localhost:3000", "ftp://x", "http://", "http://x:99999", "http://["]
)
def test_an_invalid_origin_is_refused(url: str) -> None:
    with pytest.raises(InvalidOption):
        parse_origin(url)


@each_row(("link", "path"), [
    ("messages?a=1", "/v1/messages?a=1"),
    ("/messages", "/messages"), ("?a=1", "/v1/sse?a=1"), ("", "/v1/sse"),
    ("http://localhost:3000", "/"),
    ("http://LOCALHOST:3000/x#y", "/x"),
    ("http://127.0.0.1:3000/x", "/x"),
    ("http://[::1]:3000/x", "/x"), ("//0.0.0.0:3000/x", "/x"),
    ("http://localhost:3001/x", None),
    ("http://localhost/x", None),
    ("https://localhost:3000/x", None),
    ("http://localhost.example:3000/x", None),
    ("//elsewhere.example/x", None),
    ("http://localhost:3000@elsewhere.example/x", None),
    ("http://[", None), ("javascript:alert(1)", None),
])  # fmt: skip
def test_a_link_is_followed_only_to_the_same_origin(link: str, path: str | None) -> None:
    """A loopback host has many names, and servers say one that the user has not typed."""
    assert parse_origin("http://localhost:3000").path_to(link, at="/v1/sse") == path
    assert parse_origin("http://10.0.0.1:80").path_to("http://localhost/x") is None
