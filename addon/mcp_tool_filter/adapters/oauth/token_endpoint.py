"""Get, renew and revoke tokens at an authorization server (RFC 6749, 7009, 8707)."""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Mapping
from urllib.parse import quote

from mcp_tool_filter.adapters.oauth.login_state import LoginState, Registration, Tokens
from mcp_tool_filter.adapters.oauth.web import Web, WebAnswer, WebFailed

_TOKEN = re.compile(r"[!-~]+")
_LONGEST_LIFE = 10 * 365 * 24 * 3600.0
# These errors are final: the login itself is invalid.
_FINAL = frozenset({"invalid_grant", "invalid_client", "unauthorized_client"})


class TokenRefused(Exception):
    """The authorization server refused. ``str()`` is its reason, without any secret."""

    def __init__(self, status: int, error: str, description: str) -> None:
        super().__init__(f"{error}: {description}" if description else error or f"HTTP {status}")
        self.is_final = error in _FINAL


async def exchange_code(
    web: Web, state: LoginState, code: str, verifier: str, now: float
) -> Tokens:
    """Exchange a code for tokens. Raises TokenRefused, WebFailed."""
    fields = {
        "grant_type": "authorization_code",
        "code": code,
        "redirect_uri": state.registration.redirect_uri,
        "code_verifier": verifier,
    }
    return await _ask(web, state, fields, now)


async def renew(web: Web, state: LoginState, now: float) -> Tokens:
    """Get new tokens for the refresh token. Raises TokenRefused, WebFailed."""
    assert state.tokens
    assert state.tokens.refresh_token
    fields = {"grant_type": "refresh_token", "refresh_token": state.tokens.refresh_token}
    got = await _ask(web, state, fields, now)
    return Tokens(
        access_token=got.access_token,
        refresh_token=got.refresh_token or state.tokens.refresh_token,  # RFC 6749, section 6
        received_at=got.received_at,
        expires_at=got.expires_at,
        scopes=got.scopes or state.tokens.scopes,
    )


async def revoke(web: Web, state: LoginState) -> None:
    """Revoke our tokens at the authorization server. Raises WebFailed."""
    if state.revocation_endpoint is None or state.tokens is None:
        return
    token = state.tokens.refresh_token or state.tokens.access_token
    kind = "refresh_token" if state.tokens.refresh_token else "access_token"
    await _post(
        web,
        state.revocation_endpoint,
        state.registration,
        {"token": token, "token_type_hint": kind},
    )


async def _ask(web: Web, state: LoginState, fields: dict[str, str], now: float) -> Tokens:
    if state.resource:
        fields["resource"] = state.resource
    answer = await _post(web, state.token_endpoint, state.registration, fields)
    said = _object(answer)
    if answer.status != 200:
        raise TokenRefused(answer.status, _plain(said, "error"), _plain(said, "error_description"))
    return _tokens(said, now)


async def _post(
    web: Web, url: str, registration: Registration, fields: dict[str, str]
) -> WebAnswer:
    basic = None
    secret = registration.client_secret or ""
    if registration.auth_method == "client_secret_basic":
        pair = f"{quote(registration.client_id, safe='')}:{quote(secret, safe='')}"
        basic = base64.b64encode(pair.encode()).decode()
    elif registration.auth_method == "client_secret_post":
        fields["client_secret"] = secret
    fields["client_id"] = registration.client_id  # also with basic, for the Python SDK
    return await web.post_form(url, list(fields.items()), basic=basic)


def _tokens(said: Mapping[str, object], now: float) -> Tokens:
    access, kind = said.get("access_token"), said.get("token_type")
    if not isinstance(access, str) or not _TOKEN.fullmatch(access):
        raise WebFailed("The token endpoint gave no access token")
    if not isinstance(kind, str) or kind.lower() != "bearer":
        raise WebFailed("The token endpoint gave a token that is no bearer token")
    refresh, scope = said.get("refresh_token"), said.get("scope")
    lasts = _seconds(said.get("expires_in"))
    return Tokens(
        access_token=access,
        refresh_token=refresh if isinstance(refresh, str) and refresh else None,
        received_at=now,
        expires_at=None if lasts is None else now + lasts,
        scopes=tuple(scope.split()) if isinstance(scope, str) else (),
    )


def _seconds(said: object) -> float | None:
    """Parse a token's lifetime; some servers send it as a string."""
    try:
        seconds = float(said) if isinstance(said, int | float | str) else math.nan
    except ValueError:
        return None
    if math.isnan(seconds) or isinstance(said, bool):
        return None
    return min(max(seconds, 0.0), _LONGEST_LIFE)


def _object(answer: WebAnswer) -> Mapping[str, object]:
    try:
        said = json.loads(answer.body)
    except (ValueError, RecursionError):
        said = None
    if isinstance(said, dict):
        return said
    if answer.status == 200:
        raise WebFailed("The token endpoint gave no JSON object")
    return {}


def _plain(said: Mapping[str, object], name: str) -> str:
    """Return the server's text without control characters."""
    value = said.get(name)
    text = value if isinstance(value, str) else ""
    return "".join(one if one.isprintable() else "?" for one in text[:200])
