"""``mcp-tool-filter logout URL``: end a login, here and at the authorization server."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence

from mcp_tool_filter.adapters.oauth.login import drop
from mcp_tool_filter.adapters.oauth.login_state import LoginState
from mcp_tool_filter.adapters.oauth.store import Store
from mcp_tool_filter.cli.output.log import say
from mcp_tool_filter.cli.settings.settings import split_upstream, with_scheme
from mcp_tool_filter.cli.settings.usage import UsageError
from mcp_tool_filter.errors import StartError


def run(argv: Sequence[str]) -> int:
    """End one login, or all; return the exit status."""
    args = _parser().parse_args(argv)
    store = Store()
    if bool(args.url) == args.all:
        raise UsageError("Log out of which server?", why="mcp-tool-filter logout URL, or --all")
    for state in list(store.all()) if args.all else [_find(args.url, store)]:
        if problem := asyncio.run(drop(state, store)):
            say(f"The authorization server was not told: {problem}")
        print(f"Logged out of {state.endpoint}")
    return 0


def _find(url: str, store: Store) -> LoginState:
    origin, path = split_upstream(with_scheme(url))
    if (state := store.find(origin + path)) is None:
        raise StartError(f"Not logged in to {origin}{path}", why="See mcp-tool-filter login --list")
    return state


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="mcp-tool-filter logout",
        description="End a login: its tokens are revoked, where the server can do that, and "
        "removed from this machine.",
    )
    parser.add_argument("url", nargs="?", metavar="URL", help="the server's MCP endpoint")
    parser.add_argument("--all", action="store_true", help="end all logins")
    return parser
