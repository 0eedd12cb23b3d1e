"""Logins: our own, those of clients through us, and the documents that lead to them.

Flows never contain tokens; they are only sent over the wire.
"""

from __future__ import annotations

import asyncio
import base64
import gzip
import hashlib
import json
import re
import secrets
import threading
import urllib.request
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest
from mitmproxy import hooks
from mitmproxy.addons.save import Save

from mcp_tool_filter.core.conversation.memory import Fetched, example
from mcp_tool_filter.rooms.logins import login, logins_through
from mcp_tool_filter.rooms.logins.store import LoginStore
from mcp_tool_filter.rooms.mitmproxy.addon import ToolFilter
from mcp_tool_filter.rooms.recordings.flow_dump import read_flows
from tests.cli.launched import launched
from tests.filtered import ENDPOINT, INITIALIZE, Filtered, Hook, call, filtered, not_found
from tests.hosts import mitmdump
from tests.login_browser import show
from tests.mcp_upstream import RESULT
from tests.oauth_server import Grant, OAuthUpstream
from tests.oauth_upstream import oauth_upstream
from tests.proxy import RunningProxy, RunningTool, certified, proxy
from tests.raw_client import MCP_HEADERS, Answer, RawClient, get, post, raw_client, trusting
from tests.raw_upstream import SSE_HEAD, TIMEOUT, Peer, RawRequest, answer, chunk, raw_upstream


@pytest.fixture(autouse=True)
def own_config_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep registrations in a folder of the test, not in the user's."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


PING, CALL = b'{"jsonrpc":"2.0","id":7,"method":"ping"}', call("read_file", id="8")
PLACE = "/.well-known/oauth-protected-resource/mcp"
SERVER = "/.well-known/oauth-authorization-server"
US, CLIENT = "http://localhost", "http://127.0.0.1:49152/callback"
FORM = b"Host: localhost\r\nContent-Type: application/x-www-form-urlencoded\r\n"
JSON = b"Host: localhost\r\nContent-Type: application/json\r\n"
NO_METADATA: dict[str, Any] = {
    "has_resource_metadata": False, "has_server_metadata": False,
    "binds_audience": False, "challenge": "Bearer",
}  # fmt: skip


async def fetched(_target: object) -> Fetched:
    return example("read_file", "delete_file")


def works(got: Answer) -> bool:
    return "result" in json.loads(got.body)


async def log_in_to(upstream: OAuthUpstream, ca: str | None = None) -> None:
    await login.log_in(upstream.url, login.Wishes(timeout=TIMEOUT, ca=ca), LoginStore(), show)


@dataclass
class Between:
    """A client, us, and an upstream that wants a login."""

    upstream: OAuthUpstream
    proxy: RunningProxy
    client: RawClient

    async def ask(self, body: bytes = PING, headers: bytes = b"", path: str = "/mcp") -> Answer:
        return await self.client.ask(post(body, path=path, headers=MCP_HEADERS + headers))

    async def ask_alone(self, body: bytes = CALL) -> Answer:
        """Ask on a connection of its own."""
        async with raw_client(self.proxy.port) as client:
            return await client.ask(post(body))

    def sent(self) -> list[str | None]:
        """What the upstream got as Authorization, since it was last asked for tools."""
        methods = [method for method, _ in self.upstream.calls]
        start = len(methods) - methods[::-1].index("tools/list")
        return [value for _, value in self.upstream.calls[start:]]

    async def see(self, path: str, headers: bytes = MCP_HEADERS) -> Answer:
        return await self.client.ask(get(path=path, headers=headers))

    async def document(self, path: str, headers: bytes = MCP_HEADERS) -> Any:
        got = await self.see(path, headers)
        assert got.status == 200, got
        return json.loads(got.body)

    async def register(self, *uris: str) -> Answer:
        body = json.dumps({"redirect_uris": list(uris or (CLIENT,))}).encode()
        return await self.client.ask(post(body, path="/register", headers=JSON))

    async def authorize(self, headers: bytes = MCP_HEADERS, **asked: str) -> Answer:
        usual = {"client_id": "client-1", "redirect_uri": CLIENT, "state": "s"}
        return await self.see("/authorize?" + urlencode(usual | asked), headers)

    async def ask_token(self, **asked: str) -> Answer:
        return await self.client.ask(post(urlencode(asked).encode(), path="/token", headers=FORM))


@asynccontextmanager
async def between(
    home: Path,
    options: dict[str, Any] | None = None,
    *,
    is_logged_in: bool = False,
    ca: str | None = None,
    **how: Any,
) -> AsyncIterator[Between]:
    """If we are not logged in, each client first learns that a login is wanted."""
    given = {"deny": ["^delete_"], "endpoint": ENDPOINT, **(options or {})}
    with oauth_upstream(**how) as upstream:
        if is_logged_in:
            await log_in_to(upstream, ca)
        addon = ToolFilter() if is_logged_in else ToolFilter(fetch=fetched)
        async with (
            proxy(addon, to=upstream.origin, home=home, **given) as it,
            raw_client(it.port) as client,
        ):
            await client.ask(get(path="/other") if is_logged_in else post(PING))
            yield Between(upstream, it, client)


def logged_in(home: Path, **how: Any) -> AbstractAsyncContextManager[Between]:
    return between(home, is_logged_in=True, **how)


def error_of(got: Answer) -> tuple[int, object, str]:
    body = json.loads(got.body)
    return got.status, body["id"], body["error"]["message"]


@pytest.mark.parametrize("own", [b"Authorization: Bearer own", b"Cookie: a=b", b"X-Api-Key: x"])
async def test_a_client_with_credentials_keeps_them(tmp_path: Path, own: bytes) -> None:
    """The upstream's challenge is then theirs, too: it is not our login that failed."""
    async with logged_in(tmp_path) as it:
        got = await it.ask(PING, own + b"\r\n")
        assert got.status == 401
        assert got.all("www-authenticate")
        assert it.sent() == (["Bearer own"] if b"Bearer" in own else [None])


async def test_no_other_path_gets_a_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with logged_in(tmp_path) as it:
        heads: list[str | None] = []
        monkeypatch.setattr(it.upstream, "grant_of", heads.append)
        for path in ("/token", "/other", "/mcp/../x", "/.well-known/oauth-protected-resource"):
            await it.client.ask(get(path=path))
        assert heads == []


async def test_the_list_of_another_kind_of_client_is_fetched_with_the_login(tmp_path: Path) -> None:
    """A call before any list: we ask for the list of a client that has other capabilities."""
    hello = INITIALIZE.replace(b'"capabilities":{}', b'"capabilities":{"roots":{}}')
    async with logged_in(tmp_path, session="s1") as it:
        session = b"Mcp-Session-Id: s1\r\n"
        assert works(await it.ask(hello))
        assert works(await it.ask(CALL, session))
        unknown = await it.ask(CALL.replace(b"read_file", b"no_such"), session)
        assert json.loads(unknown.body)["error"]["code"] == -32601
        assert [method for method, _ in it.upstream.calls].count("tools/list") == 2
        assert all(it.upstream.grant_of(value) for _, value in it.upstream.calls[-3:])


@pytest.mark.parametrize("at_once", [1, 8])
async def test_a_refusal_causes_one_renewal_and_one_retry(tmp_path: Path, at_once: int) -> None:
    async with logged_in(tmp_path) as it:
        it.upstream.end_access()
        assert all(map(works, await asyncio.gather(*(it.ask_alone() for _ in range(at_once)))))
        assert it.upstream.renewals == 1
        assert len(it.sent()) <= 2 * at_once
        for _ in range(3):  # on connections that are kept
            assert works(await it.ask(PING))


async def test_late_refusals_cause_a_retry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing has to be waited for then, and mitmproxy runs such work when it is started."""
    async with logged_in(tmp_path) as it:
        it.upstream.end_access()
        both_are_here, is_renewed = threading.Barrier(2), threading.Event()
        before = it.upstream.grant_of

        def refusing_one_late(authorization: str | None) -> Grant | None:
            grant = before(authorization)
            if grant is None and both_are_here.wait(10) == 1:
                is_renewed.wait(10)
            return grant

        async def ask() -> Answer:
            got = await it.ask_alone()
            is_renewed.set()
            return got

        monkeypatch.setattr(it.upstream, "grant_of", refusing_one_late)
        assert all(map(works, await asyncio.gather(ask(), ask())))
        assert it.upstream.renewals == 1


async def test_a_refused_stream_is_requested_again(tmp_path: Path) -> None:
    async with logged_in(tmp_path) as it:
        it.upstream.end_access()
        got = await it.client.ask(get())
        assert got.status == 405  # this upstream has no streams; 401 it would be without a login
        assert got.all("www-authenticate") == []


@pytest.mark.parametrize(("error", "said"), [
    ("invalid_grant", "The login to URL has expired. Type: mcp-tool-filter login URL"),
    ("temporarily_unavailable", "Cannot renew the login"),
])  # fmt: skip
async def test_a_failed_renewal_gives_one_sentence(tmp_path: Path, error: str, said: str) -> None:
    async with logged_in(tmp_path) as it:
        it.upstream.end_access()
        it.upstream.refuses_renewal = error
        for _ in range(3):
            got = await it.ask(CALL)
            status, id, message = error_of(got)
            assert (status, id) == (200, 8)
            assert got.all("www-authenticate") == []
            assert message.startswith(said.replace("URL", it.upstream.url))
        assert it.upstream.renewals == 1
        got = await it.client.ask(get())
        assert (got.status, got.all("www-authenticate")) == (502, [])


async def test_a_logout_is_noticed_at_once(tmp_path: Path) -> None:
    async with logged_in(tmp_path) as it:
        LoginStore().forget(it.upstream.url)
        before = len(it.upstream.calls)
        status, id, message = error_of(await it.ask(CALL))
        assert (status, id) == (200, 8)
        assert message.startswith(f"Not logged in to {it.upstream.url}. Type: mcp-tool-filter")
        assert len(it.upstream.calls) == before
        await log_in_to(it.upstream)
        assert works(await it.ask(CALL))


async def test_a_bad_token_is_tried_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with logged_in(tmp_path) as it:
        monkeypatch.setattr(it.upstream, "grant_of", lambda _authorization: None)
        for _ in range(4):
            assert "error" in json.loads((await it.ask(PING)).body)
        assert it.upstream.renewals == 1


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
        running = proxy(
            ToolFilter(), to=upstream.origin, home=tmp_path, endpoint=ENDPOINT, **options
        )
        async with running as it, raw_client(it.port) as client:
            await client.ask(post(PING))
        assert upstream.calls
        assert not any(value and "access-" in value for _, value in upstream.calls)


async def test_https_on_both_sides(tmp_path: Path) -> None:
    ca = str(tmp_path / "upstream-ca-cert.pem")
    how = {"options": {"ssl_insecure": False, "ssl_verify_upstream_trusted_ca": ca}, "ca": ca}
    async with logged_in(tmp_path, tls=certified(tmp_path), elsewhere=True, **how) as it:
        it.upstream.end_access()
        assert works(await it.ask(CALL))


def query_of(got: Answer) -> dict[str, str]:
    (there,) = got.all("location")
    return {name: values[0] for name, values in parse_qs(urlsplit(there).query).items()}


# Logins that pass through us, in a real mitmproxy: what each side gets, byte by byte.


async def test_an_upstream_without_metadata_is_named_as_the_resource(tmp_path: Path) -> None:
    async with between(tmp_path, **NO_METADATA) as it:
        await it.register()
        got = await it.authorize(resource="http://localhost/mcp", code_challenge_method="S256")
        assert got.status == 302
        assert it.upstream.authorizations[-1]["resource"] == it.upstream.url
        await it.ask_token(client_id="client-1", grant_type="x", resource="http://localhost/mcp")
        assert it.upstream.token_requests[-1]["resource"] == it.upstream.url


async def test_registrations_survive_a_restart(tmp_path: Path) -> None:
    with oauth_upstream(sends_issuer=True) as upstream:
        sent_to = []
        for visit in range(2):
            async with (
                proxy(ToolFilter(fetch=fetched), to=upstream.origin, home=tmp_path) as it,
                raw_client(it.port) as client,
            ):
                between = Between(upstream, it, client)
                await client.ask(post(PING))
                if not visit:
                    assert (await between.register()).status == 201
                sent_to.append(query_of(await between.authorize())["redirect_uri"])
                evil = await between.authorize(redirect_uri="http://127.0.0.1:1/other")
                assert evil.status == 400
        assert sent_to == upstream.registrations[0]["redirect_uris"] * 2


async def test_the_callback_may_come_from_another_site(tmp_path: Path) -> None:
    async with between(tmp_path, sends_issuer=True) as it:
        await it.register()
        visit = b"Sec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: navigate\r\n"
        page = MCP_HEADERS + visit + b"Sec-Fetch-Dest: document\r\n"
        begun = query_of(await it.authorize(page))
        back = urlencode({"code": "c", "iss": it.upstream.issuer, "state": begun["state"]})
        got = await it.see(f"{urlsplit(begun['redirect_uri']).path}?{back}", page)
        assert query_of(got) == {"code": "c", "state": "s", "iss": "http://localhost"}
        frame = MCP_HEADERS + visit + b"Sec-Fetch-Dest: iframe\r\n"
        assert (await it.authorize(frame)).status == 403
        assert (await it.see(PLACE, page)).status == 403
        assert (await it.see("/mcp", page)).status == 403


async def test_one_client_that_begins_many_logins_ends_no_other_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logins_through, "_MOST_UNDER_WAY", 20)
    async with between(tmp_path, sends_issuer=True) as it:
        await it.register()
        await it.register()
        begun = query_of(await it.authorize(client_id="client-1"))
        for _ in range(30):
            last = query_of(await it.authorize(client_id="client-2"))
        for login in (begun, last):
            back = urlencode({"code": "c", "iss": it.upstream.issuer, "state": login["state"]})
            got = await it.see(f"{urlsplit(login['redirect_uri']).path}?{back}")
            assert query_of(got)["code"] == "c"


async def test_addresses_named_by_a_client_are_never_requested(tmp_path: Path) -> None:
    """The addresses that we ask are those in the upstream's metadata."""

    async with between(tmp_path, elsewhere=True) as it, raw_upstream(Peer.left) as asked:
        trap = asked.url
        await it.authorize(client_id=trap, resource=trap, redirect_uri=trap, request_uri=trap)
        body = {"redirect_uris": [trap], "jwks_uri": trap, "logo_uri": trap}
        await it.client.ask(post(json.dumps(body).encode(), path="/register", headers=JSON))
        await it.ask_token(grant_type="authorization_code", resource=trap, redirect_uri=trap)
        host = trap.removeprefix("http://").encode()
        await it.see(PLACE, MCP_HEADERS.replace(b"localhost", host))
        await it.see(f"{PLACE}/{trap}")
        assert asked.peers == []


@pytest.mark.parametrize("path", ["/register", "/token", "/token?a=b", "/authorize"])
async def test_a_message_is_no_login_on_any_path(path: str, tmp_path: Path) -> None:
    """The authorization server may serve MCP, too."""
    async with between(tmp_path) as it:
        await it.register()
        before = len(it.upstream.registrations), len(it.upstream.token_requests)
        got = await it.client.ask(post(call("delete_file"), path=path))
        assert got.body == not_found("delete_file")
        assert (len(it.upstream.registrations), len(it.upstream.token_requests)) == before


# Challenges and metadata documents of a login name us, whatever the client asks.


ALLOWED = {"allowed_hosts": ["tools.example,https://tools.example", "other.example"]}


@pytest.mark.parametrize(("options", "host", "ours"), [
    ({}, b"localhost:1234", "http://localhost:1234"),
    ({}, b"127.0.0.1", "http://127.0.0.1"), ({}, b"[::1]:80", "http://[::1]:80"),
    (ALLOWED, b"Tools.Example", "https://Tools.Example"),
    (ALLOWED, b"other.example\r\nX-Forwarded-Proto: https", "http://other.example"),
])  # fmt: skip
async def test_challenges_and_documents_name_us_as_the_client_addressed_us(
    tmp_path: Path, options: dict[str, Any], host: bytes, ours: str
) -> None:
    """Behind a balancer that does TLS the user says so, by allowing the origin."""
    forwarded = b"X-Forwarded-Host: evil.example\r\nForwarded: host=evil.example\r\n"
    headers = MCP_HEADERS.replace(b"localhost", host) + forwarded
    async with between(tmp_path, options) as it:
        got = await it.client.ask(post(PING, headers=headers))
        challenge = f'Bearer error="invalid_token", resource_metadata="{ours}{PLACE}"'
        assert (got.status, got.all("www-authenticate")) == (401, [challenge])
        assert (await it.document(PLACE, headers))["resource"] == ours + "/mcp"
        assert (await it.document(SERVER, headers))["issuer"] == ours


@pytest.mark.parametrize(("how", "is_ours", "stands_in"), [
    ({}, True, True), ({"elsewhere": True}, True, True),
    ({"elsewhere": True, "options": {"login_through": ["plain"]}}, True, False),
    ({"options": {"login_through": ["off"]}}, False, False),
    ({"options": {"upstream_headers": ["Authorization: Bearer x"]}}, False, False),
])  # fmt: skip
async def test_the_metadata_documents_name_us_as_far_as_the_user_wants_it(
    tmp_path: Path, how: dict[str, Any], is_ours: bool, stands_in: bool
) -> None:
    async with between(tmp_path, **how) as it:
        issuer = US if stands_in else it.upstream.issuer
        for path in (PLACE, PLACE.removesuffix("/mcp")):
            found = await it.document(path)
            assert found["resource"] == (f"{US}/mcp" if is_ours else it.upstream.url)
            assert found["authorization_servers"] == [issuer]
        if not is_ours:
            assert (await it.document(SERVER))["issuer"] == issuer
        for path in (SERVER, "/.well-known/openid-configuration") if stands_in else ():
            found = await it.document(path)
            assert (found["issuer"], found["token_endpoint"]) == (US, f"{US}/token")
            assert it.upstream.origin not in json.dumps(found)
        assert (await it.see(SERVER + "/mcp")).status == 404


async def test_an_allowed_page_can_read_the_documents(tmp_path: Path) -> None:
    async with between(tmp_path) as it:
        page = MCP_HEADERS + b"Origin: http://localhost:6274\r\n"
        got = await it.see(SERVER, page)
        assert got.all("access-control-allow-origin") == ["http://localhost:6274"]
        asks = b"OPTIONS /token HTTP/1.1\r\n" + page + b"Access-Control-Request-Method: POST\r\n"
        got = await it.client.ask(asks + b"\r\n")
        assert got.status == 204
        assert "content-type" in got.all("access-control-allow-headers")[0]
        evil = page.replace(b"localhost:6274", b"evil.example")
        assert (await it.see(SERVER, evil)).status == 403


async def test_challenges_do_not_name_a_login_if_the_user_set_a_header(tmp_path: Path) -> None:
    """The client's own login would not help: the user's configured token was refused."""

    async with between(tmp_path, options={"upstream_headers": ["Authorization: Bearer old"]}) as it:
        got = await it.client.ask(post(PING))
        assert got.status == 401
        assert got.all("www-authenticate") == ['Bearer error="invalid_token"']


async def test_challenges_name_us_over_tls_and_on_streams(tmp_path: Path) -> None:
    async with between(tmp_path) as it:
        async with raw_client(it.proxy.port, tls=trusting()) as client:
            [said] = (await client.ask(post(PING))).all("www-authenticate")
            assert f'resource_metadata="https://localhost{PLACE}"' in said
            found = json.loads((await client.ask(get(path=PLACE))).body)
            assert found["resource"] == "https://localhost/mcp"
        async with raw_client(it.proxy.port) as other:
            got = await other.ask(get())
        assert got.status == 401
        assert it.upstream.origin not in got.head.decode()
        assert f'resource_metadata="http://localhost{PLACE}"' in got.all("www-authenticate")[0]


async def test_metadata_is_rewritten_even_if_compressed_and_is_not_cached(tmp_path: Path) -> None:
    """Clients read each answer that says success."""

    async def script(peer: Peer) -> None:
        await peer.request()
        url = peer.upstream.url
        document = json.dumps({"resource": f"{url}/mcp", "authorization_servers": [url]})
        more = "\r\nContent-Encoding: gzip\r\nETag: x\r\nLast-Modified: yesterday"
        await peer.say(answer(gzip.compress(document.encode()), status="203 Other" + more))

    async with (
        raw_upstream(script) as upstream,
        proxy(ToolFilter(fetch=fetched), to=upstream.url, home=tmp_path, deny=["^d"]) as it,
        raw_client(it.port) as client,
    ):
        got = await client.ask(get(path=PLACE))
        assert json.loads(got.body)["resource"] == "http://localhost/mcp"
        assert not any(map(got.all, ("etag", "last-modified", "content-encoding")))


# What flows, recordings and pages show of a login

SECRET = "client-secret-4711"
PLACES: dict[str, dict[str, Any]] = {
    "stands for the authorization server": {"elsewhere": True},
    "the way back leads through us": {"sends_issuer": True},
    "login paths go to the upstream": NO_METADATA,
}


class Looking:
    """An addon behind ours; ``seen`` is all that it can see."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def look(self, flow: Any) -> None:
        self.seen.append(repr(flow.get_state()))

    requestheaders = request = responseheaders = error = look

    def response(self, flow: Any) -> None:
        self.look(flow)
        flow.response.headers["x-added"] = "by a script"


async def log_in(client: RawClient) -> list[str]:
    """Log in as a client does, call, and renew; return every secret of it."""
    assert (await client.ask(post(CALL))).status == 401
    asked = {"redirect_uris": [CLIENT], "client_secret": SECRET}
    registered = await client.ask(post(json.dumps(asked).encode(), path="/register", headers=JSON))
    assert json.loads(registered.body)["client_secret"] == SECRET, registered
    verifier = secrets.token_urlsafe(32)
    digest = hashlib.sha256(verifier.encode()).digest()
    challenge = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
    who = {"client_id": "client-1", "redirect_uri": CLIENT, "resource": "http://localhost/mcp"}
    how = {"state": "mine", "code_challenge": challenge, "code_challenge_method": "S256"}
    url = "http://localhost/authorize?" + urlencode(who | how)
    codes: list[str] = []
    while not url.startswith(CLIENT):
        url = await visit(client, url)
        codes += parse_qs(urlsplit(url).query).get("code", [])
    form = {"grant_type": "authorization_code", "code": codes[-1], "code_verifier": verifier}
    first = await ask_token(client, who | form)
    again = {"grant_type": "refresh_token", "refresh_token": first["refresh_token"]}
    second = await ask_token(client, who | again)
    bearer = MCP_HEADERS + b"Authorization: Bearer %b\r\n" % second["access_token"].encode()
    got = await client.ask(post(CALL, headers=bearer))
    assert "result" in json.loads(got.body), got
    tokens = [one[name] for one in (first, second) for name in ("access_token", "refresh_token")]
    return [SECRET, verifier, *codes, *tokens]


async def visit(client: RawClient, url: str) -> str:
    """Follow one redirect, wherever it leads."""
    parts = urlsplit(url)
    asked = get(path=f"{parts.path}?{parts.query}", headers=f"Host: {parts.netloc}\r\n".encode())
    if parts.netloc == "localhost":
        (there,) = (await client.ask(asked)).all("location")
    else:
        async with raw_client(parts.port or 0) as other:
            (there,) = (await other.ask(asked)).all("location")
    return there


async def ask_token(client: RawClient, asked: dict[str, str]) -> Any:
    got = await client.ask(post(urlencode(asked).encode(), path="/token", headers=FORM))
    assert got.status == 200, got
    return json.loads(got.body)


@asynccontextmanager
async def shown_by(
    addon: ToolFilter, to: OAuthUpstream, home: Path, **options: Any
) -> AsyncIterator[tuple[RawClient, list[str]]]:
    """Open a client; what has been seen and recorded is there at the end."""
    recording, looking = home / "all.flow", Looking()
    given = {"endpoint": ENDPOINT, "save_stream_file": str(recording), **options}
    async with (
        proxy(addon, looking, Save(), to=to.origin, home=home, **given) as it,
        raw_client(it.port) as client,
    ):
        yield client, looking.seen
    looking.seen.append(recording.read_bytes().decode("latin-1"))


@pytest.mark.parametrize("place", PLACES)
async def test_a_flow_has_masks_for_all_secrets_of_a_login(tmp_path: Path, place: str) -> None:
    """Also if a script changes the answers."""
    with oauth_upstream(**PLACES[place]) as upstream:
        addon = ToolFilter(fetch=fetched)
        async with shown_by(addon, upstream, tmp_path) as (client, seen):
            found = [*await log_in(client), *upstream.all_secrets()]
    shown = "".join(seen)
    assert "masked-" in shown
    assert "grant_type=refresh_token" in shown  # what is no secret can be seen
    assert "x-added" in shown
    assert [one for one in found if one in shown] == []


async def test_an_option_shows_the_secrets(tmp_path: Path) -> None:
    with oauth_upstream() as upstream:
        addon, options = ToolFilter(fetch=fetched), {"show_secrets": ["true"]}
        async with shown_by(addon, upstream, tmp_path, **options) as (client, seen):
            found = await log_in(client)
    assert [one for one in found if one not in seen[-1]] == []


@pytest.mark.rest(but=1)
@pytest.mark.parametrize("host", ["launcher", "mitmdump", "mitmweb"])
async def test_no_host_shows_a_login(tmp_path: Path, host: str) -> None:
    """Neither in what it prints, nor in a recording, nor in mitmweb."""
    recording, web = tmp_path / "all.flow", ""
    with oauth_upstream(sends_issuer=True) as upstream:
        hosted: AbstractAsyncContextManager[RunningTool]
        if host == "launcher":
            args = ("--upstream", upstream.url, "--deny", "^x", "-vv", "--record", str(recording))
            hosted = launched(*args, home=tmp_path)
        else:
            own = "web_password=let-me-in" if host == "mitmweb" else "flow_detail=4"
            words = ("-w", str(recording), "-v", "deny=^x", "endpoint=/mcp", own)
            hosted = mitmdump(*words, to=upstream.origin, name=host, home=tmp_path)
        async with hosted as it:
            await it.listening()
            async with raw_client(it.port) as client:
                found = [*await log_in(client), *upstream.all_secrets()]
            if host == "mitmweb":
                port = re.search(r"Web server listening at http://127.0.0.1:(\d+)", it.stdout)
                assert port
                web = await asyncio.to_thread(all_in_mitmweb, f"http://127.0.0.1:{port[1]}")
            it.interrupt()
            await it.exit_code()
    shown = it.stdout + it.stderr + web + recording.read_bytes().decode("latin-1")
    assert "masked-" in shown
    assert [one for one in found if one in shown] == []


def all_in_mitmweb(at: str) -> str:
    """Return its list of flows, and each body that it shows."""

    def read(path: str) -> str:
        asked = urllib.request.Request(at + path, headers={"Authorization": "Bearer let-me-in"})
        with urllib.request.urlopen(asked, timeout=TIMEOUT) as got:
            return str(got.read().decode("latin-1"))

    shown = flows = read("/flows")
    for flow in json.loads(flows):
        shown += read(f"/flows/{flow['id']}/request/content.data")
        shown += read(f"/flows/{flow['id']}/response/content.data")
    assert "grant_type" in shown
    return shown


def recorded(to: Path, *addons: object, **options: Any) -> AbstractAsyncContextManager[Filtered]:
    """Open a proxy that records its flows."""
    return filtered(to.parent, *addons, Save(), save_stream_file=str(to), **options)


EVENT = b"data: " + RESULT + b"\n\n"
KEY = b"X-Api-Key: from-the-client\r\nCookie: sid=s-1; theme=dark\r\n"


async def test_the_upstream_gets_what_the_client_sent(tmp_path: Path) -> None:
    """And the user's own headers; a flow has masks for both. A script may change it."""

    def change(flow: Any) -> None:
        flow.request.headers["x-added"] = "by a script"

    recording, target = tmp_path / "all.flow", "/mcp?session_id=s-9&access_token=in-the-url"
    ours = ["X-Tenant-Token: t-0815"]
    async with recorded(recording, Hook("request", change), upstream_headers=ours) as it:
        await it.ask(CALL, KEY, path=target)
        await it.ask(CALL)
    first, second = (one.head for one in it.upstream.asked)
    own = (b"X-Api-Key: from-the-client", b"sid=s-1; theme=dark", target.encode())
    assert all(sent in first for sent in (*own, b"x-added: by a script"))
    assert b"X-Tenant-Token: t-0815" in second
    one, _ = read_flows(recording)
    assert "session_id=s-9" in one.request.path
    shown = recording.read_bytes()
    hidden = (b"from-the-client", b"s-1;", b"in-the-url", b"t-0815")
    assert not any(secret in shown for secret in hidden)


async def test_a_client_that_sends_a_mask_gets_no_token_for_it(tmp_path: Path) -> None:
    """A client that has seen the mask of another one's token could let the upstream echo it."""
    mask = ""

    async def respond(_request: RawRequest, peer: Peer) -> None:
        echo = f"\r\nSet-Cookie: a={mask}\r\n" if mask else "\r\n"
        await peer.say(answer(RESULT).replace(b"\r\n", echo.encode(), 1))

    recording = tmp_path / "all.flow"
    async with recorded(recording, respond=respond) as it:
        await it.ask(CALL, b"X-Tenant-Token: t-0815\r\n")
        it.proxy.master.addons.trigger(hooks.DoneHook())
        (flow,) = read_flows(recording)
        mask = flow.request.headers["x-tenant-token"]
        headers = f"X-Other: {mask}\r\nX-Tenant-Token: {mask}\r\n".encode()
        asked = call("read_file", f'{{"say":"{mask}"}}')
        got = await it.ask(asked, headers, path=f"/mcp?say={mask}")
    first, second = (one.head + one.body for one in it.upstream.asked)
    assert (first.count(b"t-0815"), second.count(b"t-0815")) == (1, 0)
    assert second.count(mask.encode()) == 4
    assert got.all("set-cookie") == [f"a={mask}"]


async def test_a_client_gets_the_unmasked_answer(tmp_path: Path) -> None:
    """A cookie of the upstream's, also with an event stream."""

    async def respond(request: RawRequest, peer: Peer) -> None:
        cookie = b"\r\nSet-Cookie: sid=c-4711; Path=/\r\n"
        if b"x-stream" in request.head.lower():
            await peer.say(SSE_HEAD.replace(b"\r\n", cookie, 1) + chunk(EVENT) + chunk(b""))
        else:
            await peer.say(answer(RESULT).replace(b"\r\n", cookie, 1))

    recording = tmp_path / "all.flow"
    async with recorded(recording, respond=respond) as it:
        got = await it.ask(CALL, KEY)
        streamed = await it.ask(CALL, KEY + b"X-Stream: yes\r\n")
    assert got.all("set-cookie") == streamed.all("set-cookie") == ["sid=c-4711; Path=/"]
    assert got.body == RESULT
    shown = recording.read_bytes()
    assert b"sid=masked-" in shown
    assert b"c-4711" not in shown
    assert b"from-the-client" not in shown
