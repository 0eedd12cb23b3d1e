"""Rewrite the challenges and metadata documents of a login so that they name us.

>>> upstream = UpstreamNames("http://localhost:3000")
>>> our_url("http://127.0.0.1:3000/mcp", "http://localhost:6273", upstream)
'http://localhost:6273/mcp'
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

from mcp_tool_filter.errors import ProtocolError
from mcp_tool_filter.http.login_metadata import ServerMetadata
from mcp_tool_filter.http.urls import UpstreamNames, has_host, kept_with_us, may_lead_round

# We stand in for the authorization server at the default paths of MCP 2025-03-26 (section 2.3.3).
AUTHORIZE: Final = "/authorize"
TOKEN: Final = "/token"
REGISTER: Final = "/register"
CALLBACK: Final = "/mcp-tool-filter/callback/"
"""The prefix of our own redirect URIs, one for each registration."""

# A parameter, or a whole quoted text, or any other character.
_PIECE = re.compile(
    r"(?P<start>(?P<name>[!#$%&'*+.^_`|~0-9A-Za-z-]++)[ \t]*+=[ \t]*+)"
    r"""(?P<value>"(?:[^"\\]|\\.)*+"|[^",\s]++)|"(?:[^"\\]|\\.)*+"|.""",
    re.DOTALL,
)
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_NEVER = (
    "signed_metadata",  # the signature would not match
    "mtls_endpoint_aliases",
    "pushed_authorization_request_endpoint",
    "require_pushed_authorization_requests",
    "dpop_signing_alg_values_supported",  # a proof is bound to the URL that it is sent to
)
_NO_DOCUMENTS = "client_id_metadata_document_supported"
_AUTH_METHODS = "token_endpoint_auth_methods_supported"
_USABLE = frozenset({"none", "client_secret_basic", "client_secret_post"})  # others name a URL


def our_url(url: str, ours: str, upstream: UpstreamNames) -> str | None:
    """Return the URL of ours for a URL of the upstream; None if it is not the upstream's.

    ``ours`` is our origin as the client calls us. A trailing slash is neither added nor removed.
    """
    if not has_host(url):
        return None
    kept = kept_with_us(url, upstream)
    if kept is None or not kept.startswith("/"):
        return None
    return ours if kept == "/" and not url.endswith("/") else ours + kept


def our_issuer(issuer: str, ours: str) -> str:
    """Return our issuer URL for an authorization server, with the same path and trailing slash.

    >>> our_issuer("https://login.example/", "http://localhost:6273")
    'http://localhost:6273/'
    """
    return ours + urlsplit(issuer).path


def rewrite_challenge(value: str, ours: str, upstream: UpstreamNames, usual: str) -> str:
    """Return a WWW-Authenticate line that names our metadata; nothing else in it changes.

    ``usual`` is where our metadata is. It replaces a URL that only some clients could read as the
    upstream's.
    """

    def rewrite(piece: re.Match[str]) -> str:
        if (piece["name"] or "").lower() != "resource_metadata":
            return piece[0]
        url = _plain(piece["value"])
        named = our_url(url, ours, upstream)
        if named is None:
            if not may_lead_round(url, upstream):
                return piece[0]
            named = usual
        return (
            f'{piece["start"]}"{_quoted(named)}"' if _is_quoted(piece) else piece["start"] + named
        )

    return _PIECE.sub(rewrite, value)


def without_metadata_urls(challenge: str) -> str:
    """Return a WWW-Authenticate line without the URL of the metadata.

    It is for clients that need no login, because the user who started us has one:

    >>> without_metadata_urls('Bearer error="invalid_token", resource_metadata="http://up/x"')
    'Bearer error="invalid_token"'
    >>> without_metadata_urls('Bearer resource_metadata=http://up/x, scope="a"')
    'Bearer scope="a"'
    """
    kept: list[str] = []
    skips_comma = False
    for piece in _PIECE.finditer(challenge):
        if (piece["name"] or "").lower() == "resource_metadata":
            while kept and kept[-1] in " \t":
                kept.pop()
            is_first = not kept or kept[-1] != ","
            if is_first:
                kept.append(" ")
            else:
                kept.pop()
            skips_comma = is_first
        elif not (skips_comma and piece[0] in ", \t"):
            kept.append(piece[0])
            skips_comma = False
    return "".join(kept).strip(" \t,")


def metadata_urls_in(challenge: str) -> list[str]:
    """Return the metadata URLs in a WWW-Authenticate line."""
    return [
        _plain(piece["value"])
        for piece in _PIECE.finditer(challenge)
        if (piece["name"] or "").lower() == "resource_metadata"
    ]


def rewrite_resource_metadata(
    document: bytes, ours: str, upstream: UpstreamNames, issuer: str | None
) -> bytes | None:
    """Return protected-resource metadata that names us; None if it is not about this upstream.

    ``issuer`` is our name for its authorization server; None leaves the servers as they are.
    """
    try:
        found = json.loads(document)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or not isinstance(resource := found.get("resource"), str):
        return None
    if (named := our_url(resource, ours, upstream)) is None:
        is_odd = "@" in resource or not resource.isascii()
        if is_odd and may_lead_round(resource, upstream):
            raise ProtocolError("metadata whose resource some clients take for the upstream")
        return None
    found["resource"] = named
    found.pop("signed_metadata", None)
    if issuer is not None:
        found["authorization_servers"] = [issuer]
    return json.dumps(found).encode()


def passes_through(server: ServerMetadata) -> bool:
    """Tell whether we can stand in for an authorization server: clients must register through
    us."""
    methods = server.auth_methods
    can_prove = methods is None or not _USABLE.isdisjoint(methods)
    return server.registration_endpoint is not None and can_prove


def rewrite_server_metadata(
    document: Mapping[str, object], ours: str, upstream: UpstreamNames
) -> bytes:
    """Return an authorization server's metadata that names us for the endpoints that we pass on."""
    found = {name: value for name, value in document.items() if name not in _NEVER}
    for name, value in found.items():  # no endpoint may lead to the upstream past us
        if isinstance(value, str) and (named := our_url(value, ours, upstream)):
            found[name] = named
    issuer = document.get("issuer")
    if not isinstance(issuer, str):
        raise ProtocolError("A metadata document has no issuer")
    found["issuer"] = our_issuer(issuer, ours)
    found["authorization_endpoint"] = ours + AUTHORIZE
    found["token_endpoint"] = ours + TOKEN
    found["registration_endpoint"] = ours + REGISTER
    found.pop(_NO_DOCUMENTS, None)
    if isinstance(methods := found.get(_AUTH_METHODS), list):
        found[_AUTH_METHODS] = [one for one in methods if one in _USABLE]
    return json.dumps(found).encode()


def _is_quoted(piece: re.Match[str]) -> bool:
    return piece["value"].startswith('"')


def _plain(value: str) -> str:
    return _ESCAPE.sub(r"\1", value[1:-1]) if value.startswith('"') else value


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')
