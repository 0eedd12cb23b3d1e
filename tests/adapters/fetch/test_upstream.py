"""The start asks a real server on loopback, whose every byte the test has chosen."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from mcp_tool_filter.adapters.fetch import search, upstream
from mcp_tool_filter.adapters.fetch.upstream import fetch
from mcp_tool_filter.errors import ConnectFailed, FetchFailed
from mcp_tool_filter.protocol.revisions import Transport
from tests.adapters.fetch.mcp_script import (
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
    names,
    refusing,
    result,
    run,
    stateless,
    streamable,
    target,
    tool_list,
    with_session,
)
from tests.raw_upstream import Peer, RawRequest, answer, free_port, raw_upstream


async def test_a_stateless_upstream_costs_two_requests_on_one_connection() -> None:
    fetched, upstream = await run(dialogue(stateless(tool_list("a", "b"))))
    assert names(fetched) == ["a", "b"]
    assert (fetched.transport, fetched.revision) == (Transport.STATELESS, "2026-07-28")
    assert (fetched.server_name, fetched.server_version) == ("modern", "3")
    assert asked(upstream) == ["POST /mcp server/discover", "POST /mcp tools/list"]
    assert len(upstream.peers) == 1


async def test_each_stateless_request_says_who_asks_and_repeats_itself_in_headers() -> None:
    _, upstream = await run(dialogue(stateless(tool_list("a"))))
    for request in upstream.requests:
        meta = message_in(request)["params"]["_meta"]
        assert meta["io.modelcontextprotocol/protocolVersion"] == "2026-07-28"
        assert meta["io.modelcontextprotocol/clientInfo"]["name"] == "mcp-tool-filter"
        declared = meta["io.modelcontextprotocol/clientCapabilities"]
        assert {"roots", "sampling", "elicitation"} <= set(declared)
        assert request.all("mcp-protocol-version") == ["2026-07-28"]
        assert request.all("mcp-method") == [message_in(request)["method"]]


async def test_a_session_is_opened_and_closed_again_on_one_connection() -> None:
    fetched, upstream = await run(dialogue(streamable(tool_list("a"), session="s1")))
    assert (fetched.transport, fetched.revision) == (Transport.STREAMABLE, "2025-06-18")
    assert (fetched.sessions, names(fetched)) == (True, ["a"])
    assert (fetched.server_name, fetched.server_version) == ("scripted", "1.2")
    assert asked(upstream) == [
        "POST /mcp server/discover",
        "POST /mcp initialize",
        "POST /mcp notifications/initialized",
        "POST /mcp tools/list",
        "DELETE /mcp",
    ]
    assert len(upstream.peers) == 1
    for request in upstream.requests[2:]:
        assert request.all("mcp-session-id") == ["s1"]
        assert request.all("mcp-protocol-version") == ["2025-06-18"]


async def test_we_offer_the_newest_revision_and_all_capabilities() -> None:
    """Some upstreams list a tool only to clients that declare what the tool needs."""
    _, upstream = await run(dialogue(streamable(tool_list())))
    params = message_in(upstream.requests[1])["params"]
    assert params["protocolVersion"] == "2025-11-25"
    assert {"roots", "sampling", "elicitation"} <= set(params["capabilities"])
    assert params["clientInfo"]["name"] == "mcp-tool-filter"


async def test_without_a_session_there_is_nothing_to_close() -> None:
    fetched, upstream = await run(dialogue(streamable(tool_list("a"))))
    assert not fetched.sessions
    assert asked(upstream)[-1] == "POST /mcp tools/list"


async def test_a_session_given_with_a_refused_probe_is_closed_too() -> None:
    """Older Python SDKs open one for any POST, and keep it."""
    say = streamable(tool_list("a"), session="wanted")

    def generous(request: RawRequest) -> bytes:
        probe = message_in(request).get("method") == "server/discover"
        return with_session(say(request), "unwanted") if probe else say(request)

    _, upstream = await run(dialogue(generous))
    closed = [r.all("mcp-session-id") for r in upstream.requests if r.line[:6] == "DELETE"]
    assert sorted(closed) == [["unwanted"], ["wanted"]]


async def test_an_upstream_that_keeps_its_sessions_may() -> None:
    say = streamable(tool_list("a"), session="s1")
    stubborn = dialogue(lambda r: NOT_ALLOWED if r.line[:6] == "DELETE" else say(r))
    assert names(await fetched_from(stubborn)) == ["a"]


async def test_a_session_is_closed_also_when_the_list_cannot_be_had() -> None:
    async def main() -> list[str]:
        say = streamable({"no": "tools"}, session="s1")
        async with raw_upstream(dialogue(say)) as upstream:
            with pytest.raises(FetchFailed):
                await fetch(target(upstream.url))
            return asked(upstream)

    assert (await main())[-1] == "DELETE /mcp"


@pytest.mark.parametrize("revision", ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"])
async def test_every_revision_that_we_know_will_do(revision: str) -> None:
    script = dialogue(streamable(tool_list("a"), revision=revision))
    assert (await fetched_from(script)).revision == revision


@pytest.mark.parametrize("revision", ["2031-01-01", "2026-07-28", "\x1b[2J"])
async def test_a_revision_that_we_do_not_know_stops_the_start(revision: str) -> None:
    said = await failure(dialogue(streamable(tool_list(), revision=revision)))
    shown = revision.replace("\x1b", "\\x1b")
    assert said == f"The upstream wants MCP revision {shown}, which we do not know"


async def test_an_upstream_of_the_future_is_told_apart_from_an_old_one() -> None:
    def say(request: RawRequest) -> bytes:
        unknown = error(request, -32022, "Unsupported", {"supported": ["2031-01-01"]})
        return answer(unknown, status="400 Bad Request")

    assert "only MCP revisions that we do not know: 2031-01-01" in await failure(dialogue(say))


async def test_one_that_answers_discover_but_supports_only_old_revisions_is_an_old_one() -> None:
    say = streamable(tool_list("a"))

    def both(request: RawRequest) -> bytes:
        if message_in(request).get("method") == "server/discover":
            return answer(result(request, {"supportedVersions": ["2025-06-18"]}))
        return say(request)

    assert (await fetched_from(dialogue(both))).transport is Transport.STREAMABLE


async def test_one_that_never_answers_what_it_does_not_know_is_an_old_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(search, "_PROBE_TIMEOUT", 0.05)
    say = streamable(tool_list("a"))

    async def script(peer: Peer) -> None:
        request = await peer.request()
        while message_in(request).get("method") != "server/discover":
            await peer.say(say(request))
            request = await peer.request()
        await peer.left()

    assert (await fetched_from(script)).transport is Transport.STREAMABLE


async def test_a_stateless_one_too_slow_for_the_probe_is_still_recognized(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(search, "_PROBE_TIMEOUT", 0.05)
    say = stateless(tool_list("a"))

    async def script(peer: Peer) -> None:
        request = await peer.request()
        if len(peer.upstream.requests) == 1:
            return await peer.left()
        while True:
            await peer.say(say(request))
            request = await peer.request()

    assert (await fetched_from(script)).transport is Transport.STATELESS


async def test_the_usual_path_needs_no_search() -> None:
    fetched, upstream = await run(dialogue(stateless(tool_list("a"))), endpoint=None)
    assert (fetched.endpoint, len(upstream.requests)) == ("/mcp", 2)


@pytest.mark.parametrize("path", ["/", "/mcp/", "/v1/mcp", "/api/mcp"])
async def test_the_other_paths_are_tried_on_the_same_connection(path: str) -> None:
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


async def test_one_that_has_not_found_what_it_does_not_know_is_asked_once_more() -> None:
    say = streamable(tool_list("a"))

    def shy(request: RawRequest) -> bytes:
        probe = message_in(request).get("method") == "server/discover"
        return NOT_FOUND if probe else say(request)

    assert (await fetched_from(dialogue(shy), endpoint=None)).endpoint == "/mcp"


@pytest.mark.parametrize("status", ["307 Temporary Redirect", "308 Permanent Redirect"])
async def test_a_redirect_within_the_origin_is_remembered(status: str) -> None:
    say = stateless(tool_list("a"))
    moved = answer(b"", status=f"{status}\r\nLocation: /mcp/?a=1")
    script = dialogue(lambda r: say(r) if " /mcp/?a=1 " in r.line else moved)
    fetched, upstream = await run(script, endpoint=None)
    assert fetched.endpoint == "/mcp/?a=1"
    assert (len(upstream.requests), len(upstream.peers)) == (3, 1)


async def test_a_redirect_elsewhere_is_not_followed() -> None:
    moved = refusing("307 Temporary Redirect\r\nLocation: https://elsewhere.example/mcp")
    said = "HTTP 307 Temporary Redirect: redirected to https://elsewhere.example/mcp"
    assert await failure(moved) == said


async def test_a_post_is_not_sent_to_a_login_page() -> None:
    moved = refusing("302 Found\r\nLocation: /login")
    assert await failure(moved) == "HTTP 302 Found, to /login"


async def test_redirects_that_go_on_for_ever_are_left() -> None:
    moved = refusing("307 Temporary Redirect\r\nLocation: /mcp")
    assert await failure(moved) == "More than 5 redirects, the last to /mcp"


async def test_where_nothing_is_found_the_user_is_told_where_we_looked() -> None:
    said = await failure(dialogue(lambda _: NOT_FOUND), endpoint=None)
    assert said.startswith("HTTP 404 Not Found; no MCP found at /mcp / /sse ")
    assert said.endswith("the endpoint option says where it is")


async def test_a_website_is_no_mcp() -> None:
    page = dialogue(lambda _: answer(b"<html>", kind="text/html; charset=utf-8"))
    assert await failure(page) == "HTTP 200 OK with text/html: that is no MCP"
    assert "text/html" in await failure(page, endpoint=None)


@pytest.mark.parametrize("endpoint", ["/mcp", None])
async def test_without_credentials_we_do_not_go_on_guessing(endpoint: str | None) -> None:
    async def main() -> tuple[str, int]:
        script = refusing("401 Unauthorized")
        async with raw_upstream(script) as upstream:
            with pytest.raises(FetchFailed) as caught:
                await fetch(target(upstream.url, endpoint))
            return caught.value.why, sum(one.startswith("POST") for one in asked(upstream))

    said, posts = await main()
    assert said == (
        "HTTP 401 Unauthorized: the upstream wants credentials: give them with upstream_headers"
    )
    assert posts == 1


async def test_wrong_credentials_are_called_so() -> None:
    said = await failure(refusing("403 Forbidden"), headers=(("Authorization", "Bearer x"),))
    assert "does not accept the credentials in upstream_headers" in said


@pytest.mark.parametrize("status", ["500 Internal Server Error", "503 Service Unavailable"])
async def test_an_upstream_in_trouble_is_not_searched_further(status: str) -> None:
    assert await failure(refusing(status), endpoint=None) == f"HTTP {status}"


async def test_the_list_is_followed_from_page_to_page() -> None:
    following = {None: ("a", "1"), "1": ("b", "2"), "2": ("c", None)}

    def listed(request: RawRequest) -> bytes:
        name, cursor = following[message_in(request)["params"].get("cursor")]
        return answer(result(request, tool_list(name, next_cursor=cursor)))

    fetched, upstream = await run(dialogue(streamable(listed)))
    assert (len(fetched.pages), names(fetched)) == (3, ["a", "b", "c"])
    assert len(upstream.peers) == 1


@pytest.mark.parametrize("cursor", ["", None])
async def test_an_empty_cursor_ends_the_list(cursor: str | None) -> None:
    script = dialogue(streamable({"tools": [], "nextCursor": cursor}))
    assert len((await fetched_from(script)).pages) == 1


async def test_a_list_that_goes_in_a_circle_is_left() -> None:
    script = dialogue(streamable(tool_list("a", next_cursor="x\n")))
    assert await failure(script) == 'The tool list goes in a circle: again cursor "x\\n"'


async def test_a_list_without_an_end_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upstream, "MAX_PAGES", 3)

    def listed(request: RawRequest) -> bytes:
        number = message_in(request)["id"]
        return answer(result(request, tool_list("a", next_cursor=f"after {number}")))

    assert await failure(dialogue(streamable(listed))) == "The tool list has more than 3 pages"


async def test_pages_that_are_too_long_together_are_left() -> None:
    def listed(request: RawRequest) -> bytes:
        number = message_in(request)["id"]
        return answer(result(request, tool_list("a" * 700, next_cursor=f"after {number}")))

    said = await failure(dialogue(streamable(listed)), limit=1000)
    assert said == "The tool list is longer than 8000 bytes"


async def test_an_upstream_that_has_no_tools_needs_no_list() -> None:
    def listed(request: RawRequest) -> bytes:
        return answer(error(request, -32601, "Method not found"))

    assert (
        await fetched_from(dialogue(streamable(listed, capabilities={"prompts": {}})))
    ).pages == ()
    assert "-32601" in await failure(dialogue(streamable(listed)))


async def test_tools_that_are_not_declared_are_fetched_all_the_same() -> None:
    script = dialogue(streamable(tool_list("a"), capabilities={}))
    assert names(await fetched_from(script)) == ["a"]


async def test_a_refused_connection_is_called_so() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(ConnectFailed) as caught:
        await fetch(target(url))
    assert str(caught.value) == (
        f"Error: Failed to connect to upstream MCP at {url}\nConnection refused"
    )


async def test_two_addresses_that_refuse_are_one_reason() -> None:
    with pytest.raises(ConnectFailed) as caught:
        await fetch(target(f"http://localhost:{free_port()}"))
    assert caught.value.why == "Connection refused"


async def test_a_host_that_does_not_exist_is_called_so() -> None:
    with pytest.raises(ConnectFailed) as caught:
        await fetch(target("http://nosuchhost.invalid:3000"))
    assert caught.value.why == "Host not found: nosuchhost.invalid"


async def test_an_upstream_that_never_introduces_itself_is_a_connection_timeout() -> None:
    assert await failure(Peer.left, connect_timeout=0.1) == "Connection timeout after 100ms"


async def test_one_that_never_lists_its_tools_is_a_request_timeout() -> None:
    say = streamable(tool_list())

    async def silent(peer: Peer) -> None:
        while message_in(request := await peer.request()).get("method") != "tools/list":
            await peer.say(say(request))
        await peer.left()

    with pytest.raises(FetchFailed) as caught:
        await run(silent, list_timeout=0.1)
    assert str(caught.value) == (
        "Error: Failed to fetch tool list from upstream MCP\nRequest timeout after 100ms"
    )


@pytest.mark.parametrize("leave", [Peer.close, Peer.reset])
async def test_a_connection_that_ends_in_the_middle_of_the_list_is_lost(
    leave: Callable[[Peer], None],
) -> None:
    say = streamable(tool_list())

    async def leaving(peer: Peer) -> None:
        while message_in(request := await peer.request())["method"] != "tools/list":
            await peer.say(say(request))
        await peer.say(answer(result(request, tool_list("a")))[:-5])
        await asyncio.sleep(0.01)
        leave(peer)

    assert await failure(leaving) in (
        "Connection closed by upstream",
        "Connection reset by upstream",
    )


@pytest.mark.parametrize("greeting", [b"SSH-2.0-OpenSSH_9.6\r\n", b"\x15\x03\x01\x00\x02\x02\x16"])
async def test_what_speaks_no_http_could_not_be_connected_to(greeting: bytes) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.say(greeting + b"\r\n")
        peer.close()

    with pytest.raises(ConnectFailed):
        await run(script)
