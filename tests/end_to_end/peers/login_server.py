"""A server behind a login: the SDK's own authorization server, whose user always agrees."""

from __future__ import annotations

import argparse
import secrets
import time
import warnings
from typing import Any

from fixtures import listening, serve
from mcp.server.auth import provider
from mcp.server.auth.provider import AccessToken, AuthorizationCode, RefreshToken
from mcp.server.auth.settings import AuthSettings, ClientRegistrationOptions, RevocationOptions
from mcp.shared.auth import OAuthToken

warnings.simplefilter("ignore", DeprecationWarning)


class Provider:
    """Access tokens live as long as they are told to; refresh tokens are good for one use."""

    def __init__(self, lifetime: int) -> None:
        self.lifetime = lifetime
        self.clients: dict[str, Any] = {}
        self.codes: dict[str, AuthorizationCode] = {}
        self.access: dict[str, AccessToken] = {}
        self.refresh: dict[str, RefreshToken] = {}

    async def get_client(self, client_id: str) -> Any:
        return self.clients.get(client_id)

    async def register_client(self, client_info: Any) -> None:
        self.clients[client_info.client_id] = client_info

    async def authorize(self, client: Any, params: Any) -> str:
        code = AuthorizationCode(
            code=secrets.token_urlsafe(32), client_id=client.client_id, resource=params.resource,
            scopes=params.scopes or ["user"], expires_at=time.time() + 60,
            code_challenge=params.code_challenge, redirect_uri=params.redirect_uri,
            redirect_uri_provided_explicitly=params.redirect_uri_provided_explicitly,
        )  # fmt: skip
        self.codes[code.code] = code
        back = {"code": code.code, "state": params.state}
        return provider.construct_redirect_uri(str(params.redirect_uri), **back)

    async def load_authorization_code(self, client: Any, authorization_code: str) -> Any:
        return self.codes.get(authorization_code)

    async def exchange_authorization_code(self, client: Any, authorization_code: Any) -> Any:
        del self.codes[authorization_code.code]
        return self.issue(client, authorization_code.scopes, authorization_code.resource)

    async def load_refresh_token(self, client: Any, refresh_token: str) -> Any:
        return self.refresh.get(refresh_token)

    async def exchange_refresh_token(self, client: Any, refresh_token: Any, scopes: Any) -> Any:
        if self.refresh.pop(refresh_token.token, None) is None:
            raise provider.TokenError("invalid_grant", "used before")
        return self.issue(client, scopes, getattr(refresh_token, "resource", None))

    async def load_access_token(self, token: str) -> Any:
        found = self.access.get(token)
        return found if found and found.expires_at > time.time() else None

    async def revoke_token(self, token: Any) -> None:
        self.access.pop(token.token, None)
        self.refresh.pop(token.token, None)

    def issue(self, client: Any, scopes: list[str], resource: str | None) -> OAuthToken:
        known = {"client_id": client.client_id, "scopes": scopes, "resource": resource}
        ends = int(time.time()) + self.lifetime
        access = AccessToken(token=secrets.token_urlsafe(32), expires_at=ends, **known)
        refresh = RefreshToken(
            token=secrets.token_urlsafe(32), client_id=client.client_id, scopes=scopes
        )
        self.access[access.token] = access
        self.refresh[refresh.token] = refresh
        return OAuthToken(
            access_token=access.token, refresh_token=refresh.token, token_type="Bearer",
            expires_in=self.lifetime, scope=" ".join(scopes),
        )  # fmt: skip


def main(make: Any) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--journal")
    parser.add_argument("--lifetime", type=int, default=3)
    args = parser.parse_args()
    listener = listening(args.port)
    origin = f"http://127.0.0.1:{listener.getsockname()[1]}"
    clients = ClientRegistrationOptions(
        enabled=True, valid_scopes=["user"], default_scopes=["user"]
    )
    settings = AuthSettings(
        issuer_url=origin, resource_server_url=f"{origin}/mcp", required_scopes=["user"],
        client_registration_options=clients, revocation_options=RevocationOptions(enabled=True),
    )  # fmt: skip
    server = make("behind-a-login", auth=settings, auth_server_provider=Provider(args.lifetime))

    @server.tool()
    def read_file(path: str) -> str:
        """Read a file."""
        return f"the text of {path}"

    @server.tool()
    def delete_file(path: str) -> str:
        """Delete a file."""
        return "gone"

    serve(server.streamable_http_app(), listener)
