"""``mcp-tool-filter logout URL``: end a login, here and at the authorization server."""

from __future__ import annotations

import asyncio

from mcp_tool_filter.adapters.oauth.login import drop
from mcp_tool_filter.adapters.oauth.store import LoginState, LoginStore
from mcp_tool_filter.cli.flags import WORDS, Given, UsageError
from mcp_tool_filter.cli.settings import split_upstream, with_scheme
from mcp_tool_filter.cli.terminal import say
from mcp_tool_filter.errors import StartError, printable


def run(typed: Given) -> int:
    """End one login, or all; return the exit status."""
    url, ends_all = next(iter(typed.get(WORDS, [])), ""), "all" in typed
    store = LoginStore()
    if bool(url) == ends_all:
        raise UsageError("Log out of which server?", why="mcp-tool-filter logout URL, or --all")
    for state in list(store.all()) if ends_all else [_find(url, store)]:
        if problem := asyncio.run(drop(state, store)):
            say(f"The authorization server was not notified: {printable(str(problem))}")
        print(f"Logged out of {printable(state.endpoint)}")
    return 0


def _find(url: str, store: LoginStore) -> LoginState:
    origin, path = split_upstream(with_scheme(url))
    if (state := store.find(origin + path)) is None:
        raise StartError(f"Not logged in to {origin}{path}", why="See mcp-tool-filter login --list")
    return state
