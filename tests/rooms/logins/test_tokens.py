"""Tokens: the requests for them, and their renewal."""

from __future__ import annotations

import asyncio
import base64
import errno
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import pytest

from mcp_tool_filter.rooms.logins import store as files
from mcp_tool_filter.rooms.logins import tokens as module
from mcp_tool_filter.rooms.logins.discovery import Web, WebFailed
from mcp_tool_filter.rooms.logins.store import LoggedOut, LoginState, LoginStore, RenewalFailed
from mcp_tool_filter.rooms.logins.tokens import Credentials, TokenRefused, credentials_for
from tests.oauth_server import OAuthUpstream
from tests.oauth_upstream import oauth_upstream
from tests.raw_upstream import RawRequest, until
from tests.rooms.logins import test_store as stored
from tests.rooms.logins.test_login import login, saying
from tests.rows import each_row


# The access token of a stored login: renewed once for all requests that need it
class Clock:
    """The time, which can be put forward."""

    def __init__(self) -> None:
        self.later = 0.0

    def __call__(self) -> float:
        return time.time() + self.later


@asynccontextmanager
async def logged_in(
    home: Path, later: float = 0.0, **how: Any
) -> AsyncIterator[tuple[OAuthUpstream, Credentials, Clock]]:
    """Yield the upstream of a login, its credentials, and the clock: so much later than it is."""
    with oauth_upstream(**how) as upstream:
        state, clock = await login(home, upstream.url), Clock()
        clock.later = later
        yield upstream, Credentials(state, LoginStore(home), clock=clock), clock


async def test_a_cancelled_request_does_not_cancel_the_renewal_for_others(tmp_path: Path) -> None:
    async with logged_in(tmp_path, delay=1.0) as (upstream, credentials, _):
        value = credentials.value()
        asked = len(upstream.token_requests)
        first, second = (asyncio.create_task(credentials.renewed(value)) for _ in range(2))
        await until(lambda: len(upstream.token_requests) != asked)
        first.cancel()
        assert upstream.grant_of(await second)
        assert upstream.renewals == 1


async def test_rotating_refresh_tokens_are_used_once(tmp_path: Path) -> None:
    async with logged_in(tmp_path) as (upstream, credentials, clock):
        for _ in range(5):
            clock.later += 3600
            assert upstream.grant_of(await credentials.renewed())


async def test_a_renewed_login_that_cannot_be_stored_serves_this_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its old refresh token is used up: on a full disk, the login was lost."""

    def full(_path: Path, _content: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    async with logged_in(tmp_path) as (upstream, credentials, clock):
        monkeypatch.setattr(files, "replace_file", full)
        for _ in range(3):
            clock.later += 3600
            assert upstream.grant_of(await credentials.renewed())
    assert "No space left on device" in caplog.text
    assert not any(secret in caplog.text for secret in upstream.all_secrets())


async def test_a_very_short_lived_token_is_used_anyway(tmp_path: Path) -> None:
    """A slow answer may have taken most of its life."""

    async with logged_in(tmp_path, 3600, delay=0.3) as (upstream, credentials, _):
        upstream.lifetime = 0.3
        assert (await credentials.renewed()).startswith("Bearer access-")


async def test_a_replaced_token_can_expire_too(tmp_path: Path) -> None:
    async with logged_in(tmp_path, lifetime=20) as (_, credentials, clock):
        second = await credentials.renewed(credentials.value())
        clock.later = 21  # and the upstream says so to a request that was on its way
        assert await credentials.renewed(second) != second


async def test_a_token_that_replaced_a_rejected_one_is_kept_for_a_minute(tmp_path: Path) -> None:
    async with logged_in(tmp_path) as (_, credentials, clock):
        second = await credentials.renewed(credentials.value())
        with pytest.raises(RenewalFailed, match="accepts no new token either"):
            await credentials.renewed(second)
        clock.later = 61
        assert await credentials.renewed(second) != second


CHILD = """
import asyncio, sys
from pathlib import Path
from mcp_tool_filter.rooms.logins.tokens import credentials_for
from mcp_tool_filter.rooms.logins.store import LoginStore
url, home, rejected = sys.argv[1:]
async def main():
    credentials = credentials_for(url, LoginStore(Path(home)))
    values = await asyncio.gather(*(credentials.renewed(rejected) for _ in range(3)))
    assert len(set(values)) == 1
    print(values[0])
asyncio.run(main())
"""


async def test_four_processes_cause_one_renewal(tmp_path: Path) -> None:
    """Two renewals with one refresh token would end the whole login."""
    async with logged_in(tmp_path, delay=0.3) as (upstream, credentials, _):
        value = credentials.value()
        assert value
        command = [sys.executable, "-c", CHILD, upstream.url, str(tmp_path), value]
        children = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(4)]
        values = {child.communicate(timeout=60)[0].decode().strip() for child in children}
        assert len(values) == 1
        assert upstream.renewals == 1
        assert credentials.value() in values  # we learn of it from the file


@pytest.mark.parametrize("error", ["invalid_grant", "invalid_client", "unauthorized_client"])
async def test_a_login_that_cannot_be_renewed_is_over(tmp_path: Path, error: str) -> None:
    async with logged_in(tmp_path, 3600, refuses_renewal=error) as (upstream, credentials, clock):
        with pytest.raises(LoggedOut) as refused:
            await credentials.renewed()
        assert f"mcp-tool-filter login {upstream.url}" in str(refused.value)
        for _ in range(3):
            with pytest.raises(LoggedOut):
                credentials.value()
        assert upstream.renewals == 1
        await login(tmp_path, upstream.url)
        clock.later = 0
        assert upstream.grant_of(credentials.value())


@pytest.mark.parametrize(
    ("error", "set_to"),
    [("temporarily_unavailable", 3610), ("server_error", 3610), ("", 3610), ("", -(10**6))],
)
async def test_a_temporary_failure_ends_no_login(tmp_path: Path, error: str, set_to: float) -> None:
    async with logged_in(tmp_path, refuses_renewal=error or "x") as (upstream, credentials, clock):
        rejected = credentials.value()
        clock.later = 3600
        for _ in range(3):
            with pytest.raises(RenewalFailed):
                await credentials.renewed()
        assert upstream.renewals == 1  # nobody is asked again at once
        upstream.refuses_renewal = None
        upstream.lifetime = 7200
        clock.later = set_to
        assert upstream.grant_of(await credentials.renewed(rejected))


async def test_a_token_is_used_until_it_expires_while_renewal_fails(tmp_path: Path) -> None:
    async with logged_in(tmp_path, 3590, refuses_renewal="x") as (upstream, credentials, clock):
        assert credentials.value() is None
        assert upstream.grant_of(await credentials.renewed())
        clock.later = 3601
        with pytest.raises(RenewalFailed):
            await credentials.renewed()


async def test_without_a_refresh_token_the_user_logs_in_again(tmp_path: Path) -> None:
    async with logged_in(tmp_path, 3600, gives_refresh=False) as (_, credentials, _):
        with pytest.raises(LoggedOut):
            await credentials.renewed()


async def test_a_login_is_found_by_its_endpoint_or_its_origin(tmp_path: Path) -> None:
    store = LoginStore(tmp_path)
    async with logged_in(tmp_path) as (upstream, *_):
        for url in (upstream.url, f"{upstream.url}?project=1", f"{upstream.url}/", upstream.origin):
            assert credentials_for(url, store)
        assert credentials_for(upstream.url + "/other", store) is None
        assert credentials_for("http://127.0.0.1:1", store) is None
        state = store.load(upstream.url)
        assert state
        store.save(replace(state, endpoint=upstream.origin + "/second"))
        assert credentials_for(upstream.origin, store) is None  # which one?


async def test_a_missing_scope_is_requested_at_the_next_login(tmp_path: Path) -> None:
    async with logged_in(tmp_path) as (upstream, *_):
        store = LoginStore(tmp_path)
        await module.remember_scopes(store, upstream.url, ("write", "tools"))
        await login(tmp_path, upstream.url)
        assert upstream.authorizations[1]["scope"].split() == ["tools", "write"]


# Tokens: got, renewed and revoked; every byte of the answers is chosen here
GIVEN = {"access_token": "a1", "token_type": "Bearer", "expires_in": 60}
OURS = files.Registration(client_id="our id", redirect_uri="http://127.0.0.1:1/callback")
TOKENS = replace(stored.TOKENS, refresh_token="r0", scopes=("tools",))
STATE = replace(stored.STATE, registration=OURS, tokens=TOKENS)
SECRET = replace(OURS, client_secret="s:1", auth_method="client_secret_basic")


async def asked(
    what: str, said: object, *, status: str = "200 OK", state: LoginState = STATE
) -> tuple[Any, RawRequest]:
    """Return what came of asking, and the request."""
    async with saying(said, status) as server:
        token, end = f"{server.url}/token", f"{server.url}/end"
        web, at = Web(server.url), replace(state, token_endpoint=token, revocation_endpoint=end)
        made: Any = None
        match what:
            case "code":
                made = await module.exchange_code(web, at, "c1", "v1", now=1000)
            case "renew":
                made = await module.renew(web, at, now=1000)
            case _:
                await module.revoke(web, at)
        return made, server.requests[0]


def fields(request: RawRequest) -> dict[str, str]:
    return dict(parse_qsl(request.body.decode()))


async def test_a_code_is_exchanged_with_its_pkce_verifier() -> None:
    tokens, request = await asked("code", {**GIVEN, "refresh_token": "r1", "scope": "a b"})
    assert (tokens.access_token, tokens.refresh_token) == ("a1", "r1")
    assert (tokens.received_at, tokens.expires_at, tokens.scopes) == (1000, 1060, ("a", "b"))
    assert request.line == "POST /token HTTP/1.1"
    assert fields(request) == {
        "grant_type": "authorization_code", "code": "c1", "code_verifier": "v1",
        "redirect_uri": "http://127.0.0.1:1/callback", "resource": STATE.resource,
        "client_id": "our id",
    }  # fmt: skip


async def test_a_renewal_keeps_members_that_the_answer_omits() -> None:
    tokens, request = await asked("renew", GIVEN)
    assert (tokens.access_token, tokens.refresh_token) == ("a1", "r0")
    assert tokens.scopes == ("tools",)
    assert fields(request)["refresh_token"] == "r0"
    tokens, _ = await asked("renew", {**GIVEN, "scope": "a", "refresh_token": 5})
    assert (tokens.scopes, tokens.refresh_token) == (("a",), "r0")


@pytest.mark.parametrize("method", ["client_secret_basic", "client_secret_post"])
async def test_a_client_secret_is_sent_where_the_server_wants_it(method: str) -> None:
    state = replace(STATE, registration=replace(SECRET, auth_method=method))
    _, request = await asked("renew", GIVEN, state=state)
    pair = base64.b64encode(b"our%20id:s%3A1").decode()
    if method == "client_secret_basic":
        assert request.all("authorization") == [f"Basic {pair}"]
        assert "client_secret" not in fields(request)
    else:
        assert request.all("authorization") == []
        assert fields(request)["client_secret"] == "s:1"


@pytest.mark.parametrize(
    ("error", "is_final"), [("invalid_grant", True), ("temporarily_unavailable", False)]
)
async def test_a_refusal_says_whether_the_login_is_over(error: str, is_final: bool) -> None:
    """A server may repeat what it was sent: that is for no log."""
    said = {"error": error, "error_description": "so\x1b it is: geheim and refresh%2F0"}
    tokens = replace(TOKENS, refresh_token="refresh/0")
    state = replace(STATE, tokens=tokens, registration=replace(SECRET, client_secret="geheim"))
    with pytest.raises(TokenRefused) as caught:
        await asked("renew", said, status="400 Bad Request", state=state)
    assert str(caught.value) == f"{error}: so? it is: *** and ***"
    assert caught.value.is_final is is_final


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ("no json", "no JSON object"),
        ("[]", "no JSON object"),
        ({**GIVEN, "access_token": "a\r\nb"}, "no access token"),
        ({**GIVEN, "access_token": 5}, "no access token"),
        ({**GIVEN, "token_type": "mac"}, "no bearer token"),
    ],
)
async def test_an_answer_that_cannot_be_used_has_a_reason(said: object, why: str) -> None:
    with pytest.raises(WebFailed, match=why):
        await asked("code", said)


@each_row(
    ("said", "expires"),
    [
        ("60", 1060), (-5, 1000), (None, None), ("soon", None), (True, None), ("nan", None),
        pytest.param(10**400, None, id="huge"),
    ],
)  # fmt: skip
async def test_how_long_a_token_lasts_is_read_leniently(said: object, expires: object) -> None:
    tokens, _ = await asked("code", {**GIVEN, "expires_in": said})
    assert tokens.expires_at == expires


async def test_the_refresh_token_is_revoked() -> None:
    _, request = await asked("revoke", "")
    assert request.line == "POST /end HTTP/1.1"
    revoked = {"token": "r0", "token_type_hint": "refresh_token", "client_id": "our id"}
    assert fields(request) == revoked
