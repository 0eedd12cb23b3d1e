"""Logging in with a browser: the registration, the redirect, and the whole way."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mcp_tool_filter.rooms.logins import login as module
from mcp_tool_filter.rooms.logins.discovery import Web
from mcp_tool_filter.rooms.logins.login import Callback, CallbackRefused, OwnClient, as_given
from mcp_tool_filter.rooms.logins.metadata import default_server
from mcp_tool_filter.rooms.logins.store import LoginFailed, LoginState, LoginStore, Registration
from mcp_tool_filter.rooms.logins.tokens import Credentials
from tests.login_browser import show
from tests.oauth_server import OAuthUpstream
from tests.oauth_upstream import oauth_upstream
from tests.raw_client import Answer, raw_client
from tests.raw_upstream import TIMEOUT, RawUpstream, always, answer, free_port, raw_upstream
from tests.rows import each_row

type How = dict[str, Any]


# Logging in with a browser, against an authorization server on sockets
async def login(home: Path | None, url: str, **wishes: Any) -> LoginState:
    asked = module.Wishes(timeout=TIMEOUT, **wishes)
    return await module.log_in(url, asked, LoginStore(home), show)


def works(upstream: OAuthUpstream, home: Path, state: LoginState) -> bool:
    return upstream.grant_of(Credentials(state, LoginStore(home)).value()) is not None


@pytest.mark.parametrize("elsewhere", [False, True])
@pytest.mark.parametrize("sends_issuer", [False, True])
@pytest.mark.parametrize("binds_audience", [False, True])
async def test_a_login_gives_a_token_that_the_upstream_accepts(
    tmp_path: Path, elsewhere: bool, sends_issuer: bool, binds_audience: bool
) -> None:
    how: dict[str, Any] = {"sends_issuer": sends_issuer, "binds_audience": binds_audience}
    with oauth_upstream(elsewhere=elsewhere, **how) as upstream:
        state = await login(tmp_path, upstream.url)
        assert works(upstream, tmp_path, state)
        (asked,) = upstream.authorizations
        assert asked["resource"] == upstream.url
        assert asked["scope"] == "tools"
        assert upstream.token_requests[0]["resource"] == upstream.url


NO_RESOURCE = {"has_resource_metadata": False, "challenge": "Bearer", "binds_audience": False}


@pytest.mark.parametrize(
    "how",
    [
        {"challenge": "Bearer"},
        {"challenge": "Basic realm=x, Bearer resource_metadata={metadata}"},
        {"challenge": 'Bearer realm="a \\" b", scope="tools", resource_metadata="{metadata}"'},
        {"challenge": "Negotiate"}, {"path": "/deep/path/mcp", "challenge": "Bearer"}, NO_RESOURCE,
        {**NO_RESOURCE, "has_server_metadata": False}, {"gives_refresh": False},
        {"open_methods": ("initialize",)}, {"challenges_get_only": True},
    ],
    ids=str,
)  # fmt: skip
async def test_a_login_works_however_the_upstream_describes_it(tmp_path: Path, how: How) -> None:
    with oauth_upstream(**how) as upstream:
        assert works(upstream, tmp_path, await login(tmp_path, upstream.url))
        said = upstream.authorizations[0] | upstream.token_requests[0]
        assert "None" not in said.values()


async def test_an_origin_is_enough_if_the_upstream_names_its_endpoint(tmp_path: Path) -> None:
    with oauth_upstream() as upstream:
        state = await login(tmp_path, upstream.origin)
        assert state.endpoint == upstream.url
        assert works(upstream, tmp_path, state)


async def test_the_challenge_says_which_scopes_to_request(tmp_path: Path) -> None:
    challenge = 'Bearer scope="one two", resource_metadata="{metadata}"'
    with oauth_upstream(challenge=challenge) as upstream:
        await login(tmp_path, upstream.url)
        await login(tmp_path, upstream.url, scopes=("mine",))
        for asked in (upstream.authorizations, upstream.registrations):
            assert [one["scope"] for one in asked] == ["one two", "mine"]


async def test_offline_access_is_requested_where_it_is_supported(tmp_path: Path) -> None:
    with oauth_upstream(metadata={"scopes_supported": ["tools", "offline_access"]}) as upstream:
        await login(tmp_path, upstream.url)
        assert upstream.authorizations[0]["scope"] == "tools offline_access"
        assert upstream.authorizations[0]["prompt"] == "consent"


@pytest.mark.parametrize("secret", [None, "s/e:c r&t"])
async def test_a_client_of_the_users_is_not_registered(tmp_path: Path, secret: str | None) -> None:
    fixed = ("my:client", secret) if secret else None
    how: dict[str, Any] = {"fixed_client": fixed} if fixed else {"takes_documents": True}
    name = "my:client" if fixed else "https://example.com/client.json"
    with oauth_upstream(has_registration=False, **how) as upstream:
        client = OwnClient(name, secret)
        state = await login(tmp_path, upstream.url, client=client)
        assert works(upstream, tmp_path, state)
        assert upstream.registrations == []
        shown = repr(state) + repr(client)
        assert not any(one in shown for one in [*upstream.all_secrets(), secret or "geheim"])


async def test_the_callback_port_can_be_chosen(tmp_path: Path) -> None:
    port = free_port()
    with oauth_upstream() as upstream:
        await login(tmp_path, upstream.url, callback_port=port)
        await login(tmp_path, upstream.url, callback_port=port)
        back = {one["redirect_uri"] for one in upstream.authorizations}
        assert back == {f"http://127.0.0.1:{port}/callback"}


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ({"way_back": {"error": "access_denied", "code": ""}}, "access_denied"),
        ({"sends_issuer": True, "way_back": {"iss": "http://127.0.0.1:1"}}, "another issuer"),
        ({"sends_issuer": True, "way_back": {"iss": ""}}, "names no issuer"),
        ({"way_back": {"code": "guessed"}}, "invalid_grant"),
        ({"metadata": {"issuer": "https://evil.example"}}, "has the issuer"),
        ({"metadata": {"token_endpoint": "http://evil.example/token"}}, "not https"),
        ({"metadata": {"token_endpoint": "file:///etc/passwd"}}, "Not a web URL"),
        ({"metadata": {"authorization_endpoint": "javascript:alert(1)"}}, "Not a web URL"),
        ({"metadata": {"registration_endpoint": "http://evil.example/"}}, "not https"),
        ({"metadata": {"code_challenge_methods_supported": ["plain"]}}, "PKCE"),
        ({"metadata": {"token_endpoint": None}}, "has no token_endpoint"),
        ({"has_registration": False}, "registers no clients: give --client-id"),
        ({"challenge": 'Bearer resource_metadata="http://evil.example/"'}, "not https"),
    ],
    ids=str,
)
async def test_failed_logins_say_why_and_store_nothing(tmp_path: Path, how: How, why: str) -> None:
    with oauth_upstream(**how) as upstream:
        with pytest.raises(LoginFailed) as failed:
            await login(tmp_path, upstream.url)
        assert why in failed.value.why
        assert LoginStore(tmp_path).load(upstream.url) is None
        assert not any(secret in str(failed.value) for secret in upstream.all_secrets())


# The browser returns from a login; other requests are refused
SERVER = default_server("https://login.example/mcp")
ISSUER = "https%3A%2F%2Flogin.example"


@asynccontextmanager
async def waiting() -> AsyncIterator[Callback]:
    async with module.callback(0, "our-state", SERVER) as found:
        yield found


async def asks(found: Callback, target: str, *, method: str = "GET", host: str = "") -> Answer:
    """Send a request as a browser does."""
    host = host or f"127.0.0.1:{found.port}"
    async with raw_client(found.port) as client:
        return await client.ask(f"{method} {target} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())


async def test_a_code_is_taken_once() -> None:
    async with waiting() as found:
        said = await asks(found, f"/callback?state=our-state&code=c1&iss={ISSUER}")
        assert said.status == 200
        assert b"You are logged in" in said.body
        assert b"You are" in (await asks(found, "/callback?state=our-state&code=c2")).body
        assert await found.code() == "c1"


@pytest.mark.parametrize(
    ("query", "why"),
    [
        ("error=access_denied&error_description=no%1Bway", "access_denied: no?way"),
        ("", "The redirect has no code"),
        ("code=a&code=b", "The redirect has no code"),
    ],
)
async def test_a_callback_without_a_login_says_why(query: str, why: str) -> None:
    async with waiting() as found:
        said = await asks(found, f"/callback?state=our-state&{query}")
        assert b"The login has failed" in said.body
        with pytest.raises(CallbackRefused) as caught:
            await found.code()
        assert str(caught.value) == why


@each_row(
    ("url", "changes", "status"),
    [
        ("/callback?state=other&code=c", {}, 400),
        ("/callback?code=c", {}, 400),
        ("/callback?state=our-state&state=our-state&code=c", {}, 400),
        ("/other?state=our-state&code=c", {}, 404),
        ("/callback?state=our-state&code=c", {"method": "POST"}, 404),
        ("/callback?state=our-state&code=c", {"host": "evil.example"}, 404),
    ],
)
async def test_other_callbacks_are_ignored(url: str, changes: dict[str, str], status: int) -> None:
    async with waiting() as found:
        assert (await asks(found, url, **changes)).status == status
        assert not any(map(found.take, ["http://[", "?state=\udc80"]))  # pasted
        await asks(found, "/callback?state=our-state&code=real")
        assert await found.code() == "real"


# How an authorization server comes to know us
BACK = "http://127.0.0.1:1/callback"
ENDPOINT = "https://mcp.example/mcp"
POST, BASIC = "client_secret_post", "client_secret_basic"


def saying(said: object, status: str) -> AbstractAsyncContextManager[RawUpstream]:
    """An authorization server that says this, a text or JSON, to everybody."""
    text = said if isinstance(said, str) else json.dumps(said)
    return raw_upstream(always(answer(text.encode(), status=status)))


async def registered(
    said: object, *, status: str = "201 Created", methods: tuple[str, ...] | None = None
) -> tuple[Registration, dict[str, object]]:
    """Return what we are known by, and what we have said of us."""
    async with saying(said, status) as upstream:
        register = f"{upstream.url}/register"
        server = replace(SERVER, registration_endpoint=register, auth_methods=methods)
        made = await module.register(Web(upstream.url), server, BACK, ("tools",), ENDPOINT)
    return made, json.loads(upstream.requests[0].body)


async def test_a_registration_sends_our_name_and_keeps_the_client_id() -> None:
    made, said = await registered({"client_id": "c1"})
    assert (made.client_id, made.client_secret, made.auth_method) == ("c1", None, "none")
    assert (made.redirect_uri, made.scopes) == (BACK, ("tools",))
    assert said["client_name"] == "mcp-tool-filter"
    assert said["redirect_uris"] == [BACK]
    assert said["token_endpoint_auth_method"] == "none"


@pytest.mark.parametrize(
    ("given", "method"),
    [(POST, POST), ("private_key_jwt", BASIC)],
)
async def test_a_client_secret_is_sent_in_a_supported_way(given: str, method: str) -> None:
    answered = {"client_id": "c", "client_secret": "s", "token_endpoint_auth_method": given}
    made, said = await registered(answered, methods=(POST,))
    assert said["token_endpoint_auth_method"] == POST
    assert (made.client_secret, made.auth_method) == ("s", method)


@pytest.mark.parametrize(
    ("said", "status"),
    [
        ({"error": "no"}, "400 Bad Request"), ({}, "201 Created"),
        ({"client_id": "\ud800"}, "201 Created"), ("x", "200 OK"),
    ],
)  # fmt: skip
async def test_a_refused_registration_says_what_to_do_instead(said: object, status: str) -> None:
    with pytest.raises(LoginFailed, match=r"does not register us .*: give --client-id"):
        await registered(said, status=status)


@pytest.mark.parametrize(
    ("methods", "secret", "method"),
    [(None, None, "none"), (None, "s", BASIC), ((POST,), "s", POST)],
)
def test_a_client_of_the_users_own_is_used_as_it_is(
    methods: tuple[str, ...] | None, secret: str | None, method: str
) -> None:
    server = replace(SERVER, auth_methods=methods)
    made = as_given(OwnClient("mine", secret), server, BACK, ENDPOINT)
    assert (made.client_id, made.client_secret, made.auth_method) == ("mine", secret, method)


def test_a_client_metadata_url_needs_a_server_that_supports_it() -> None:
    client = OwnClient("https://me.example/client.json")
    with pytest.raises(LoginFailed, match="does not support client id metadata documents"):
        as_given(client, SERVER, BACK, ENDPOINT)
    server = replace(SERVER, takes_client_documents=True)
    assert as_given(client, server, BACK, ENDPOINT).client_id == client.client_id
