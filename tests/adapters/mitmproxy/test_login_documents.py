"""Challenges and metadata documents of a login name us, whatever the client asks."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from mcp_tool_filter.adapters.mitmproxy.addon import ToolFilter
from tests.adapters.mitmproxy.login_through import PING, PLACE, SERVER, answering, between, fetched
from tests.proxy import proxy
from tests.raw_client import MCP_HEADERS, get, h2_client, post, raw_client

pytestmark = pytest.mark.usefixtures("own_config_folder")


async def test_challenges_name_us_as_the_client_addressed_us(tmp_path: Path) -> None:
    async with between(tmp_path) as it:
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


async def test_a_host_that_may_not_ask_gets_no_document(tmp_path: Path) -> None:
    async with between(tmp_path) as it:
        headers = MCP_HEADERS.replace(b"localhost", b"evil.example")
        for path in (PLACE, SERVER, "/authorize?client_id=x"):
            assert (await it.see(path, headers)).status == 403


@pytest.mark.parametrize("elsewhere", [True, False])
async def test_the_metadata_documents_name_us(tmp_path: Path, elsewhere: bool) -> None:
    async with between(tmp_path, elsewhere=elsewhere) as it:
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


async def test_without_a_registration_endpoint_only_the_resource_is_rewritten(
    tmp_path: Path,
) -> None:
    async with between(tmp_path, has_registration=False, elsewhere=True) as it:
        found = await it.document(PLACE)
        assert found["resource"] == "http://localhost/mcp"
        assert found["authorization_servers"] == [it.upstream.issuer]
        assert (await it.see(SERVER)).status == 404  # as the upstream answers
        assert not (await it.authorize()).all("location")


async def test_rewriting_only_the_metadata_can_be_chosen(tmp_path: Path) -> None:
    async with between(tmp_path, elsewhere=True, options={"login_through": ["plain"]}) as it:
        found = await it.document(PLACE)
        assert found["resource"] == "http://localhost/mcp"
        assert found["authorization_servers"] == [it.upstream.issuer]


@pytest.mark.parametrize(
    "options", [{"login_through": ["off"]}, {"upstream_headers": ["Authorization: Bearer x"]}]
)
async def test_the_rewriting_can_be_switched_off(tmp_path: Path, options: dict[str, Any]) -> None:
    async with between(tmp_path, options=options) as it:
        assert (await it.document(PLACE))["resource"] == it.upstream.url
        assert (await it.document(SERVER))["issuer"] == it.upstream.issuer


@pytest.mark.parametrize(
    "url", ["http://10.0.0.1/latest", "http://tokens.example/", "file:///etc/passwd"]
)
async def test_metadata_with_an_address_that_no_login_needs_is_not_rewritten(
    tmp_path: Path, url: str
) -> None:
    async with between(tmp_path, elsewhere=True, metadata={"token_endpoint": url}) as it:
        assert (await it.see(SERVER)).status == 404  # as the upstream answers
        assert not (await it.authorize(code_challenge_method="S256")).all("location")


async def test_challenges_do_not_name_a_login_if_the_user_set_a_header(tmp_path: Path) -> None:
    """The client's own login would not help: the user's configured token was refused."""

    async with between(tmp_path, options={"upstream_headers": ["Authorization: Bearer old"]}) as it:
        got = await it.client.ask(post(PING))
        assert got.status == 401
        assert got.all("www-authenticate") == ['Bearer error="invalid_token"']


async def test_challenges_name_us_over_http2_websockets_and_streams(tmp_path: Path) -> None:
    async with between(tmp_path) as it:
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


@pytest.mark.parametrize(
    "host", [b"localhost:1@evil.example", b"evil.example", b"localhost/evil", b"localhost:1,x", b""]
)
async def test_an_odd_host_header_is_in_no_document(tmp_path: Path, host: bytes) -> None:
    async with between(tmp_path) as it:
        headers = MCP_HEADERS.replace(b"localhost", host)
        twice = MCP_HEADERS + b"Host: evil.example\r\n"
        for given in (headers, twice):
            for path in (PLACE, SERVER, "/authorize?client_id=x"):
                async with raw_client(it.proxy.port) as other:
                    got = await other.ask(get(path=path, headers=given))
                assert got.status in (400, 403)
                assert b"evil" not in got.body
                assert not got.all("location")


async def test_metadata_with_another_success_status_names_us(tmp_path: Path) -> None:
    """Clients read each answer that says success."""

    pages = dict[str, bytes]()
    with answering(pages, status=203) as url:
        pages[PLACE] = json.dumps({"resource": url + "/mcp"}).encode()
        async with (
            proxy(ToolFilter(fetch=fetched), to=url, home=tmp_path, deny=["^d"]) as it,
            raw_client(it.port) as client,
        ):
            got = await client.ask(get(path=PLACE))
            assert json.loads(got.body)["resource"] == "http://localhost/mcp"


async def test_compressed_metadata_is_rewritten_and_not_cached(tmp_path: Path) -> None:
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
