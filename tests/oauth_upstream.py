"""An MCP upstream behind a login, with its authorization server.

with oauth_upstream(lifetime=3) as upstream:
    ...  # upstream.url, upstream.token_requests, upstream.calls
"""

from __future__ import annotations

import json
import ssl
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.http_server import Handler, serving
from tests.oauth_server import Grant, OAuthUpstream


class _Handler(Handler):
    upstream: OAuthUpstream

    def do_GET(self) -> None:
        path, upstream = urlsplit(self.path).path, self.upstream
        well_known = "/.well-known/oauth-protected-resource"
        if path in (well_known, well_known + urlsplit(upstream.url).path):
            if upstream.has_resource_metadata and self._is_at(upstream.origin):
                about = {"resource": upstream.url, "authorization_servers": [upstream.issuer]}
                return self._say(200, about | {"scopes_supported": upstream.scopes})
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
        body = self.read_body()
        upstream, path = self.upstream, urlsplit(self.path).path
        if path == urlsplit(upstream.url).path:
            return self._mcp(json.loads(body))
        form = {name: values[0] for name, values in parse_qs(body.decode()).items()}
        kind, _, basic = self.headers.get("authorization", "").partition(" ")
        if path == "/token":
            return self._say(*upstream.token(form, basic if kind == "Basic" else None))
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
        named = [(name.replace("_", "-"), value) for name, value in headers.items() if value]
        body = b"" if said is None else json.dumps(said).encode()
        self.say(status, body, ("Content-Type", "application/json"), *named)


@contextmanager
def oauth_upstream(
    *, path: str = "/mcp", elsewhere: bool = False, tls: ssl.SSLContext | None = None,
    port: int = 0, **how: Any,
) -> Iterator[OAuthUpstream]:  # fmt: skip
    """Run an upstream; with ``elsewhere`` its authorization server has an origin of its own."""
    upstream = OAuthUpstream(**how)
    with ExitStack() as stack:
        ports = [
            stack.enter_context(serving(_Handler, tls=tls, port=one, upstream=upstream))
            for one in ((port, 0) if elsewhere else (port,))
        ]
        origins = [f"{'https' if tls else 'http'}://127.0.0.1:{one}" for one in ports]
        upstream.url, upstream.issuer = origins[0] + path, origins[-1]
        yield upstream
