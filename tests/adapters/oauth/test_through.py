"""Clients that log in through us."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlencode

import pytest

from mcp_tool_filter.adapters.oauth.discovery import Web, WebAnswer, WebFailed
from mcp_tool_filter.adapters.oauth.through import (
    LoginAnswer,
    Through,
    error_answer,
    json_answer,
    passed_on,
    redirect_to,
)
from mcp_tool_filter.conversation.memory import example, unlisted
from mcp_tool_filter.http.listener import open_listener
from mcp_tool_filter.http.login_metadata import AUTHORIZE, REGISTER, TOKEN
from mcp_tool_filter.http.logins_through import CALLBACK
from mcp_tool_filter.policy.config import parse_config
from tests.make import head
from tests.raw_upstream import Peer, RawUpstream, Script, always, answer, raw_upstream

# Our part in the logins of clients, without a host: what we answer, and what passes on
OURS = "http://localhost:8080"
BACK = "http://127.0.0.1:5555/callback"
RESOURCE = "/.well-known/oauth-protected-resource"
SERVER = "/.well-known/oauth-authorization-server"


async def authorization_server(peer: Peer) -> None:
    """An upstream that is its own authorization server; nothing is checked."""
    origin = peer.upstream.url
    documents = {
        f"{RESOURCE}/mcp": {"resource": f"{origin}/mcp", "authorization_servers": [origin]},
        SERVER: {
            "issuer": origin,
            "authorization_endpoint": f"{origin}/as/authorize",
            "token_endpoint": f"{origin}/as/token",
            "registration_endpoint": f"{origin}/as/register",
            "response_types_supported": ["code"],
            "authorization_response_iss_parameter_supported": True,
            "code_challenge_methods_supported": ["S256"],
        },
        "/as/token": {"access_token": "t", "token_type": "Bearer"},
    }
    while True:
        request = await peer.request()
        path = request.line.split(" ")[1]
        if path == "/as/register":
            asked = json.loads(request.body)
            await peer.say(answer(json.dumps({**asked, "client_id": "c-1"}).encode()))
        elif path in documents:
            await peer.say(answer(json.dumps(documents[path]).encode()))
        else:
            await peer.say(answer(b"<html>", status="404 Not Found", kind="text/html"))


NO_SERVER = always(answer(b"<html>", status="404 Not Found", kind="text/html"))


@asynccontextmanager
async def logins(
    script: Script = authorization_server, *, lists: bool = False, is_plain: bool = False
) -> AsyncIterator[tuple[Through, RawUpstream]]:
    """``lists``: the upstream has given its list without a login."""
    async with raw_upstream(script) as upstream:
        listener = open_listener(
            upstream=upstream.url,
            config=parse_config(),
            fetched=example("read") if lists else unlisted("/mcp"),
        )
        web = Web(upstream.url, is_for_clients=True)
        yield Through(listener, lambda: web, is_plain), upstream


async def asked(
    through: Through, method: str, target: str, body: bytes = b"", **headers: str
) -> LoginAnswer | None:
    return await through.answer(head(method, target, **headers), body, OURS)


async def said(through: Through, method: str, target: str, body: bytes = b"") -> LoginAnswer:
    found = await asked(through, method, target, body)
    assert found
    return found


async def registered(through: Through) -> None:
    body = json.dumps({"redirect_uris": [BACK]}).encode()
    given = await said(through, "POST", REGISTER, body)
    assert json.loads(given.body)["redirect_uris"] == [BACK]


def location(given: LoginAnswer) -> str:
    assert given.status == 302
    return dict(given.headers)["location"]


@pytest.mark.parametrize(
    ("method", "target", "body", "status"),
    [
        ("POST", AUTHORIZE, b"", 405),
        ("GET", TOKEN, b"", 405),
        ("POST", TOKEN, b"x" * 1_000_000, 413),
        ("POST", TOKEN, b"a=1&a=2", 400),
        ("POST", REGISTER, b"[]", 400),
        ("POST", REGISTER, b'{"redirect_uris":["https://evil.example/"]}', 400),
        ("GET", f"{AUTHORIZE}?client_id=one&client_id=other", b"", 400),
        ("GET", f"{CALLBACK}/guessed?code=k&state=guessed", b"", 400),
    ],
)
async def test_misleading_requests_are_refused(
    method: str, target: str, body: bytes, status: int
) -> None:
    async with logins() as (through, upstream):
        assert (await said(through, method, target, body)).status == status
        assert not any("/as/" in one.line for one in upstream.requests)


async def test_an_upstream_without_a_login_keeps_its_paths() -> None:
    """It may have its own pages at /token; only the callback path is always ours."""
    async with logins(NO_SERVER, lists=True) as (through, _):
        assert not through.concerns(head("POST", TOKEN))
        assert await asked(through, "POST", TOKEN) is None
        assert (await said(through, "GET", f"{CALLBACK}/x?code=k")).status == 404


async def test_a_path_is_part_of_a_login_once_the_upstream_has_asked_for_one() -> None:
    async with logins(lists=True) as (through, _):
        assert not through.concerns(head("POST", TOKEN))
        through.note_challenges(["Bearer"])
        assert through.concerns(head("POST", TOKEN))
        assert not through.concerns(head("POST", "/other"))
        assert through.concerns(head("GET", SERVER))


async def test_a_challenge_teaches_where_the_metadata_is() -> None:
    """The upstream answers there, and we rewrite it."""
    async with logins(lists=True) as (through, upstream):
        assert not through.is_resource_document("/meta/data")
        names = (f"{upstream.url}/meta/data", f"{upstream.url}/mcp", f"{upstream.url}{TOKEN}")
        through.note_challenges([f'Bearer resource_metadata="{name}"' for name in names])
        assert through.is_resource_document("/meta/data?x=1")
        assert not through.is_resource_document("/mcp")
        assert not through.is_resource_document(TOKEN)


async def test_challenges_cannot_teach_places_without_end() -> None:
    async with logins(lists=True) as (through, upstream):
        many = [f'Bearer resource_metadata="{upstream.url}/m{number}"' for number in range(100)]
        through.note_challenges(many)
        assert sum(through.is_resource_document(f"/m{number}") for number in range(100)) < 50


async def test_metadata_is_fetched_once() -> None:
    async with logins() as (through, upstream):
        for _ in range(3):
            await said(through, "GET", SERVER)
        paths = [one.line.split(" ")[1] for one in upstream.requests]
        assert paths.count(SERVER) == 1


async def test_where_only_metadata_is_rewritten_clients_speak_with_the_server() -> None:
    async with logins(is_plain=True) as (through, _):
        assert await asked(through, "POST", TOKEN) is None
        assert through.translated(head("POST", TOKEN), b"resource=" + OURS.encode(), OURS) is None


async def test_a_request_for_the_upstream_names_the_upstream_as_its_resource() -> None:
    async with logins() as (through, upstream):
        query = urlencode({"resource": f"{OURS}/mcp"})
        theirs = urlencode({"resource": f"{upstream.url}/mcp"})
        target, body = through.translated(head("GET", f"{AUTHORIZE}?{query}"), b"", OURS) or (
            "",
            b"",
        )
        assert (target, body) == (f"{AUTHORIZE}?{theirs}", b"")
        form = through.translated(head("POST", TOKEN), query.encode(), OURS)
        assert form == (TOKEN, theirs.encode())
        assert through.translated(head("POST", TOKEN), b"a=1", OURS) is None
        assert through.translated(head("POST", TOKEN), b"\xff", OURS) is None
        assert through.translated(head("POST", "/other"), query.encode(), OURS) is None


# Our answers in the place of an authorization server
@pytest.mark.parametrize("status", [300, 302, 399])
def test_a_redirect_does_not_pass(status: int) -> None:
    """A client would post its code to wherever it leads."""
    with pytest.raises(WebFailed, match="redirect"):
        passed_on(WebAnswer(status, b"{}"), b"{}")


@pytest.mark.parametrize("body", [b"<html>", b"[]", b"", b"{} {}"])
def test_an_answer_that_is_no_json_object_does_not_pass(body: bytes) -> None:
    with pytest.raises(WebFailed):
        passed_on(WebAnswer(200, body), body)


@pytest.mark.parametrize(
    "said",
    [json_answer(200, b"{}"), redirect_to("http://x/"), error_answer(400, "e", "d")],
    ids=["JSON", "redirect", "error"],
)
def test_no_cache_keeps_an_answer(said: LoginAnswer) -> None:
    """It may hold a token or a code."""
    assert dict(said.headers)["cache-control"] == "no-store"


def test_a_redirect_does_not_tell_where_it_came_from() -> None:
    said = redirect_to("http://127.0.0.1:1/callback?code=c")
    assert said.status == 302
    assert dict(said.headers)["location"] == "http://127.0.0.1:1/callback?code=c"
    assert dict(said.headers)["referrer-policy"] == "no-referrer"
