"""An MCP upstream behind a login, with its authorization server, and a browser for both.

    with oauth_upstream(lifetime=3) as upstream:
        ...  # upstream.url, upstream.token_requests, upstream.calls

Each refresh token is valid for one use: one that comes twice ends the whole login, as careful
servers do it. The browser is a function that follows redirects; as a program, for ``$BROWSER``, it
is this file.
"""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
import ssl
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlencode, urlsplit

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
        """Everything that nobody may show."""
        used = [one[key] for one in self.token_requests for key in ("code", "code_verifier",
                "refresh_token", "client_secret") if key in one]  # fmt: skip
        return [*self._access, *self._refresh, *self._used, *used]

    # The authorization server

    def server_metadata(self) -> dict[str, Any]:
        known: dict[str, Any] = {
            "issuer": self.issuer,
            "authorization_endpoint": f"{self.issuer}/authorize",
            "token_endpoint": f"{self.issuer}/token",
            "revocation_endpoint": f"{self.issuer}/revoke",
            "response_types_supported": ["code"],
            "code_challenge_methods_supported": ["S256"],
            "token_endpoint_auth_methods_supported": ["none", "client_secret_basic"],
            "authorization_response_iss_parameter_supported": self.sends_issuer,
            "client_id_metadata_document_supported": self.takes_documents,
        }
        if self.has_registration:
            known["registration_endpoint"] = f"{self.issuer}/register"
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
        is_known = client or self._is_document(asked) or self._is_fixed(asked)
        if not is_known or asked.get("code_challenge_method") != "S256":
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

    def _is_document(self, asked: dict[str, str]) -> bool:
        return self.takes_documents and asked.get("client_id", "").startswith("https://")

    def _is_fixed(self, asked: dict[str, str]) -> bool:
        return self.fixed_client is not None and asked.get("client_id") == self.fixed_client[0]

    def token(self, asked: dict[str, str], basic: str | None) -> tuple[int, dict[str, Any]]:
        if "client_id" not in asked:  # as the Python SDK has it, also with basic
            return 401, {"error": "invalid_client"}
        if basic:
            name, _, secret = base64.b64decode(basic).decode().partition(":")
            asked = {**asked, "client_id": unquote(name), "client_secret": unquote(secret)}
        with self._lock:
            self.token_requests.append(asked)
        if self.delay:
            time.sleep(self.delay)
        if self.fixed_client and (asked.get("client_id"), asked.get("client_secret")) != (
            self.fixed_client
        ):
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
        said: dict[str, Any] = {
            "access_token": access,
            "token_type": "bearer",
            "expires_in": self.lifetime,
            "scope": " ".join(grant.scopes),
        }
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
                result = {
                    "protocolVersion": "2025-06-18",
                    "capabilities": {"tools": {}},
                    "serverInfo": {"name": "behind a login", "version": "1"},
                }
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


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    upstream: OAuthUpstream

    def do_GET(self) -> None:
        path, upstream = urlsplit(self.path).path, self.upstream
        well_known = "/.well-known/oauth-protected-resource"
        if path in (well_known, well_known + urlsplit(upstream.url).path):
            if upstream.has_resource_metadata and self._is_at(upstream.origin):
                return self._say(200, {
                    "resource": upstream.url,
                    "authorization_servers": [upstream.issuer],
                    "scopes_supported": upstream.scopes,
                })  # fmt: skip
        elif path == "/.well-known/oauth-authorization-server":
            if upstream.has_server_metadata and self._is_at(upstream.issuer):
                return self._say(200, upstream.server_metadata())
        elif path == "/authorize":
            status, said = upstream.authorize(self._query())
            return self._say(status, {"error": said}, Location=said if status == 302 else "")
        elif path == urlsplit(upstream.url).path:
            return self._challenge() if self._grant() is None else self._say(405, {})
        return self._say(404, {})

    def do_DELETE(self) -> None:
        self._say(200 if self._grant() else 401, {})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        upstream, path = self.upstream, urlsplit(self.path).path
        if path == urlsplit(upstream.url).path:
            return self._mcp(json.loads(body))
        form = {name: values[0] for name, values in parse_qs(body.decode()).items()}
        kind, _, basic = self.headers.get("authorization", "").partition(" ")
        if path == "/token":
            said = upstream.token(form, basic if kind == "Basic" else None)
            return self._say(*said)
        if path == "/register" and upstream.has_registration:
            return self._say(*upstream.register(json.loads(body)))
        if path == "/revoke":
            upstream.revoked.append(form["token"])
            return self._say(200, {})
        return self._say(404, {})

    def _mcp(self, message: dict[str, Any]) -> None:
        upstream = self.upstream
        upstream.calls.append((message.get("method", ""), self.headers.get("authorization")))
        grant = self._grant()
        if message.get("method") in upstream.open_methods:
            return self._say(200, upstream.answer(message))
        if grant is None and upstream.challenges_get_only:
            return self._say(404, {})
        if grant is None:
            return self._challenge()
        wanted = upstream.scope_to_enter
        if message.get("method") == "tools/call":
            wanted = wanted or upstream.scope_of_calls
        if wanted and wanted not in grant.scopes:
            challenge = f'Bearer error="insufficient_scope", scope="{wanted}"'
            return self._say(403, {"error": "insufficient_scope"}, WWW_Authenticate=challenge)
        said = upstream.answer(message, grant)
        opened = upstream.session if message.get("method") == "initialize" else ""
        return self._say(202 if said is None else 200, said, Mcp_Session_Id=opened)

    def _challenge(self) -> None:
        upstream = self.upstream
        metadata = f"{upstream.origin}/.well-known/oauth-protected-resource"
        metadata += urlsplit(upstream.url).path
        challenge = upstream.challenge.format(metadata=metadata)
        self._say(401, {"error": "invalid_token"}, WWW_Authenticate=challenge)

    def _grant(self) -> Grant | None:
        return self.upstream.grant_of(self.headers.get("authorization"))

    def _is_at(self, url: str) -> bool:
        return self.headers.get("host") == urlsplit(url).netloc

    def _query(self) -> dict[str, str]:
        return {name: values[0] for name, values in parse_qs(urlsplit(self.path).query).items()}

    def _say(self, status: int, said: object, **headers: str) -> None:
        body = b"" if said is None else json.dumps(said).encode()
        self.send_response(status)
        for name, value in headers.items():
            if value:
                self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_args: object) -> None:
        pass


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 100

    def handle_error(self, *_args: object) -> None:
        """Clients may leave when they like."""


@contextmanager
def oauth_upstream(
    *,
    path: str = "/mcp",
    elsewhere: bool = False,
    tls: ssl.SSLContext | None = None,
    port: int = 0,
    **how: Any,
) -> Iterator[OAuthUpstream]:
    """Run an upstream; with ``elsewhere`` its authorization server has an origin of its own."""
    upstream = OAuthUpstream(**how)
    handler = type("Handler", (_Handler,), {"upstream": upstream})
    servers = [
        _Server(("127.0.0.1", one), handler) for one in ((port, 0) if elsewhere else (port,))
    ]
    scheme = "https" if tls else "http"
    for server in servers:
        if tls:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    origins = [f"{scheme}://127.0.0.1:{server.server_address[1]}" for server in servers]
    upstream.url, upstream.issuer = origins[0] + path, origins[-1]
    try:
        yield upstream
    finally:
        for server in servers:
            server.shutdown()
            server.server_close()


def browse(url: str) -> int:
    """Open a page as a browser does, with all its redirects; the last status."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with urllib.request.urlopen(url, timeout=20, context=context) as got:
            got.read()
            return int(got.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def browser_command() -> str:
    """What to set $BROWSER to."""
    return f"{sys.executable} {Path(__file__).resolve()} %s"


if __name__ == "__main__":
    browse(sys.argv[1])
