"""Remember where each client may be redirected after a login, and which logins are under way.

This applies only if the authorization server identifies itself in the redirect (``iss``, RFC 9207):
then the redirect goes through us, and without these records we would be an open redirector. Both
memories are bounded. The oldest entry is dropped first, but unused registrations before all others,
so that a client that registers again and again cannot push out the others.
"""

from __future__ import annotations

import json
import re
import secrets
from collections import OrderedDict
from dataclasses import dataclass, replace
from urllib.parse import urlsplit

from mcp_tool_filter.http.login_through.paths import CALLBACK
from mcp_tool_filter.policy.config import AllowedHosts, is_loopback

_VERSION = 1
_MOST_REGISTRATIONS = 1000
_MOST_BYTES = 1024 * 1024  # of all registrations
_MOST_UNDER_WAY = 1000
_MOST_URIS = 10
_LONGEST_URI = 2048
_LONGEST_STATE = 8192
_LONGEST_LOGIN = 15 * 60.0  # seconds
_URI = re.compile(r"[!$-;=?-Z\[\]_a-z~%]+")  # no "#", no backslash, nothing to be quoted
_DANGEROUS = frozenset({
    "javascript", "vbscript", "data", "file", "blob", "about", "filesystem", "view-source", "ftp",
    "ws", "wss", "intent", "jar", "chrome", "resource", "mailto", "tel", "sms",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class ClientRegistration:
    callback: str
    """The redirect URI that the authorization server has for the client."""
    redirect_uris: tuple[str, ...]
    is_used: bool = False
    """True if a user has logged in with it."""

    @property
    def size(self) -> int:
        return len(self.callback) + sum(map(len, self.redirect_uris))

    def has(self, redirect_uri: str) -> bool:
        """Compare exactly, except that on loopback the port may differ (RFC 8252, 7.3)."""
        if redirect_uri in self.redirect_uris:
            return True
        plain = _without_port(redirect_uri)
        return plain is not None and plain in map(_without_port, self.redirect_uris)


@dataclass(frozen=True, slots=True)
class UnderWay:
    """A user who is logging in."""

    registration: ClientRegistration
    redirect_uri: str
    state: str | None
    """The client's own state."""
    ours: str
    """Our origin as this client calls us."""
    since: float


class Registrations:
    """The clients that have registered through us."""

    def __init__(self) -> None:
        self._by_client: OrderedDict[str, ClientRegistration] = OrderedDict()
        self._size = 0
        self._under_way: OrderedDict[str, UnderWay] = OrderedDict()

    def begin(self, redirect_uris: tuple[str, ...], ours: str) -> ClientRegistration:
        """Return a new registration with our redirect URI in place of the client's."""
        return ClientRegistration(ours + CALLBACK + secrets.token_urlsafe(16), redirect_uris)

    def keep(self, client_id: str, registration: ClientRegistration) -> None:
        """Remember a registration that the authorization server has accepted.

        Some servers give all clients the same id: then earlier clients keep their redirect URIs.
        """
        if (known := self._by_client.get(client_id)) and known.callback != registration.callback:
            uris = dict.fromkeys((*registration.redirect_uris, *known.redirect_uris))
            most = tuple(uris)[: 2 * _MOST_URIS]
            is_used = known.is_used or registration.is_used
            registration = ClientRegistration(registration.callback, most, is_used)
        self._forget(client_id)
        self._by_client[client_id] = registration
        self._size += len(client_id) + registration.size
        while len(self._by_client) > _MOST_REGISTRATIONS or self._size > _MOST_BYTES:
            others = (one for one in self._by_client if one != client_id)
            unused = (one for one in others if not self._by_client[one].is_used)
            self._forget(next(unused, None) or next(iter(self._by_client)))

    def _forget(self, client_id: str) -> None:
        if (known := self._by_client.pop(client_id, None)) is not None:
            self._size -= len(client_id) + known.size

    def of(self, client_id: str) -> ClientRegistration | None:
        """Return a client's registration; None if it registered elsewhere, or long ago."""
        if (registration := self._by_client.get(client_id)) is not None:
            self._by_client.move_to_end(client_id)
        return registration

    def send_off(self, login: UnderWay) -> str:
        """Remember a user who starts to log in; return the state for the redirect back."""
        state = secrets.token_urlsafe(24)
        self._under_way[state] = login
        if len(self._under_way) > _MOST_UNDER_WAY:
            self._under_way.popitem(last=False)
        return state

    def come_back(self, path: str, state: str, now: float) -> UnderWay | None:
        """Return a login that comes back, once, and only at its own redirect URI."""
        login = self._under_way.get(state)
        if login is None or urlsplit(login.registration.callback).path != path:
            return None
        del self._under_way[state]
        return login if now - login.since <= _LONGEST_LOGIN else None

    def note_login(self, registration: ClientRegistration) -> bool:
        """Note a login with this registration; return whether it is the first."""
        for client_id, known in self._by_client.items():
            if known.callback == registration.callback and not known.is_used:
                self._by_client[client_id] = replace(known, is_used=True)
                return True
        return False

    def render(self) -> bytes:
        """Return all registrations as text, for another or a later process."""
        known = {
            client_id: [one.callback, list(one.redirect_uris), one.is_used]
            for client_id, one in self._by_client.items()
        }
        return json.dumps({"version": _VERSION, "registrations": known}).encode()

    def learn(self, text: bytes) -> None:
        """Add registrations that ``render`` has written. Raises ValueError for another text."""
        for client_id, registration in _parse(text):
            known = self._by_client.get(client_id)
            if known is None or (registration.is_used and not known.is_used):
                self.keep(client_id, registration)


def may_be_sent_to(redirect_uris: object, hosts: AllowedHosts) -> tuple[str, ...] | None:
    """Return the redirect URIs if we may send a browser to each of them, else None.

    Allowed are programs on the user's machine, and pages of hosts that the user allows.

    >>> may_be_sent_to(["http://127.0.0.1:1/cb", "cursor://cb"], AllowedHosts())
    ('http://127.0.0.1:1/cb', 'cursor://cb')
    >>> may_be_sent_to(["https://evil.example/"], AllowedHosts())
    """
    if not isinstance(redirect_uris, list) or not 0 < len(redirect_uris) <= _MOST_URIS:
        return None
    if all(isinstance(uri, str) and _is_acceptable(uri, hosts) for uri in redirect_uris):
        return tuple(redirect_uris)
    return None


def is_short_state(state: str | None) -> bool:
    """Tell whether a client's state is short enough to remember."""
    return state is None or len(state) <= _LONGEST_STATE


def _parse(text: bytes) -> list[tuple[str, ClientRegistration]]:
    try:
        found = json.loads(text)
        if found["version"] != _VERSION:
            raise ValueError("another version")
        return [
            (client_id, ClientRegistration(str(callback), tuple(map(str, uris)), used is True))
            for client_id, (callback, uris, used) in found["registrations"].items()
        ]
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError("not what we have written") from error


def _is_acceptable(uri: str, hosts: AllowedHosts) -> bool:
    if len(uri) > _LONGEST_URI or not _URI.fullmatch(uri):
        return False
    try:
        parts = urlsplit(uri)
        host, _ = parts.hostname or "", parts.port
    except ValueError:
        return False
    if parts.scheme in ("http", "https"):
        is_plain = "@" not in parts.netloc and uri.lower().startswith(f"{parts.scheme}://")
        return is_plain and (is_loopback(host) or (not hosts.has_all and hosts.has_host(host)))
    return bool(parts.scheme) and parts.scheme not in _DANGEROUS


def _without_port(uri: str) -> str | None:
    parts = urlsplit(uri)
    if parts.scheme != "http" or not is_loopback(parts.hostname or ""):
        return None
    return f"{parts.hostname}{parts.path}?{parts.query}"
