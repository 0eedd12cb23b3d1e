"""Provide the access token of a stored login, and renew it once for all waiting requests.

    credentials = credentials_for("https://example.com/mcp")  # None: nobody has logged in
    value = credentials.value() or await credentials.renewed()  # "Bearer …"
    value = await credentials.after_refusal(401, [], value, was_repeated=False)

``value`` never waits. ``renewed`` waits for a new token: before the old one expires, or after the
upstream has ``rejected`` it. ``after_refusal`` says whether to send a request once more. Only one
renewal is sent, however many requests wait in however many processes.

Below are the requests to an authorization server: get, renew, revoke (RFC 6749, 7009, 8707).
"""

from __future__ import annotations

import asyncio
import base64
import logging
import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from urllib.parse import quote, quote_plus

from mcp_tool_filter.core.errors import StartError
from mcp_tool_filter.core.process.background import look_at
from mcp_tool_filter.core.sockets.connect import make_tls_context
from mcp_tool_filter.rooms.logins.discovery import Web, WebAnswer, WebFailed
from mcp_tool_filter.rooms.logins.metadata import is_text, missing_scopes, object_in
from mcp_tool_filter.rooms.logins.store import (
    LoggedOut,
    LoginState,
    LoginStore,
    Registration,
    RenewalFailed,
    Stamp,
    Tokens,
    key_of,
)

log = logging.getLogger(__name__)

_TOKEN = re.compile(r"[!-~]+")
_SECRET = ("code", "code_verifier", "refresh_token")
_SHORTEST_SECRET = 4  # characters; a shorter one may be in any text
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
    got, old = await _ask(web, state, fields, now), state.tokens
    refresh_token = got.refresh_token or old.refresh_token  # RFC 6749, section 6
    return replace(got, refresh_token=refresh_token, scopes=got.scopes or old.scopes)


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
    said = object_in(answer.body)
    if said is None and answer.status == 200:
        raise WebFailed("The token endpoint gave no JSON object")
    said = said or {}
    if answer.status != 200:
        secrets = [fields.get(name, "") for name in _SECRET] + [_secret_of(state)]
        said = {name: _without(secrets, said.get(name)) for name in ("error", "error_description")}
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


def _secret_of(state: LoginState) -> str:
    return state.registration.client_secret or ""


def _without(secrets: Sequence[str], text: object) -> object:
    """Return a text of the server without the secrets that it repeats: people see it, and logs."""
    for secret in secrets:
        if isinstance(text, str) and len(secret) >= _SHORTEST_SECRET:
            text = text.replace(secret, "***").replace(quote_plus(secret), "***")
    return text


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
        refresh_token=refresh if is_text(refresh) and refresh else None,
        received_at=now,
        expires_at=None if lasts is None else now + lasts,
        scopes=tuple(scope.split()) if is_text(scope) else (),
    )


def _seconds(said: object) -> float | None:
    """Parse a token's lifetime; some servers send it as a string."""
    try:
        seconds = float(said) if isinstance(said, int | float | str) else math.nan
    except (ValueError, OverflowError):
        return None
    if math.isnan(seconds) or isinstance(said, bool):
        return None
    return min(max(seconds, 0.0), _LONGEST_LIFE)


def _plain(said: Mapping[str, object], name: str) -> str:
    """Return the server's text without control characters."""
    value = said.get(name)
    text = value if isinstance(value, str) else ""
    return "".join(one if one.isprintable() else "?" for one in text[:200])


_PAUSE = 5.0  # seconds before a failed renewal is tried again
_DOUBT = 60.0  # seconds in which we do not renew again a token that replaced a rejected one


class Credentials:
    """The current stored login to one endpoint."""

    def __init__(
        self,
        state: LoginState,
        store: LoginStore | None = None,
        *,
        clock: Callable[[], float] = time.time,
        make_web: Callable[[LoginState], Web] | None = None,
    ) -> None:
        self.endpoint = state.endpoint
        self._store = store or LoginStore()
        self._clock = clock
        self._make_web = make_web or web_for
        self._state: LoginState | None = state
        self._stamp: Stamp | None = None
        self._renewing: asyncio.Task[str] | None = None
        self._failed: tuple[float, RenewalFailed] | None = None
        self._doubtful: str | None = None

    def value(self) -> str | None:
        """Return the value of Authorization; None if a new token is needed. Raises LoggedOut."""
        tokens = self._current().tokens
        if tokens is None:
            raise LoggedOut(self.endpoint, "has expired")
        return f"Bearer {tokens.access_token}" if tokens.is_fresh(self._clock()) else None

    async def renewed(self, rejected: str | None = None) -> str:
        """Return the value of Authorization with a token other than the ``rejected`` one.

        Raises LoggedOut, or RenewalFailed if a later try may succeed.
        """
        value = self.value()
        if value is not None and value != rejected:
            return value
        tokens = self._current().tokens
        is_new = tokens is not None and self._is_within(_DOUBT, tokens.received_at)
        if value is not None and value == self._doubtful and is_new:
            raise RenewalFailed(self.endpoint, why="The upstream accepts no new token either")
        if self._renewing is None or self._renewing.done():
            self._renewing = asyncio.create_task(self._renew(rejected))
            self._renewing.add_done_callback(look_at)
        try:
            # A cancelled waiter must not cancel the renewal for the others.
            return await asyncio.shield(self._renewing)
        except RenewalFailed:
            tokens = self._current().tokens  # it may expire soon, and still be valid
            if rejected is None and tokens and self._clock() < (tokens.expires_at or 0):
                return f"Bearer {tokens.access_token}"
            raise

    async def after_refusal(
        self, status: int, challenges: Sequence[str], rejected: str, *, was_repeated: bool
    ) -> str:
        """Return the value of Authorization with another token, for a second try.

        Raises LoggedOut, with the command to type, if a second try is pointless; and RenewalFailed.
        """
        if wanted := missing_scopes(status, challenges):
            await remember_scopes(self._store, self.endpoint, wanted)
            rights = " ".join(wanted)[:200]
            raise LoggedOut(self.endpoint, f"lacks the right to do this ({rights})")
        if status == 403:
            raise LoggedOut(self.endpoint, "lacks the right to do this")
        if was_repeated:
            raise LoggedOut(self.endpoint, "is not accepted")
        return await self.renewed(rejected)

    def _current(self) -> LoginState:
        """Return the login, read again if another process has changed it. Raises LoggedOut."""
        stamp = self._store.stamp_of(self.endpoint)
        if stamp != self._stamp or self._state is None:
            self._state = self._store.load(self.endpoint) if stamp else None
            self._stamp = stamp
        if self._state is None:
            raise LoggedOut(self.endpoint)
        return self._state

    def _is_within(self, seconds: float, since: float) -> bool:
        return 0 <= self._clock() - since < seconds  # the clock may have been set back

    async def _renew(self, rejected: str | None) -> str:
        if self._failed and self._is_within(_PAUSE, self._failed[0]):
            raise self._failed[1]
        async with self._store.lock(self.endpoint):
            value = self.value()  # another process may have renewed it before us
            if value is not None and value != rejected:
                return value
            tokens = await self._ask_for_tokens(self._current())
        # Use it however soon it expires: there is no newer one.
        value = f"Bearer {tokens.access_token}"
        self._doubtful = value if rejected is not None else None
        return value

    async def _ask_for_tokens(self, state: LoginState) -> Tokens:
        if state.tokens is None or not state.tokens.refresh_token:
            raise LoggedOut(self.endpoint, "has expired")
        try:
            tokens = await renew(self._make_web(state), state, self._clock())
        except (TokenRefused, WebFailed) as error:
            if isinstance(error, TokenRefused) and error.is_final:
                self._keep(state.with_tokens(None))
                raise LoggedOut(self.endpoint, "has expired") from None
            failed = RenewalFailed(self.endpoint, why=str(error))
            self._failed = (self._clock(), failed)
            raise failed from None
        self._failed = None
        self._keep(state.with_tokens(tokens))
        return tokens

    def _keep(self, state: LoginState) -> None:
        """Store a login. If that fails, such as on a full disk, this process goes on with it: a
        refresh token that was used once may be worth nothing any more."""
        self._state = state
        try:
            self._store.save(state)
        except StartError as error:
            log.warning("A renewed login ends with this process. %s", error.one_line)


async def remember_scopes(store: LoginStore, endpoint: str, scopes: tuple[str, ...]) -> None:
    """Store the additional scopes that an upstream wants. Raises StoreFailed."""
    async with store.lock(endpoint):  # we must not undo a renewal by another process
        if (state := store.load(endpoint)) is not None:
            wanted = tuple(dict.fromkeys((*state.wanted_scopes, *scopes)))
            if wanted != state.wanted_scopes:
                store.save(replace(state, wanted_scopes=wanted))


_known: dict[tuple[str, str], Credentials] = {}


def credentials_for(url: str, store: LoginStore | None = None) -> Credentials | None:
    """Return the login for an endpoint, or for the only endpoint of an origin; None without one.

    Raises StartError if the stored login cannot be read.
    """
    store = store or LoginStore()
    state = store.find(url)
    if state is None:
        return None
    key = (str(store.folder), key_of(state.endpoint))
    if key not in _known:
        _known[key] = Credentials(state, store)
    return _known[key]


def web_for(state: LoginState) -> Web:
    """Return the HTTP client for a login."""
    return Web(state.endpoint, tls=make_tls_context(trusted_ca=state.ca) if state.ca else None)
