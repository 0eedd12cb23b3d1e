"""No answer leads a client past the proxy, and no web page of a stranger to it."""

from __future__ import annotations

from itertools import product

import pytest

from tests.attacks.answers import ASKED, stream
from tests.attacks.hostile_requests import ALLOWED, CALL, HOST, JSON, PING
from tests.attacks.stage import Stage
from tests.raw_client import get, post

# Of the upstream's address: as a host of this URL, or whole.
HOSTS = [
    "127.0.0.1", "localhost", "LOCALHOST", "localhost.", "mcp.localhost", "[::1]",
    "[::ffff:127.0.0.1]", "[0:0:0:0:0:0:0:1]", "127.1", "127.0.0.2", "0.0.0.0", "2130706433",
    "0x7f000001", "0x7f.1", "0177.0.0.1", "user@127.0.0.1", "user:pass@localhost",
    "%31%32%37.0.0.1", "\uff11\uff12\uff17.0.0.1", "loc%61lhost", "2130706433.", "[::]",
    "local\u00adhost", "local\u200bhost", "\ufefflocalhost", "local%C2%ADhost",
    "127\u3002\u24ea.0.1", "\u24dbocalhost", "evil.example%2f@localhost", "a;b,c@localhost",
    "evil.example\\@localhost", "127.0.0.1.nip.io", "0127.0.0.1", "[::127.0.0.1]",
]  # fmt: skip
SPELLINGS = [
    *(f"http://{host}:{{port}}/mcp" for host in HOSTS),
    "HTTP://127.0.0.1:{port}/mcp", "http://127.0.0.1:0{port}/mcp", "http://127.0.0.1:{port}",
    "http://127.0.0.1:{port}?a", "http://127.0.0.1:{port}#a", "http:/127.0.0.1:{port}/mcp",
    "http:127.0.0.1:{port}/mcp", "http:///127.0.0.1:{port}/mcp",
    "http:\\\\127.0.0.1:{port}\\mcp", "http://127.0.0.1:{port}\\mcp", "//127.0.0.1:{port}/mcp",
    "///127.0.0.1:{port}/mcp", "\\\\127.0.0.1:{port}/mcp", "/\\127.0.0.1:{port}/mcp",
    "/\t/127.0.0.1:{port}/mcp", "\thttp://127.0.0.1:{port}/mcp", "ht\ttp://127.0.0.1:{port}/mcp",
    " http://127.0.0.1:{port}/mcp ", "ws://127.0.0.1:{port}/mcp", "//user@127.0.0.1:{port}/mcp",
    "//localhost:{port}/mcp",
]  # fmt: skip
STRANGERS = [
    "evil.example", "evil.example:80", "localhost.evil.example", "127.0.0.1.evil.example",
    "localhost@evil.example", "evil.example#localhost", "evil.example/localhost",
    "localhost, evil.example", "[::1].evil.example", "[::1]evil.example", "evil\\localhost",
    "localhost:80:80", "localhost:x", "", "192.168.1.7", "0.0.0.0", "8.8.8.8", "1.0.0.127",
    "xlocalhost", "localhost_",
]  # fmt: skip
STATUSES = "200 OK", "201 Created", "302 Found", "303 See Other", "307 X", "308 X", "300 X"


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_no_header_names_a_way_around_the_filter(stage: Stage, spelling: str) -> None:
    """The upstream's port must not be visible."""
    port = str(stage.upstream.port)
    url = spelling.format(port=port)
    headers = [
        f"Location: {url}", f"Content-Location: {url}", f"Refresh: 0; url={url}",
        f'Refresh: 0;URL="{url}"', f"Link: <{url}>; rel=canonical, <{url}>; rel=mcp",
        f"Location: /mcp\r\nLocation: {url}", f'Alt-Svc: h2="127.0.0.1:{port}"',
        f"SourceMap: {url}", f"X-Accel-Redirect: {url}",
    ]  # fmt: skip
    for status in STATUSES:
        for header in headers:
            head = f"HTTP/1.1 {status}\r\n{header}\r\nContent-Length: 0\r\n\r\n"
            for what in ("tools/list", "GET"):
                heard = stage.hears(ASKED[what], head.encode())
                assert port.encode() not in heard, (what, head, heard)


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_no_endpoint_event_names_a_way_around_the_filter(stage: Stage, spelling: str) -> None:
    port = str(stage.upstream.port)
    url = spelling.format(port=port)
    events = ("endpoint", "Endpoint", "ENDPOINT ", " endpoint")
    for what, event in product(("GET", "tools/list"), events):
        data = f"event: {event}\ndata: {url}?session=1\n\n".encode()
        heard = stage.hears(ASKED[what], stream(data))
        assert port.encode() not in heard, heard


@pytest.mark.parametrize("host", STRANGERS)
def test_pages_of_other_hosts_are_refused(stage: Stage, host: str) -> None:
    for target, headers in [
        ("/mcp", f"Host: {host}"),
        (f"http://{host}/mcp", "Host: localhost"),
        ("/mcp", f"Host: localhost\r\nHost: {host}"),
        ("/mcp", f"Host: localhost\r\nOrigin: http://{host}"),
        ("/mcp", f"Host: localhost\r\nOrigin: http://localhost\r\nOrigin: http://{host}"),
    ]:
        named = headers.encode() + b"\r\n" + JSON
        heard = stage.hears(post(PING, path=target, headers=named))
        assert not heard.startswith(b"HTTP/1.1 200"), (target, headers)
    assert stage.upstream.requests == []


@pytest.mark.parametrize(
    "origin", ["null", "file://", "chrome-extension://x", "", "localhost", "http://", "*", "x"]
)
def test_other_origins_are_refused(stage: Stage, origin: str) -> None:
    heard = stage.hears(post(CALL, headers=HOST + JSON + f"Origin: {origin}\r\n".encode()))
    assert heard.startswith(b"HTTP/1.1 403")
    assert stage.upstream.requests == []


@pytest.mark.parametrize("site", ["cross-site", "same-site", "Cross-Site", "x"])
def test_image_requests_of_other_pages_do_not_reach_the_upstream(stage: Stage, site: str) -> None:
    """An ``<img>``, a script, a frame, a link or a form may send no Origin."""
    for method, path in product(("GET", "POST", "HEAD", "OPTIONS"), ("/mcp", "/admin/reset", "/")):
        line = f"{method} {path} HTTP/1.1\r\n"
        head = f"{line}Host: 127.0.0.1\r\nSec-Fetch-Site: {site}\r\n\r\n"
        assert stage.hears(head.encode()).startswith(b"HTTP/1.1 403"), line
        assert stage.upstream.requests == []


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_an_allowed_origin_may_send_cross_site_requests(stage: Stage, site: str) -> None:
    """MCP Inspector does this at localhost:6274, with a preflight for each kind of request."""
    origin = HOST + f"Origin: http://localhost:6274\r\nSec-Fetch-Site: {site}\r\n".encode()
    wanted = b"Access-Control-Request-Method: POST\r\n"
    preflight = get(headers=origin + wanted).replace(b"GET", b"OPTIONS", 1)
    for request in (post(ALLOWED, headers=JSON + origin), preflight):
        ok = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
        assert not stage.hears(request, ok).startswith(b"HTTP/1.1 403")
        assert len(stage.upstream.requests) == 1
