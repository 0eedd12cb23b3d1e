"""Which addresses are asked."""

from __future__ import annotations

import pytest

from mcp_tool_filter.adapters.oauth.web import Web, WebFailed
from tests.raw_upstream import Peer, raw_upstream

FAR, NEAR = "https://mcp.example/mcp", "http://localhost:3000/mcp"


@pytest.mark.parametrize(
    "url",
    [
        "http://mcp.example/x", "http://10.0.0.1/", "ftp://mcp.example/", "file:///etc/passwd", "",
        "https://user@mcp.example/", "https://mcp.example\\@evil.example/", "https://mcp.ex\tample/",
        "https://localhost/", "https://127.0.0.1/", "https://127.1/", "https://0x7f000001/",
        "https://2130706433/", "https://[::1]/", "https://[::ffff:127.0.0.1]/", "https://0.0.0.0/",
        "https://169.254.169.254/latest", "https://x.localhost/", "https://localhost./",
        "http://localhost:3000/", "https://[fe80::1]/", "javascript:alert(1)",
    ],
)  # fmt: skip
def test_a_remote_upstream_cannot_name_addresses_on_this_machine(url: str) -> None:
    with pytest.raises(WebFailed):
        Web(FAR).check(url)


@pytest.mark.parametrize("url", ["https://login.example/x", "https://10.0.0.1:8443/token"])
def test_https_addresses_are_accepted(url: str) -> None:
    Web(FAR).check(url)


def test_a_local_upstream_may_name_local_addresses() -> None:
    Web(NEAR).check("http://127.0.0.1:9000/token")
    Web(NEAR).check("https://login.example/token")
    with pytest.raises(WebFailed, match="not https"):
        Web(NEAR).check("http://login.example/token")


@pytest.mark.parametrize(
    "location", ["http://evil.example/", "file:///etc/passwd", "//evil.example/x"]
)
async def test_a_redirect_is_checked_like_a_url(location: str) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.say(f"HTTP/1.1 302 Found\r\nLocation: {location}\r\n\r\n".encode())

    async with raw_upstream(script) as upstream:
        with pytest.raises(WebFailed, match=r"not https|Not a web URL"):
            await Web(upstream.url).get(upstream.url)


async def test_requests_with_secrets_follow_no_redirect() -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        moved = f"Location: {peer.upstream.url}/other\r\nContent-Length: 0\r\n\r\n"
        await peer.say(b"HTTP/1.1 307 Moved\r\n" + moved.encode())

    async with raw_upstream(script) as upstream:
        with pytest.raises(WebFailed, match="redirect"):
            await Web(upstream.url).post_form(f"{upstream.url}/token", [("a", "b")])
        assert len(upstream.requests) == 1


async def test_endless_redirects_are_refused() -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.say(b"HTTP/1.1 302 Found\r\nLocation: /again\r\nContent-Length: 0\r\n\r\n")

    async with raw_upstream(script) as upstream:
        with pytest.raises(WebFailed, match="More than 3 redirects"):
            await Web(upstream.url).get(upstream.url)
        assert len(upstream.requests) == 4


async def test_long_answers_are_not_read() -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.say(b"HTTP/1.1 200 OK\r\nContent-Length: 99999999\r\n\r\n" + b"x" * 300_000)
        await peer.left()

    async with raw_upstream(script) as upstream:
        with pytest.raises(WebFailed, match="longer than"):
            await Web(upstream.url).get(upstream.url)
