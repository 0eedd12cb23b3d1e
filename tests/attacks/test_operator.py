"""No client changes what the operator has set for the upstream: headers, and the URL's query."""

from __future__ import annotations

from itertools import product

import pytest

from tests.attacks.hostile_requests import post
from tests.attacks.stage import PING, Stage
from tests.raw_upstream import RawRequest

STAGE = {
    "upstream_headers": ["X-MCP-Readonly: true", "Authorization: Bearer ours"],
    "endpoint": ["/mcp?read_only=true"],
}
PATHS = [
    b"/mcp", b"/mcp/", b"/MCP", b"//mcp", b"/%6dcp", b"/x/../mcp", b"/mcp;x", b"/x/%2e%2e/mcp",
    b"/mcp#", b"/mcp/#a", b"/mcp#/x", b"/mcp%23/x/..", b"/mcp%23", b"/mcp%3f", b"/mcp%00",
    b"/mcp%20",
]  # fmt: skip
HEADERS = [
    "", "X-MCP-Readonly: false", "x-mcp-readonly: false\r\nX-Mcp-ReadOnly: no", "X_MCP_Readonly: 0",
    "Authorization: Bearer mine\r\nx-mcp-readonly: false",
]  # fmt: skip
QUERIES = [
    b"", b"?read_only=false", b"?read_only=true&read_only=false", b"?a=b&Read_Only",
    b"?read_only[]=0",
    b"?read%5fonly=false", b"?%72ead%255fonly=0", b"?a;read_only=0", b"?read.only=0&read+only=0",
    b"?read_only%00=0", b"?a=b#&read_only=0", b"#?read_only=0", b"?#read_only=0",
]  # fmt: skip


@pytest.mark.parametrize("path", PATHS)
def test_the_operators_headers_and_query_win(stage: Stage, path: bytes) -> None:
    async def scene() -> None:
        async with stage.client() as client:
            for header, query in product(HEADERS, QUERIES):
                more = f"{header}\r\n".encode() if header else b""
                await client.ask(post(PING, more, path=path + query))
                check(stage.upstream.requests.pop(), has_token="Authorization" in header)

    def check(request: RawRequest, *, has_token: bool) -> None:
        names = [one.lower().replace(b"_", b"-") for one in request.head.split(b"\r\n")]
        alike = [one for one in names if one.startswith(b"x-mcp-readonly")]
        assert alike == [b"x-mcp-readonly: true"]
        assert "#" not in request.line
        query = request.line.split(" ")[1].partition("?")[2]
        assert query.removesuffix("&a=b").removesuffix("&a") == "read_only=true"
        ours = ["Bearer ours"] if path.partition(b"#")[0].rstrip(b"/") == b"/mcp" else []
        assert request.all("authorization") == (["Bearer mine"] if has_token else ours)

    stage.play(scene())


def test_other_paths_keep_what_the_client_says(stage: Stage) -> None:
    async def scene() -> None:
        async with stage.client() as client:
            await client.ask(post(PING, b"X-MCP-Readonly: false\r\n", path=b"/a?read_only=0"))
            [request] = stage.upstream.requests
            assert request.all("x-mcp-readonly") == ["false"]
            assert "/a?read_only=0 " in request.line

    stage.play(scene())
