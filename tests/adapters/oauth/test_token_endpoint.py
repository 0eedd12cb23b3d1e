"""Tokens: got, renewed and revoked; every byte of the answers is chosen here."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from typing import Any
from urllib.parse import parse_qsl

import pytest

from mcp_tool_filter.adapters.oauth.store import LoginState, Registration, Tokens
from mcp_tool_filter.adapters.oauth.tokens import (
    TokenRefused,
    exchange_code,
    renew,
    revoke,
)
from mcp_tool_filter.adapters.oauth.web import Web, WebFailed
from tests.raw_upstream import Peer, RawRequest, answer, raw_upstream

GIVEN = {"access_token": "a1", "token_type": "Bearer", "expires_in": 60}
STATE = LoginState(
    endpoint="https://mcp.example/mcp",
    resource="https://mcp.example/mcp",
    issuer="",
    token_endpoint="",
    revocation_endpoint="",
    registration=Registration(client_id="our id", redirect_uri="http://127.0.0.1:1/callback"),
    tokens=Tokens(access_token="a0", refresh_token="r0", received_at=0, scopes=("tools",)),
)
SECRET = replace(STATE.registration, client_secret="s:1", auth_method="client_secret_basic")


async def asked(
    what: str, said: object, *, status: str = "200 OK", state: LoginState = STATE
) -> tuple[Any, RawRequest]:
    """Return what came of asking, and the request."""

    async def script(peer: Peer) -> None:
        await peer.request()
        text = said if isinstance(said, str) else json.dumps(said)
        await peer.say(answer(text.encode(), status=status))

    async with raw_upstream(script) as server:
        web = Web(server.url)
        at = replace(
            state, token_endpoint=f"{server.url}/token", revocation_endpoint=f"{server.url}/revoke"
        )
        made: Any = None
        match what:
            case "code":
                made = await exchange_code(web, at, "c1", "v1", now=1000)
            case "renew":
                made = await renew(web, at, now=1000)
            case "revoke":
                await revoke(web, at)
        return made, server.requests[0]


def fields(request: RawRequest) -> dict[str, str]:
    return dict(parse_qsl(request.body.decode()))


async def test_a_code_is_exchanged_with_its_pkce_verifier() -> None:
    tokens, request = await asked("code", {**GIVEN, "refresh_token": "r1", "scope": "a b"})
    assert (tokens.access_token, tokens.refresh_token) == ("a1", "r1")
    assert (tokens.received_at, tokens.expires_at, tokens.scopes) == (1000, 1060, ("a", "b"))
    assert request.line == "POST /token HTTP/1.1"
    assert fields(request) == {
        "grant_type": "authorization_code",
        "code": "c1",
        "redirect_uri": "http://127.0.0.1:1/callback",
        "code_verifier": "v1",
        "resource": "https://mcp.example/mcp",
        "client_id": "our id",
    }


async def test_a_renewal_keeps_members_that_the_answer_omits() -> None:
    tokens, request = await asked("renew", GIVEN)
    assert (tokens.access_token, tokens.refresh_token) == ("a1", "r0")
    assert tokens.scopes == ("tools",)
    assert fields(request)["refresh_token"] == "r0"


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
    said = {"error": error, "error_description": "so\x1b it is"}
    with pytest.raises(TokenRefused) as caught:
        await asked("renew", said, status="400 Bad Request")
    assert str(caught.value) == f"{error}: so? it is"
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


@pytest.mark.parametrize(
    ("said", "expires"),
    [("60", 1060), (-5, 1000), (None, None), ("soon", None), (True, None), ("nan", None)],
)
async def test_how_long_a_token_lasts_is_read_leniently(said: object, expires: object) -> None:
    tokens, _ = await asked("code", {**GIVEN, "expires_in": said})
    assert tokens.expires_at == expires


async def test_the_refresh_token_is_revoked() -> None:
    _, request = await asked("revoke", "")
    assert request.line == "POST /revoke HTTP/1.1"
    assert fields(request) == {
        "token": "r0",
        "token_type_hint": "refresh_token",
        "client_id": "our id",
    }
