"""Web pages in a real browser: what they may read of our answers, and what they cannot reach."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.attacks.stage import ALLOWED_TOOL, DENIED, DENIED_TOOL, Link, Upstream, raised
from tests.browser import Page, browser
from tests.filtered import INITIALIZE
from tests.mcp_upstream import RESULT, tool_list
from tests.raw_client import get, post, raw_client
from tests.raw_upstream import RawRequest, answer, hang_up

FETCH = """
const [url, body, headers] = arguments;
const all = {"content-type": "application/json", "accept-language": "*",
             "accept": "application/json, text/event-stream", ...headers};
return fetch(url, body ? {method: "POST", body, headers: all} : {headers})
  .then(async (got) => [got.status, await got.text(), got.headers.get("mcp-session-id")])
  .catch((error) => `${error}`);
"""
SHOW_PICTURE = """
const [url] = arguments;
return new Promise((done) => {
  const picture = new Image();
  picture.onload = picture.onerror = () => done();
  picture.src = url;
});
"""
LIST = '{"jsonrpc":"2.0","id":5,"method":"tools/list"}'
CALL = json.dumps({"jsonrpc": "2.0", "id": 3, "method": "tools/call", "params": {"name": DENIED}})
FAILED = "TypeError: Failed to fetch"


def cors_for(origin: str, request: RawRequest) -> str:
    """Say what a server with a CORS middleware says."""
    said = f"\r\nAccess-Control-Allow-Origin: {origin}\r\nVary: Origin\r\n"
    if request.line.startswith("OPTIONS"):
        said += "Access-Control-Allow-Methods: POST, GET\r\nAccess-Control-Allow-Headers: "
        return said + "content-type, mcp-session-id, mcp-protocol-version"
    return said + "Access-Control-Expose-Headers: mcp-session-id"


@asynccontextmanager
async def a_page() -> AsyncIterator[str]:
    """Serve an empty page; its URL."""

    writers: list[asyncio.StreamWriter] = []  # browsers connect before they need to

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            head = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nConnection: close\r\n\r\n"
            writer.write(head + b"<p>")
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://localhost:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        await hang_up(writers)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with browser(tmp_path_factory.mktemp("browser")) as page:
        yield page


async def play(
    home: Path, page: Page, scene: Callable[[Page, Upstream, str], None], allowed: str = ""
) -> None:
    """Run a scene on a page that is served at another port; the upstream allows its origin."""

    async with a_page() as url, raised(home) as (upstream, it):

        async def respond(request: RawRequest, link: Link) -> None:
            more = cors_for(allowed or url, request)
            asked = json.loads(request.body or b"{}").get("method")
            if asked == "initialize":
                hello = b'{"jsonrpc":"2.0","id":0,"result":{"protocolVersion":"2025-06-18"}}'
                kind = f"application/json\r\nMcp-Session-Id: s1{more}"
                return await link.say(answer(hello, kind=kind))
            if asked == "tools/list":
                listed = tool_list([ALLOWED_TOOL, DENIED_TOOL], id="5")
                return await link.say(answer(listed, kind=f"application/json{more}"))
            body = b"" if request.line.startswith("OPTIONS") else RESULT
            return await link.say(answer(body, kind=f"application/json{more}"))

        upstream.respond = respond
        proxied = f"http://127.0.0.1:{it.port}"
        await asyncio.to_thread(page.go, url)
        await asyncio.to_thread(scene, page, upstream, proxied)


def asked(upstream: Upstream) -> list[str]:
    """The methods and paths that reached the upstream, without preflights."""
    lines = [request.line.rpartition(" ")[0] for request in upstream.requests]
    return [line for line in lines if not line.startswith("OPTIONS")]


async def test_a_page_reads_our_answers_as_it_reads_the_upstreams(
    tmp_path: Path, page: Page
) -> None:
    """Without CORS headers, a denied call looks like a failure of the network."""

    def scene(page: Page, upstream: Upstream, proxied: str) -> None:
        def ask(body: str, **headers: str) -> Any:
            return page.run(FETCH, f"{proxied}/mcp", body, headers)

        status, said, _ = ask(CALL)  # the first of all: only its preflight went by
        assert (status, json.loads(said)["error"]["code"]) == (200, -32601)
        assert ask(INITIALIZE.decode())[2] == "s1"
        session = {"mcp-session-id": "s1", "mcp-protocol-version": "2025-06-18"}
        assert ask(LIST, **session)[0] == 200  # the first of its kind comes from the upstream
        before = asked(upstream)
        status, said, _ = ask(LIST, **session)
        assert [one["name"] for one in json.loads(said)["result"]["tools"]] == ["read_file"]
        status, said, _ = ask("no JSON", **session)
        assert (status, json.loads(said)["error"]["code"]) == (400, -32600)
        assert ask(CALL.replace('"id": 3, ', ""), **session)[0] == 202
        assert asked(upstream) == before

    await play(tmp_path, page, scene)


async def test_a_page_whose_origin_the_upstream_does_not_allow_reads_nothing(
    tmp_path: Path, page: Page
) -> None:
    def scene(page: Page, upstream: Upstream, proxied: str) -> None:
        for body in (CALL, LIST, "no JSON"):
            for kind in ("application/json", "text/plain"):  # which needs no preflight
                headers = {"content-type": kind}
                assert page.run(FETCH, f"{proxied}/mcp", body, headers) == FAILED

    await play(tmp_path, page, scene, allowed="http://localhost:1")


async def test_an_image_on_a_page_reaches_nothing(tmp_path: Path, page: Page) -> None:
    def scene(page: Page, upstream: Upstream, proxied: str) -> None:
        for host in ("127.0.0.1", "localhost"):  # another site, and the page's own
            page.run(SHOW_PICTURE, f"{proxied.replace('127.0.0.1', host)}/admin/reset")
        assert upstream.requests == []

    await play(tmp_path, page, scene)


ORIGIN = "http://localhost:6274"
PREFLIGHT = (
    f"Host: localhost\r\nOrigin: {ORIGIN}\r\nAccess-Control-Request-Method: POST\r\n".encode()
)
PAGES_OWN = f"Host: localhost\r\nContent-Type: application/json\r\nOrigin: {ORIGIN}\r\n".encode()
STAR = "\r\nAccess-Control-Allow-Origin: *"
CREDENTIALS = "\r\nAccess-Control-Allow-Credentials: true"


@pytest.mark.parametrize(
    ("of_preflight", "of_answer", "origin", "credentials"),
    [
        ("", "", [], []),
        (STAR, None, ["*"], []),
        (f"\r\nAccess-Control-Allow-Origin: {ORIGIN}{CREDENTIALS}", STAR, ["*"], []),
        (STAR + CREDENTIALS, f"\r\nAccess-Control-Allow-Origin: {ORIGIN}", [ORIGIN], []),
        (STAR, "", [], []),
    ],
)
async def test_our_cors_headers_are_those_of_the_upstream(
    tmp_path: Path,
    of_preflight: str,
    of_answer: str | None,
    origin: list[str],
    credentials: list[str],
) -> None:
    async with raised(tmp_path) as (upstream, it), raw_client(it.port) as client:

        async def respond(request: RawRequest, link: Link) -> None:
            is_preflight = request.line.startswith("OPTIONS")
            more = of_preflight if is_preflight else of_answer or ""
            await link.say(answer(RESULT, kind=f"application/json{more}"))

        upstream.respond = respond
        await client.ask(get(headers=PREFLIGHT).replace(b"GET", b"OPTIONS"))
        if of_answer is not None:
            ping = b'{"jsonrpc":"2.0","id":1,"method":"ping"}'
            await client.ask(post(ping, headers=PAGES_OWN))
        for body in (CALL.encode(), b"no JSON"):
            got = await client.ask(post(body, headers=PAGES_OWN))
            assert got.all("access-control-allow-origin") == origin
            assert got.all("access-control-allow-credentials") == credentials
            elsewhere = await client.ask(post(body, path="/other", headers=PAGES_OWN))
            assert elsewhere.all("access-control-allow-origin") == []
        other = PAGES_OWN.replace(b":6274", b":6275")
        got = await client.ask(post(CALL.encode(), headers=other))
        assert got.all("access-control-allow-origin") == []
