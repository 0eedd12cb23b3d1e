"""A login as values: who we are to the authorization server, and what it gave us.

No ``repr`` shows a secret, so that no log and no traceback can.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

_EARLY = 30.0  # seconds before its end a token is renewed, or a fifth of its life if that is less


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """What an authorization server knows us by."""

    client_id: str
    client_secret: str | None = field(default=None, repr=False)
    auth_method: str = "none"
    """How we prove who we are: none, client_secret_basic or client_secret_post."""
    redirect_uri: str = ""
    scopes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    access_token: str = field(repr=False)
    refresh_token: str | None = field(default=None, repr=False)
    received_at: float
    expires_at: float | None = None
    """Seconds since 1970; None if nothing was said."""
    scopes: tuple[str, ...] = ()

    def is_fresh(self, now: float) -> bool:
        if self.expires_at is None:
            return True
        return now < self.expires_at - min(_EARLY, (self.expires_at - self.received_at) / 5)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoginState:
    """All that is stored of a login."""

    endpoint: str
    resource: str | None
    issuer: str
    token_endpoint: str
    revocation_endpoint: str | None
    registration: Registration
    tokens: Tokens | None
    """None once the authorization server has refused to renew them."""
    wanted_scopes: tuple[str, ...] = ()
    """What the upstream has asked for beyond what we have."""
    ca: str | None = None
    """A file with the certificates to trust."""
    in_keyring: bool = False
    """Its secrets are in the system's keyring, and not in the file."""

    def with_tokens(self, tokens: Tokens | None) -> LoginState:
        return replace(self, tokens=tokens)
