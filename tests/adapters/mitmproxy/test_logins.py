"""Requests that are sent with the token of a stored login, in a real mitmproxy."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from time import time
from typing import Any

import pytest

from mcp_tool_filter.adapters.mitmproxy.addon import ToolFilter
from mcp_tool_filter.adapters.oauth.login import Wishes, log_in
from mcp_tool_filter.adapters.oauth.store import LoginStore
from tests.login_browser import browse
from tests.oauth_server import Grant, OAuthUpstream
from tests.oauth_upstream import oauth_upstream
from tests.proxy import RunningProxy, certified, proxy
from tests.raw_client import MCP_HEADERS, Answer, RawClient, get, post, raw_client

PING = b'{"jsonrpc":"2.0","id":7,"method":"ping"}'
CALL = b'{"jsonrpc":"2.0","id":8,"method":"tools/call","params":{"name":"read_file"}}'


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


@dataclass
class LoggedIn:
    upstream: OAuthUpstream
    proxy: RunningProxy
    client: RawClient

    async def ask(self, body: bytes = PING, headers: bytes = b"", path: str = "/mcp") -> Answer:
        return await self.client.ask(post(body, path=path, headers=MCP_HEADERS + headers))

    def sent(self) -> list[str | None]:
        """What the upstream got as Authorization, since it was last asked for tools."""
        methods = [method for method, _ in self.upstream.calls]
        start = len(methods) - methods[::-1].index("tools/list")
        return [value for _, value in self.upstream.calls[start:]]


async def log_in_to(upstream: OAuthUpstream, ca: str | None = None) -> None:
    async def show(url: str) -> None:
        await asyncio.to_thread(browse, url)

    await log_in(upstream.url, Wishes(timeout=10, ca=ca), LoginStore(), show)


@asynccontextmanager
async def logged_in(
    home: Path, *, options: dict[str, Any] | None = None, **how: Any
) -> AsyncIterator[LoggedIn]:
    given = {"deny": ["^delete_"], "endpoint": ["/mcp"], **(options or {})}
    with oauth_upstream(**how) as upstream:
        await log_in_to(upstream)
        async with (
            proxy(ToolFilter(), to=upstream.origin, home=home, **given) as it,
            raw_client(it.port) as client,
        ):
            await client.ask(get(path="/other"))  # which waits until the tools are fetched
            yield LoggedIn(upstream, it, client)


def error_of(got: Answer) -> tuple[int, object, str]:
    body = json.loads(got.body)
    return got.status, body["id"], body["error"]["message"]


async def test_a_client_needs_no_login_of_its_own(tmp_path: Path) -> None:
    async with logged_in(tmp_path) as between:
        got = await between.ask(CALL)
        assert json.loads(got.body)["result"]["content"][0]["text"] == "done"
        (value,) = between.sent()
        assert between.upstream.grant_of(value)


async def test_tools_are_denied_with_a_login_too(tmp_path: Path) -> None:
    async with logged_in(tmp_path) as between:
        got = await between.ask(CALL.replace(b"read_file", b"delete_file"))
        assert json.loads(got.body)["error"]["code"] == -32601
        assert between.sent() == []


@pytest.mark.parametrize(
    ("headers", "path"),
    [
        (b"Authorization: Bearer own\r\n", "/mcp"),
        (b"Cookie: a=b\r\n", "/mcp"),
        (b"X-Api-Key: x\r\n", "/mcp"),
    ],
)
async def test_a_client_with_credentials_keeps_them(
    tmp_path: Path, headers: bytes, path: str
) -> None:
    """The upstream's challenge is then theirs, too: it is not our login that failed."""

    async with logged_in(tmp_path) as between:
        got = await between.ask(PING, headers, path)
        assert got.status == 401
        assert got.all("www-authenticate")
        assert between.sent() == (["Bearer own"] if b"Bearer" in headers else [None])


async def test_the_token_goes_to_no_other_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with logged_in(tmp_path) as between:
        heads: list[str | None] = []
        before = between.upstream.grant_of

        def looking(authorization: str | None) -> Grant | None:
            heads.append(authorization)
            return before(authorization)

        monkeypatch.setattr(between.upstream, "grant_of", looking)
        for path in ("/token", "/other", "/mcp/../x", "/.well-known/oauth-protected-resource"):
            await between.client.ask(get(path=path))
        assert heads == []


async def test_the_list_of_another_kind_of_client_is_fetched_with_the_login(tmp_path: Path) -> None:
    """A call before any list: we ask for the list of a client that has other capabilities."""
    hello = (
        b'{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-06-18",'
        b'"capabilities":{"roots":{}},"clientInfo":{"name":"c","version":"1"}}}'
    )

    async with logged_in(tmp_path, session="s1") as between:
        assert "result" in json.loads((await between.ask(hello)).body)
        session = b"Mcp-Session-Id: s1\r\n"
        assert "result" in json.loads((await between.ask(CALL, session)).body)
        unknown = await between.ask(CALL.replace(b"read_file", b"no_such"), session)
        assert json.loads(unknown.body)["error"]["code"] == -32601
        methods = [method for method, _ in between.upstream.calls]
        assert methods.count("tools/list") == 2
        assert all(between.upstream.grant_of(value) for _, value in between.upstream.calls[-3:])


async def test_eight_requests_at_expiry_cause_one_renewal(tmp_path: Path) -> None:
    async with logged_in(tmp_path) as between:
        state = LoginStore().load(between.upstream.url)
        assert state
        assert state.tokens
        old = state.tokens.access_token
        expired = replace(state.tokens, received_at=time() - 60, expires_at=time() - 1)
        LoginStore().save(state.with_tokens(expired))
        between.upstream.delay = 0.1

        async def ask() -> Answer:
            async with raw_client(between.proxy.port) as client:
                return await client.ask(post(PING))

        answers = await asyncio.gather(*(ask() for _ in range(8)))
        assert [json.loads(one.body)["id"] for one in answers] == [7] * 8
        assert all("result" in json.loads(one.body) for one in answers)
        assert between.upstream.renewals == 1
        assert f"Bearer {old}" not in between.sent()


@pytest.mark.parametrize("at_once", [1, 8])
async def test_an_early_refusal_causes_one_renewal_and_one_retry(
    tmp_path: Path, at_once: int
) -> None:
    async with logged_in(tmp_path) as between:
        between.upstream.end_access()

        async def ask() -> Answer:
            async with raw_client(between.proxy.port) as client:
                return await client.ask(post(CALL))

        answers = await asyncio.gather(*(ask() for _ in range(at_once)))
        assert all("result" in json.loads(one.body) for one in answers)
        assert between.upstream.renewals == 1
        assert len(between.sent()) <= 2 * at_once
        for _ in range(3):  # on connections that are kept
            assert "result" in json.loads((await between.ask(PING)).body)


async def test_a_refused_stream_is_requested_again(tmp_path: Path) -> None:
    async with logged_in(tmp_path) as between:
        between.upstream.end_access()
        got = await between.client.ask(get())
        assert got.status == 405  # this upstream has no streams; 401 it would be without a login
        assert got.all("www-authenticate") == []


@pytest.mark.parametrize("error", ["invalid_grant", "temporarily_unavailable"])
async def test_a_failed_renewal_gives_one_sentence(tmp_path: Path, error: str) -> None:
    async with logged_in(tmp_path) as between:
        between.upstream.end_access()
        between.upstream.refuses_renewal = error
        for _ in range(3):
            got = await between.ask(CALL)
            status, id, message = error_of(got)
            assert (status, id) == (200, 8)
            assert got.all("www-authenticate") == []
            if error == "invalid_grant":
                url = between.upstream.url
                command = f"Type: mcp-tool-filter login {url}"
                assert message == f"The login to {url} has expired. {command}"
            else:
                assert "Cannot renew the login" in message
        assert between.upstream.renewals == 1
        got = await between.client.ask(get())
        assert (got.status, got.all("www-authenticate")) == (502, [])


async def test_a_logout_is_noticed_at_once(tmp_path: Path) -> None:
    async with logged_in(tmp_path) as between:
        LoginStore().forget(between.upstream.url)
        before = len(between.upstream.calls)
        status, id, message = error_of(await between.ask(CALL))
        assert (status, id) == (200, 8)
        assert message.startswith(f"Not logged in to {between.upstream.url}. Type: mcp-tool-filter")
        assert len(between.upstream.calls) == before
        await log_in_to(between.upstream)
        assert "result" in json.loads((await between.ask(CALL)).body)


async def test_missing_scopes_are_requested_at_the_next_login(tmp_path: Path) -> None:
    async with logged_in(tmp_path, scope_of_calls="write") as between:
        got = await between.ask(CALL)
        status, id, message = error_of(got)
        assert (status, id, got.all("www-authenticate")) == (200, 8, [])
        assert "(write). Type: mcp-tool-filter login" in message
        assert between.upstream.renewals == 0
        assert "result" in json.loads((await between.ask(PING)).body)
        await log_in_to(between.upstream)
        assert between.upstream.authorizations[-1]["scope"] == "tools write"
        assert "result" in json.loads((await between.ask(CALL)).body)


async def test_a_token_that_is_never_accepted_is_tried_twice_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with logged_in(tmp_path) as between:
        monkeypatch.setattr(between.upstream, "grant_of", lambda _authorization: None)
        for _ in range(4):
            assert "error" in json.loads((await between.ask(PING)).body)
        assert between.upstream.renewals == 1


@pytest.mark.parametrize(
    "options", [{"login": ["off"]}, {"upstream_headers": ["Authorization: Bearer mine"]}]
)
async def test_no_login_is_used_where_the_user_wants_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, list[str]]
) -> None:
    with oauth_upstream() as upstream:
        await log_in_to(upstream)
        # Else the refusal of the user's own header would end the process, sooner or later.
        grants = {"Bearer mine": Grant(["tools"], upstream.url)}
        monkeypatch.setattr(upstream, "grant_of", grants.get)
        given = {"endpoint": ["/mcp"], **options}
        async with (
            proxy(ToolFilter(), to=upstream.origin, home=tmp_path, **given) as it,
            raw_client(it.port) as client,
        ):
            await client.ask(post(PING))
        assert upstream.calls
        assert not any(value and "access-" in value for _, value in upstream.calls)


async def test_the_token_is_in_no_log_no_flow_and_no_recording(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    from mitmproxy.addons.save import Save

    class Looking:
        def __init__(self) -> None:
            self.seen: list[str] = []

        def look(self, flow: Any) -> None:
            self.seen.append(repr(flow.get_state()))

        requestheaders = request = responseheaders = response = error = look

    recording, looking = tmp_path / "all.flow", Looking()

    with caplog.at_level("DEBUG"), oauth_upstream() as upstream:
        await log_in_to(upstream)
        given = {"endpoint": ["/mcp"], "save_stream_file": str(recording)}
        addons = (ToolFilter(), looking, Save())
        async with (
            proxy(*addons, to=upstream.origin, home=tmp_path, **given) as it,
            raw_client(it.port) as client,
        ):
            await client.ask(post(CALL))
            upstream.end_access()
            await client.ask(post(CALL))
            upstream.end_access()
            upstream.refuses_renewal = "invalid_grant"
            await client.ask(post(CALL))
        shown = caplog.text + "".join(looking.seen) + recording.read_bytes().decode("latin-1")
        assert len(looking.seen) >= 12
        assert not any(secret in shown for secret in upstream.all_secrets())
        assert "access-" not in shown


async def test_https_on_both_sides(tmp_path: Path) -> None:
    with oauth_upstream(tls=certified(tmp_path), elsewhere=True) as upstream:
        ca = str(tmp_path / "upstream-ca-cert.pem")
        await log_in_to(upstream, ca)
        given = {
            "endpoint": ["/mcp"],
            "ssl_insecure": False,
            "ssl_verify_upstream_trusted_ca": ca,
        }
        async with (
            proxy(ToolFilter(), to=upstream.origin, home=tmp_path, **given) as it,
            raw_client(it.port) as client,
        ):
            upstream.end_access()
            got = await client.ask(post(CALL))
            assert "result" in json.loads(got.body)
