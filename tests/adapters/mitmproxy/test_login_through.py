"""Logins that pass through us, in a real mitmproxy: what each side gets, byte by byte."""

from __future__ import annotations

import asyncio
import gzip
import json
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest

from mcp_tool_filter.adapters.mitmproxy.addon import ToolFilter
from mcp_tool_filter.conversation.fetched import Fetched, example
from tests.oauth_upstream import OAuthUpstream, oauth_upstream
from tests.proxy import RunningProxy, proxy
from tests.raw_client import MCP_HEADERS, Answer, RawClient, get, h2_client, post, raw_client

PING = b'{"jsonrpc":"2.0","id":7,"method":"ping"}'
PLACE = "/.well-known/oauth-protected-resource/mcp"
SERVER = "/.well-known/oauth-authorization-server"
CLIENT = "http://127.0.0.1:49152/callback"
FORM = b"Host: localhost\r\nContent-Type: application/x-www-form-urlencoded\r\n"
JSON = b"Host: localhost\r\nContent-Type: application/json\r\n"


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Registrations are kept in the user's folder."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


async def fetched(_target: object) -> Fetched:
    return example("read_file", "delete_file")


@dataclass
class Between:
    upstream: OAuthUpstream
    proxy: RunningProxy
    client: RawClient

    async def see(self, path: str, headers: bytes = MCP_HEADERS) -> Answer:
        return await self.client.ask(get(path=path, headers=headers))

    async def document(self, path: str, headers: bytes = MCP_HEADERS) -> dict[str, Any]:
        got = await self.see(path, headers)
        assert got.status == 200, got
        found: dict[str, Any] = json.loads(got.body)
        return found

    async def register(self, *uris: str) -> Answer:
        body = json.dumps({"redirect_uris": list(uris or (CLIENT,))}).encode()
        return await self.client.ask(post(body, path="/register", headers=JSON))

    async def authorize(self, headers: bytes = MCP_HEADERS, **asked: str) -> Answer:
        usual = {"client_id": "client-1", "redirect_uri": CLIENT, "state": "s"}
        return await self.see("/authorize?" + urlencode(usual | asked), headers)

    async def ask_token(self, **asked: str) -> Answer:
        body = urlencode(asked).encode()
        return await self.client.ask(post(body, path="/token", headers=FORM))


@asynccontextmanager
async def between(
    home: Path, options: dict[str, Any] | None = None, **how: Any
) -> AsyncIterator[Between]:
    given = {"deny": ["^delete_"], "endpoint": ["/mcp"], **(options or {})}
    with oauth_upstream(**how) as upstream:
        async with (
            proxy(ToolFilter(fetch=fetched), to=upstream.origin, home=home, **given) as it,
            raw_client(it.port) as client,
        ):
            await client.ask(post(PING))  # each client first learns that a login is wanted
            yield Between(upstream, it, client)


def run(home: Path, test: Callable[[Between], Coroutine[Any, Any, None]], **how: Any) -> None:
    async def main() -> None:
        async with between(home, **how) as it:
            await test(it)

    asyncio.run(main())


def query_of(got: Answer) -> dict[str, str]:
    (there,) = got.all("location")
    return {name: values[0] for name, values in parse_qs(urlsplit(there).query).items()}


def test_challenges_name_us_as_the_client_does(tmp_path: Path) -> None:
    async def test(it: Between) -> None:
        forwarded = b"X-Forwarded-Host: evil.example\r\nForwarded: host=evil.example\r\n"
        for host in (b"localhost:1234", b"127.0.0.1", b"[::1]:80"):
            headers = MCP_HEADERS.replace(b"localhost", host) + forwarded
            got = await it.client.ask(post(PING, headers=headers))
            assert got.status == 401
            ours = "http://" + host.decode()
            challenge = f'Bearer error="invalid_token", resource_metadata="{ours}{PLACE}"'
            assert got.all("www-authenticate") == [challenge]
            assert (await it.document(PLACE, headers))["resource"] == ours + "/mcp"
            assert (await it.document(SERVER, headers))["issuer"] == ours

    run(tmp_path, test)


def test_a_host_that_may_not_ask_gets_no_document(tmp_path: Path) -> None:
    async def test(it: Between) -> None:
        headers = MCP_HEADERS.replace(b"localhost", b"evil.example")
        for path in (PLACE, SERVER, "/authorize?client_id=x"):
            assert (await it.see(path, headers)).status == 403

    run(tmp_path, test)


@pytest.mark.parametrize("elsewhere", [True, False])
def test_the_documents_name_us(tmp_path: Path, elsewhere: bool) -> None:
    async def test(it: Between) -> None:
        for path in (PLACE, "/.well-known/oauth-protected-resource"):
            found = await it.document(path)
            assert found["resource"] == "http://localhost/mcp"
            assert found["authorization_servers"] == ["http://localhost"]
        for path in (SERVER, "/.well-known/openid-configuration"):
            found = await it.document(path)
            assert found["issuer"] == "http://localhost"
            assert found["token_endpoint"] == "http://localhost/token"
            assert it.upstream.origin not in json.dumps(found)
        assert (await it.see(SERVER + "/mcp")).status == 404

    run(tmp_path, test, elsewhere=elsewhere)


def test_a_page_that_may_ask_reads_the_documents(tmp_path: Path) -> None:
    async def test(it: Between) -> None:
        page = MCP_HEADERS + b"Origin: http://localhost:6274\r\n"
        got = await it.see(SERVER, page)
        assert got.all("access-control-allow-origin") == ["http://localhost:6274"]
        asks = b"OPTIONS /token HTTP/1.1\r\n" + page + b"Access-Control-Request-Method: POST\r\n"
        got = await it.client.ask(asks + b"\r\n")
        assert got.status == 204
        assert "content-type" in got.all("access-control-allow-headers")[0]
        evil = page.replace(b"localhost:6274", b"evil.example")
        assert (await it.see(SERVER, evil)).status == 403

    run(tmp_path, test)


def test_without_a_registration_endpoint_only_the_resource_is_rewritten(tmp_path: Path) -> None:
    async def test(it: Between) -> None:
        found = await it.document(PLACE)
        assert found["resource"] == "http://localhost/mcp"
        assert found["authorization_servers"] == [it.upstream.issuer]
        assert (await it.see(SERVER)).status == 404  # as the upstream answers
        assert not (await it.authorize()).all("location")

    run(tmp_path, test, has_registration=False, elsewhere=True)


def test_the_plain_degree_can_be_chosen(tmp_path: Path) -> None:
    async def test(it: Between) -> None:
        found = await it.document(PLACE)
        assert found["resource"] == "http://localhost/mcp"
        assert found["authorization_servers"] == [it.upstream.issuer]

    run(tmp_path, test, elsewhere=True, options={"login_through": ["plain"]})


@pytest.mark.parametrize(
    "options", [{"login_through": ["off"]}, {"upstream_headers": ["Authorization: Bearer x"]}]
)
def test_it_can_be_off(tmp_path: Path, options: dict[str, Any]) -> None:
    async def test(it: Between) -> None:
        assert (await it.document(PLACE))["resource"] == it.upstream.url
        assert (await it.document(SERVER))["issuer"] == it.upstream.issuer

    run(tmp_path, test, options=options)


def test_authorize_leads_to_the_named_endpoint_only(tmp_path: Path) -> None:
    async def test(it: Between) -> None:
        got = await it.authorize(resource="http://localhost/mcp")
        assert got.status == 302
        assert got.all("location")[0].startswith(it.upstream.issuer + "/authorize?")
        assert query_of(got)["resource"] == it.upstream.url
        assert query_of(got)["redirect_uri"] == CLIENT

    run(tmp_path, test, elsewhere=True)


def test_nobody_is_redirected_who_has_not_begun_here(tmp_path: Path) -> None:
    async def test(it: Between) -> None:
        got = await it.register()
        assert json.loads(got.body)["redirect_uris"] == [CLIENT]
        (callback,) = it.upstream.registrations[0]["redirect_uris"]
        path = urlsplit(callback).path
        begun = query_of(await it.authorize())
        assert begun["redirect_uri"] == callback
        back = {"code": "c", "iss": it.upstream.issuer, "redirect_uri": "https://evil.example"}
        for state in ("s", "", "guess"):
            got = await it.see(f"{path}?{urlencode(back | {'state': state})}")
            assert (got.status, got.all("location")) == (400, [])
        got = await it.see(f"{path}x?{urlencode(back | {'state': begun['state']})}")
        assert (got.status, got.all("location")) == (400, [])
        other = back | {"state": begun["state"], "iss": "https://evil.example"}  # a mix-up
        got = await it.see(f"{path}?{urlencode(other)}")
        assert (got.status, got.all("location")) == (400, [])
        assert (await it.authorize(redirect_uri="https://evil.example/")).status == 400
        assert (await it.register("https://evil.example/")).status == 400

    run(tmp_path, test, sends_issuer=True)


def test_an_upstream_without_metadata_is_named_as_the_resource(tmp_path: Path) -> None:
    async def test(it: Between) -> None:
        await it.register()
        got = await it.authorize(resource="http://localhost/mcp", code_challenge_method="S256")
        assert got.status == 302
        assert it.upstream.authorizations[-1]["resource"] == it.upstream.url
        await it.ask_token(client_id="client-1", grant_type="x", resource="http://localhost/mcp")
        assert it.upstream.token_requests[-1]["resource"] == it.upstream.url

    how = {"has_resource_metadata": False, "has_server_metadata": False, "challenge": "Bearer"}
    run(tmp_path, test, binds_audience=False, **how)


def test_a_restart_does_not_forget_who_has_registered(tmp_path: Path) -> None:
    async def main() -> None:
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

    asyncio.run(main())


def test_a_browser_comes_back_from_another_site(tmp_path: Path) -> None:
    async def test(it: Between) -> None:
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

    run(tmp_path, test, sends_issuer=True)


def test_what_a_client_names_is_never_asked(tmp_path: Path) -> None:
    """The addresses that we ask are those in the upstream's metadata."""

    async def test(it: Between) -> None:
        with listening() as (trap, asked):
            await it.authorize(client_id=trap, resource=trap, redirect_uri=trap, request_uri=trap)
            body = {"redirect_uris": [trap], "jwks_uri": trap, "logo_uri": trap}
            await it.client.ask(post(json.dumps(body).encode(), path="/register", headers=JSON))
            await it.ask_token(grant_type="authorization_code", resource=trap, redirect_uri=trap)
            host = trap.removeprefix("http://").encode()
            headers = MCP_HEADERS.replace(b"localhost", host)
            await it.see(PLACE, headers)
            await it.see(f"{PLACE}/{trap}")
            assert asked == []

    run(tmp_path, test, elsewhere=True)


@pytest.mark.parametrize(
    "url", ["http://10.0.0.1/latest", "http://tokens.example/", "file:///etc/passwd"]
)
def test_metadata_may_not_name_what_no_login_needs(tmp_path: Path, url: str) -> None:
    async def test(it: Between) -> None:
        assert (await it.see(SERVER)).status == 404  # as the upstream answers
        assert not (await it.authorize(code_challenge_method="S256")).all("location")

    run(tmp_path, test, elsewhere=True, metadata={"token_endpoint": url})


def test_a_refused_token_request_says_why(tmp_path: Path) -> None:
    async def test(it: Between) -> None:
        await it.register()
        asked = {"grant_type": "authorization_code", "code": "x", "code_verifier": "y"}
        got = await it.ask_token(client_id="client-1", **asked)
        assert (got.status, json.loads(got.body)) == (400, {"error": "invalid_grant"})
        assert got.all("cache-control") == ["no-store"]

    run(tmp_path, test, elsewhere=True)


def test_an_upstream_without_a_login_keeps_its_paths(tmp_path: Path) -> None:
    async def main() -> None:
        with answering({"/authorize": b"mine", "/token": b"mine"}) as url:
            async with (
                proxy(ToolFilter(fetch=fetched), to=url, home=tmp_path, deny=["^d"]) as it,
                raw_client(it.port) as client,
            ):
                for path in ("/authorize", "/token"):
                    assert (await client.ask(get(path=path))).body == b"mine"

    asyncio.run(main())


def test_with_a_header_of_the_users_no_challenge_says_where_to_log_in(tmp_path: Path) -> None:
    """A client could only log in past us; the user who started us has to find another token."""

    async def test(it: Between) -> None:
        got = await it.client.ask(post(PING))
        assert got.status == 401
        assert got.all("www-authenticate") == ['Bearer error="invalid_token"']

    run(tmp_path, test, options={"upstream_headers": ["Authorization: Bearer old"]})


def test_challenges_name_us_over_http2_and_to_sockets_and_streams(tmp_path: Path) -> None:
    async def test(it: Between) -> None:
        async with h2_client(it.proxy.port) as client:
            number = client.ask(body=PING, headers=[(b"content-type", b"application/json")])
            stream = await client.over(number)
            said = stream.headers[b"www-authenticate"].decode()
            assert f'resource_metadata="https://localhost{PLACE}"' in said
            number = client.ask("GET", path=PLACE)
            found = json.loads((await client.over(number)).data)
            assert found["resource"] == "https://localhost/mcp"
        upgrade = b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
        key = b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
        for headers in (MCP_HEADERS, b"Host: localhost\r\n" + upgrade + key):
            async with raw_client(it.proxy.port) as other:
                got = await other.ask(get(headers=headers))
            assert got.status == 401
            assert it.upstream.origin not in got.head.decode()
            assert f'resource_metadata="http://localhost{PLACE}"' in got.all("www-authenticate")[0]

    run(tmp_path, test)


@pytest.mark.parametrize(
    "host", [b"localhost:1@evil.example", b"evil.example", b"localhost/evil", b"localhost:1,x", b""]
)
def test_no_document_names_what_a_host_header_slips_in(tmp_path: Path, host: bytes) -> None:
    async def test(it: Between) -> None:
        headers = MCP_HEADERS.replace(b"localhost", host)
        twice = MCP_HEADERS + b"Host: evil.example\r\n"
        for given in (headers, twice):
            for path in (PLACE, SERVER, "/authorize?client_id=x"):
                async with raw_client(it.proxy.port) as other:
                    got = await other.ask(get(path=path, headers=given))
                assert got.status in (400, 403)
                assert b"evil" not in got.body
                assert not got.all("location")

    run(tmp_path, test)


def test_metadata_by_another_status_names_us(tmp_path: Path) -> None:
    """Clients read each answer that says success."""

    async def main() -> None:
        pages = dict[str, bytes]()
        with answering(pages, status=203) as url:
            pages[PLACE] = json.dumps({"resource": url + "/mcp"}).encode()
            async with (
                proxy(ToolFilter(fetch=fetched), to=url, home=tmp_path, deny=["^d"]) as it,
                raw_client(it.port) as client,
            ):
                got = await client.ask(get(path=PLACE))
                assert json.loads(got.body)["resource"] == "http://localhost/mcp"

    asyncio.run(main())


def test_packed_metadata_is_rewritten_and_not_to_be_kept(tmp_path: Path) -> None:
    async def main() -> None:
        pages = dict[str, bytes]()
        said: dict[str, Any] = {
            "Content-Encoding": "gzip",
            "ETag": '"x"',
            "Last-Modified": "yesterday",
        }
        with answering(pages, **said) as url:
            pages[PLACE] = gzip.compress(
                json.dumps({"resource": url + "/mcp", "authorization_servers": [url]}).encode()
            )
            async with (
                proxy(ToolFilter(fetch=fetched), to=url, home=tmp_path, deny=["^d"]) as it,
                raw_client(it.port) as client,
            ):
                got = await client.ask(get(path=PLACE))
                assert json.loads(got.body)["resource"] == "http://localhost/mcp"
                assert not got.all("etag") + got.all("last-modified")
                assert not got.all("content-encoding")

    asyncio.run(main())


@contextmanager
def answering(pages: dict[str, bytes], status: int = 200, **headers: str) -> Iterator[str]:
    """An upstream with these pages."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            body = pages.get(self.path)
            self.send_response(404 if body is None else status)
            for name, value in headers.items() if body is not None else ():
                self.send_header(name.replace("_", "-"), value)
            self.send_header("Content-Length", str(len(body or b"")))
            self.end_headers()
            self.wfile.write(body or b"")

        def log_message(self, *_args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


@contextmanager
def listening() -> Iterator[tuple[str, list[str]]]:
    """A trap: its URL, and who has connected."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def handle(self) -> None:
            asked.append(str(self.client_address))

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", asked
    finally:
        server.shutdown()
        server.server_close()
