"""Logins of clients through us: what the authorization server and the client see of each other.

Challenges and metadata documents are rewritten so that they name us. A client's requests name us,
too, but the authorization server knows the upstream:

>>> upstream = UpstreamNames("http://localhost:3000")
>>> sides = Sides("http://localhost:6273", upstream)
>>> sides.our_url("http://127.0.0.1:3000/mcp")
'http://localhost:6273/mcp'
>>> sides.translated_text("resource=http://localhost:6273/mcp", "https://mcp.example")
'resource=https%3A%2F%2Fmcp.example%2Fmcp'

Where the authorization server identifies itself in the redirect (``iss``, RFC 9207), the redirect
goes through us. So we remember where each client may be redirected, and which logins are under way:
without these records we would be an open redirector. Both memories are bounded. The oldest entry is
dropped first, but unused registrations before all others, and of the logins one of the registration
that has begun most: a client that begins again and again cannot push out the others.
"""

from __future__ import annotations

import base64
import json
import re
import secrets
from collections import Counter, OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final
from urllib.parse import parse_qsl, unquote_plus, urlencode, urlsplit

from mcp_tool_filter.core.errors import InvalidOption, ProtocolError
from mcp_tool_filter.core.http.places import ALONE, PathMap
from mcp_tool_filter.core.http.urls import (
    UpstreamNames,
    has_host,
    kept_with_us,
    may_lead_round,
    parse_origin,
)
from mcp_tool_filter.core.messages.sizes import HEAD, MANY
from mcp_tool_filter.core.policy.config import AllowedHosts, is_loopback
from mcp_tool_filter.rooms.logins.metadata import (
    AUTHORIZE,
    REGISTER,
    TOKEN,
    ServerMetadata,
    object_in,
    parse_object,
    pieces_of,
    unquoted,
)

# Challenges and documents

CALLBACK: Final = "/mcp-tool-filter/callback/"
"""The prefix of our own redirect URIs, one for each registration."""

_NEVER = (
    "signed_metadata",  # the signature would not match
    "mtls_endpoint_aliases",
    "pushed_authorization_request_endpoint",
    "require_pushed_authorization_requests",
    "dpop_signing_alg_values_supported",  # a proof is bound to the URL that it is sent to
)
# A parameter, with one comma beside it. (Only the first of many spaces can begin one.)
_REMOVED = re.compile(r",[ \t]*\0|(?<![ \t])[ \t]*\0[, \t\0]*")
_NO_DOCUMENTS = "client_id_metadata_document_supported"
_AUTH_METHODS = "token_endpoint_auth_methods_supported"
_USABLE = frozenset({"none", "client_secret_basic", "client_secret_post"})  # others name a URL


type QueryFields = list[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Sides:
    """How a client calls us, and what we call the upstream; what is rewritten for either side."""

    ours: str
    """Our address as the client calls us: our origin, and the server's prefix if we serve
    several."""
    upstream: UpstreamNames
    mount: PathMap = ALONE

    def our_url(self, url: str) -> str | None:
        """Return the URL of ours for a URL of the upstream; None if it is not the upstream's.

        A trailing slash is neither added nor removed.
        """
        if not has_host(url):
            return None
        kept = kept_with_us(url, self.upstream)
        if kept is None or not kept.startswith("/"):
            return None
        named = self.mount.url(self.ours, kept)
        return named.removesuffix("/") if kept == "/" and not url.endswith("/") else named

    def challenge(self, value: str, usual: str) -> str:
        """Return a WWW-Authenticate line that names our metadata; nothing else in it changes.

        ``usual`` is where our metadata is. It replaces a URL that only some clients could read as
        the upstream's.
        """

        def rewrite(piece: re.Match[str]) -> str:
            if piece["url"] is None:
                return piece[0]
            url = unquoted(piece["url"])
            named = self.our_url(url)
            if named is None:
                if not may_lead_round(url, self.upstream):
                    return piece[0]
                named = usual
            if piece["url"].startswith('"'):
                named = '"' + named.replace("\\", "\\\\").replace('"', '\\"') + '"'
            return piece["start"] + named

        return "".join(map(rewrite, pieces_of(value)))

    def resource_metadata(self, document: bytes, issuer: str | None) -> bytes | None:
        """Return protected-resource metadata that names us; None if it is not about this upstream.

        ``issuer`` is our name for its authorization server; None leaves the servers as they are.
        Raises ProtocolError for a long document: while it is read, all other clients wait.
        """
        if len(document) > HEAD:
            raise ProtocolError("metadata of logins that is too long")
        found = object_in(document)
        if found is None or not isinstance(resource := found.get("resource"), str):
            return None
        if (named := self.our_url(resource)) is None:
            is_odd = "@" in resource or not resource.isascii()
            if is_odd and may_lead_round(resource, self.upstream):
                raise ProtocolError("metadata whose resource some clients take for the upstream")
            return None
        found["resource"] = named
        found.pop("signed_metadata", None)
        if issuer is not None:
            found["authorization_servers"] = [issuer]
        return json.dumps(found).encode()

    def server_metadata(self, document: Mapping[str, object]) -> bytes:
        """Return an authorization server's metadata that names us for the endpoints that we pass
        on."""
        found = {name: value for name, value in document.items() if name not in _NEVER}
        for name, value in found.items():  # no endpoint may lead to the upstream past us
            if isinstance(value, str) and (named := self.our_url(value)):
                found[name] = named
        issuer = document.get("issuer")
        if not isinstance(issuer, str):
            raise ProtocolError("A metadata document has no issuer")
        found["issuer"] = our_issuer(issuer, self.ours)
        found["authorization_endpoint"] = self.ours + AUTHORIZE
        found["token_endpoint"] = self.ours + TOKEN
        found["registration_endpoint"] = self.ours + REGISTER
        found.pop(_NO_DOCUMENTS, None)
        if isinstance(methods := found.get(_AUTH_METHODS), list):
            found[_AUTH_METHODS] = [method for method in methods if method in _USABLE]
        return json.dumps(found).encode()

    def translated(
        self, fields: QueryFields, theirs: str, changed: Mapping[str, str] = MappingProxyType({})
    ) -> QueryFields:
        """Return the fields of a client's request as the authorization server must get them:
        ``theirs`` is the upstream's origin there."""
        return [
            *(
                (name, self._their_resource(value, theirs) if name == "resource" else value)
                for name, value in fields
                if name not in changed
            ),
            *changed.items(),
        ]

    def translated_text(self, text: str, theirs: str) -> str | None:
        """Return a query or form with the upstream's resource in place of ours; None if it has
        none.

        Used for an upstream whose metadata we do not know.
        """
        try:
            fields = _parse_fields(text)
        except ProtocolError:
            return None
        translated = self.translated(fields, theirs)
        return None if translated == fields else urlencode(translated)

    def _their_resource(self, resource: str, theirs: str) -> str:
        """Return the upstream's resource for ours; other resources stay, and their server refuses
        them."""
        try:
            if parse_origin(resource) != parse_origin(self.ours):
                return resource
        except InvalidOption:
            return resource
        parts = urlsplit(resource)
        start = len(parts.scheme) + len("://") + len(parts.netloc)
        path = self.mount.resource(resource[start:])
        return resource if path is None else theirs + path


def our_issuer(issuer: str, ours: str) -> str:
    """Return our issuer URL for an authorization server, with the same path and trailing slash.

    >>> our_issuer("https://login.example/", "http://localhost:6273")
    'http://localhost:6273/'
    """
    return ours + urlsplit(issuer).path


def without_metadata_urls(challenge: str) -> str:
    """Return a WWW-Authenticate line without the URL of the metadata.

    It is for clients that need no login, because the user who started us has one:

    >>> without_metadata_urls('Bearer error="invalid_token", resource_metadata="http://up/x"')
    'Bearer error="invalid_token"'
    >>> without_metadata_urls('Bearer resource_metadata=http://up/x, scope="a"')
    'Bearer scope="a"'
    """
    pieces = pieces_of(challenge)
    marked = "".join(piece[0] if piece["url"] is None else "\0" for piece in pieces)
    return _REMOVED.sub(lambda one: "" if one[0][0] == "," else " ", marked).strip(" \t,")


def passes_through(server: ServerMetadata) -> bool:
    """Tell whether we can stand in for an authorization server: clients must register through
    us."""
    methods = server.auth_methods
    can_prove = methods is None or not _USABLE.isdisjoint(methods)
    return server.registration_endpoint is not None and can_prove


# Registrations

_VERSION = 1
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
        self._under_way: dict[str, UnderWay] = {}

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
        while len(self._by_client) > MANY or self._size > _MOST_BYTES:
            others = (one for one in self._by_client if one != client_id)
            unused = (other for other in others if not self._by_client[other].is_used)
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
        if len(self._under_way) >= _MOST_UNDER_WAY:
            del self._under_way[self._oldest_of_the_busiest()]
        state = secrets.token_urlsafe(24)
        self._under_way[state] = login
        return state

    def _oldest_of_the_busiest(self) -> str:
        """Return the state of a login to forget: who begins most logins pays, not the others."""
        count = Counter(one.registration.callback for one in self._under_way.values())
        [(busiest, _)] = count.most_common(1)
        logins = self._under_way.items()
        return next(state for state, one in logins if one.registration.callback == busiest)

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


def _parse(text: bytes) -> list[tuple[str, ClientRegistration]]:
    try:
        found = json.loads(text)
        if found["version"] != _VERSION:
            raise ValueError("another version")
        return [
            (client_id, ClientRegistration(_url(callback), tuple(map(str, uris)), used is True))
            for client_id, (callback, uris, used) in found["registrations"].items()
        ]
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError("not what we have written") from error


def _url(text: object) -> str:
    urlsplit(url := str(text))  # raises ValueError for half an IPv6 address
    return url


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
    try:
        parts = urlsplit(uri)
    except ValueError:  # a client may send anything
        return None
    if parts.scheme != "http" or not is_loopback(parts.hostname or ""):
        return None
    return f"{parts.hostname}{parts.path}?{parts.query}"


# Requests

_MOST_FIELDS = 100


@dataclass(frozen=True, slots=True)
class Between:
    """A login between a client and the authorization server; each gets the other's requests and
    answers translated."""

    sides: Sides
    theirs: str
    """The upstream's origin as its metadata calls it."""
    server: ServerMetadata
    registrations: Registrations
    hosts: AllowedHosts
    """Hosts whose pages a browser may be sent to after a login, besides programs on this
    machine."""

    def authorize(self, query: str, now: float) -> str:
        """Return the URL to which a browser goes to log in. Raises ProtocolError.

        It is always the authorization endpoint that the metadata names.
        """
        fields = _parse_fields(query)
        given = dict(fields)
        changed: dict[str, str] = {}
        registration = self.registrations.of(given.get("client_id", ""))
        if self.server.sends_issuer and registration is not None:
            asked, state = given.get("redirect_uri"), given.get("state")
            if asked is None and len(registration.redirect_uris) == 1:
                asked = registration.redirect_uris[0]
            if asked is None or not registration.has(asked):
                raise ProtocolError("The redirect_uri is not registered through this proxy")
            if may_be_sent_to([asked], self.hosts) is None:  # its host may not be allowed any more
                raise RefusedUri
            if state is not None and len(state) > _LONGEST_STATE:
                raise ProtocolError("The state is too long")
            login = UnderWay(registration, asked, state, self.sides.ours, now)
            changed["redirect_uri"] = registration.callback
            changed["state"] = self.registrations.send_off(login)
        endpoint = self.server.authorization_endpoint.partition("#")[0]
        joint = "&" if "?" in endpoint else "?"
        return endpoint + joint + urlencode(self.sides.translated(fields, self.theirs, changed))

    def come_back(self, path: str, query: str, now: float) -> tuple[str, bool]:
        """Return the URL to which a browser goes after a login. Raises ProtocolError.

        Also tell whether it is the first login with its registration.
        """
        fields = _parse_fields(query)
        given = dict(fields)
        login = self.registrations.come_back(path, given.get("state", ""), now)
        if login is None:
            raise ProtocolError("This login was not started here, or has ended")
        if given.get("iss") != self.server.issuer:  # as raw strings (RFC 9207, 2.4)
            raise ProtocolError("The answer is from another authorization server")
        is_first = "code" in given and self.registrations.note_login(login.registration)
        said = [(name, value) for name, value in fields if name not in ("state", "iss")]
        if login.state is not None:
            said.append(("state", login.state))
        said.append(("iss", our_issuer(self.server.issuer, login.ours)))
        joint = "&" if "?" in login.redirect_uri else "?"
        return login.redirect_uri + joint + urlencode(said), is_first

    def token_request(self, body: bytes, basic: str | None) -> QueryFields:
        """Translate a token request; ``basic`` is the client's Authorization header."""
        fields = _parse_fields(_text(body))
        given = dict(fields)
        client_id = given.get("client_id") or _user_in(basic)
        changed: dict[str, str] = {}
        registration = self.registrations.of(client_id)
        if self.server.sends_issuer and registration is not None and "redirect_uri" in given:
            if not registration.has(given["redirect_uri"]):
                raise ProtocolError("The redirect_uri is not registered through this proxy")
            changed["redirect_uri"] = registration.callback
        return self.sides.translated(fields, self.theirs, changed)

    def registration_request(self, body: bytes) -> tuple[bytes, ClientRegistration | None]:
        """Translate a registration request; return it and what we register for the client."""
        asked = parse_object(body)
        if not self.server.sends_issuer:
            return body, None
        uris = may_be_sent_to(asked.get("redirect_uris"), self.hosts)
        if uris is None:
            raise RefusedUri()
        registration = self.registrations.begin(uris, self.sides.ours)
        asked["redirect_uris"] = [registration.callback]
        asked.pop("software_statement", None)  # it may contradict the other members, and would win
        return json.dumps(asked).encode(), registration

    def registration_answer(self, body: bytes, registration: ClientRegistration | None) -> bytes:
        """Translate the authorization server's answer to a registration, and remember it."""
        said = parse_object(body)
        if registration is None:
            return body
        client_id = said.get("client_id")
        if not isinstance(client_id, str) or len(client_id) > 4096:
            raise ProtocolError("A registration has no client_id")
        self.registrations.keep(client_id, registration)
        said["redirect_uris"] = list(registration.redirect_uris)
        for name in ("registration_client_uri", "registration_access_token"):
            said.pop(name, None)  # with these a client could read and replace our redirect URI
        return json.dumps(said).encode()


class RefusedUri(ProtocolError):
    """A redirect URI to which we do not send browsers."""

    def __init__(self) -> None:
        super().__init__("Only redirect URIs on this machine, or of allowed hosts, are accepted")


def _parse_fields(text: str) -> QueryFields:
    """Parse a query or a form; only ``resource`` may be repeated (RFC 6749, 3.1)."""
    try:
        fields = parse_qsl(
            text, keep_blank_values=True, errors="strict", max_num_fields=_MOST_FIELDS
        )
    except ValueError:
        raise ProtocolError("The parameters cannot be read") from None
    names = [name for name, _ in fields if name != "resource"]
    if len(set(names)) < len(names):
        raise ProtocolError("A parameter is given twice")
    return fields


def _user_in(basic: str | None) -> str:
    try:
        user, _, _ = base64.b64decode(basic or "", validate=True).decode().partition(":")
    except ValueError:
        return ""
    return unquote_plus(user)


def _text(body: bytes) -> str:
    try:
        return body.decode("ascii")
    except UnicodeDecodeError:
        raise ProtocolError("The parameters cannot be read") from None
