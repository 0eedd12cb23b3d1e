"""How to log in to an upstream, as its documents say; the addresses asked; logins through us."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlencode

import pytest

from mcp_tool_filter.cli.parsing import parse_config
from mcp_tool_filter.core.conversation.memory import Fetched, example, unlisted
from mcp_tool_filter.core.errors import ProtocolError
from mcp_tool_filter.core.http.listener import open_listener
from mcp_tool_filter.core.upstream.fetch import fetch
from mcp_tool_filter.rooms.logins import discovery
from mcp_tool_filter.rooms.logins import through as answers
from mcp_tool_filter.rooms.logins.discovery import Discovered, Web, WebAnswer, WebFailed
from mcp_tool_filter.rooms.logins.logins_through import CALLBACK
from mcp_tool_filter.rooms.logins.metadata import AUTHORIZE, REGISTER, TOKEN
from mcp_tool_filter.rooms.logins.store import LoggedOut, LoginFailed
from mcp_tool_filter.rooms.logins.stored import STORED
from mcp_tool_filter.rooms.logins.through import LoginAnswer, Through, passed_on, redirect_to
from tests.core.upstream.mcp_script import target
from tests.make import head
from tests.oauth_server import OAuthUpstream
from tests.oauth_upstream import oauth_upstream
from tests.raw_upstream import Peer, RawUpstream, Script, always, answer, raw_upstream
from tests.rooms.logins.test_login import login
from tests.rows import each_row

# How to log in to an upstream, as its answers to requests without credentials say
RESOURCE = "/.well-known/oauth-protected-resource"
SERVER = "/.well-known/oauth-authorization-server"
DOCUMENT = {"resource": "ORIGIN/mcp", "authorization_servers": ["ORIGIN"]}


def server(issuer: str = "ORIGIN", **more: object) -> dict[str, object]:
    return {
        "issuer": issuer, "authorization_endpoint": f"{issuer}/authorize",
        "token_endpoint": f"{issuer}/token", "response_types_supported": ["code"],
        "code_challenge_methods_supported": ["S256"],
        **more,
    }  # fmt: skip


@asynccontextmanager
async def publishing(
    documents: Mapping[str, object], *, post: str = "401 Unauthorized", challenge: str = ""
) -> AsyncIterator[RawUpstream]:
    """An upstream with these documents, in which ORIGIN stands for its origin."""

    async def script(peer: Peer) -> None:
        def here(text: str) -> bytes:
            return text.replace("ORIGIN", peer.upstream.url).encode()

        while True:
            request = await peer.request()
            method, at, _ = request.line.split(" ")
            if at in documents:
                said = documents[at]
                await peer.say(answer(here(said if isinstance(said, str) else json.dumps(said))))
            elif ".well-known" in at:
                await peer.say(answer(b"<html>", status="404 Not Found", kind="text/html"))
            else:
                status = f"{post}\r\nWWW-Authenticate: {challenge}"
                refused = status if method == "POST" else "405 Method Not Allowed"
                await peer.say(answer(b"{}", status=here(refused).decode()))

    async with raw_upstream(script) as upstream:
        yield upstream


async def discovered(documents: Mapping[str, object], **given: str) -> tuple[Discovered, str]:
    """Return what the user of such an upstream finds, and its origin."""
    async with publishing(documents, **given) as upstream:
        return await discovery.discover(f"{upstream.url}/mcp", Web(upstream.url)), upstream.url


async def test_the_challenge_names_the_metadata() -> None:
    """Where it does, the usual places are not asked."""
    challenge = 'Bearer resource_metadata="ORIGIN/elsewhere", scope="one two"'
    documents = {"/elsewhere": DOCUMENT, f"{RESOURCE}/mcp": "{", SERVER: server()}
    found, origin = await discovered(documents, challenge=challenge)
    assert found.endpoint == found.resource == f"{origin}/mcp"
    assert found.server.token_endpoint == f"{origin}/token"
    assert found.scopes == ("one", "two")


def resource_of(*servers: str, place: str = f"{RESOURCE}/mcp", **more: str) -> dict[str, object]:
    return {place: {**DOCUMENT, "authorization_servers": servers, **more}}


async def test_the_first_server_that_can_be_used_counts() -> None:
    named = resource_of("ORIGIN/none", "http://evil.example", "ORIGIN/one")
    found, origin = await discovered({**named, f"{SERVER}/one": server("ORIGIN/one")})
    assert found.server.issuer == f"{origin}/one"


GONE = 'Bearer resource_metadata="/gone"'
EVIL = resource_of("ORIGIN", resource="https://evil.example/")


@each_row(
    ("documents", "given", "why"),
    [
        ({}, {"post": "200 OK"}, "It does not ask for a login"),
        ({}, {"challenge": GONE}, "HTTP 405 from .*/gone, which its challenge names"),
        ({}, {"challenge": 'Bearer resource_metadata="http://["'}, "Not a web URL"),
        (resource_of("ORIGIN"), {}, "There is no metadata at"),
        (resource_of("ORIGIN/none", "http://evil.example"), {}, "There is no metadata at"),
        (resource_of("http://evil.example", "ORIGIN/none"), {}, "https"),
        (EVIL, {}, "evil.example"),
    ],
)
async def test_an_unusable_upstream_is_an_error_that_says_why(
    documents: dict[str, object], given: dict[str, str], why: str
) -> None:
    """Of several problems, the first."""
    with pytest.raises(LoginFailed) as failed:
        await discovered(documents, **given)
    assert failed.match("Cannot log in to")
    assert re.search(why, failed.value.why)


# The same for clients that log in through us
async def found(documents: dict[str, object], *places: str) -> Discovered | None:
    async with publishing(documents) as upstream:
        fetched, config = unlisted("/mcp"), parse_config()
        listener = open_listener(upstream=upstream.url, config=config, fetched=fetched)
        web = Web(upstream.url, is_for_clients=True)
        return await discovery.find_login(listener, web, places)


async def test_the_metadata_may_be_where_a_challenge_said() -> None:
    resource = resource_of("ORIGIN/one", place="/other/place")
    assert await found({**resource, f"{SERVER}/one": server("ORIGIN/one")}, "/other/place")


async def test_a_resource_of_another_origin_is_not_rewritten() -> None:
    assert await found({**EVIL, SERVER: server()}) is None


@pytest.mark.parametrize("text", ["{", '{"resource": 5}', "{}", '{"a":' * 5000])
async def test_a_resource_that_cannot_be_read_is_a_protocol_error(text: str) -> None:
    with pytest.raises(ProtocolError):
        await found({f"{RESOURCE}/mcp": text})


# Which addresses are asked
FAR, NEAR = "https://mcp.example/mcp", "http://localhost:3000/mcp"


@each_row(
    "url",
    [
        "http://mcp.example/x", "http://10.0.0.1/", "ftp://mcp.example/", "file:///etc/passwd", "",
        "https://user@mcp.example/", "https://mcp.example\\@evil.example/", "https://mcp.ex\tample/",
        "https://localhost/", "https://127.0.0.1/", "https://127.1/", "https://0x7f000001/",
        "https://2130706433/", "https://[::1]/", "https://[::ffff:127.0.0.1]/", "https://0.0.0.0/",
        "https://169.254.169.254/latest", "https://x.localhost/", "https://localhost./",
        "http://localhost:3000/", "https://[fe80::1]/", "javascript:alert(1)",
    ],
)  # fmt: skip
def test_a_remote_upstream_cannot_name_addresses_on_this_machine(url: str) -> None:
    with pytest.raises(WebFailed):
        Web(FAR).check(url)


def test_https_is_accepted_and_local_addresses_of_local_upstreams() -> None:
    for url in ("https://login.example/x", "https://10.0.0.1:8443/token"):
        Web(FAR).check(url)
    for url in ("https://login.example/token", "http://127.0.0.1:9000/token"):
        Web(NEAR).check(url)
    with pytest.raises(WebFailed, match="not https"):
        Web(NEAR).check("http://login.example/token")


def moved(to: str, status: str = "302 Found") -> Script:
    return always(answer(b"", status=f"{status}\r\nLocation: {to}"))


@pytest.mark.parametrize(
    "location", ["http://evil.example/", "file:///etc/passwd", "//evil.example/x", "http://["]
)
async def test_a_redirect_is_checked_like_a_url(location: str) -> None:
    async with raw_upstream(moved(location)) as upstream:
        with pytest.raises(WebFailed, match=r"not https|Not a web URL"):
            await Web(upstream.url).get(upstream.url)


async def test_endless_redirects_are_refused_and_requests_with_secrets_follow_none() -> None:
    async with raw_upstream(moved("/again", "307 Moved")) as upstream:
        with pytest.raises(WebFailed, match="a redirect of a request with secrets"):
            await Web(upstream.url).post_form(f"{upstream.url}/token", [("a", "b")])
        assert len(upstream.requests) == 1
        with pytest.raises(WebFailed, match="More than 3 redirects"):
            await Web(upstream.url).get(upstream.url)
        assert len(upstream.requests) == 5


async def test_long_answers_are_not_read() -> None:
    endless = b"HTTP/1.1 200 OK\r\nContent-Length: 99999999\r\n\r\n" + b"x" * 300_000
    async with raw_upstream(always(endless)) as upstream:
        with pytest.raises(WebFailed, match="longer than"):
            await Web(upstream.url).get(upstream.url)


# Fetching tools with a stored login
async def fetch_from(upstream: OAuthUpstream) -> Fetched:
    return await fetch(replace(target(upstream.origin), uses_login=True, logins=STORED))


@pytest.fixture
def upstream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[OAuthUpstream]:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    with oauth_upstream() as it:
        yield it


async def test_a_token_that_is_rejected_early_is_renewed_once(upstream: OAuthUpstream) -> None:
    await login(None, upstream.url)
    upstream.end_access()
    assert (await fetch_from(upstream)).pages
    assert upstream.renewals == 1


async def test_missing_scopes_say_what_to_type(upstream: OAuthUpstream) -> None:
    await login(None, upstream.url)
    upstream.scope_to_enter = "admin"
    with pytest.raises(LoggedOut, match="lacks the right to do this"):
        await fetch_from(upstream)


# Clients that log in through us: what we answer, and what passes on
# Our part in the logins of clients, without a host: what we answer, and what passes on
OURS = "http://localhost:8080"
LOGIN = {
    **resource_of("ORIGIN"),
    SERVER: server(
        authorization_endpoint="ORIGIN/as/authorize",
        token_endpoint="ORIGIN/as/token",
        registration_endpoint="ORIGIN/as/register",
        authorization_response_iss_parameter_supported=True,
    ),
}


@asynccontextmanager
async def logins(
    documents: Mapping[str, object] = LOGIN, *, lists: bool = False, is_plain: bool = False
) -> AsyncIterator[tuple[Through, RawUpstream]]:
    """``lists``: the upstream has given its list without a login."""
    async with publishing(documents) as upstream:
        fetched = example("read") if lists else unlisted("/mcp")
        listener = open_listener(upstream=upstream.url, config=parse_config(), fetched=fetched)
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


@each_row(
    ("method", "url", "body", "status"),
    [
        ("POST", AUTHORIZE, b"", 405), ("GET", TOKEN, b"", 405),
        ("POST", TOKEN, b"x" * 1_000_000, 413), ("POST", TOKEN, b"a=1&a=2", 400),
        ("POST", REGISTER, b"[]", 400),
        ("POST", REGISTER, b'{"redirect_uris":["https://evil.example/"]}', 400),
        ("GET", f"{AUTHORIZE}?client_id=one&client_id=other", b"", 400),
        ("GET", f"{CALLBACK}/guessed?code=k&state=guessed", b"", 400),
    ],
)  # fmt: skip
async def test_wrong_requests_are_refused(method: str, url: str, body: bytes, status: int) -> None:
    async with logins() as (through, upstream):
        assert (await said(through, method, url, body)).status == status
        assert not any("/as/" in one.line for one in upstream.requests)


async def test_an_upstream_without_a_login_keeps_its_paths() -> None:
    """It may have its own pages at /token; only the callback path is always ours."""
    async with logins({}, lists=True) as (through, _):
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
        found = through.translated(head("GET", f"{AUTHORIZE}?{query}"), b"", OURS)
        assert found == (f"{AUTHORIZE}?{theirs}", b"")
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


def test_no_cache_keeps_an_answer_and_a_redirect_does_not_tell_where_it_came_from() -> None:
    """It may hold a token or a code."""
    redirect = redirect_to("http://x/?code=c")
    for said in (redirect, answers.json_answer(200, b"{}"), answers.error_answer(400, "e", "d")):
        assert dict(said.headers)["cache-control"] == "no-store"
    fields = dict(redirect.headers)
    assert (redirect.status, fields["location"]) == (302, "http://x/?code=c")
    assert fields["referrer-policy"] == "no-referrer"
