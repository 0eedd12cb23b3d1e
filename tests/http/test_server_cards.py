"""Documents about a server show no hidden tool, and lead clients to us."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest

from mcp_tool_filter.errors import ProtocolError
from mcp_tool_filter.http.server_cards import with_our_urls
from mcp_tool_filter.http.urls import UpstreamNames
from tests.mcp_upstream import mcp_upstream, tool
from tests.raw_client import get, raw_client
from tests.raw_upstream import Peer, RawRequest, answer
from tests.served import served

OURS = "http://localhost:6273"
UPSTREAM = UpstreamNames("http://127.0.0.1:3000")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('{ "url" : "http://127.0.0.1:3000/mcp" , "x":1.0}', '{ "url" : "%s/mcp" , "x":1.0}'),
        ('{"a":[{"b":["HTTP://LOCALHOST:3000"]}]}', '{"a":[{"b":["%s"]}]}'),
        ('{"d":"See http://[::1]:3000/a?b, or not."}', '{"d":"See %s/a?b, or not."}'),
        ('{"u":"ws://127.0.0.1:3000/ws"}', '{"u":"%s/ws"}'),
        ('{"u":"\\u0068ttp:\\/\\/127.1:3000\\/x"}', '{"u":"%s/x"}'),
        ('{"u":"http://127.0.0.1:3001/mcp","r":"/mcp","o":"https://example.com"}', None),
    ],
)
def test_urls_of_the_upstream_become_ours(before: str, after: str | None) -> None:
    expected = None if after is None else (after % OURS).encode()
    assert with_our_urls(before.encode(), OURS, UPSTREAM) == expected


@pytest.mark.parametrize(
    "document",
    [
        '{"url":"http://me@127.0.0.1:3000/mcp"}',
        '{"text":"connect to http://me@127.0.0.1:3000/mcp now"}',
        '{"http://127.0.0.1:3000/mcp":1}',
    ],
)
def test_a_document_that_we_cannot_rewrite_is_refused(document: str) -> None:
    with pytest.raises(ProtocolError):
        with_our_urls(document.encode(), OURS, UPSTREAM)


def card(url: str) -> dict[str, Any]:
    entries = {"name": "rm", "description": "d"}, {"name": "read"}
    return {
        "name": "com.example/x",
        "remotes": [{"type": "streamable-http", "url": f"{url}/mcp"}],
        "tools": [*entries],
        "prompts": [{"name": "secret"}, {"name": "rm_is_no_tool"}],
        "resources": ["dynamic"],
        "signature": "of the whole",
    }


@pytest.mark.parametrize("coding", [b"", b"Content-Encoding: gzip\r\n"])
@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/.well-known/mcp/server-card.json", b"application/json"),
        ("/.well-known/mcp.json", b"application/json"),
        ("/mcp/server-card", b"application/mcp-server-card+json"),
        ("/any", b"application/mcp-server-card+json; v=1"),
    ],
)
async def test_a_card_shows_no_hidden_tool_and_leads_to_us(
    path: str, kind: bytes, coding: bytes
) -> None:
    async def respond(request: RawRequest, peer: Peer) -> None:
        body = json.dumps(card(upstream.url)).encode()
        whole = answer(gzip.compress(body) if coding else body)
        head = b'ETag: "1"\r\nContent-Digest: sha-256=:x:\r\nContent-Type: ' + kind + b"\r\n"
        await peer.say(whole.replace(b"Content-Type: application/json\r\n", head + coding))

    async with mcp_upstream(tools=[tool("read"), tool("rm")], respond=respond) as upstream:
        options: dict[str, Any] = {
            "deny": ["^rm"],
            "deny_prompts": ["^secret"],
            "endpoint": ["/mcp"],
        }
        async with served(to=upstream.url, **options) as running, raw_client(running.port) as it:
            got = await it.ask(get(path=path))
    assert got.status == 200
    expected = card("http://localhost")  # as its Host calls us
    expected["tools"], expected["prompts"] = [{"name": "read"}], [{"name": "rm_is_no_tool"}]
    del expected["signature"]
    assert json.loads(got.body) == expected
    for gone in (b"etag", b"content-digest", b"content-encoding"):
        assert gone not in got.head.lower()
