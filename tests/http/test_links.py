"""The headers of an answer that hold URLs."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
from urllib.parse import urljoin, urlsplit

import pytest

from mcp_tool_filter.http.urls import UpstreamNames, keep_links, kept_url, leads_away, plain_hosts

UPSTREAM = UpstreamNames("http://127.0.0.1:3000")
US = "http://us.example:8080/a/mcp"
NODE = shutil.which("node")


def kept(name: str, value: str) -> str | None:
    fields = keep_links([(name.encode(), value.encode())], UPSTREAM)
    return fields[0][1].decode() if fields else None


@pytest.mark.parametrize(
    "value",
    [
        "/a", "a/b?c=d#e", "", "?x", "#y", "../z", " /a ", "/a\\b", "/a;b,c", "/\u00e9",
        "https://login.example/authorize?redirect_uri=http%3A%2F%2F127.0.0.1%3A3000%2Fcb",
        "https://other.example/", "vscode://x/y", "http://127.0.0.1:3001/",
    ],
)  # fmt: skip
@pytest.mark.parametrize("name", ["Location", "content-location", "SourceMap", "X-Accel-Redirect"])
def test_relative_and_foreign_urls_stay_unchanged(name: str, value: str) -> None:
    assert kept(name, value) == value


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("Location", "http://127.0.0.1:3000/a?b", "/a?b"),
        ("LOCATION", "http://localhost:3000", "/"),
        ("Location", "http://local\u00adhost:3000/", None),
        ("Location", "//a@127.1:3000/", None),
        ("Alt-Svc", 'h3=":443"', None),
        ("Refresh", "5", "5"),
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
    ],
)
def test_urls_of_the_upstream_are_made_relative_or_removed(
    name: str, value: str, expected: str | None
) -> None:
    assert kept(name, value) == expected


def test_a_header_that_is_not_utf8_is_read_as_latin_1() -> None:
    assert keep_links([(b"location", b"http://local\xadhost:3000/")], UPSTREAM) == []
    assert keep_links([(b"location", b"/\xe9")], UPSTREAM) == [(b"location", b"/\xe9")]


def test_a_redirect_leads_away_if_any_reader_finds_a_host_in_it() -> None:
    assert leads_away([(b"Location", b"https://other.example/")])
    assert leads_away([(b"a", b"b"), (b"location", b"\\\\other.example")])
    assert not leads_away([(b"location", b"/a"), (b"link", b"<https://other.example/>")])


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
    passed = [one for url in urls if (one := kept_url(url, UPSTREAM)) is not None]
    for url, (_, host, port) in zip(passed, node_hosts(passed), strict=True):
        assert not is_upstream(host, port), ascii(url)
    led = [where for where in node_hosts(urls) if is_upstream(*where[1:])]
    assert len(led) > 100  # else the test says nothing


@pytest.mark.parametrize("seed", range(4))
def test_passed_urls_never_lead_python_to_the_upstream(seed: int) -> None:
    led = 0
    for url in random_urls(5000, seed):
        led += python_leads_to_upstream(url)
        passed = kept_url(url, UPSTREAM)
        assert passed is None or not python_leads_to_upstream(passed), ascii(url)
    assert led > 100


def python_leads_to_upstream(url: str) -> bool:
    try:
        parts = urlsplit(urljoin(US, url))
        host, port = parts.hostname or "", parts.port
    except ValueError:
        return False
    return port == 3000 and not plain_hosts(host).isdisjoint({"127.0.0.1", "localhost", "::1"})


@pytest.mark.skipif(NODE is None, reason="node is not installed")
def test_a_url_that_a_browser_reads_as_relative_stays_unchanged() -> None:
    urls = [url for url in random_urls(5000, 9) if url[:1] in "/?#" or url[:1].isalnum()]
    plain = [url for url in urls if url.isascii() and url.isprintable() and url[:2].isalnum()]
    relative = [url for url in plain if ":" not in url and "\\" not in url]
    assert len(relative) > 20
    assert [kept_url(url, UPSTREAM) for url in relative] == relative
