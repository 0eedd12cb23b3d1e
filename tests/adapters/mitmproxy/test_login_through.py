"""Logins that pass through us, in a real mitmproxy: what each side gets, byte by byte."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import pytest

from mcp_tool_filter.adapters.mitmproxy.addon import ToolFilter
from tests.adapters.mitmproxy.login_through import (
    CLIENT,
    JSON,
    PING,
    PLACE,
    Between,
    answering,
    between,
    fetched,
    listening,
    query_of,
)
from tests.oauth_upstream import oauth_upstream
from tests.proxy import proxy
from tests.raw_client import MCP_HEADERS, get, post, raw_client

pytestmark = pytest.mark.usefixtures("own_config_folder")


async def test_authorize_redirects_only_to_the_named_endpoint(tmp_path: Path) -> None:
    async with between(tmp_path, elsewhere=True) as it:
        got = await it.authorize(resource="http://localhost/mcp")
        assert got.status == 302
        assert got.all("location")[0].startswith(it.upstream.issuer + "/authorize?")
        assert query_of(got)["resource"] == it.upstream.url
        assert query_of(got)["redirect_uri"] == CLIENT


async def test_only_a_login_that_began_here_is_redirected(tmp_path: Path) -> None:
    async with between(tmp_path, sends_issuer=True) as it:
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


async def test_an_upstream_without_metadata_is_named_as_the_resource(tmp_path: Path) -> None:
    how: dict[str, Any] = {
        "has_resource_metadata": False,
        "has_server_metadata": False,
        "binds_audience": False,
    }
    async with between(tmp_path, challenge="Bearer", **how) as it:
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


async def test_addresses_named_by_a_client_are_never_requested(tmp_path: Path) -> None:
    """The addresses that we ask are those in the upstream's metadata."""

    async with between(tmp_path, elsewhere=True) as it:
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


@pytest.mark.parametrize("path", ["/register", "/token", "/token?a=b", "/authorize"])
async def test_a_message_is_no_login_on_any_path(path: str, tmp_path: Path) -> None:
    """The authorization server may serve MCP, too."""
    async with between(tmp_path) as it:
        await it.register()
        before = len(it.upstream.registrations), len(it.upstream.token_requests)
        call = {
            "jsonrpc": "2.0",
            "id": 7,
            "method": "tools/call",
            "params": {"name": "delete_file"},
        }
        got = await it.client.ask(post(json.dumps(call).encode(), path=path))
        assert json.loads(got.body)["error"]["message"] == "Tool not found: delete_file"
        assert (len(it.upstream.registrations), len(it.upstream.token_requests)) == before


async def test_a_refused_token_request_says_why(tmp_path: Path) -> None:
    async with between(tmp_path, elsewhere=True) as it:
        await it.register()
        asked = {"grant_type": "authorization_code", "code": "x", "code_verifier": "y"}
        got = await it.ask_token(client_id="client-1", **asked)
        assert (got.status, json.loads(got.body)) == (400, {"error": "invalid_grant"})
        assert got.all("cache-control") == ["no-store"]


async def test_an_upstream_without_a_login_keeps_its_paths(tmp_path: Path) -> None:
    with answering({"/authorize": b"mine", "/token": b"mine"}) as url:
        async with (
            proxy(ToolFilter(fetch=fetched), to=url, home=tmp_path, deny=["^d"]) as it,
            raw_client(it.port) as client,
        ):
            for path in ("/authorize", "/token"):
                assert (await client.ask(get(path=path))).body == b"mine"
