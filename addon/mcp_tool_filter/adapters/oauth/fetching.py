"""Fetches tools with a stored login."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from mcp_tool_filter.adapters.oauth.credentials import Credentials, credentials_for
from mcp_tool_filter.adapters.oauth.errors import LoggedOut
from mcp_tool_filter.errors import FetchFailed

if TYPE_CHECKING:
    from mcp_tool_filter.adapters.fetch.upstream import Target
    from mcp_tool_filter.conversation.fetched import Fetched

type Fetch = Callable[[Target], Awaitable[Fetched]]

_REFUSED = (401, 403)


async def fetch_logged_in(target: Target, fetch: Fetch) -> Fetched:
    """Fetch with the login for this upstream, if there is one. Raises StartError.

    A token that the upstream does not accept is renewed once.
    """
    if (credentials := login_of(target.url, target.endpoint, target.headers)) is None:
        return await fetch(target)
    value = credentials.value() or await credentials.renewed()
    try:
        return await fetch(_with(target, value))
    except FetchFailed as failed:
        if failed.status != 401:
            raise _explained(failed, credentials) from None
    value = await credentials.renewed(rejected=value)
    try:
        return await fetch(_with(target, value))
    except FetchFailed as failed:
        raise _explained(failed, credentials) from None


def login_of(
    url: str, endpoint: str | None, headers: tuple[tuple[str, str], ...]
) -> Credentials | None:
    """Return the login that an upstream is asked with; none where the user says Authorization.

    Raises StartError for stored logins that cannot be read.
    """
    if any(name.lower() == "authorization" for name, _ in headers):
        return None
    return credentials_for(url + (endpoint or ""))


def _with(target: Target, value: str) -> Target:
    return replace(target, headers=(*target.headers, ("Authorization", value)), uses_login=False)


def _explained(failed: FetchFailed, credentials: Credentials) -> Exception:
    """Say what to type where the upstream does not accept the login."""
    if failed.status not in _REFUSED:
        return failed
    problem = "is not accepted" if failed.status == 401 else "lacks rights"
    return LoggedOut(credentials.endpoint, problem)
