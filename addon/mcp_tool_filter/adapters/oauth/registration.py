"""Get a client id from an authorization server: the user's own, or by registering (RFC 7591)."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from mcp_tool_filter.adapters.oauth.errors import LoginFailed
from mcp_tool_filter.adapters.oauth.login_state import Registration
from mcp_tool_filter.adapters.oauth.web import Web, WebFailed
from mcp_tool_filter.http.oauth_metadata import ServerMetadata

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
        known = _read(answer.body)
    except WebFailed as error:
        raise LoginFailed(endpoint, why=f"Registration: {error}") from None
    if answer.status not in (200, 201) or not isinstance(known.get("client_id"), str):
        why = f"Its authorization server does not register us (HTTP {answer.status})"
        raise LoginFailed(endpoint, why=f"{why}: give --client-id")
    secret = known.get("client_secret")
    given = known.get("token_endpoint_auth_method", method)
    if given not in _METHODS:
        given = "client_secret_basic" if secret else "none"
    return Registration(
        client_id=str(known["client_id"]),
        client_secret=secret if isinstance(secret, str) and given != "none" else None,
        auth_method=str(given) if secret else "none",
        redirect_uri=redirect_uri,
        scopes=scopes,
    )


def _read(body: bytes) -> dict[str, object]:
    try:
        known = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return known if isinstance(known, dict) else {}
