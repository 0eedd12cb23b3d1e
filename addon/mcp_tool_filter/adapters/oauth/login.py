"""Log in with a browser: authorization code with PKCE (OAuth 2.1, MCP 2025-11-25)."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import secrets
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlencode, urlsplit

from mcp_tool_filter.adapters.fetch.tls import make_tls_context
from mcp_tool_filter.adapters.oauth.callback import Callback, CallbackRefused, callback
from mcp_tool_filter.adapters.oauth.credentials import remember_scopes, web_for
from mcp_tool_filter.adapters.oauth.discovery import Discovered, discover
from mcp_tool_filter.adapters.oauth.errors import LoginFailed
from mcp_tool_filter.adapters.oauth.login_state import LoginState, Registration
from mcp_tool_filter.adapters.oauth.registration import OwnClient, as_given, register
from mcp_tool_filter.adapters.oauth.store import LoginStore
from mcp_tool_filter.adapters.oauth.token_endpoint import TokenRefused, exchange_code, revoke
from mcp_tool_filter.adapters.oauth.web import Web, WebFailed, is_local
from mcp_tool_filter.errors import reason_of
from mcp_tool_filter.http.challenges import missing_scopes

_OFFLINE = "offline_access"
_PING = b'{"jsonrpc":"2.0","id":0,"method":"ping"}'

type Show = Callable[[str], Awaitable[None]]
"""Shows a URL to the user."""
type Paste = Callable[[], Awaitable[str]]
"""Waits for a URL that the user pastes from a browser on another device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """The user's options for a login."""

    client: OwnClient | None = None
    scopes: tuple[str, ...] | None = None
    callback_port: int = 0
    ca: str | None = None
    timeout: float = 300.0  # seconds to log in
    in_keyring: bool = False
    """True to keep the secrets in the system's keyring."""


async def log_in(
    endpoint: str, wishes: Wishes, store: LoginStore, show: Show, paste: Paste | None = None
) -> LoginState:
    """Log in and store the login. Raises StartError."""
    if urlsplit(endpoint).scheme != "https" and not is_local(endpoint):
        why = "Tokens are sent over https only, or on this machine"
        raise LoginFailed(endpoint, why=why)
    ca = str(Path(wishes.ca).expanduser().resolve()) if wishes.ca else None
    web = Web(endpoint, tls=make_tls_context(trusted_ca=ca) if ca else None)
    found = await discover(endpoint, web)
    old = store.load(found.endpoint)
    scopes = wishes.scopes if wishes.scopes is not None else _scopes(found, old)
    async with AsyncExitStack() as listening:
        back = await _listen(found, wishes.callback_port, listening)
        registration = await _registration(web, found, back, wishes, scopes)
        state = LoginState(
            endpoint=found.endpoint,
            resource=found.resource,
            issuer=found.server.issuer,
            token_endpoint=found.server.token_endpoint,
            revocation_endpoint=found.server.revocation_endpoint,
            registration=registration,
            tokens=None,
            ca=ca,
            in_keyring=wishes.in_keyring,
        )
        verifier = secrets.token_urlsafe(48)
        await show(_authorization_url(found, back, registration, scopes, verifier))
        code = await _code(back, wishes, paste, found.endpoint)
    try:
        tokens = await exchange_code(web, state, code, verifier, time.time())
    except (TokenRefused, WebFailed) as error:
        raise LoginFailed(found.endpoint, why=str(error)) from None
    async with store.lock(found.endpoint):
        store.save(state.with_tokens(tokens))
    return state.with_tokens(tokens)


async def wanted_scopes(state: LoginState, store: LoginStore) -> tuple[str, ...]:
    """Try the new token; return the additional scopes that the upstream wants. Raises StartError.

    They are stored, so that the next login requests them.
    """
    assert state.tokens
    bearer = (b"authorization", b"Bearer " + state.tokens.access_token.encode())
    accept = (b"accept", b"application/json, text/event-stream")
    try:
        answer = await web_for(state).post_json(state.endpoint, _PING, [bearer, accept])
    except WebFailed as error:
        raise LoginFailed(state.endpoint, why=str(error)) from None
    if answer.status == 401:
        store.forget(state.endpoint)
        raise LoginFailed(state.endpoint, why="The server does not accept the new token (HTTP 401)")
    wanted = missing_scopes(answer.status, answer.challenges)
    if wanted:
        await remember_scopes(store, state.endpoint, wanted)
    return wanted


async def drop(state: LoginState, store: LoginStore) -> str | None:
    """End a login; return the reason if the authorization server could not be told.

    Raises StartError.
    """
    problem = None
    async with store.lock(state.endpoint):
        try:
            await revoke(web_for(state), store.load(state.endpoint) or state)
        except WebFailed as error:
            problem = str(error)
        store.forget(state.endpoint)
    return problem


def _scopes(found: Discovered, old: LoginState | None) -> tuple[str, ...]:
    """Return the scopes to request: those the upstream wants, those it wanted later, and offline
    access."""
    wanted = [*found.scopes, *(old.wanted_scopes if old else ())]
    if old and old.wanted_scopes and old.tokens:
        wanted += old.tokens.scopes  # keep the previous scopes as well
    if wanted and _OFFLINE in found.server.scopes:
        wanted.append(_OFFLINE)
    return tuple(dict.fromkeys(wanted))


async def _listen(found: Discovered, port: int, listening: AsyncExitStack) -> Callback:
    """Listen for the redirect."""
    state = secrets.token_urlsafe(32)
    try:
        return await listening.enter_async_context(callback(port, state, found.server))
    except OSError as error:
        why = f"Cannot listen on 127.0.0.1:{port}: {reason_of(error)}"
        raise LoginFailed(found.endpoint, why=why) from None


async def _registration(
    web: Web, found: Discovered, back: Callback, wishes: Wishes, scopes: tuple[str, ...]
) -> Registration:
    """Register again for each login, because some authorization servers forget their clients."""
    if wishes.client:
        return as_given(wishes.client, found.server, back.redirect_uri, found.endpoint)
    return await register(web, found.server, back.redirect_uri, scopes, found.endpoint)


def _authorization_url(
    found: Discovered,
    back: Callback,
    registration: Registration,
    scopes: tuple[str, ...],
    verifier: str,
) -> str:
    digest = hashlib.sha256(verifier.encode()).digest()
    fields = {
        "response_type": "code",
        "client_id": registration.client_id,
        "redirect_uri": back.redirect_uri,
        "state": back.state,
        "code_challenge": base64.urlsafe_b64encode(digest).rstrip(b"=").decode(),
        "code_challenge_method": "S256",
    }
    if scopes:
        fields["scope"] = " ".join(scopes)
    if found.resource:
        fields["resource"] = found.resource
    if _OFFLINE in scopes:
        fields["prompt"] = "consent"  # OpenID Connect issues no refresh token without it
    endpoint = found.server.authorization_endpoint
    return f"{endpoint}{'&' if urlsplit(endpoint).query else '?'}{urlencode(fields)}"


async def _code(back: Callback, wishes: Wishes, paste: Paste | None, endpoint: str) -> str:
    """Wait for the redirect, or for the user to paste its URL."""
    pasting = asyncio.create_task(_take_pasted(back, paste)) if paste else None
    try:
        async with asyncio.timeout(wishes.timeout):
            return await back.code()
    except TimeoutError:
        why = f"Nobody logged in within {wishes.timeout:.0f} s"
        raise LoginFailed(endpoint, why=why) from None
    except CallbackRefused as refused:
        raise LoginFailed(endpoint, why=str(refused)) from None
    finally:
        if pasting:
            pasting.cancel()


async def _take_pasted(back: Callback, paste: Paste) -> None:
    while not back.take(await paste()):
        pass
