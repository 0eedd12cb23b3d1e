"""Documents about a server show no hidden tool, and lead clients to us."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from typing import Any

import pytest

from mcp_tool_filter.core.errors import ProtocolError
from mcp_tool_filter.core.http.urls import UpstreamNames
from mcp_tool_filter.rooms.things.server_cards import with_our_urls
from tests.mcp_upstream import mcp_upstream, tool
from tests.raw_client import Answer, get, raw_client
from tests.raw_upstream import Peer, RawRequest, answer
from tests.rows import each_row
from tests.served import served

OURS = "http://localhost:6273"
UPSTREAM = UpstreamNames("http://127.0.0.1:3000")
READ, NO_TOOL = [{"name": "read"}], [{"name": "rm_is_no_tool"}]


@each_row(("before", "after"), [
    ('{ "url" : "http://127.0.0.1:3000/mcp" , "x":1.0}', '{ "url" : "%s/mcp" , "x":1.0}'),
    ('{"a":[{"b":["HTTP://LOCALHOST:3000"]}]}', '{"a":[{"b":["%s"]}]}'),
    ('{"d":"See http://[::1]:3000/a?b, or not."}', '{"d":"See %s/a?b, or not."}'),
    ('{"u":"ws://127.0.0.1:3000/ws"}', '{"u":"%s/ws"}'),
    ('{"u":"\\u0068ttp:\\/\\/127.1:3000\\/x"}', '{"u":"%s/x"}'),
    ('{"u":"http://127.0.0.1:3001/mcp","r":"/mcp","o":"https://example.com"}', None),
])  # fmt: skip
def test_urls_of_the_upstream_become_ours(before: str, after: str | None) -> None:
    expected = None if after is None else (after % OURS).encode()
    assert with_our_urls(before.encode(), OURS, UPSTREAM) == expected


@pytest.mark.parametrize("document", [
    '{"url":"http://me@127.0.0.1:3000/mcp"}',
    '{"text":"connect to http://me@127.0.0.1:3000/mcp now"}',
    '{"http://127.0.0.1:3000/mcp":1}',
])  # fmt: skip
def test_a_document_that_we_cannot_rewrite_is_refused(document: str) -> None:
    with pytest.raises(ProtocolError):
        with_our_urls(document.encode(), OURS, UPSTREAM)


def card(url: str, tools: Any, prompts: Any, **more: Any) -> dict[str, Any]:
    remotes = [{"type": "streamable-http", "url": f"{url}/mcp"}]
    lists = {"tools": tools, "prompts": prompts, "resources": ["dynamic"]}
    return {"name": "com.example/x", "remotes": remotes, **lists, **more}


def their_card(url: str) -> bytes:
    tools, prompts = [{"name": "rm", "description": "d"}, *READ], [{"name": "secret"}, *NO_TOOL]
    return json.dumps(card(url, tools, prompts, signature="of the whole")).encode()


async def ask(path: str, say: Callable[[str], bytes], method: str = "GET") -> Answer:
    """Ask for a document; ``say`` writes the upstream's answer, given its URL."""

    async def respond(request: RawRequest, peer: Peer) -> None:
        is_probe = request.line.startswith("POST")
        await peer.say(answer(b"", status="404 Not Found") if is_probe else say(upstream.url))

    options: dict[str, Any] = {"deny": ["^rm"], "deny_prompts": ["^secret"], "endpoint": ["/mcp"]}
    async with (
        mcp_upstream(tools=[tool("read"), tool("rm")], respond=respond) as upstream,
        served(to=upstream.url, **options) as running,
        raw_client(running.port) as it,
    ):
        return await it.ask(get(path=path).replace(b"GET", method.encode(), 1))


@each_row("coding", [b"", b"Content-Encoding: gzip\r\n"])
@each_row(("path", "kind"), [
    ("/.well-known/mcp/server-card.json", b"application/json"),
    ("/.well-known/mcp.json", b"application/json"),
    ("/mcp/server-card", b"application/mcp-server-card+json"),
    ("/any", b"application/mcp-server-card+json; v=1"),
    ("/.well-known//%6dcp.json;v=1", b"application/json"),
    ("/.well-known/mcp/server-card/?x=/y", b"text/plain"),
])  # fmt: skip
async def test_a_card_shows_no_hidden_tool_and_leads_to_us(
    path: str, kind: bytes, coding: bytes
) -> None:
    def say(url: str) -> bytes:
        body = their_card(url)
        whole = answer(gzip.compress(body) if coding else body)
        head = ABOUT_IT + b"Content-Type: " + kind + b"\r\n"
        return whole.replace(b"Content-Type: application/json\r\n", head + coding)

    got = await ask(path, say)
    assert got.status == 200
    assert json.loads(got.body) == card("http://localhost", READ, NO_TOOL)  # as its Host calls us
    assert_ours(got.head)


ABOUT_IT = (
    b'ETag: "1"\r\nContent-Digest: sha-256=:x:\r\nSignature: s\r\nExpires: tomorrow\r\n'
    b"Last-Modified: yesterday\r\nAccept-Ranges: bytes\r\nCache-Control: public\r\n"
)
CHANGED = "etag digest signature encoding expires modified ranges public"


def assert_ours(head: bytes) -> None:
    """A document that we change is not kept for long, nor asked for as what it was."""
    said = head.lower().replace(b": ", b":")
    assert b"cache-control:private, max-age=60\r\n" in said
    for gone in CHANGED.split():
        assert gone.encode() not in said, gone


async def test_a_head_tells_nothing_of_the_card_as_it_was() -> None:
    length = b"Content-Length: 284\r\nContent-Type: application/json\r\n\r\n"
    whole = b"HTTP/1.1 200 OK\r\n" + ABOUT_IT + length
    got = await ask("/.well-known/mcp.json", lambda _: whole, "HEAD")
    assert got.status == 200
    assert b"284" not in got.head
    assert_ours(got.head)


@each_row(("path", "before", "is_changed"), [
    ("/status.json", '{"mcp":"%s/mcp","x":1.0}', True),
    ("/status.json", '{"mcp":"%s\\/mcp","x":1.0}', True),
    ("/status.json", '{"home":"%s/","x":1.0}', False),
    ("/status.json", '{"mcp":"http://elsewhere.example/mcp"}', False),
    ("/status.json", "see %s/mcp", False),
    ("/.well-known/oauth-authorization-server", '{"issuer":"%s/mcp"}', False),
    ("/.well-known/mcp.json", '{"name":"x"}', False),
])  # fmt: skip
async def test_documents_lead_to_us(path: str, before: str, *, is_changed: bool) -> None:
    bodies = []

    def say(url: str) -> bytes:
        bodies.append(before.replace("%s", url).encode())
        return answer(bodies[-1]).replace(b"Content-Type", ABOUT_IT + b"Content-Type")

    got = await ask(path, say)
    assert got.status == 200
    if is_changed:
        assert json.loads(got.body) == {"mcp": "http://localhost/mcp", "x": 1.0}
        assert_ours(got.head)
    else:
        assert got.body == bodies[-1]
        assert b'etag: "1"' in got.head.lower()


async def test_a_card_that_may_not_be_stored_still_may_not() -> None:
    def say(url: str) -> bytes:
        no_store = b"Cache-Control: No-Store\r\nContent-Type"
        return answer(their_card(url)).replace(b"Content-Type", no_store)

    got = await ask("/.well-known/mcp.json", say)
    assert b"cache-control: no-store\r\n" in got.head.lower()
