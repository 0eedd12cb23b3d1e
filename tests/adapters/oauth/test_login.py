"""Logging in with a browser: the registration, the redirect, and the whole way."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mcp_tool_filter.adapters.oauth.discovery import Web
from mcp_tool_filter.adapters.oauth.login import (
    Callback,
    CallbackRefused,
    OwnClient,
    Wishes,
    as_given,
    callback,
    log_in,
    register,
)
from mcp_tool_filter.adapters.oauth.store import LoginFailed, LoginState, LoginStore, Registration
from mcp_tool_filter.adapters.oauth.tokens import Credentials
from mcp_tool_filter.http.login_metadata import default_server
from tests.login_browser import show
from tests.oauth_server import OAuthUpstream
from tests.oauth_upstream import oauth_upstream
from tests.raw_upstream import TIMEOUT, always, answer, free_port, raw_upstream


# Logging in with a browser, against an authorization server on sockets
async def login(home: Path, url: str, **wishes: Any) -> LoginState:
    return await log_in(url, Wishes(timeout=TIMEOUT, **wishes), LoginStore(home), show)


def token_of(home: Path, state: LoginState) -> str:
    value = Credentials(state, LoginStore(home)).value()
    assert value is not None
    return value


def works(upstream: OAuthUpstream, home: Path, state: LoginState) -> bool:
    return upstream.grant_of(token_of(home, state)) is not None


@pytest.mark.parametrize("elsewhere", [False, True])
@pytest.mark.parametrize("sends_issuer", [False, True])
@pytest.mark.parametrize("binds_audience", [False, True])
async def test_a_login_gives_a_token_that_the_upstream_accepts(
    tmp_path: Path, elsewhere: bool, sends_issuer: bool, binds_audience: bool
) -> None:
    with oauth_upstream(
        elsewhere=elsewhere, sends_issuer=sends_issuer, binds_audience=binds_audience
    ) as upstream:
        state = await login(tmp_path, upstream.url)
        assert works(upstream, tmp_path, state)
        (asked,) = upstream.authorizations
        assert asked["resource"] == upstream.url
        assert asked["scope"] == "tools"
        assert upstream.token_requests[0]["resource"] == upstream.url


NO_RESOURCE: dict[str, Any] = {
    "has_resource_metadata": False,
    "challenge": "Bearer",
    "binds_audience": False,
}


@pytest.mark.parametrize(
    "how",
    [
        {"challenge": "Bearer"},
        {"challenge": "Basic realm=x, Bearer resource_metadata={metadata}"},
        {"challenge": 'Bearer realm="a \\" b", scope="tools", resource_metadata="{metadata}"'},
        {"challenge": "Negotiate"},
        {"path": "/deep/path/mcp", "challenge": "Bearer"},
        NO_RESOURCE,
        {**NO_RESOURCE, "has_server_metadata": False},
        {"lifetime": "3600"},
        {"gives_refresh": False},
        {"open_methods": ("initialize",)},
        {"challenges_get_only": True},
    ],
    ids=str,
)
async def test_a_login_works_however_the_upstream_describes_it(
    tmp_path: Path, how: dict[str, Any]
) -> None:
    how = {**how, "lifetime": float(how.get("lifetime", 3600))}
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
async def test_a_client_of_the_users_own_is_not_registered(
    tmp_path: Path, secret: str | None
) -> None:
    fixed = ("my:client", secret) if secret else None
    how: dict[str, Any] = {"fixed_client": fixed} if fixed else {"takes_documents": True}
    name = "my:client" if fixed else "https://example.com/client.json"
    with oauth_upstream(has_registration=False, **how) as upstream:
        state = await login(tmp_path, upstream.url, client=OwnClient(name, secret))
        assert works(upstream, tmp_path, state)
        assert upstream.registrations == []


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
async def test_a_failed_login_says_why_and_stores_nothing(
    tmp_path: Path, how: dict[str, Any], why: str
) -> None:
    with oauth_upstream(**how) as upstream:
        with pytest.raises(LoginFailed) as failed:
            await login(tmp_path, upstream.url)
        assert why in failed.value.why
        assert LoginStore(tmp_path).load(upstream.url) is None
        assert not any(secret in str(failed.value) for secret in upstream.all_secrets())


async def test_no_repr_shows_a_secret(tmp_path: Path) -> None:
    with oauth_upstream(fixed_client=("id", "geheim"), has_registration=False) as upstream:
        state = await login(tmp_path, upstream.url, client=OwnClient("id", "geheim"))
        shown = repr(state) + repr(OwnClient("id", "geheim"))
        assert "geheim" not in shown
        assert not any(secret in shown for secret in upstream.all_secrets())


# The browser returns from a login; other requests are refused
SERVER = default_server("https://login.example/mcp")
ISSUER = "https%3A%2F%2Flogin.example"


@asynccontextmanager
async def waiting() -> AsyncIterator[Callback]:
    async with callback(0, "our-state", SERVER) as found:
        yield found


async def asks(found: Callback, target: str, *, method: str = "GET", host: str = "") -> str:
    """Send a request as a browser does; return the status line."""
    reader, writer = await asyncio.open_connection("127.0.0.1", found.port)
    host = host or f"127.0.0.1:{found.port}"
    writer.write(f"{method} {target} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
    said = (await reader.read()).decode()
    writer.close()
    await writer.wait_closed()
    return said


async def test_a_code_is_taken_once() -> None:
    async with waiting() as found:
        said = await asks(found, f"/callback?state=our-state&code=c1&iss={ISSUER}")
        assert said.startswith("HTTP/1.1 200 OK")
        assert "You are logged in" in said
        assert "You are" in await asks(found, "/callback?state=our-state&code=c2")
        assert await found.code() == "c1"


@pytest.mark.parametrize(
    ("query", "why"),
    [
        ("error=access_denied&error_description=no%1Bway", "access_denied: no?way"),
        ("error=access_denied", "access_denied"),
        ("", "The redirect has no code"),
        ("code=a&code=b", "The redirect has no code"),
        ("code=a&iss=https%3A%2F%2Fevil.example", "The redirect is from another issuer"),
    ],
)
async def test_a_callback_without_a_login_says_why(query: str, why: str) -> None:
    async with waiting() as found:
        said = await asks(found, f"/callback?state=our-state&{query}")
        assert "The login has failed" in said
        with pytest.raises(CallbackRefused) as caught:
            await found.code()
        assert str(caught.value) == why


@pytest.mark.parametrize(
    ("target", "changes", "status"),
    [
        ("/callback?state=other&code=c", {}, "400"),
        ("/callback?code=c", {}, "400"),
        ("/callback?state=our-state&state=our-state&code=c", {}, "400"),
        ("/other?state=our-state&code=c", {}, "404"),
        ("/callback?state=our-state&code=c", {"method": "POST"}, "404"),
        ("/callback?state=our-state&code=c", {"host": "evil.example"}, "404"),
    ],
)
async def test_other_callbacks_are_ignored(
    target: str, changes: dict[str, str], status: str
) -> None:
    async with waiting() as found:
        said = await asks(found, target, **changes)
        assert said.startswith(f"HTTP/1.1 {status} ")
        assert not any(map(found.take, ["http://[", "?state=\udc80"]))  # pasted
        await asks(found, "/callback?state=our-state&code=real")
        assert await found.code() == "real"


# How an authorization server comes to know us
BACK = "http://127.0.0.1:1/callback"
ENDPOINT = "https://mcp.example/mcp"


async def registered(
    said: object, *, status: str = "201 Created", methods: tuple[str, ...] | None = None
) -> tuple[Registration, dict[str, object]]:
    """Return what we are known by, and what we have said of us."""

    text = said if isinstance(said, str) else json.dumps(said)
    async with raw_upstream(always(answer(text.encode(), status=status))) as upstream:
        server = replace(
            SERVER, registration_endpoint=f"{upstream.url}/register", auth_methods=methods
        )
        made = await register(Web(upstream.url), server, BACK, ("tools",), ENDPOINT)
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
    [("client_secret_post", "client_secret_post"), ("private_key_jwt", "client_secret_basic")],
)
async def test_a_client_secret_is_sent_in_a_supported_way(given: str, method: str) -> None:
    answered = {"client_id": "c", "client_secret": "s", "token_endpoint_auth_method": given}
    made, said = await registered(answered, methods=("client_secret_post",))
    assert said["token_endpoint_auth_method"] == "client_secret_post"
    assert (made.client_secret, made.auth_method) == ("s", method)


@pytest.mark.parametrize(
    ("said", "status"),
    [
        ({"error": "no"}, "400 Bad Request"),
        ({}, "201 Created"),
        ({"client_id": "\ud800"}, "201 Created"),
        ("x", "200 OK"),
    ],
)
async def test_a_refused_registration_says_what_to_do_instead(said: object, status: str) -> None:
    with pytest.raises(LoginFailed, match=r"does not register us .*: give --client-id"):
        await registered(said, status=status)


@pytest.mark.parametrize(
    ("methods", "secret", "method"),
    [
        (None, None, "none"),
        (None, "s", "client_secret_basic"),
        (("client_secret_post",), "s", "client_secret_post"),
    ],
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
