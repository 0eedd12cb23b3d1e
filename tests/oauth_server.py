"""What an upstream behind a login knows, grants and refuses, and what its tools answer.

Each refresh token is valid for one use: one that comes twice ends the whole login, as careful
servers do it.
"""

from __future__ import annotations

import base64
import hashlib
import secrets
import threading
import time
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote, urlencode, urlsplit

TOOLS = [
    {"name": name, "description": "a tool", "inputSchema": {"type": "object"}}
    for name in ("read_file", "delete_file")
]


@dataclass
class Grant:
    """What one login has."""

    scopes: list[str]
    resource: str | None
    is_over: bool = False
    user: int = 0


@dataclass
class OAuthUpstream:
    """What ``oauth_upstream`` hands to a test, to look at and to change while it runs."""

    url: str = ""
    """The MCP endpoint."""
    issuer: str = ""
    lifetime: float = 3600.0
    scopes: list[str] = field(default_factory=lambda: ["tools"])
    scope_of_calls: str | None = None
    """What a tools/call needs besides."""
    open_methods: tuple[str, ...] = ()
    """What needs no login."""
    challenges_get_only: bool = False
    """As an upstream of the older transport does."""
    session: str = ""
    """The id of the one session that there is."""
    scope_to_enter: str | None = None
    """What each message needs besides."""
    has_resource_metadata: bool = True
    has_server_metadata: bool = True
    has_registration: bool = True
    challenge: str = 'Bearer error="invalid_token", resource_metadata="{metadata}"'
    binds_audience: bool = True
    sends_issuer: bool = False
    gives_refresh: bool = True
    tools_of: tuple[tuple[str, ...], ...] = ()
    """Which tools each user has: whoever logs in next is the next user."""
    takes_documents: bool = False
    fixed_client: tuple[str, str] | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
    """Replaces members of the authorization server's metadata."""
    way_back: dict[str, str] = field(default_factory=dict)
    """Replaces members of the way back from the login."""
    delay: float = 0.0
    """Seconds that the token endpoint takes."""
    token_requests: list[dict[str, str]] = field(default_factory=list)
    registrations: list[dict[str, Any]] = field(default_factory=list)
    authorizations: list[dict[str, str]] = field(default_factory=list)
    calls: list[tuple[str, str | None]] = field(default_factory=list)
    """The method of each message, and the Authorization that it came with."""
    revoked: list[str] = field(default_factory=list)
    refuses_renewal: str | None = None
    _clients: dict[str, dict[str, Any]] = field(default_factory=dict)
    _codes: dict[str, dict[str, str]] = field(default_factory=dict)
    _access: dict[str, tuple[float, Grant]] = field(default_factory=dict)
    _refresh: dict[str, tuple[str, Grant]] = field(default_factory=dict)
    _used: dict[str, Grant] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def origin(self) -> str:
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc}"

    @property
    def renewals(self) -> int:
        return sum(one["grant_type"] == "refresh_token" for one in self.token_requests)

    def end_access(self) -> None:
        """Accept none of the access tokens any more, although they have not expired."""
        with self._lock:
            self._access.clear()

    def all_secrets(self) -> list[str]:
        """Every secret, which must not be shown."""
        kinds = ("code", "code_verifier", "refresh_token", "client_secret")
        used = [one[key] for one in self.token_requests for key in kinds if key in one]
        return [*self._access, *self._refresh, *self._used, *used]

    # The authorization server

    def server_metadata(self) -> dict[str, Any]:
        known: dict[str, Any] = {
            "issuer": self.issuer,
            "response_types_supported": ["code"],
            "code_challenge_methods_supported": ["S256"],
            "token_endpoint_auth_methods_supported": ["none", "client_secret_basic"],
            "authorization_response_iss_parameter_supported": self.sends_issuer,
            "client_id_metadata_document_supported": self.takes_documents,
        }
        endpoints = {"authorization": "authorize", "token": "token", "revocation": "revoke"}
        if self.has_registration:
            endpoints["registration"] = "register"
        known |= {f"{name}_endpoint": f"{self.issuer}/{at}" for name, at in endpoints.items()}
        return {name: value for name, value in (known | self.metadata).items() if value is not None}

    def register(self, asked: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        self.registrations.append(asked)
        client = {**asked, "client_id": f"client-{len(self.registrations)}"}
        self._clients[client["client_id"]] = client
        return 201, client

    def authorize(self, asked: dict[str, str]) -> tuple[int, str]:
        """Log the user in at once; the status, and where the browser goes or what is wrong."""
        self.authorizations.append(asked)
        asked = {**asked, "user": str(len(self.authorizations) - 1)}
        client = self._clients.get(asked.get("client_id", ""))
        if client and asked.get("redirect_uri") not in client["redirect_uris"]:
            return 400, "redirect_uri"
        id = asked.get("client_id", "")
        is_document = self.takes_documents and id.startswith("https://")
        is_fixed = self.fixed_client is not None and id == self.fixed_client[0]
        if not (client or is_document or is_fixed) or asked.get("code_challenge_method") != "S256":
            return 400, "client or code_challenge"
        back = {"code": secrets.token_urlsafe(16), "state": asked["state"]}
        if self.binds_audience and asked.get("resource") != self.url:
            back = {"error": "invalid_target", "state": asked["state"]}
        else:
            self._codes[back["code"]] = asked
        if self.sends_issuer:
            back["iss"] = self.issuer
        back = {name: value for name, value in (back | self.way_back).items() if value}
        return 302, f"{asked['redirect_uri']}?{urlencode(back)}"

    def token(self, asked: dict[str, str], basic: str | None) -> tuple[int, dict[str, Any]]:
        if "client_id" not in asked:  # as the Python SDK has it, also with basic
            return 401, {"error": "invalid_client"}
        if basic:
            name, _, secret = base64.b64decode(basic).decode().partition(":")
            asked = {**asked, "client_id": unquote(name), "client_secret": unquote(secret)}
        with self._lock:
            self.token_requests.append(asked)
        time.sleep(self.delay)
        known = asked.get("client_id"), asked.get("client_secret")
        if self.fixed_client not in (None, known):
            return 401, {"error": "invalid_client"}
        with self._lock:
            if asked.get("grant_type") == "refresh_token":
                return self._renew(asked)
            return self._exchange(asked)

    def _exchange(self, asked: dict[str, str]) -> tuple[int, dict[str, Any]]:
        begun = self._codes.pop(asked.get("code", ""), None)
        digest = hashlib.sha256(asked.get("code_verifier", "").encode()).digest()
        challenge = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
        if begun is None or begun["code_challenge"] != challenge:
            return 400, {"error": "invalid_grant"}
        if begun["redirect_uri"] != asked.get("redirect_uri"):
            return 400, {"error": "invalid_grant", "error_description": "redirect_uri"}
        if self.binds_audience and asked.get("resource") != self.url:
            return 400, {"error": "invalid_target"}
        grant = Grant(begun.get("scope", "").split(), begun.get("resource"))
        grant.user = int(begun["user"])
        return 200, self._issue(grant, asked.get("client_id", ""))

    def _renew(self, asked: dict[str, str]) -> tuple[int, dict[str, Any]]:
        if self.refuses_renewal:
            return 400, {"error": self.refuses_renewal}
        if used := self._used.get(asked["refresh_token"]):
            used.is_over = True
        client_id, grant = self._refresh.pop(asked["refresh_token"], ("", None))
        if grant is None or grant.is_over or client_id != asked.get("client_id", ""):
            return 400, {"error": "invalid_grant", "error_description": "used before"}
        self._used[asked["refresh_token"]] = grant
        return 200, self._issue(grant, client_id)

    def _issue(self, grant: Grant, client_id: str) -> dict[str, Any]:
        access = f"access-{secrets.token_urlsafe(24)}"
        self._access[access] = (time.time() + self.lifetime, grant)
        said: dict[str, Any] = {"access_token": access, "token_type": "bearer"}
        said |= {"expires_in": self.lifetime, "scope": " ".join(grant.scopes)}
        if self.gives_refresh:
            said["refresh_token"] = f"refresh-{secrets.token_urlsafe(24)}"
            self._refresh[said["refresh_token"]] = (client_id, grant)
        return said

    # The MCP server

    def grant_of(self, authorization: str | None) -> Grant | None:
        token = (authorization or "").removeprefix("Bearer ")
        ends, grant = self._access.get(token, (0.0, None))
        if grant is None or grant.is_over or time.time() > ends:
            return None
        return None if self.binds_audience and grant.resource != self.url else grant

    def answer(self, message: dict[str, Any], grant: Grant | None = None) -> dict[str, Any] | None:
        if "id" not in message:
            return None
        has = [tool["name"] for tool in TOOLS]
        if self.tools_of and grant:
            has = list(self.tools_of[grant.user % len(self.tools_of)])
        result: dict[str, Any] = {}
        match message["method"]:
            case "initialize":
                result = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}}
                result["serverInfo"] = {"name": "behind a login", "version": "1"}
            case "tools/list":
                result = {"tools": [{**TOOLS[0], "name": name} for name in has]}
            case "tools/call" if message["params"]["name"] not in has:
                error = {"code": -32602, "message": "no such tool"}
                return {"jsonrpc": "2.0", "id": message["id"], "error": error}
            case "tools/call":
                result = {"content": [{"type": "text", "text": "done"}]}
            case "server/discover":
                error = {"code": -32601, "message": "Method not found"}
                return {"jsonrpc": "2.0", "id": message["id"], "error": error}
        return {"jsonrpc": "2.0", "id": message["id"], "result": result}
