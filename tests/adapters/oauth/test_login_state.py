"""A login as values: when its token is due, and that no log shows a secret."""

from __future__ import annotations

import pytest

from mcp_tool_filter.adapters.oauth.store import LoginState, Registration, Tokens


def tokens(lasts: float | None) -> Tokens:
    expires = None if lasts is None else 1000 + lasts
    return Tokens(access_token="s3cret", received_at=1000, expires_at=expires)


@pytest.mark.parametrize(
    ("lasts", "last_fresh"),
    [
        (3600, 3569),  # renewed half a minute early
        (100, 79),  # or a fifth of its life
        (0, None),
    ],
)
def test_a_token_is_renewed_before_its_end(lasts: float, last_fresh: float | None) -> None:
    given = tokens(lasts)
    if last_fresh is not None:
        assert given.is_fresh(1000 + last_fresh)
        assert not given.is_fresh(1000 + last_fresh + 1)
    assert not given.is_fresh(1000 + lasts)


def test_a_token_without_an_end_stays_fresh() -> None:
    assert tokens(None).is_fresh(1e12)


def test_no_repr_shows_a_secret() -> None:
    state = LoginState(
        endpoint="https://mcp.example/mcp",
        resource=None,
        issuer="https://mcp.example",
        token_endpoint="https://mcp.example/token",
        revocation_endpoint=None,
        registration=Registration(client_id="c", client_secret="s3cret"),
        tokens=Tokens(access_token="s3cret", refresh_token="s3cret", received_at=0),
    )
    assert "s3cret" not in repr(state)
    assert state.with_tokens(None).tokens is None
