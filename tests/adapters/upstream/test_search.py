"""Where the start looks for the MCP endpoint, when it stops looking, and with which login."""

from __future__ import annotations

from pathlib import Path

import pytest

from mcp_tool_filter.adapters.upstream.fetch import fetch
from mcp_tool_filter.adapters.upstream.target import has_authorization, login_to, target_for
from mcp_tool_filter.errors import FetchFailed
from mcp_tool_filter.policy.config import parse_config
from mcp_tool_filter.protocol.limits import Transport
from tests.adapters.upstream.mcp_script import (
    ACCEPTED,
    NOT_ALLOWED,
    NOT_FOUND,
    Legacy,
    asked,
    dialogue,
    error,
    failure,
    fetched_from,
    message_in,
    refusing,
    run,
    stateless,
    streamable,
    target,
    tool_list,
)
from tests.raw_upstream import Peer, RawRequest, Script, always, answer, raw_upstream


@pytest.mark.parametrize("path", ["/mcp", "/", "/mcp/", "/v1/mcp", "/api/mcp"])
async def test_the_usual_paths_are_tried_on_the_same_connection(path: str) -> None:
    say = stateless(tool_list("a"))
    script = dialogue(lambda r: say(r) if r.line.split(" ")[1] == path else NOT_FOUND)
    fetched, upstream = await run(script, endpoint=None)
    assert (fetched.endpoint, len(upstream.peers)) == (path, 1)


async def test_the_old_transport_is_found_at_its_usual_path() -> None:
    fetched, upstream = await run(Legacy(tools_list=tool_list("a")), endpoint=None)
    assert fetched.endpoint == "/sse"
    assert asked(upstream)[:3] == [
        "POST /mcp server/discover",
        "POST / server/discover",
        "GET /sse",
    ]


async def test_a_path_that_takes_no_post_may_be_a_stream() -> None:
    class AtMcp(Legacy):
        async def __call__(self, peer: Peer) -> None:
            while True:
                request = await peer.request()
                if request.line.startswith("GET /mcp "):
                    await self.begin(peer)
                elif request.line.startswith("POST /mcp "):
                    await peer.say(NOT_ALLOWED)
                else:
                    await peer.say(ACCEPTED)
                    await self.hear(request)

    script = AtMcp(tools_list=tool_list("a"))
    assert (await fetched_from(script, endpoint=None)).transport is Transport.LEGACY_SSE
    assert (await fetched_from(script, endpoint="/mcp")).transport is Transport.LEGACY_SSE


async def test_a_path_called_sse_may_take_posts() -> None:
    say = stateless(tool_list("a"))
    script = dialogue(lambda r: say(r) if r.line.startswith("POST /sse ") else NOT_ALLOWED)
    assert (await fetched_from(script, endpoint=None)).endpoint == "/sse"


@pytest.mark.parametrize(("is_message", "probes"), [(False, 5), (True, 1)])
async def test_an_upstream_that_answers_404_to_an_unknown_request_is_asked_once_more(
    is_message: bool, probes: int
) -> None:
    """After all other paths, unless the answer says that MCP is spoken here."""
    say = streamable(tool_list("a"))

    def shy(request: RawRequest) -> bytes:
        if message_in(request).get("method") != "server/discover":
            return say(request)
        refused = error(request, -32601, "Method not found")
        return answer(refused, status="404 Not Found") if is_message else NOT_FOUND

    fetched, upstream = await run(dialogue(shy), endpoint=None)
    assert fetched.endpoint == "/mcp"
    assert sum("server/discover" in one for one in asked(upstream)) == probes


@pytest.mark.parametrize("status", ["307 Temporary Redirect", "308 Permanent Redirect"])
async def test_a_redirect_within_the_origin_is_remembered(status: str) -> None:
    say = stateless(tool_list("a"))
    moved = answer(b"", status=f"{status}\r\nLocation: /mcp/?a=1")
    script = dialogue(lambda r: say(r) if " /mcp/?a=1 " in r.line else moved)
    fetched, upstream = await run(script, endpoint=None)
    assert fetched.endpoint == "/mcp/?a=1"
    assert (len(upstream.requests), len(upstream.peers)) == (3, 1)


HTML = answer(b"<html>", kind="text/html; charset=utf-8")
PAGE = always(HTML)
ABOVE = dialogue(lambda asked: HTML if asked.line.startswith("POST / ") else NOT_FOUND)
PATHS = "/mcp / /sse /mcp/ /v1/mcp /api/mcp /mcp/sse /v1/sse /api/sse"
NOWHERE = f"no MCP found at {PATHS}: set its path with the endpoint option"


@pytest.mark.parametrize(
    ("script", "endpoint", "said"),
    [
        (
            refusing("307 Temporary Redirect\r\nLocation: https://elsewhere.example/mcp"),
            "/mcp",
            "HTTP 307 Temporary Redirect: redirected to https://elsewhere.example/mcp",
        ),
        (refusing("302 Found\r\nLocation: /login"), "/mcp", "HTTP 302 Found, to /login"),
        (
            refusing("307 Temporary Redirect\r\nLocation: /mcp"),
            "/mcp",
            "More than 5 redirects, the last to /mcp",
        ),
        (dialogue(lambda _: NOT_FOUND), None, f"HTTP 404 Not Found; {NOWHERE}"),
        (PAGE, "/mcp", "HTTP 200 OK with text/html: that is not MCP"),
        (PAGE, None, f"HTTP 200 OK with text/html: that is not MCP; {NOWHERE}"),
        (ABOVE, None, f"HTTP 200 OK with text/html: that is not MCP; {NOWHERE}"),
        (refusing("500 Internal Server Error"), None, "HTTP 500 Internal Server Error"),
        (refusing("503 Service Unavailable"), None, "HTTP 503 Service Unavailable"),
    ],
)
async def test_a_search_that_finds_nothing_says_why(
    script: Script, endpoint: str | None, said: str
) -> None:
    """It stops at a server error, and sends no message to a login page or another server."""
    assert await failure(script, endpoint=endpoint) == said


@pytest.mark.parametrize("endpoint", ["/mcp", None])
async def test_a_401_ends_the_search(endpoint: str | None) -> None:
    script = refusing("401 Unauthorized")
    async with raw_upstream(script) as upstream:
        with pytest.raises(FetchFailed) as caught:
            await fetch(target(upstream.url, endpoint))
        said, posts = caught.value.why, sum(one.startswith("POST") for one in asked(upstream))
    assert said == (
        "HTTP 401 Unauthorized: the upstream wants credentials: give them with upstream_headers"
    )
    assert posts == 1


URL = "http://127.0.0.1:3000"


def test_a_target_holds_the_settings() -> None:
    config = parse_config(
        endpoint="/mcp",
        upstream_headers=["X-Key: 1"],
        connection_timeout="1500",
        tool_list_timeout="2500",
        message_limit="1KB",
    )
    target = target_for(config, URL, None)
    assert (target.url, target.endpoint, target.headers) == (URL, "/mcp", (("X-Key", "1"),))
    assert (target.connect_timeout, target.list_timeout, target.limit) == (1.5, 2.5, 1024)


@pytest.mark.parametrize(
    ("header", "has"), [("authorization: Bearer x", True), ("X-Authorization: Bearer x", False)]
)
def test_credentials_are_recognised_by_their_header(header: str, has: bool) -> None:
    config = parse_config(upstream_headers=[header])
    assert has_authorization(target_for(config, URL, None)) is has


def test_a_stored_login_is_used_only_where_the_user_gives_no_credentials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "mcp-tool-filter" / "logins"
    folder.mkdir(parents=True)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    asked: list[str] = []

    def note(endpoint: str) -> None:
        asked.append(endpoint)

    monkeypatch.setattr("mcp_tool_filter.adapters.oauth.tokens.credentials_for", note)
    for headers, login in (([], "off"), (["Authorization: Bearer x"], "auto"), ([], "auto")):
        config = parse_config(endpoint="/mcp", upstream_headers=headers, login=login)
        login_to(target_for(config, URL, None))
    assert asked == [f"{URL}/mcp"]
    folder.rmdir()
    login_to(target_for(parse_config(endpoint="/mcp"), URL, None))
    assert asked == [f"{URL}/mcp"]
