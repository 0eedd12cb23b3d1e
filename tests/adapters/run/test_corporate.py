"""The proxy that a user's environment names."""

from __future__ import annotations

import pytest

from mcp_tool_filter.adapters.run.corporate import NoProxy, find_proxy
from mcp_tool_filter.errors import StartError


@pytest.mark.parametrize(
    ("environment", "mode"),
    [
        ({"HTTPS_PROXY": "http://a:3128", "HTTP_PROXY": "http://b"}, "upstream:http://a:3128"),
        ({"http_proxy": "b.example:8080"}, "upstream:http://b.example:8080"),
        ({"ALL_PROXY": "https://c"}, "upstream:https://c:443"),
        ({"https_proxy": "http://[::1]"}, "upstream:http://[::1]:80"),
    ],
)
def test_the_most_specific_proxy_variable_counts(environment: dict[str, str], mode: str) -> None:
    found = find_proxy(environment)
    assert found
    assert (found.mode, found.login) == (mode, None)


def test_an_environment_without_a_proxy_has_none() -> None:
    assert find_proxy({"HTTPS_PROXY": "", "NO_PROXY": "*"}) is None


def test_a_login_is_unquoted_and_in_no_repr() -> None:
    found = find_proxy({"https_proxy": "http://me:p%40ss@proxy:1"})
    assert found
    assert found.login == "me:p@ss"
    assert "p@ss" not in repr(found)


@pytest.mark.parametrize("url", ["socks5://a:1", "http://a:port", "http://"])
def test_a_proxy_that_cannot_be_used_is_named_without_its_password(url: str) -> None:
    with pytest.raises(StartError) as caught:
        find_proxy({"HTTPS_PROXY": url})
    assert caught.value.what == "The proxy in HTTPS_PROXY cannot be used"


@pytest.mark.parametrize(
    ("entry", "host", "is_direct"),
    [
        ("*", "a.example", True),
        ("a.example", "a.example", True),
        ("a.example", "b.a.example", True),
        (".a.example", "b.a.example", True),
        ("*.a.example", "b.a.example", True),
        ("a.example:443", "a.example", True),
        ("a.example", "xa.example", False),
        ("10.0.0.0/8", "10.1.2.3", True),
        ("10.0.0.0/8", "11.1.2.3", False),
        ("a.example", "A.EXAMPLE", True),
        ("a.example", "127.0.0.1", True),
    ],
)
def test_no_proxy_hosts_are_reached_directly(entry: str, host: str, is_direct: bool) -> None:
    assert NoProxy((entry,)).has(host) is is_direct
