"""Where a request of a forward proxy goes to, by the name that its client uses."""

from __future__ import annotations

import pytest
from mitmproxy.http import Request
from mitmproxy.options import Options
from mitmproxy.proxy.context import Context
from mitmproxy.proxy.layers.http import HTTPMode
from mitmproxy.test.tflow import tclient_conn

from mcp_tool_filter.adapters.mitmproxy.forward.origins import name_for, origin_of
from mcp_tool_filter.http.origin import Origin


def request(url: str, host: str) -> Request:
    """Make a request as a client writes it on a connection to a forward proxy."""
    made = Request.make("GET", url)
    made.data.authority = b""
    made.headers.pop("host", None)
    if host:
        made.headers["host"] = host
    return made


def test_a_listener_is_named_by_its_url_without_the_query() -> None:
    origin = Origin("localhost", 3000, tls=False)
    assert name_for(origin, "/mcp?token=secret", ()) == "http://localhost:3000/mcp"


def test_two_listeners_never_have_the_same_name() -> None:
    origin, taken = Origin("localhost", 3000, tls=False), list[str]()
    for _ in range(3):
        taken.append(name_for(origin, "/mcp", taken))
    url = "http://localhost:3000/mcp"
    assert taken == [url, f"{url} (2)", f"{url} (3)"]


@pytest.mark.parametrize(
    ("url", "host", "origin"),
    [
        ("http://Server.example/mcp", "", Origin("server.example", 80, tls=False)),
        ("https://127.0.0.1:8443/", "Server.example", Origin("server.example", 8443, tls=True)),
        ("http://127.0.0.1:80/", "[::1]", Origin("::1", 80, tls=False)),
        ("http://127.0.0.1:80/", "", Origin("127.0.0.1", 80, tls=False)),
        ("http://127.0.0.1:80/", "[", Origin("127.0.0.1", 80, tls=False)),
        ("http://server.example/", "other.example", Origin("server.example", 80, tls=False)),
    ],
)
def test_the_host_header_counts_where_the_connection_has_only_an_address(
    url: str, host: str, origin: Origin
) -> None:
    assert origin_of(request(url, host)) == origin


def test_a_redirected_connection_says_where_it_was_going() -> None:
    context = Context(tclient_conn(), Options())
    context.server.address = ("10.0.0.1", 8000)
    asked = request("http://127.0.0.1:80/", "server.example")
    found = origin_of(asked, context, HTTPMode.transparent)
    assert found == Origin("server.example", 8000, tls=False)
    assert origin_of(asked, context, HTTPMode.regular).port == 80
