"""Parse the metadata documents for logins, and know where they are.

A protected resource (RFC 9728) names its authorization servers, an authorization server (RFC 8414,
or OpenID Connect) its endpoints. An upstream of MCP 2025-03-26 is its own authorization server.

>>> resource_documents("https://example.com/mcp")[0]
'https://example.com/.well-known/oauth-protected-resource/mcp'
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from mcp_tool_filter.errors import ProtocolError

_RESOURCE = "/.well-known/oauth-protected-resource"
_SERVER = "/.well-known/oauth-authorization-server"
_OPENID = "/.well-known/openid-configuration"


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


def resource_documents(endpoint: str) -> list[str]:
    """Return the URLs where a resource's metadata may be, most likely first (RFC 9728, 3.1)."""
    origin, path = _split(endpoint)
    inserted = [origin + _RESOURCE + path] if path else []
    return [*inserted, origin + _RESOURCE]


def server_documents(issuer: str) -> list[str]:
    """Return the URLs where an authorization server's metadata may be (RFC 8414, 3.1 and 5).

    >>> server_documents("https://example.com/tenant")[-1]
    'https://example.com/tenant/.well-known/openid-configuration'
    """
    origin, path = _split(issuer)
    found = [origin + _SERVER + path, origin + _OPENID + path]
    return found if not path else [*found, origin + path + _OPENID]


def default_server(endpoint: str) -> ServerMetadata:
    """Return the endpoints of an upstream without metadata, by MCP 2025-03-26 (section 2.3.3)."""
    origin, _ = _split(endpoint)
    return ServerMetadata(
        issuer=origin,
        authorization_endpoint=f"{origin}/authorize",
        token_endpoint=f"{origin}/token",
        registration_endpoint=f"{origin}/register",
    )


def parse_resource_metadata(document: bytes, endpoint: str) -> ResourceMetadata:
    """Parse an upstream's metadata. Raises ProtocolError if it is about another upstream."""
    found = _object(document)
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
    found = _object(document)
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


def _object(document: bytes) -> Mapping[str, object]:
    try:
        found = json.loads(document)
    except (ValueError, RecursionError):
        raise ProtocolError("A metadata document is not JSON") from None
    if not isinstance(found, dict):
        raise ProtocolError("A metadata document is not a JSON object")
    return found


def _text(found: Mapping[str, object], name: str) -> str:
    value = found.get(name)
    if not isinstance(value, str) or not value:
        raise ProtocolError(f"A metadata document has no {name}")
    return value


def _text_or_none(found: Mapping[str, object], name: str) -> str | None:
    value = found.get(name)
    return value if isinstance(value, str) and value else None


def _texts(found: Mapping[str, object], name: str) -> tuple[str, ...] | None:
    value = found.get(name)
    if not isinstance(value, list):
        return None
    return tuple(one for one in value if isinstance(one, str))
