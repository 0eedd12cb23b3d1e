"""The user's token goes to the MCP endpoint only, and no list goes to another than its asker."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import pytest

from tests.attacks.hostile_requests import post
from tests.attacks.stage import ALLOWED_TOOL, DENIED_TOOL, PING, Link, Stage, open_stage
from tests.filtered import INITIALIZE, LIST
from tests.mcp_upstream import RESULT, tool_list
from tests.raw_client import RawClient
from tests.raw_upstream import SSE_HEAD, RawRequest, answer, chunk

TOKEN = "Bearer operators-own"
ELSEWHERE = [
    b"/", b"/admin/reset", b"/mcp/x", b"/mcpx", b"/MCP", b"//mcp", b"/%6dcp", b"/mcp%2f", b"/mcp//",
    b"/mcp/..", b"/mcp/../admin", b"/mcp/..%2fadmin", b"/mcp;x", b"/mcp\\..\\admin", b"/mcp/./",
    b"/.well-known/oauth-protected-resource", b"/token", b"/files/a", b"/x/../mcp", b"/mcp%3f",
]  # fmt: skip


STAGE = {"upstream_headers": [f"Authorization: {TOKEN}"]}
"""The options of the addon, for the fixture ``stage``."""


async def _respond(request: RawRequest, link: Link) -> None:
    asked = json.loads(request.body or b"{}")
    if asked.get("method") == "tools/list":
        return await link.say(answer(tool_list([ALLOWED_TOOL, DENIED_TOOL], id="5")))
    if asked.get("method") == "initialize":
        hello = b'{"jsonrpc":"2.0","id":0,"result":{"protocolVersion":"2025-06-18"}}'
        kind = "application/json\r\nMcp-Session-Id: s1"
        return await link.say(answer(hello, kind=kind))
    return await link.say(answer(RESULT))


@dataclass
class Playing:
    """A client whose requests all stand in one session."""

    stage: Stage
    client: RawClient

    async def ask(self, body: bytes, headers: bytes = b"") -> bytes:
        session = b"Mcp-Session-Id: s1\r\n" if body != INITIALIZE else b""
        return (await self.client.ask(post(body, session + headers))).body

    async def is_asked_upstream(self, headers: bytes = b"") -> bool:
        """Ask for the list; tell whether the upstream has been asked for it."""
        before = len(self.stage.upstream.requests)
        got = await self.ask(LIST, headers)
        assert b"wipe_disk" not in got
        assert b"read_file" in got
        return len(self.stage.upstream.requests) > before


@pytest.mark.parametrize("method", ["GET", "POST", "DELETE", "OPTIONS"])
def test_the_users_token_goes_to_no_other_path(stage: Stage, method: str) -> None:
    async def scene(path: bytes) -> None:
        async with stage.client() as client:
            body = PING if method == "POST" else b""
            request = post(body, path=path).replace(b"POST", method.encode(), 1)
            await client.ask(request)

    for path in ELSEWHERE:
        stage.play(scene(path), _respond)
        [request] = stage.upstream.requests
        assert request.all("authorization") == [], path


@pytest.mark.parametrize("path", [b"/mcp", b"/mcp/", b"/mcp?a=b"])
def test_the_users_token_goes_to_the_endpoint(stage: Stage, path: bytes) -> None:
    async def scene() -> None:
        async with stage.client() as client:
            await client.ask(post(PING, path=path))
            assert stage.upstream.requests[0].all("authorization") == [TOKEN]

    stage.play(scene(), _respond)


def test_the_users_token_goes_where_the_endpoint_says_to_post(stage: Stage) -> None:
    """In the older transport a stream names the path: while it is open, that belongs to it."""

    async def respond(request: RawRequest, link: Link) -> None:
        if not request.line.startswith("GET"):
            return await link.say(answer(b"", status="202 Accepted"))
        await link.say(SSE_HEAD + chunk(b"event: endpoint\ndata: /messages?id=1\n\n"))
        while await link.more():
            pass
        return None

    async def scene() -> None:
        async with stage.client() as listening, stage.client() as client:
            await listening.say(b"GET /mcp HTTP/1.1\r\nHost: localhost\r\n\r\n")
            await listening.until(b"/messages?id=1")
            for path in (b"/messages?id=1", b"/messages?id=2"):
                await client.ask(post(PING, path=path))
        _, named, other = stage.upstream.requests
        assert named.all("authorization") == [TOKEN]
        assert other.all("authorization") == []

    stage.play(scene(), respond)


@pytest.mark.parametrize(
    "own",
    ["Authorization: Bearer garbage", "authorization:", "Cookie: a=b", "X-Api-Key: x",
     "Cf-Access-Jwt-Assertion: x", "X-Amz-Security-Token: x"],
)  # fmt: skip
def test_other_clients_do_not_get_the_users_rights(stage: Stage, own: str) -> None:
    async def scene() -> None:
        async with stage.client() as client:
            await client.ask(post(PING, f"{own}\r\n".encode()))
            name, _, value = own.partition(":")
            wanted = [value.strip()] if name.lower() == "authorization" else []
            assert stage.upstream.requests[0].all("authorization") == wanted

    stage.play(scene(), _respond)


@pytest.mark.parametrize(
    "header",
    ["Authorization: Bearer x", "Cookie: a=b", "Cf-Access-Jwt-Assertion: x", "X-Tenant: a",
     "X-Forwarded-User: ann", "X-Anything: a", "Accept-Language: de", "Via: 1.1 x", "From: a@b"],
)  # fmt: skip
def test_a_client_that_may_be_another_user_does_not_get_the_users_list(
    stage: Stage, header: str
) -> None:
    """Neither with that header, nor later in a session that was opened with it."""
    own = f"{header}\r\n".encode()

    async def scene() -> None:
        async with stage.client() as client:
            playing = Playing(stage, client)
            await playing.ask(INITIALIZE)
            await playing.is_asked_upstream()  # the first list of a kind of asker comes from there
            assert not await playing.is_asked_upstream()
            assert await playing.is_asked_upstream(own)
            assert await playing.is_asked_upstream()  # the session may have become theirs
            await playing.ask(INITIALIZE, own)
            assert await playing.is_asked_upstream()
            await playing.ask(INITIALIZE)
            assert not await playing.is_asked_upstream()

    stage.play(scene(), _respond)


@pytest.fixture
def closed_stage(tmp_path: Path) -> Iterator[Stage]:
    """Only MCP and logins pass."""
    with asyncio.Runner() as runner:
        stage, stack = open_stage(runner, tmp_path, paths=["mcp"])
        yield stage
        runner.run(stack.aclose())


def test_other_paths_can_be_closed(closed_stage: Stage) -> None:
    paths = [path for path in ELSEWHERE if b"well-known" not in path and path != b"/token"]

    async def scene() -> None:
        for path, method in product(paths, [b"GET", b"POST", b"DELETE", b"OPTIONS", b"HEAD"]):
            async with closed_stage.client() as client:
                body = PING if method == b"POST" else b""
                got = await client.ask(post(body, path=path).replace(b"POST", method, 1))
                assert got.status in (400, 404), (method, path)
            assert closed_stage.upstream.requests == [], (method, path)

    closed_stage.play(scene())


def test_mcp_and_logins_pass_where_other_paths_are_closed(closed_stage: Stage) -> None:
    document = b'{"token_endpoint":"http://127.0.0.1:1/x","registration_endpoint":"/oauth/new"}'

    async def respond(request: RawRequest, link: Link) -> None:
        await link.say(answer(document if "well-known" in request.line else RESULT))

    async def scene() -> None:
        async with closed_stage.client() as client:
            host = b" HTTP/1.1\r\nHost: localhost\r\n\r\n"
            named = post(b"{}", path=b"/oauth/new")
            assert (await client.ask(named)).status == 404
            for request in [
                b"GET /.well-known/oauth-authorization-server" + host,
                b"GET /authorize?client_id=1" + host,
                named,
                post(PING),
                b"OPTIONS /mcp" + host,
                b"DELETE /mcp" + host,
            ]:
                assert (await client.ask(request)).status == 200, request
        assert len(closed_stage.upstream.requests) == 6

    closed_stage.play(scene(), respond)
