"""``mcp-tool-filter login URL`` and ``logout URL``, with a browser."""

from __future__ import annotations

import asyncio
import os
import re
import sys
import time
import webbrowser
from dataclasses import replace

from mcp_tool_filter.cli.flags import WORDS, Given, UsageError
from mcp_tool_filter.cli.settings import in_our_words, parse_number, split_upstream, with_scheme
from mcp_tool_filter.cli.terminal import is_terminal, print_table, say
from mcp_tool_filter.core.errors import StartError, printable
from mcp_tool_filter.rooms.logins.login import OwnClient, Wishes, drop, log_in, wanted_scopes
from mcp_tool_filter.rooms.logins.store import LoginState, LoginStore, check_keyring

_MOST_STEPS_UP = 2
_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")


def run(typed: Given) -> int:
    """Log in, or list the logins; return the exit status."""
    store = LoginStore()
    if "list" in typed:
        return _list(store)
    url = next(iter(typed.get(WORDS, [])), "")
    if not url:
        raise UsageError("Log in to which server?", why="mcp-tool-filter login URL")
    origin, path = split_upstream(with_scheme(url))
    wishes = _wishes(typed)
    with in_our_words():
        state = asyncio.run(_log_in(origin + path, wishes, store, "no-browser" in typed))
    print(f"Logged in to {printable(state.endpoint)}")
    if is_terminal(sys.stdout):
        say(f"\nmcp-tool-filter --upstream {printable(state.endpoint)} --deny PATTERN")
    return 0


async def _log_in(url: str, wishes: Wishes, store: LoginStore, no_browser: bool) -> LoginState:
    """Log in; once more if the upstream then wants more scopes. Raises StartError."""
    show = _print_url if no_browser else _open_browser
    paste = _pasted if no_browser else None
    state = await log_in(url, wishes, store, show, paste)
    for _ in range(_MOST_STEPS_UP):
        if not (wanted := await wanted_scopes(state, store)):
            break
        say(f"The server wants more rights: {printable(' '.join(wanted))}")
        state = await log_in(state.endpoint, _wider(wishes, wanted), store, show, paste)
    return state


def _wider(wishes: Wishes, wanted: tuple[str, ...]) -> Wishes:
    if wishes.scopes is None:  # stored scopes are requested anyway
        return wishes
    return replace(wishes, scopes=tuple(dict.fromkeys((*wishes.scopes, *wanted))))


async def _print_url(url: str) -> None:
    say(f"Open this page to log in:\n\n  {printable(url)}\n")
    say("If the browser is on another device, paste its final address here.")


async def _open_browser(url: str) -> None:
    say(f"Your browser opens this page to log in:\n\n  {printable(url)}\n")
    if not await asyncio.to_thread(webbrowser.open, url):
        say("Cannot open a browser: open the page yourself")


async def _pasted() -> str:
    """Wait for a line from the user, without a thread that could not be stopped; forever if stdin
    cannot be read."""
    loop = asyncio.get_running_loop()
    typed: asyncio.Future[str] = loop.create_future()

    def read() -> None:
        # A buffer would keep the next line from the loop, which looks at the descriptor.
        with open(sys.stdin.fileno(), "rb", buffering=0, closefd=False) as unbuffered:
            text = unbuffered.readline().decode(errors="replace")
        loop.remove_reader(sys.stdin)
        if text and not typed.done():
            typed.set_result(text.strip())

    try:
        loop.add_reader(sys.stdin, read)
    except (OSError, ValueError, NotImplementedError):  # a file, closed, or Windows
        return await typed
    try:
        return await typed
    finally:
        loop.remove_reader(sys.stdin)


def _list(store: LoginStore) -> int:
    """Show every login, without secrets."""
    rows = [
        (
            printable(state.endpoint),
            _condition(state),
            printable(" ".join(state.tokens.scopes if state.tokens else ())),
        )
        for state in store.all()
    ]
    if not rows:
        say("There are no logins: mcp-tool-filter login URL")
        return 0
    print_table(("SERVER", "LOGIN", "SCOPES"), rows)
    return 0


def _condition(state: LoginState) -> str:
    if state.tokens is None:
        return "expired: log in again"
    if state.tokens.refresh_token:
        return "renews itself"
    if state.tokens.expires_at is None:
        return "does not expire"
    if state.tokens.expires_at < time.time():
        return "expired: log in again"
    return time.strftime("until %Y-%m-%d %H:%M", time.localtime(state.tokens.expires_at))


def _wishes(typed: Given) -> Wishes:
    one = {name: values[-1] for name, values in typed.items()}
    secret = _expand(one["client-secret"]) if "client-secret" in one else None
    if secret is not None and "client-id" not in one:
        raise UsageError("--client-secret needs --client-id")
    scopes = tuple(" ".join(typed["scope"]).split()) if "scope" in typed else None
    if "keyring" in one:
        check_keyring()  # check before the login starts
    return Wishes(
        client=OwnClient(one["client-id"], secret) if "client-id" in one else None,
        scopes=scopes,
        callback_port=parse_number("callback-port", one.get("callback-port", "0")),
        ca=one.get("ca"),
        timeout=_seconds(one.get("timeout", "300")),
        in_keyring="keyring" in one,
    )


def _seconds(text: str) -> float:
    if not re.fullmatch(r"\d{1,6}(\.\d{1,3})?", text):
        raise UsageError(f"--timeout cannot be {text}", why="It must be a number of seconds")
    return float(text)


def _expand(text: str) -> str:
    """Expand $VAR as --header does, because other users may see the command line."""
    match = _VARIABLE.fullmatch(text)
    if match is None:
        return text
    name = match[1] or match[2]
    if name not in os.environ:
        raise UsageError("--client-secret cannot be read", why=f"The variable {name} is not set")
    return os.environ[name]


def run_logout(typed: Given) -> int:
    """End one login, or all; return the exit status."""
    url, ends_all = next(iter(typed.get(WORDS, [])), ""), "all" in typed
    store = LoginStore()
    if bool(url) == ends_all:
        raise UsageError("Log out of which server?", why="mcp-tool-filter logout URL, or --all")
    states = list(store.all()) if ends_all else [_stored(url, store)]
    for state in states:
        if problem := asyncio.run(drop(state, store)):
            say(f"The authorization server was not notified: {printable(str(problem))}")
        print(f"Logged out of {printable(state.endpoint)}")
    if not states:
        say("There are no logins")
    return 0


def _stored(url: str, store: LoginStore) -> LoginState:
    origin, path = split_upstream(with_scheme(url))
    if (state := store.find(origin + path)) is None:
        raise StartError(f"Not logged in to {origin}{path}", why="See mcp-tool-filter login --list")
    return state
