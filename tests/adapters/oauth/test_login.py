"""Logging in with a browser, against an authorization server on sockets."""

from __future__ import annotations

import asyncio
import os
import stat
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from mcp_tool_filter.adapters.oauth.login import OwnClient, Wishes, log_in
from mcp_tool_filter.adapters.oauth.store import LoginFailed, LoginState, LoginStore
from mcp_tool_filter.adapters.oauth.tokens import Credentials
from tests.login_browser import browse
from tests.oauth_server import OAuthUpstream
from tests.oauth_upstream import oauth_upstream
from tests.raw_upstream import free_port


async def show(url: str) -> None:
    await asyncio.to_thread(browse, url)


async def login(home: Path, url: str, **wishes: Any) -> LoginState:
    return await log_in(url, Wishes(timeout=10, **wishes), LoginStore(home), show)


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


@pytest.mark.parametrize(
    "how",
    [
        {"challenge": "Bearer"},
        {"challenge": "Basic realm=x, Bearer resource_metadata={metadata}"},
        {"challenge": 'Bearer realm="a \\" b", scope="tools", resource_metadata="{metadata}"'},
        {"challenge": "Negotiate"},
        {"path": "/deep/path/mcp", "challenge": "Bearer"},
        {"has_resource_metadata": False, "challenge": "Bearer", "binds_audience": False},
        {
            "has_resource_metadata": False,
            "has_server_metadata": False,
            "challenge": "Bearer",
            "binds_audience": False,
        },
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
        assert [one["scope"] for one in upstream.authorizations] == ["one two", "mine"]
        assert [one["scope"] for one in upstream.registrations] == ["one two", "mine"]


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
        ({"way_back": {"iss": "https://evil.example"}}, "another issuer"),
        ({"way_back": {"code": ""}}, "has no code"),
        ({"way_back": {"code": "guessed"}}, "invalid_grant"),
        ({"metadata": {"issuer": "https://evil.example"}}, "has the issuer"),
        ({"metadata": {"token_endpoint": "http://evil.example/token"}}, "not https"),
        ({"metadata": {"token_endpoint": "file:///etc/passwd"}}, "Not a web URL"),
        ({"metadata": {"authorization_endpoint": "javascript:alert(1)"}}, "Not a web URL"),
        ({"metadata": {"registration_endpoint": "http://evil.example/"}}, "not https"),
        ({"metadata": {"code_challenge_methods_supported": ["plain"]}}, "PKCE"),
        ({"metadata": {"token_endpoint": None}}, "has no token_endpoint"),
        ({"has_registration": False}, "--client-id"),
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


async def test_an_upstream_without_a_login_is_reported_as_such(tmp_path: Path) -> None:
    how: dict[str, Any] = {"open_methods": ("initialize",), "has_resource_metadata": False}
    with (
        oauth_upstream(**how) as upstream,
        pytest.raises(LoginFailed, match="does not ask for a login"),
    ):
        await login(tmp_path, upstream.url)


async def test_tokens_go_over_https_only(tmp_path: Path) -> None:
    with pytest.raises(LoginFailed, match="https only"):
        await login(tmp_path, "http://mcp.example/mcp")


async def test_wrong_callbacks_are_refused(tmp_path: Path) -> None:
    """A page may send the browser to our port; it does not know our state."""
    tried: list[int] = []

    async def attacked(url: str) -> None:
        back = parse_qs(urlsplit(url).query)["redirect_uri"][0]
        queries = ("?code=evil&state=x", "?code=evil", "?error=x&state=", "/x?code=evil")
        tried.extend([await asyncio.to_thread(browse, back + query) for query in queries])
        await show(url)

    with oauth_upstream() as upstream:
        state = await log_in(upstream.url, Wishes(timeout=10), LoginStore(tmp_path), attacked)
        assert tried == [400, 400, 400, 404]
        assert works(upstream, tmp_path, state)


async def test_the_callback_url_can_be_pasted(tmp_path: Path) -> None:
    """The browser may be on another device, which cannot reach our port."""
    pasted: asyncio.Queue[str] = asyncio.Queue()

    async def elsewhere(url: str) -> None:
        asked = {key: one[0] for key, one in parse_qs(urlsplit(url).query).items()}
        await pasted.put("something else")
        await pasted.put(upstream.authorize(asked)[1])

    with oauth_upstream() as upstream:
        login = log_in(
            upstream.url, Wishes(timeout=10), LoginStore(tmp_path), elsewhere, pasted.get
        )
        assert works(upstream, tmp_path, await login)


async def test_a_login_is_stored_for_its_user_alone(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        with oauth_upstream() as upstream:
            state = await login(tmp_path / "a" / "b", upstream.url)
    finally:
        os.umask(old)
    path = LoginStore(tmp_path / "a" / "b").path_of(state.endpoint)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert [one.suffix for one in path.parent.iterdir()].count(".part") == 0


async def test_no_repr_shows_a_secret(tmp_path: Path) -> None:
    with oauth_upstream(fixed_client=("id", "geheim"), has_registration=False) as upstream:
        state = await login(tmp_path, upstream.url, client=OwnClient("id", "geheim"))
        shown = repr(state) + repr(OwnClient("id", "geheim"))
        assert "geheim" not in shown
        assert not any(secret in shown for secret in upstream.all_secrets())
