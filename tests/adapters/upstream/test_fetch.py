"""We ask a real server on loopback, at the start and as a client: each revision, sessions, ends."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from mcp_tool_filter.adapters.mitmproxy.addon import ToolFilter
from mcp_tool_filter.adapters.upstream import fetch as fetch_module
from mcp_tool_filter.adapters.upstream import search
from mcp_tool_filter.adapters.upstream.fetch import (
    AskedBy,
    fetch,
    fetch_as_client,
    fetch_login_documents,
    hint_for,
)
from mcp_tool_filter.errors import ConnectFailed, FetchFailed, ListsAfterLogin
from mcp_tool_filter.http.head import Head
from mcp_tool_filter.policy.effects import CannotList
from mcp_tool_filter.protocol.limits import Transport
from tests.adapters.upstream.mcp_script import (
    NOT_ALLOWED,
    Answer,
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
from tests.attacks.stage import listening
from tests.oauth_upstream import oauth_upstream
from tests.proxy import proxy
from tests.raw_client import post, raw_client
from tests.raw_upstream import Peer, RawRequest, Script, answer, free_port, raw_upstream


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
    params = message_in(upstream.requests[1])["params"]
    assert params["protocolVersion"] == "2025-11-25"
    assert {"roots", "sampling", "elicitation"} <= set(params["capabilities"])
    assert params["clientInfo"]["name"] == "mcp-tool-filter"


@pytest.mark.parametrize(
    ("say", "closed"),
    [
        (streamable(tool_list("a")), ["unwanted"]),
        (streamable(tool_list("a"), session="wanted"), ["unwanted", "wanted"]),
        (stateless(tool_list("a")), ["unwanted"]),
    ],
)
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
    say = streamable({"no": "tools"}, session="s1")
    async with raw_upstream(dialogue(say)) as upstream:
        with pytest.raises(FetchFailed):
            await fetch(target(upstream.url))
        found = asked(upstream)
    assert found[-1] == "DELETE /mcp"


@pytest.mark.parametrize("revision", ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"])
async def test_every_known_revision_is_accepted(revision: str) -> None:
    script = dialogue(streamable(tool_list("a"), revision=revision))
    fetched, upstream = await run(script)
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


@pytest.mark.parametrize(
    ("say", "transport"),
    [
        (streamable(tool_list("a")), Transport.STREAMABLE),
        (stateless(tool_list("a")), Transport.STATELESS),
    ],
)
async def test_an_upstream_that_does_not_answer_the_probe_in_time_is_recognized(
    say: Answer, transport: Transport, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An old one never answers what it does not know; a new one may be slow."""
    monkeypatch.setattr(search, "_PROBE_TIMEOUT", 0.05)

    async def script(peer: Peer) -> None:
        request = await peer.request()
        if len(peer.upstream.requests) == 1:
            return await peer.left()
        while True:
            await peer.say(say(request))
            request = await peer.request()

    assert (await fetched_from(script)).transport is transport


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_a_refused_connection_is_reported_as_such(host: str) -> None:
    """Once, if there are two addresses."""
    url = f"http://{host}:{free_port()}"
    with pytest.raises(ConnectFailed) as caught:
        await fetch(target(url))
    assert str(caught.value) == (
        f"Error: Failed to connect to upstream MCP at {url}\nConnection refused"
    )


async def test_an_unknown_host_is_reported_as_such() -> None:
    with pytest.raises(ConnectFailed) as caught:
        await fetch(target("http://nosuchhost.invalid:3000"))
    assert caught.value.why == "Host not found: nosuchhost.invalid"


async def test_an_upstream_that_never_introduces_itself_is_a_connection_timeout() -> None:
    assert await failure(Peer.left, connect_timeout=0.1) == "Connection timeout after 100ms"


async def test_an_upstream_that_never_lists_its_tools_is_a_request_timeout() -> None:
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
async def test_an_upstream_without_http_is_a_failed_connection(greeting: bytes) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.say(greeting + b"\r\n")
        peer.close()

    with pytest.raises(ConnectFailed):
        await run(script)


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


async def test_an_endless_list_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mcp_tool_filter.adapters.upstream.fetch.MAX_PAGES", 3)

    def listed(request: RawRequest) -> bytes:
        number = message_in(request)["id"]
        return answer(result(request, tool_list("a", next_cursor=f"after {number}")))

    assert await failure(dialogue(streamable(listed))) == "The tool list has more than 3 pages"


async def test_pages_that_are_too_long_together_are_refused() -> None:
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


async def test_undeclared_tools_are_fetched_anyway() -> None:
    script = dialogue(streamable(tool_list("a"), capabilities={}))
    assert names(await fetched_from(script)) == ["a"]


WELL_KNOWN = "/.well-known/oauth-protected-resource"
CHALLENGE = "\r\nWWW-Authenticate: Bearer"
WANTED, REFUSED = "the upstream wants credentials", "does not accept the credentials"
OWN = (("Authorization", "Bearer x"),)


@pytest.mark.parametrize(
    ("status", "document", "headers", "said"),
    [
        (f"401 Unauthorized{CHALLENGE}", "", (), ""),
        (f"403 Forbidden{CHALLENGE}", "", (), ""),
        ("401 Unauthorized", f"{WELL_KNOWN}/mcp", (), ""),
        ("401 Unauthorized", WELL_KNOWN, (), ""),
        ("401 Unauthorized", "/.well-known/oauth-authorization-server", (), ""),
        ("401 Unauthorized", "/.well-known/openid-configuration", (), ""),
        ("401 Unauthorized", "", (), WANTED),
        ("403 Forbidden", "", (), WANTED),
        (f"401 Unauthorized{CHALLENGE}", "", OWN, REFUSED),
        ("403 Forbidden", "", OWN, REFUSED),
    ],
)
async def test_a_refusal_lists_after_a_login_if_anything_says_how_to_log_in(
    status: str, document: str, headers: tuple[tuple[str, str], ...], said: str
) -> None:
    """A challenge or a document; but not if our own credentials were refused."""

    def say(request: RawRequest) -> bytes:
        if request.line.startswith(f"GET {document} "):
            return answer(b"{}", kind="application/json")
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
    (b"Host", b"filter.example"),
    (b"Content-Length", b"99"),
    (b"Mcp-Session-Id", b"s1"),
    (b"Authorization", b"Bearer ann"),
    (b"X-Key", b"theirs"),
)
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
    assert request.all("authorization") == ["Bearer ann"]
    assert request.all("mcp-session-id") == ["s1"]
    assert request.all("x-key") == ["ours"]
    assert request.all("host") == [upstream.url.removeprefix("http://")]
    assert request.all("content-length") == [str(len(request.body))]
    assert message_in(request)["id"] >= 2**52  # no id of a client in the same session


async def test_all_pages_are_fetched() -> None:
    async with raw_upstream(pages("1", "2", None)) as upstream:
        assert len(await fetch_as_client(target(upstream.url), ASKED_BY)) == 3
    cursors = [message_in(request)["params"].get("cursor") for request in upstream.requests]
    assert cursors == [None, "1", "2"]


@pytest.mark.parametrize(
    ("meta", "sent"),
    [
        ("null", b"{}"),
        ("[]", b"{}"),
        ('"x"', b"{}"),
        ('{"x":1}', b"{}"),
        ('{"io.modelcontextprotocol/a":{"name":"x"},"progressToken":1}',
         b'{"_meta":{"io.modelcontextprotocol/a":{"name":"x"}}}'),
        *(
            (f'{{"x":2, "io.modelcontextprotocol/a": {value}}}',
             b'{"_meta":{"io.modelcontextprotocol/a": %b}}' % value.encode())
            for value in ("1" * 4000, "1e999", "1.50", "18446744073709551616", '"\\ud800"', "null")
        ),
    ],
)  # fmt: skip
async def test_what_a_client_says_of_itself_is_sent_as_it_was_written(
    meta: str, sent: bytes
) -> None:
    """A fetch that fails over strange JSON would fail the client's call, too."""
    async with raw_upstream(pages(None)) as upstream:
        await fetch_as_client(target(upstream.url), AskedBy(ASKED_BY.head, meta=meta))
    assert upstream.requests[0].body.endswith(b'"params":' + sent + b"}")


@pytest.mark.parametrize(
    ("status", "headers", "is_refusal"),
    [
        ("401 Unauthorized", HEADERS, True),
        ("404 Not Found", HEADERS, True),
        ("404 Not Found", (), False),
        ("403 Forbidden", HEADERS, False),
        ("403 Forbidden\r\nWWW-Authenticate: Bearer", HEADERS, True),
        ("500 Internal Server Error", HEADERS, False),
    ],
)
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
    assert (
        await problem_for_a_client(pages("1", "1"))
        == 'The tool list never ends: it repeats the cursor "1"'
    )
    assert "HTTP 403 Forbidden" in await problem_for_a_client(refusing("403 Forbidden"))


OTHERS = ("prompts/list", "resources/list", "skills/list")


async def fetch_others_from(say: Callable[[RawRequest], bytes]) -> dict[str, list[object]]:
    async with raw_upstream(dialogue(say)) as upstream:
        wanted = replace(target(upstream.url), other_lists=OTHERS)
        found = (await fetch(wanted)).others
    return {
        method: [json.loads(page)["result"] for page in pages] for method, pages in found.items()
    }


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
async def test_no_failure_of_another_list_matters(
    failing: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch_module, "_OTHERS_TIMEOUT", 0.2)
    tools = streamable(tool_list("a"))

    def say(request: RawRequest) -> bytes:
        return failing if message_in(request).get("method") in OTHERS else tools(request)

    assert await fetch_others_from(say) == {}


# The documents in which an upstream says how to log in


SECRET = (("Authorization", "Bearer secret"),)


async def test_both_documents_are_found() -> None:
    with oauth_upstream() as upstream:
        found = [
            json.loads(one)
            for one in await fetch_login_documents(target(upstream.origin, headers=SECRET), "/mcp")
        ]
    assert {"resource", "token_endpoint"} <= {name for document in found for name in document}


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", None])
async def test_an_upstream_without_documents_has_none(url: str | None) -> None:
    async with listening() as upstream:
        asked = target(url or upstream.url, headers=SECRET)
        assert await fetch_login_documents(asked, "/mcp") == []
        assert all(request.all("authorization") == [] for request in upstream.requests)


async def test_a_client_that_has_a_token_may_renew_it(tmp_path: Path) -> None:
    """It goes straight to the token endpoint, where other paths are closed."""
    with oauth_upstream() as upstream:
        upstream.metadata = {"token_endpoint": f"{upstream.origin}/oauth/t"}
        hello = ("server/discover", "initialize", "notifications/initialized")
        upstream.open_methods = (*hello, "tools/list")
        given = {"endpoint": ["/mcp"], "paths": ["mcp"]}
        async with (
            proxy(ToolFilter(), to=upstream.origin, home=tmp_path, **given) as it,
            raw_client(it.port) as client,
        ):
            form = b"Host: localhost\r\nContent-Type: application/x-www-form-urlencoded\r\n"
            got = await client.ask(post(b"grant_type=x", path="/oauth/t", headers=form))
            assert b"only the MCP endpoint" not in got.body
            got = await client.ask(post(b"grant_type=x", path="/oauth/other", headers=form))
            assert b"only the MCP endpoint" in got.body
