"""We ask a real server on loopback, at the start and as a client: each revision, sessions, ends.

Also where the start looks for the MCP endpoint, and with which login; and what is posted to one
path, and the answers: JSON, an event stream, or the stream of HTTP+SSE.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from mcp_tool_filter.cli.parsing import parse_config
from mcp_tool_filter.core.errors import ConnectFailed, FetchFailed, ListsAfterLogin
from mcp_tool_filter.core.http.head import Head
from mcp_tool_filter.core.messages.limits import Transport
from mcp_tool_filter.core.policy.effects import CannotList
from mcp_tool_filter.core.upstream import fetch as fetch_module
from mcp_tool_filter.core.upstream import search
from mcp_tool_filter.core.upstream import target as target_module
from mcp_tool_filter.core.upstream.fetch import AskedBy, fetch, fetch_as_client, hint_for
from mcp_tool_filter.core.upstream.target import Target
from tests.core.upstream.fetching import saying
from tests.core.upstream.mcp_script import (
    ACCEPTED,
    NOT_ALLOWED,
    NOT_FOUND,
    Answer,
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
from tests.raw_upstream import (
    LAST_CHUNK,
    SSE_HEAD,
    Peer,
    RawRequest,
    Script,
    always,
    answer,
    chunk,
    free_port,
    raw_upstream,
    until,
)
from tests.rows import each_row

METHODS = ("initialize", "notifications/initialized", "tools/list")


async def test_a_stateless_upstream_costs_two_requests_on_one_connection() -> None:
    """Each names its client, and has mirrored headers."""
    fetched, upstream = await run(dialogue(stateless(tool_list("a", "b"))))
    assert names(fetched) == ["a", "b"]
    assert (fetched.transport, fetched.revision) == (Transport.STATELESS, "2026-07-28")
    assert (fetched.server_name, fetched.server_version) == ("modern", "3")
    assert asked(upstream) == ["POST /mcp server/discover", "POST /mcp tools/list"]
    assert len(upstream.peers) == 1
    for request in upstream.requests:
        meta = message_in(request)["params"]["_meta"]
        assert meta["io.modelcontextprotocol/protocolVersion"] == "2026-07-28"
        assert meta["io.modelcontextprotocol/clientInfo"]["name"] == "mcp-tool-filter"
        declared = meta["io.modelcontextprotocol/clientCapabilities"]
        assert {"roots", "sampling", "elicitation"} <= set(declared)
        assert request.all("mcp-protocol-version") == ["2026-07-28"]
        assert request.all("mcp-method") == [message_in(request)["method"]]


async def test_a_session_is_opened_and_closed_again_on_one_connection() -> None:
    """We declare all capabilities: some upstreams list a tool only to clients that do."""
    fetched, upstream = await run(dialogue(streamable(tool_list("a"), session="s1")))
    assert (fetched.transport, fetched.revision) == (Transport.STREAMABLE, "2025-06-18")
    assert (fetched.sessions, names(fetched)) == (True, ["a"])
    assert (fetched.server_name, fetched.server_version) == ("scripted", "1.2")
    methods = ("server/discover", *METHODS)
    assert asked(upstream) == [*(f"POST /mcp {method}" for method in methods), "DELETE /mcp"]
    assert len(upstream.peers) == 1
    for request in upstream.requests[2:]:
        assert request.all("mcp-session-id") == ["s1"]
        assert request.all("mcp-protocol-version") == ["2025-06-18"]
    params = message_in(upstream.requests[1])["params"]
    assert params["protocolVersion"] == "2025-11-25"
    assert {"roots", "sampling", "elicitation"} <= set(params["capabilities"])
    assert params["clientInfo"]["name"] == "mcp-tool-filter"


@pytest.mark.parametrize(("say", "closed"), [
    (streamable(tool_list("a")), ["unwanted"]),
    (streamable(tool_list("a"), session="wanted"), ["unwanted", "wanted"]),
    (stateless(tool_list("a")), ["unwanted"]),
])  # fmt: skip
async def test_a_session_given_with_a_probe_is_closed_too(say: Answer, closed: list[str]) -> None:
    """Older Python SDKs open one for any POST, and keep it."""

    def generous(request: RawRequest) -> bytes:
        probe = message_in(request).get("method") == "server/discover"
        return with_session(say(request), "unwanted") if probe else say(request)

    fetched, upstream = await run(dialogue(generous))
    ends = [r.all("mcp-session-id") for r in upstream.requests if r.line[:6] == "DELETE"]
    assert sorted({one for (one,) in ends}) == closed
    assert fetched.sessions is ("wanted" in closed)


async def test_an_upstream_may_refuse_to_close_its_session() -> None:
    say = streamable(tool_list("a"), session="s1")
    stubborn = dialogue(lambda r: NOT_ALLOWED if r.line[:6] == "DELETE" else say(r))
    assert names(await fetched_from(stubborn)) == ["a"]


async def test_a_session_is_closed_even_if_the_list_cannot_be_fetched() -> None:
    async with raw_upstream(dialogue(streamable({"no": "tools"}, session="s1"))) as upstream:
        with pytest.raises(FetchFailed):
            await fetch(target(upstream.url))
        assert asked(upstream)[-1] == "DELETE /mcp"


@pytest.mark.parametrize("revision", ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"])
async def test_every_known_revision_is_accepted(revision: str) -> None:
    fetched, upstream = await run(dialogue(streamable(tool_list("a"), revision=revision)))
    assert (fetched.revision, fetched.sessions) == (revision, False)
    assert asked(upstream)[-1] == "POST /mcp tools/list"  # there is no session to be ended


@pytest.mark.parametrize("revision", ["2031-01-01", "2026-07-28", "\x1b[2J"])
async def test_an_unknown_revision_stops_the_start(revision: str) -> None:
    said = await failure(dialogue(streamable(tool_list(), revision=revision)))
    shown = revision.replace("\x1b", "\\x1b")
    assert said == f"The upstream wants MCP revision {shown}, which we do not know"


async def test_a_newer_upstream_is_told_apart_from_an_old_one() -> None:
    def say(request: RawRequest) -> bytes:
        unknown = error(request, -32022, "Unsupported", {"supported": ["2031-01-01"]})
        return answer(unknown, status="400 Bad Request")

    assert "only MCP revisions that we do not know: 2031-01-01" in await failure(dialogue(say))


async def test_an_old_upstream_may_answer_discover() -> None:
    say = streamable(tool_list("a"))

    def both(request: RawRequest) -> bytes:
        if message_in(request).get("method") == "server/discover":
            return answer(result(request, {"supportedVersions": ["2025-06-18"]}))
        return say(request)

    assert (await fetched_from(dialogue(both))).transport is Transport.STREAMABLE


@pytest.mark.parametrize(("say", "transport"), [
    (streamable(tool_list("a")), Transport.STREAMABLE),
    (stateless(tool_list("a")), Transport.STATELESS),
])  # fmt: skip
async def test_an_upstream_that_answers_no_probe_in_time_is_recognized(
    say: Answer, transport: Transport, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An old one never answers what it does not know; a new one may be slow."""
    monkeypatch.setattr(search, "_PROBE_TIMEOUT", 0.05)

    async def script(peer: Peer) -> None:
        request = await peer.request()
        while len(peer.upstream.requests) > 1:
            await peer.say(say(request))
            request = await peer.request()
        await peer.left()

    assert (await fetched_from(script)).transport is transport


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_a_refused_connection_is_reported_as_such(host: str) -> None:
    """Once, if there are two addresses."""
    url = f"http://{host}:{free_port()}"
    with pytest.raises(ConnectFailed) as caught:
        await fetch(target(url))
    said = f"Error: Failed to connect to upstream MCP at {url}\nConnection refused"
    assert str(caught.value) == said


async def test_an_unknown_host_is_reported_as_such() -> None:
    with pytest.raises(ConnectFailed) as caught:
        await fetch(target("http://nosuchhost.invalid:3000"))
    assert caught.value.why == "Host not found: nosuchhost.invalid"


def until_the_list(then: Callable[[Peer, RawRequest], Awaitable[None]]) -> Script:
    """Answer until tools are asked for."""
    say = streamable(tool_list())

    async def script(peer: Peer) -> None:
        while message_in(request := await peer.request()).get("method") != "tools/list":
            await peer.say(say(request))
        await then(peer, request)

    return script


async def test_an_upstream_that_never_introduces_itself_is_a_connection_timeout() -> None:
    assert await failure(Peer.left, connect_timeout=0.1) == "Connection timeout after 100ms"


async def test_an_upstream_that_never_lists_its_tools_is_a_request_timeout() -> None:
    with pytest.raises(FetchFailed) as caught:
        await run(until_the_list(lambda peer, _request: peer.left()), list_timeout=0.1)
    said = "Error: Failed to fetch tool list from upstream MCP\nRequest timeout after 100ms"
    assert str(caught.value) == said


@pytest.mark.parametrize("leave", [Peer.close, Peer.reset])
async def test_a_connection_that_ends_in_the_list_is_lost(leave: Callable[[Peer], None]) -> None:
    async def leaves(peer: Peer, request: RawRequest) -> None:
        await peer.say(answer(result(request, tool_list("a")))[:-5])
        await asyncio.sleep(0.01)
        leave(peer)

    ends = ("Connection closed by upstream", "Connection reset by upstream")
    assert await failure(until_the_list(leaves)) in ends


@pytest.mark.parametrize("greeting", [b"SSH-2.0-OpenSSH_9.6\r\n", b"\x15\x03\x01\x00\x02\x02\x16"])
async def test_an_upstream_without_http_is_a_failed_connection(greeting: bytes) -> None:
    with pytest.raises(ConnectFailed):
        await run(saying(greeting + b"\r\n"))


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


async def test_a_list_with_repeating_cursors_is_refused() -> None:
    script = dialogue(streamable(tool_list("a", next_cursor="x\n")))
    assert await failure(script) == 'The tool list never ends: it repeats the cursor "x\\n"'


def endless(name: str) -> Script:
    def listed(request: RawRequest) -> bytes:
        after = f"after {message_in(request)['id']}"
        return answer(result(request, tool_list(name, next_cursor=after)))

    return dialogue(streamable(listed))


async def test_an_endless_list_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch_module, "MAX_PAGES", 3)
    assert await failure(endless("a")) == "The tool list has more than 3 pages"


async def test_pages_that_are_too_long_together_are_refused() -> None:
    said = "The tool list is longer than 8000 bytes"
    assert await failure(endless("a" * 700), limit=1000) == said


async def test_an_upstream_that_has_no_tools_needs_no_list() -> None:
    def listed(request: RawRequest) -> bytes:
        return answer(error(request, -32601, "Method not found"))

    prompts = dialogue(streamable(listed, capabilities={"prompts": {}}))
    assert (await fetched_from(prompts)).pages == ()
    assert "-32601" in await failure(dialogue(streamable(listed)))


async def test_undeclared_tools_are_fetched_anyway() -> None:
    assert names(await fetched_from(dialogue(streamable(tool_list("a"), capabilities={})))) == ["a"]


CHALLENGE = "\r\nWWW-Authenticate: Bearer"
WANTED, REFUSED = "the upstream wants credentials", "does not accept the credentials"
OWN = (("Authorization", "Bearer x"),)


@each_row(("status", "headers", "said"), [
    (f"401 Unauthorized{CHALLENGE}", (), ""), (f"403 Forbidden{CHALLENGE}", (), ""),
    ("401 Unauthorized", (), WANTED), ("403 Forbidden", (), WANTED),
    (f"401 Unauthorized{CHALLENGE}", OWN, REFUSED),
    ("403 Forbidden", OWN, REFUSED),
])  # fmt: skip
async def test_a_refusal_lists_after_a_login_if_it_says_how_to_log_in(
    status: str, headers: tuple[tuple[str, str], ...], said: str
) -> None:
    """A challenge; but not if our own credentials were refused."""

    def say(_request: RawRequest) -> bytes:
        return answer(b"", status=status, kind="text/plain")

    async with raw_upstream(dialogue(say)) as upstream:
        with pytest.raises(FetchFailed) as caught:
            await fetch(target(upstream.url, "/mcp", headers=headers))
    assert isinstance(caught.value, ListsAfterLogin) is not bool(said)
    assert said in caught.value.why
    assert said or getattr(caught.value, "path", None) == "/mcp"


def test_a_hint_says_what_to_do_about_tls() -> None:
    assert "--ca FILE" in (hint_for("certificate verify failed: self-signed certificate") or "")
    assert "http://" in (hint_for("TLS error: wrong version number") or "")
    assert hint_for("Connection refused") is None


HEADERS = (
    (b"Host", b"filter.example"), (b"Content-Length", b"99"), (b"Mcp-Session-Id", b"s1"),
    (b"Authorization", b"Bearer ann"), (b"X-Key", b"theirs"),
)  # fmt: skip
ASKED_BY = AskedBy(Head("POST", "/mcp?user=ann", HEADERS), headers=(("X-Key", "ours"),))


def pages(*following: str | None) -> Script:
    """Answer with one tool a page, which names the next cursor."""
    left = iter(following)

    def listed(request: RawRequest) -> bytes:
        return answer(result(request, tool_list("a", next_cursor=next(left))))

    return dialogue(listed)


async def problem_of(url: str, asked_by: AskedBy = ASKED_BY) -> CannotList:
    with pytest.raises(CannotList) as caught:
        await fetch_as_client(target(url), asked_by)
    return caught.value


async def problem_for_a_client(script: Script) -> str:
    async with raw_upstream(script) as upstream:
        return str(await problem_of(upstream.url))


async def test_the_list_is_fetched_with_the_clients_headers() -> None:
    async with raw_upstream(pages(None)) as upstream:
        await fetch_as_client(target(upstream.url), ASKED_BY)
    [request] = upstream.requests
    assert request.line == "POST /mcp?user=ann HTTP/1.1"
    own = {"authorization": "Bearer ann", "mcp-session-id": "s1", "x-key": "ours"}
    own |= {"host": upstream.url[7:], "content-length": str(len(request.body))}
    assert {name: request.all(name) for name in own} == {name: [own[name]] for name in own}
    assert message_in(request)["id"] >= 2**52  # no id of a client in the same session


async def test_all_pages_are_fetched() -> None:
    async with raw_upstream(pages("1", "2", None)) as upstream:
        assert len(await fetch_as_client(target(upstream.url), ASKED_BY)) == 3
    cursors = [message_in(request)["params"].get("cursor") for request in upstream.requests]
    assert cursors == [None, "1", "2"]


@each_row(("meta", "sent"), [
    ("null", b"{}"), ("[]", b"{}"), ('"x"', b"{}"), ('{"x":1}', b"{}"),
    ('{"io.modelcontextprotocol/a":{"name":"x"},"progressToken":1}',
     b'{"_meta":{"io.modelcontextprotocol/a":{"name":"x"}}}'),
    *(
        (f'{{"x":2, "io.modelcontextprotocol/a": {value}}}',
         b'{"_meta":{"io.modelcontextprotocol/a": %b}}' % value.encode())
        for value in ("1" * 4000, "1e999", "1.50", "18446744073709551616", '"\\ud800"', "null")
    ),
])  # fmt: skip
async def test_what_a_client_says_of_itself_is_sent_as_written(meta: str, sent: bytes) -> None:
    """A fetch that fails over strange JSON would fail the client's call, too."""
    async with raw_upstream(pages(None)) as upstream:
        await fetch_as_client(target(upstream.url), AskedBy(ASKED_BY.head, meta=meta))
    assert upstream.requests[0].body.endswith(b'"params":' + sent + b"}")


@each_row(("status", "headers", "is_refusal"), [
    ("401 Unauthorized", HEADERS, True), ("404 Not Found", HEADERS, True),
    ("404 Not Found", (), False), ("403 Forbidden", HEADERS, False),
    ("403 Forbidden\r\nWWW-Authenticate: Bearer", HEADERS, True),
    ("500 Internal Server Error", HEADERS, False),
])  # fmt: skip
async def test_a_refused_client_is_told_from_a_refused_list(
    status: str, headers: tuple[tuple[bytes, bytes], ...], is_refusal: bool
) -> None:
    """The client's own request then gets an answer that says what to do."""
    asked_by = AskedBy(Head("POST", "/mcp", headers))
    async with raw_upstream(refusing(status)) as upstream:
        problem = await problem_of(upstream.url, asked_by)
    assert (problem.is_refusal, problem.is_lost) == (is_refusal, False)
    assert (await problem_of(upstream.url, asked_by)).is_lost  # it accepts no connection any more


async def test_a_failed_fetch_has_a_reason() -> None:
    repeats = 'The tool list never ends: it repeats the cursor "1"'
    assert await problem_for_a_client(pages("1", "1")) == repeats
    assert "HTTP 403 Forbidden" in await problem_for_a_client(refusing("403 Forbidden"))


OTHERS = ("prompts/list", "resources/list", "skills/list")


async def fetch_others_from(say: Callable[[RawRequest], bytes]) -> dict[str, list[object]]:
    async with raw_upstream(dialogue(say)) as upstream:
        found = (await fetch(replace(target(upstream.url), other_lists=OTHERS))).others
    return {name: [json.loads(page)["result"] for page in found[name]] for name in found}


async def test_other_lists_are_fetched_for_the_report() -> None:
    tools = streamable(tool_list("a"), session="s")

    def say(request: RawRequest) -> bytes:
        message = message_in(request)
        match message.get("method"):
            case "prompts/list" if message["params"].get("cursor"):
                return answer(result(request, {"prompts": []}))
            case "prompts/list":
                return answer(result(request, {"prompts": [1], "nextCursor": "2"}))
            case "resources/list":
                return answer(error(request, -32603, "broken"))
            case "skills/list":
                return answer(error(request, -32601, "unknown"))
        return tools(request)

    assert await fetch_others_from(say) == {
        "prompts/list": [{"prompts": [1], "nextCursor": "2"}, {"prompts": []}],
        "skills/list": [],
    }


@pytest.mark.parametrize("failing", [b"", b"HTTP/1.1 200 OK\r\n\r\n", NOT_ALLOWED])
async def test_other_lists_may_fail(failing: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch_module, "_OTHERS_TIMEOUT", 0.2)
    tools = streamable(tool_list("a"))

    def say(request: RawRequest) -> bytes:
        return failing if message_in(request).get("method") in OTHERS else tools(request)

    assert await fetch_others_from(say) == {}


# Where the start looks for the MCP endpoint, when it stops looking, and with which login


@pytest.mark.parametrize("path", ["/mcp", "/", "/mcp/", "/v1/mcp", "/api/mcp"])
async def test_the_usual_paths_are_tried_on_the_same_connection(path: str) -> None:
    say = stateless(tool_list("a"))
    script = dialogue(lambda r: say(r) if r.line.split(" ")[1] == path else NOT_FOUND)
    fetched, upstream = await run(script, endpoint=None)
    assert (fetched.endpoint, len(upstream.peers)) == (path, 1)


async def test_the_old_transport_is_found_at_its_usual_path() -> None:
    fetched, upstream = await run(Legacy(tools_list=tool_list("a")), endpoint=None)
    assert fetched.endpoint == "/sse"
    first = ["POST /mcp server/discover", "POST / server/discover", "GET /sse"]
    assert asked(upstream)[:3] == first


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
async def test_an_upstream_that_answers_404_is_asked_again(is_message: bool, probes: int) -> None:
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
ELSEWHERE = "https://elsewhere.example/mcp"


@each_row(("script", "endpoint", "said"), [
    (refusing(f"307 To\r\nLocation: {ELSEWHERE}"), "/mcp",
     f"HTTP 307 To: redirected to {ELSEWHERE}"),
    (refusing("302 Found\r\nLocation: /login"), "/mcp", "HTTP 302 Found, to /login"),
    (refusing("307 To\r\nLocation: /mcp"), "/mcp", "More than 5 redirects, the last to /mcp"),
    (dialogue(lambda _: NOT_FOUND), None, f"HTTP 404 Not Found; {NOWHERE}"),
    (PAGE, "/mcp", "HTTP 200 OK with text/html: that is not MCP"),
    (PAGE, None, f"HTTP 200 OK with text/html: that is not MCP; {NOWHERE}"),
    (ABOVE, None, f"HTTP 200 OK with text/html: that is not MCP; {NOWHERE}"),
    (refusing("500 Internal Server Error"), None, "HTTP 500 Internal Server Error"),
    (refusing("503 Service Unavailable"), None, "HTTP 503 Service Unavailable"),
])  # fmt: skip
async def test_a_failed_search_says_why(script: Script, endpoint: str | None, said: str) -> None:
    """It stops at a server error, and sends no message to a login page or another server."""
    assert await failure(script, endpoint=endpoint) == said


@pytest.mark.parametrize("endpoint", ["/mcp", None])
async def test_a_401_ends_the_search(endpoint: str | None) -> None:
    async with raw_upstream(refusing("401 Unauthorized")) as upstream:
        with pytest.raises(FetchFailed) as caught:
            await fetch(target(upstream.url, endpoint))
        assert sum(one.startswith("POST") for one in asked(upstream)) == 1
    wanted = "the upstream wants credentials: give them with upstream_headers"
    assert caught.value.why == f"HTTP 401 Unauthorized: {wanted}"


URL = "http://127.0.0.1:3000"


def target_of(**options: Any) -> Target:
    return target_module.target_for(parse_config(**options), URL, None)


def test_a_target_holds_the_settings() -> None:
    times = {"connection_timeout": "1500", "tool_list_timeout": "2500"}
    target = target_of(endpoint="/mcp", upstream_headers=["X-Key: 1"], message_limit="1KB", **times)
    assert (target.url, target.endpoint, target.headers) == (URL, "/mcp", (("X-Key", "1"),))
    assert (target.connect_timeout, target.list_timeout, target.limit) == (1.5, 2.5, 1024)


@pytest.mark.parametrize(
    ("header", "has"), [("authorization: Bearer x", True), ("X-Authorization: Bearer x", False)]
)
def test_credentials_are_recognised_by_their_header(header: str, has: bool) -> None:
    assert target_module.has_authorization(target_of(upstream_headers=[header])) is has


# What is posted to one path, and the answers


def streaming(*events: bytes, end: bytes = LAST_CHUNK) -> Answer:
    """Answer tools/list with these events; ID stands for the request's id."""

    def listed(request: RawRequest) -> bytes:
        number = str(message_in(request)["id"]).encode()
        return SSE_HEAD + b"".join(chunk(e.replace(b"ID", number)) for e in events) + end

    return streamable(listed)


async def test_a_page_is_kept_byte_for_byte() -> None:
    odd = b' {"id" :ID,\n"result":{"tools":[ ] ,"x":1.0e2,"y":"\\u00e9"},"jsonrpc":"2.0"}\t'

    def listed(request: RawRequest) -> bytes:
        return answer(odd.replace(b"ID", str(message_in(request)["id"]).encode()))

    assert (await fetched_from(dialogue(streamable(listed)))).pages == (odd.replace(b"ID", b"3"),)


async def test_an_answer_may_follow_other_events_on_a_stream() -> None:
    events = (
        b": hello\n\n",
        b"id: 1\ndata:\n\n",
        b"event: ping\ndata: 2026-01-01\n\n",
        b"data: still here\n\n",
        b'data: {"jsonrpc":"2.0","method":"notifications/message","params":{}}\n\n',
        b'data: {"jsonrpc":"2.0","id":99,"result":{}}\n\n',
        b'event: message\r\ndata: {"jsonrpc":"2.0","id":ID,\r\n',
        b'data: "result":{"tools":[]}}\r\n\r\n',
    )
    fetched, upstream = await run(dialogue(streaming(*events)))
    assert fetched.pages == (b'{"jsonrpc":"2.0","id":3,\n"result":{"tools":[]}}',)
    assert len(upstream.peers) == 1


async def test_a_stream_that_stays_open_after_the_answer_is_closed() -> None:
    event = b'data: {"jsonrpc":"2.0","id":ID,"result":{"tools":[]}}\n\n'
    assert len((await fetched_from(dialogue(streaming(event, end=b"")))).pages) == 1


async def test_an_answer_may_come_in_a_batch() -> None:
    note = b'{"jsonrpc":"2.0","method":"notifications/message"}'
    reply = b'{"jsonrpc":"2.0", "id":ID,"result":{"tools":[]}}'
    script = dialogue(streaming(b"data: [" + note + b" , " + reply + b"]\n\n"))
    assert (await fetched_from(script)).pages == (reply.replace(b"ID", b"3"),)


@pytest.mark.parametrize(("response", "said"), [
    (answer(b"", status="202 Accepted", kind=""), "with no Content-Type: that is not MCP"),
    (answer(b"x", status="500 Oh\tno"), "HTTP 500 Oh\\tno"),
    (SSE_HEAD + LAST_CHUNK, "The event stream ended without an answer"),
    (SSE_HEAD + chunk(b"data: {nonsense\n\n"), "The answer is not valid JSON"),
    (SSE_HEAD[:-2] + b"Content-Encoding: br\r\n\r\n", "The event stream is compressed (br)"),
])  # fmt: skip
async def test_an_answer_that_is_no_message_is_described(response: bytes, said: str) -> None:
    assert said in await failure(dialogue(streamable(lambda _: response)))


async def test_an_answer_that_is_too_long_is_not_read() -> None:
    script = dialogue(streamable(tool_list("a" * 2000)))
    assert await failure(script, limit=1000) == "The answer is longer than 1000 bytes"


@pytest.mark.parametrize("more", [b"data: xxx\n", b"x" * 1000])
async def test_an_event_without_an_end_is_not_read(more: bytes) -> None:
    async def streams(peer: Peer, _request: RawRequest) -> None:
        await peer.say(SSE_HEAD)
        while True:
            await peer.say(chunk(more) * 10_000)

    said = await failure(until_the_list(streams), limit=1000)
    assert said == "An event is longer than 1000 bytes"


def is_answer(request: RawRequest) -> bool:
    return bool(request.body) and "method" not in message_in(request)


async def test_requests_of_the_upstream_on_the_stream_are_answered() -> None:
    """It may wait for us before it goes on."""
    say = streamable(tool_list("a"), session="s1")

    async def script(peer: Peer) -> None:
        while True:
            request = await peer.request()
            message = message_in(request)
            if message.get("method") == "tools/list":
                await peer.say(SSE_HEAD)
                await peer.say_event(b'{"jsonrpc":"2.0","id":"p","method":"ping"}')
                await peer.say_event(b'{"jsonrpc":"2.0","id":7,"method":"roots/list"}')
                await until(lambda: sum(map(is_answer, peer.upstream.requests)) >= 2)
                await peer.say_event(result(request, tool_list("a")))
                await peer.say(LAST_CHUNK)
            else:
                await peer.say(say(request) if "method" in message else ACCEPTED)

    fetched, upstream = await run(script)
    said = [r for r in upstream.requests if is_answer(r)]
    assert names(fetched) == ["a"]
    assert sorted((message_in(r) for r in said), key=lambda m: str(m["id"])) == [
        {"jsonrpc": "2.0", "id": 7, "result": {"roots": []}},
        {"jsonrpc": "2.0", "id": "p", "result": {}},
    ]
    assert all(r.all("mcp-session-id") == ["s1"] for r in said)


async def test_the_users_headers_go_with_every_request_and_break_none() -> None:
    theirs = (("X-Key", "k"), ("Authorization", "Bearer t"), ("Host", "example.com"))
    spoiling = (("Content-Length", "3"), ("Accept", "text/html"))
    script = dialogue(streamable(tool_list(), session="s"))
    _, upstream = await run(script, headers=(*theirs, *spoiling))
    for request in upstream.requests:
        for name, value in theirs:
            assert request.all(name) == [value]
        assert request.all("content-length") == ([str(len(request.body))] if request.body else [])
        accepted = ["application/json, text/event-stream"]
        assert request.line.startswith("DELETE") or request.all("accept") == accepted


async def test_the_old_transport_begins_with_its_stream() -> None:
    fetched, upstream = await run(Legacy(tools_list=tool_list("a")), endpoint="/sse")
    assert names(fetched) == ["a"]
    assert (fetched.transport, fetched.revision) == (Transport.LEGACY_SSE, "2024-11-05")
    assert (fetched.endpoint, fetched.sessions) == ("/sse", False)
    assert asked(upstream) == ["GET /sse", *[f"POST /messages?id=1 {method}" for method in METHODS]]
    assert upstream.requests[-1].all("mcp-protocol-version") == ["2024-11-05"]
    assert fetched.pages[0].startswith(b'{"jsonrpc": "2.0", "id": 2')


@pytest.mark.parametrize(
    "said", ["messages?id=1", "./messages?id=1", "http://localhost:PORT/messages?id=1"]
)
async def test_the_path_to_post_to_may_be_relative_or_have_another_loopback_name(said: str) -> None:
    assert names(await fetched_from(Legacy(said, tools_list=tool_list("a")), "/sse")) == ["a"]


@pytest.mark.parametrize("said", ["http://elsewhere.example/messages?id=1", "http://["])
async def test_nothing_is_posted_to_another_origin(said: str) -> None:
    assert await failure(Legacy(said), "/sse") == f"The endpoint event names another origin: {said}"


async def test_an_answer_may_arrive_before_the_post_is_accepted() -> None:
    """Some upstreams answer the POST only once all is done."""

    class Backwards(Legacy):
        async def __call__(self, peer: Peer) -> None:
            while "id" not in message_in(request := await peer.request()):
                await (self.begin(peer) if request.line.startswith("GET") else peer.say(ACCEPTED))
            await self.hear(request)
            await peer.left()

    assert names(await fetched_from(Backwards(tools_list=tool_list("a")), "/sse")) == ["a"]


async def test_requests_of_the_upstream_in_between_are_answered() -> None:
    class Asking(Legacy):
        async def hear(self, request: RawRequest) -> None:
            message = message_in(request)
            if message.get("method") == "tools/list":
                self.listing = request
                assert self.stream
                await self.stream.say_event(b'{"jsonrpc":"2.0","id":"p","method":"ping"}')
            elif message.get("id") == "p":
                await super().hear(self.listing)
            else:
                await super().hear(request)

    fetched, upstream = await run(Asking(tools_list=tool_list("a")), "/sse")
    assert names(fetched) == ["a"]
    assert message_in(upstream.requests[-1]) == {"jsonrpc": "2.0", "id": "p", "result": {}}


async def test_a_refused_post_ends_the_wait() -> None:
    class Refusing(Legacy):
        async def __call__(self, peer: Peer) -> None:
            await peer.request()
            if self.stream:
                await peer.say(answer(b"no such session", status="400 Bad Request"))
            else:
                await self.begin(peer)
            await peer.left()

    assert await failure(Refusing(), "/sse") == "HTTP 400 Bad Request"


async def test_a_stream_that_ends_ends_the_wait() -> None:
    class Ending(Legacy):
        async def hear(self, request: RawRequest) -> None:
            assert self.stream
            if message_in(request)["method"] == "tools/list":
                await self.stream.say(LAST_CHUNK)
            else:
                await super().hear(request)

    assert await failure(Ending(), "/sse") == "The event stream ended without an answer"
