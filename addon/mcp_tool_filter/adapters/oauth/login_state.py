"""A login as values: our registration at the authorization server, and the tokens.

No ``repr`` shows a secret, so that no log or traceback does.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

_EARLY = 30.0  # seconds before expiry that a token is renewed; at most a fifth of its life


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """Our registration at an authorization server."""

    client_id: str
    client_secret: str | None = field(default=None, repr=False)
    auth_method: str = "none"
    """How we authenticate: none, client_secret_basic or client_secret_post."""
    redirect_uri: str = ""
    scopes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    access_token: str = field(repr=False)
    refresh_token: str | None = field(default=None, repr=False)
    received_at: float
    expires_at: float | None = None
    """Seconds since 1970; None if unknown."""
    scopes: tuple[str, ...] = ()

    def is_fresh(self, now: float) -> bool:
        if self.expires_at is None:
            return True
        return now < self.expires_at - min(_EARLY, (self.expires_at - self.received_at) / 5)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoginState:
    """The stored login."""

    endpoint: str
    resource: str | None
    issuer: str
    token_endpoint: str
    revocation_endpoint: str | None
    registration: Registration
    tokens: Tokens | None
    """None once the authorization server has refused to renew them."""
    wanted_scopes: tuple[str, ...] = ()
    """Scopes that the upstream wants and the tokens lack."""
    ca: str | None = None
    """The path of a file with certificates to trust."""
    in_keyring: bool = False
    """True if its secrets are in the system's keyring instead of the file."""

    def with_tokens(self, tokens: Tokens | None) -> LoginState:
        return replace(self, tokens=tokens)
