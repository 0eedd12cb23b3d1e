"""Log in with a browser: authorization code with PKCE (OAuth 2.1, MCP 2025-11-25).

A client id is the user's own, or comes from registering (RFC 7591). The browser's redirect brings
a code to a tiny server on loopback, for one path (RFC 8252). Other programs and pages can send it
requests too: it accepts only one that knows our ``state``.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qs, urlencode, urlsplit

from mcp_tool_filter.cli.http_server import ServerLimits, http_server
from mcp_tool_filter.core.errors import Mistake, reason_of
from mcp_tool_filter.core.policy.config import LOOPBACK
from mcp_tool_filter.core.sockets.connect import make_tls_context
from mcp_tool_filter.core.sockets.served import ServedRequest, ServedResponse
from mcp_tool_filter.core.upstream.clients import JSON_OR_EVENTS
from mcp_tool_filter.rooms.logins.discovery import Discovered, Web, WebFailed, discover, is_local
from mcp_tool_filter.rooms.logins.metadata import (
    ServerMetadata,
    is_same_issuer,
    is_text,
    missing_scopes,
    object_in,
)
from mcp_tool_filter.rooms.logins.store import LoginFailed, LoginState, LoginStore, Registration
from mcp_tool_filter.rooms.logins.tokens import (
    TokenRefused,
    exchange_code,
    remember_scopes,
    revoke,
    web_for,
)

_PATH = "/callback"
_LIMITS = ServerLimits(body=0, connections=20, request=10, grace=0.5)
_HEADERS = (
    (b"content-type", b"text/html; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"content-security-policy", b"default-src 'none'; style-src 'unsafe-inline'"),
    (b"referrer-policy", b"no-referrer"),
    (b"connection", b"close"),
)
_PAGE = (
    "<!doctype html><meta charset=utf-8><title>mcp-tool-filter</title>"
    "<style>body{font:18px system-ui;margin:20vh auto;max-width:30em;text-align:center}</style>"
    "<p>%s"
)
_DONE = "You are logged in. You can close this window."
_REFUSED = "The login has failed. The terminal says why."


class CallbackRefused(Exception):
    """The redirect says that the login failed. ``str()`` says why."""


@dataclass(slots=True)
class Callback:
    """The server for the redirect."""

    port: int
    state: str
    server: ServerMetadata
    _code: asyncio.Future[str]

    @property
    def redirect_uri(self) -> str:
        return f"http://{LOOPBACK}:{self.port}{_PATH}"

    async def code(self) -> str:
        """Wait for the code. Raises CallbackRefused."""
        return await asyncio.shield(self._code)

    def take(self, url: str) -> bool:
        """Read the URL of the redirect; return whether it belongs to our login."""
        try:
            query = parse_qs(urlsplit(url).query)
            is_ours = hmac.compare_digest(_one(query, "state").encode(), self.state.encode())
        except ValueError:  # pasted, and no URL
            return False
        if not is_ours:
            return False
        if self._code.done():
            return True
        issuer = query.get("iss")
        code = _one(query, "code")
        if issuer is None and self.server.sends_issuer:
            self._refuse("The redirect names no issuer")
        elif issuer is not None and not is_same_issuer(_one(query, "iss"), self.server.issuer):
            self._refuse("The redirect is from another issuer")
        elif error := _one(query, "error"):
            described = _one(query, "error_description")
            self._refuse(f"{error}: {described}" if described else error)
        elif not code:
            self._refuse("The redirect has no code")
        else:
            self._code.set_result(code)
        return True

    @property
    def is_refused(self) -> bool:
        return self._code.done() and self._code.exception() is not None

    def _refuse(self, why: str) -> None:
        plain = "".join(one if one.isprintable() else "?" for one in why[:300])
        self._code.set_exception(CallbackRefused(plain))

    async def _answer(self, request: ServedRequest) -> ServedResponse:
        hosts = [value.lower() for name, value in request.headers if name == b"host"]
        ours = hosts in ([f"{LOOPBACK}:{self.port}".encode()], [f"localhost:{self.port}".encode()])
        if request.method != "GET" or not ours or request.path != _PATH:
            return _response(404, "There is nothing here.")
        if not self.take(request.target):
            return _response(400, "This is not the login that you started.")
        return _response(200, _REFUSED if self.is_refused else _DONE)


@asynccontextmanager
async def callback(port: int, state: str, server: ServerMetadata) -> AsyncIterator[Callback]:
    """Listen until the end of the block; port 0 picks a free port. Raises OSError."""
    code: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    code.add_done_callback(lambda done: done.cancelled() or done.exception())
    waiting = Callback(port, state, server, code)
    async with http_server(waiting._answer, port=port, limits=_LIMITS) as server_:
        waiting.port = server_.port
        try:
            yield waiting
        finally:
            code.cancel()


def _one(query: dict[str, list[str]], name: str) -> str:
    """Return a value that occurs exactly once, else an empty text."""
    values = query.get(name, [])
    return values[0] if len(values) == 1 else ""


def _response(status: int, text: str) -> ServedResponse:
    return ServedResponse(status, _HEADERS, (_PAGE % text).encode())


_METHODS = ("none", "client_secret_basic", "client_secret_post")
_NAME = "mcp-tool-filter"


@dataclass(frozen=True, slots=True)
class OwnClient:
    """A client that the user has registered; an https URL is the URL of a client document."""

    client_id: str
    client_secret: str | None = field(default=None, repr=False)

    @property
    def is_document(self) -> bool:
        return self.client_id.startswith("https://")


def as_given(
    client: OwnClient, server: ServerMetadata, redirect_uri: str, endpoint: str
) -> Registration:
    """Return the registration for the user's own client. Raises LoginFailed."""
    if client.is_document and not server.takes_client_documents:
        why = "Its authorization server does not support client id metadata documents"
        raise LoginFailed(endpoint, why=why)
    method = "none"
    if client.client_secret is not None:
        said = server.auth_methods or ("client_secret_basic",)
        # The default is basic (RFC 8414, section 2), but some servers support only the other.
        method = "client_secret_basic" if "client_secret_basic" in said else "client_secret_post"
    return Registration(
        client_id=client.client_id,
        client_secret=client.client_secret,
        auth_method=method,
        redirect_uri=redirect_uri,
    )


async def register(
    web: Web, server: ServerMetadata, redirect_uri: str, scopes: tuple[str, ...], endpoint: str
) -> Registration:
    """Register us. Raises LoginFailed."""
    if server.registration_endpoint is None:
        why = "Its authorization server registers no clients: give --client-id"
        raise LoginFailed(endpoint, why=why)
    said = server.auth_methods
    method = next((one for one in _METHODS if said is None or one in said), "none")
    about_us = {
        "client_name": _NAME,
        "redirect_uris": [redirect_uri],
        "grant_types": ["authorization_code", "refresh_token"],
        "response_types": ["code"],
        "token_endpoint_auth_method": method,
        **({"scope": " ".join(scopes)} if scopes else {}),
    }
    try:
        answer = await web.post_json(server.registration_endpoint, json.dumps(about_us).encode())
        known = object_in(answer.body) or {}
    except WebFailed as error:
        raise LoginFailed(endpoint, why=f"Registration: {error}") from None
    if answer.status not in (200, 201) or not is_text(known.get("client_id")):
        why = f"Its authorization server does not register us (HTTP {answer.status})"
        raise LoginFailed(endpoint, why=f"{why}: give --client-id")
    secret = known.get("client_secret")
    given = known.get("token_endpoint_auth_method", method)
    if given not in _METHODS:
        given = "client_secret_basic" if secret else "none"
    return Registration(
        client_id=str(known["client_id"]),
        client_secret=secret if is_text(secret) and given != "none" else None,
        auth_method=str(given) if secret else "none",
        redirect_uri=redirect_uri,
        scopes=scopes,
    )


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


class PlainEndpoint(Mistake, LoginFailed):
    """The URL that was typed would show tokens to the network."""


async def log_in(
    endpoint: str, wishes: Wishes, store: LoginStore, show: Show, paste: Paste | None = None
) -> LoginState:
    """Log in and store the login. Raises StartError."""
    if urlsplit(endpoint).scheme != "https" and not is_local(endpoint):
        why = "Tokens are sent over https only, or on this machine"
        raise PlainEndpoint(endpoint, why=why)
    ca = str(Path(wishes.ca).expanduser().resolve()) if wishes.ca else None
    web = Web(endpoint, tls=make_tls_context(trusted_ca=ca) if ca else None)
    found = await discover(endpoint, web)
    old = store.load(found.endpoint)
    scopes = wishes.scopes if wishes.scopes is not None else _scopes(found, old)
    async with AsyncExitStack() as listening:
        waiting = callback(wishes.callback_port, secrets.token_urlsafe(32), found.server)
        try:
            back = await listening.enter_async_context(waiting)
        except OSError as error:
            why = f"Cannot listen on 127.0.0.1:{wishes.callback_port}: {reason_of(error)}"
            raise LoginFailed(found.endpoint, why=why) from None
        uri = back.redirect_uri
        if wishes.client:
            registration = as_given(wishes.client, found.server, uri, found.endpoint)
        else:  # again for each login, because some authorization servers forget their clients
            registration = await register(web, found.server, uri, scopes, found.endpoint)
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
    try:
        answer = await web_for(state).post_json(state.endpoint, _PING, [bearer, JSON_OR_EVENTS])
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
