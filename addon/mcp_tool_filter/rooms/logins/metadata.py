"""What an upstream says about logins: its paths, its metadata documents, and its challenges.

A protected resource (RFC 9728) names its authorization servers, an authorization server (RFC 8414,
or OpenID Connect) its endpoints. An upstream of MCP 2025-03-26 is its own authorization server.

>>> resource_documents("https://example.com/mcp")[0]
'https://example.com/.well-known/oauth-protected-resource/mcp'

Some paths of logins are known beforehand: metadata documents under ``/.well-known/``, and the
default paths of MCP 2025-03-26. We learn the others from documents, challenges and redirects:

>>> paths = LoginPaths("http://localhost:3000")
>>> paths.learn_document(b'{"token_endpoint":"http://localhost:3000/oauth/token"}')
>>> paths.has("POST", "/oauth/token"), paths.has("GET", "/admin")
(True, False)

A 401 or 403 asks for something in WWW-Authenticate (RFC 9110, section 11.6.1). One header may hold
several challenges, and an answer several headers. Values are quoted or not:

>>> parse_challenges(['Basic realm="a, b", Bearer scope=read, error="invalid_token"'])[1].params
{'scope': 'read', 'error': 'invalid_token'}
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeGuard
from urllib.parse import urlsplit

from mcp_tool_filter.core.errors import ProtocolError
from mcp_tool_filter.core.http.head import SAFE_METHODS
from mcp_tool_filter.core.http.places import KnownPaths
from mcp_tool_filter.core.http.urls import UpstreamNames, kept_with_us
from mcp_tool_filter.core.messages.limits import HTTP_TOKEN
from mcp_tool_filter.core.messages.scan import has_lone_surrogate
from mcp_tool_filter.core.messages.sizes import HEAD
from mcp_tool_filter.core.policy.config import is_misleading, plain_path

_DOCUMENT = re.compile(
    r"(?:/.*)?/\.well-known/"
    r"(?:oauth-protected-resource|oauth-authorization-server|openid-configuration|jwks(?:\.json)?)"
    r"(?:/.*)?",
    re.DOTALL,
)
AUTHORIZE, TOKEN, REGISTER = "/authorize", "/token", "/register"
"""The default paths of MCP 2025-03-26 (section 2.3.3)."""
_USUAL = frozenset({AUTHORIZE, TOKEN, REGISTER})
_NAMES_A_PATH = re.compile(r".*_endpoint|jwks_uri")
_TOKEN = f"{HTTP_TOKEN}++"
_QUOTED = r'"(?:[^"\\]|\\.)*+"'
_PLAIN = r'[^",\s]++'
_VALUE = f"(?:{_QUOTED}|{_PLAIN})"
_EQUALS = r"[ \t]*+=[ \t]*+"
_CLOSED = re.compile(rf'(?:[^"]|{_QUOTED})*+', re.DOTALL)


def _pieces(value: str, others: str) -> str:
    """Return a pattern for the URL of metadata, or any other parameter, word or character.

    (A word is read once: else each of its ends would be tried as a parameter.)
    """
    return (
        rf"(?P<start>resource_metadata{_EQUALS})(?P<url>{value})"
        rf"|{_TOKEN}(?:{_EQUALS}{value})?|{others}."
    )


# (Before a quote that nothing closes, each other one is closed.)
_PIECES = re.compile(_pieces(f"{_QUOTED}?|{_PLAIN}", f"{_QUOTED}?|"), re.DOTALL | re.IGNORECASE)
_PIECES_UNQUOTED = re.compile(_pieces(_PLAIN, ""), re.DOTALL | re.IGNORECASE)


def pieces_of(challenge: str) -> Iterator[re.Match[str]]:
    """Yield all pieces of a WWW-Authenticate line, one after the other."""
    closed = _CLOSED.match(challenge)
    end = closed.end() if closed else 0
    yield from _PIECES.finditer(challenge, 0, end)
    # Behind a quote that nothing closes, no other one is closed: looking each time takes long.
    yield from _PIECES_UNQUOTED.finditer(challenge, end)


_MOST_PATHS = 64
_LONGEST_PATH = 1024


class LoginPaths(KnownPaths):
    """The login paths of one upstream."""

    def __init__(self, upstream: str) -> None:
        super().__init__()
        self._upstream = UpstreamNames(upstream)
        self._named: dict[str, bool] = {}
        """Each path, and whether clients may also post to it."""

    def has(self, method: str, target: str) -> bool:
        """Tell whether a request is part of a login."""
        if is_login_document(target):
            return method in SAFE_METHODS
        path = plain_path(target)
        if path not in self._named and path not in _USUAL:
            return False
        takes_posts = path in _USUAL or self._named[path]
        return (takes_posts or method in SAFE_METHODS) and not self.is_of_other(path)

    def is_document(self, target: str) -> bool:
        return is_login_document(target)

    def learn_document(self, body: bytes) -> None:
        """Learn the paths in a metadata document; ignore anything else."""
        if len(body) > HEAD:
            return
        for name, value in (object_in(body) or {}).items():
            if isinstance(value, str) and _NAMES_A_PATH.fullmatch(name):
                self._learn(value, takes_posts=True)

    def learn_head(
        self, method: str, target: str, locations: Sequence[str], challenges: Sequence[str]
    ) -> None:
        """Learn from an answer's head where a login continues, and where its metadata is.

        A browser follows a redirect with GET. So nothing may be posted there: an authorization
        endpoint that redirects anywhere would open any path of the upstream to messages.
        """
        for challenge in challenges:
            for url in metadata_urls_in(challenge):
                self._learn(url)
        if method in SAFE_METHODS and self.has(method, target):
            for location in locations:
                self._learn(location)

    def _learn(self, url: str, *, takes_posts: bool = False) -> None:
        kept = kept_with_us(url, self._upstream)
        if kept is None or not kept.startswith("/") or len(kept) > _LONGEST_PATH:
            return
        path = plain_path(kept.partition("#")[0])
        if not is_misleading(path) and (path in self._named or len(self._named) < _MOST_PATHS):
            self._named[path] = takes_posts or self._named.get(path, False)


def is_login_document(target: str) -> bool:
    """Tell whether clients look for login metadata at this path.

    >>> is_login_document("/.well-known/oauth-protected-resource/mcp")
    True
    """
    path = target.partition("?")[0]
    return _DOCUMENT.fullmatch(path) is not None and not is_misleading(path)


RESOURCE_DOCUMENT = "/.well-known/oauth-protected-resource"
_SERVER = "/.well-known/oauth-authorization-server"
_OPENID = "/.well-known/openid-configuration"
SERVER_DOCUMENTS = (_SERVER, _OPENID)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceMetadata:
    resource: str
    issuers: tuple[str, ...]
    scopes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerMetadata:
    issuer: str
    authorization_endpoint: str
    token_endpoint: str
    registration_endpoint: str | None = None
    revocation_endpoint: str | None = None
    scopes: tuple[str, ...] = ()
    auth_methods: tuple[str, ...] | None = None
    """How a client may authenticate at the token endpoint; None if not stated."""
    pkce_methods: tuple[str, ...] | None = None
    takes_client_documents: bool = False
    """True if a client id may be the URL of a document about the client."""
    sends_issuer: bool = False
    """True if the redirect after a login names the issuer (RFC 9207)."""
    named: str = ""
    """The issuer, as the upstream names it."""
    document: Mapping[str, object] = field(default_factory=dict, repr=False)
    """The unchanged metadata."""


def resource_documents(endpoint: str) -> list[str]:
    """Return the URLs where a resource's metadata may be, most likely first (RFC 9728, 3.1)."""
    origin, path = _split(endpoint)
    inserted = [origin + RESOURCE_DOCUMENT + path] if path else []
    return [*inserted, origin + RESOURCE_DOCUMENT]


def server_documents(issuer: str) -> list[str]:
    """Return the URLs where an authorization server's metadata may be (RFC 8414, 3.1 and 5).

    >>> server_documents("https://example.com/tenant")[-1]
    'https://example.com/tenant/.well-known/openid-configuration'
    """
    origin, path = _split(issuer)
    found = [origin + _SERVER + path, origin + _OPENID + path]
    return found if not path else [*found, origin + path + _OPENID]


def default_server(endpoint: str) -> ServerMetadata:
    """Return what an upstream without metadata would say, by MCP 2025-03-26 (section 2.3.3)."""
    origin, _ = _split(endpoint)
    said = {
        "issuer": origin,
        "authorization_endpoint": origin + AUTHORIZE,
        "token_endpoint": origin + TOKEN,
        "registration_endpoint": origin + REGISTER,
        "response_types_supported": ["code"],
        "code_challenge_methods_supported": ["S256"],
    }
    return parse_server_metadata(json.dumps(said).encode(), origin)


def parse_resource_metadata(document: bytes, endpoint: str) -> ResourceMetadata:
    """Parse an upstream's metadata. Raises ProtocolError if it is about another upstream."""
    found = parse_object(document, "A metadata document is not")
    resource = _text(found, "resource")
    if not _covers(resource, endpoint):
        raise ProtocolError(f"The protected resource metadata is about {resource[:200]}")
    issuers = _texts(found, "authorization_servers")
    if not issuers:
        raise ProtocolError("The protected resource metadata names no authorization server")
    scopes = _texts(found, "scopes_supported") or ()
    return ResourceMetadata(resource=resource, issuers=issuers, scopes=scopes)


def parse_server_metadata(document: bytes, issuer: str) -> ServerMetadata:
    """Parse an authorization server's metadata. Raises ProtocolError."""
    found = parse_object(document, "A metadata document is not")
    said = _text(found, "issuer")
    if not is_same_issuer(said, issuer):
        raise ProtocolError(f"The metadata of {issuer[:200]} has the issuer {said[:200]}")
    return ServerMetadata(
        issuer=said,
        authorization_endpoint=_text(found, "authorization_endpoint"),
        token_endpoint=_text(found, "token_endpoint"),
        registration_endpoint=_text_or_none(found, "registration_endpoint"),
        revocation_endpoint=_text_or_none(found, "revocation_endpoint"),
        scopes=_texts(found, "scopes_supported") or (),
        auth_methods=_texts(found, "token_endpoint_auth_methods_supported"),
        pkce_methods=_texts(found, "code_challenge_methods_supported"),
        takes_client_documents=found.get("client_id_metadata_document_supported") is True,
        sends_issuer=found.get("authorization_response_iss_parameter_supported") is True,
        named=issuer,
        document=found,
    )


def is_same_issuer(one: str, other: str) -> bool:
    """Compare as raw strings except for a trailing slash, which SDKs add and remove."""
    return one.removesuffix("/") == other.removesuffix("/")


def _covers(resource: str, endpoint: str) -> bool:
    """Tell whether an endpoint is the resource or below it, or has no path yet."""
    try:
        one, other = urlsplit(resource), urlsplit(endpoint)
        same_origin = _origin_of(resource) == _origin_of(endpoint)
    except ValueError:
        return False
    above = one.path.removesuffix("/")
    return same_origin and (other.path in ("", "/") or f"{other.path}/".startswith(f"{above}/"))


def _split(url: str) -> tuple[str, str]:
    """Split a URL into its origin and its path without a trailing slash."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}", parts.path.removesuffix("/")


def _origin_of(url: str) -> tuple[str, str, int | None]:
    parts = urlsplit(url)
    default = {"http": 80, "https": 443}.get(parts.scheme)
    return parts.scheme, parts.hostname or "", parts.port or default


def parse_object(body: bytes, otherwise: str = "Not") -> dict[str, object]:
    """Return the JSON object that a body is. Raises ProtocolError, which begins as given."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        raise ProtocolError(f"{otherwise} JSON") from None
    if not isinstance(found, dict):
        raise ProtocolError(f"{otherwise} a JSON object")
    return found


def object_in(body: bytes) -> dict[str, object] | None:
    """Return the JSON object that a body is; None if it is something else."""
    with suppress(ProtocolError):
        return parse_object(body)
    return None


def is_text(value: object) -> TypeGuard[str]:
    """Tell whether a value is a text that can be sent: without half a surrogate pair."""
    return isinstance(value, str) and not has_lone_surrogate(value)


def _text(found: Mapping[str, object], name: str) -> str:
    value = found.get(name)
    if not is_text(value) or not value:
        raise ProtocolError(f"A metadata document has no {name}")
    return value


def _text_or_none(found: Mapping[str, object], name: str) -> str | None:
    value = found.get(name)
    return value if is_text(value) and value else None


def _texts(found: Mapping[str, object], name: str) -> tuple[str, ...] | None:
    value = found.get(name)
    if not isinstance(value, list):
        return None
    return tuple(one for one in value if is_text(one))


_LONGEST = 8192
_MOST_SCOPES = 50
_SCOPE = re.compile(r"[!#-\[\]-~]{1,256}")  # RFC 6749, section 3.3
# A scheme, or a parameter with its value.
_PART = re.compile(rf"[ \t,]*+({_TOKEN})(?:[ \t]*+(=)[ \t]*+({_VALUE})?)?")
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Challenge:
    scheme: str
    """In lower case, such as ``bearer``."""
    params: dict[str, str] = field(default_factory=dict)
    """By name in lower case; the first of a name counts."""


def parse_challenges(headers: Iterable[str]) -> list[Challenge]:
    """Parse the values of all WWW-Authenticate headers, each up to the first unreadable part."""
    return [challenge for header in headers for challenge in _challenges_in(header[:_LONGEST])]


def bearer_challenge(headers: Iterable[str]) -> Challenge | None:
    """Return the first challenge that asks for a bearer token."""
    return next((one for one in parse_challenges(headers) if one.scheme == "bearer"), None)


def metadata_urls_in(challenge: str) -> list[str]:
    """Return the metadata URLs in a WWW-Authenticate line."""
    return [unquoted(piece["url"]) for piece in pieces_of(challenge) if piece["url"]]


def missing_scopes(status: int, challenges: Iterable[str]) -> tuple[str, ...]:
    """Return the scopes that an answer asks for because the token lacks them."""
    challenge = bearer_challenge(challenges) if status == 403 else None
    if challenge is None or challenge.params.get("error") != "insufficient_scope":
        return ()
    return scopes_in(challenge)


def scopes_in(challenge: Challenge) -> tuple[str, ...]:
    """Return the scopes that a challenge names."""
    said = challenge.params.get("scope", "").split()
    return tuple(scope for scope in said if _SCOPE.fullmatch(scope))[:_MOST_SCOPES]


def _challenges_in(header: str) -> Iterator[Challenge]:
    current: Challenge | None = None
    at = 0
    while part := _PART.match(header, at):
        word, equals, value = part.groups()
        if not equals:
            if current:
                yield current
            current = Challenge(word.lower())
        elif current and value:
            current.params.setdefault(word.lower(), unquoted(value))
        else:
            break
        at = part.end()
    if current:
        yield current


def unquoted(value: str) -> str:
    """Return a quoted value, or one without quotes, as it is meant."""
    return _ESCAPE.sub(r"\1", value[1:-1]) if value.startswith('"') else value
