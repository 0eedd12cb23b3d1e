"""The state of rate limits and caches: in this process, or in Redis, shared by several."""

from __future__ import annotations

import os
import re
import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

from mcp_tool_filter.errors import StartError
from mcp_tool_filter.policy.rule_effects import CountUse, Identify, ReadCache, WriteCache
from mcp_tool_filter.policy.rules.link import MemoryState
from mcp_tool_filter.policy.rules.model import StateSettings

if TYPE_CHECKING:
    from mcp_tool_filter.adapters.fetch.http_client import Login

_OF_NO_USER = re.compile(
    r"_|PWD|OLDPWD|SHLVL|PATH|HOST(NAME)?|TMP|TEMP|TMPDIR|LINES|COLUMNS|WINDOWID|STY|LS_COLORS"
    r"|(WAYLAND_)?DISPLAY|LANG(UAGE)?|INVOCATION_ID|JOURNAL_STREAM|MANAGERPID|PYTHON[A-Z]*"
    r"|(MCP_TOOL_FILTER|TERM|COLORTERM|LC|SSH|XDG_SESSION|XDG_RUNTIME|XDG_SEAT|DBUS|TMUX|VSCODE"
    r"|ITERM|GPG|PYTEST|SYSTEMD|OTEL|npm|NODE)(_.*)?"
)

type StateEffect = Identify | CountUse | ReadCache | WriteCache


class RuleState(Protocol):
    """The state of the rules."""

    def at_once(self, effect: StateEffect) -> object:
        """Return the result of an effect, or LATER if it must wait."""

    async def carry_out(self, effect: StateEffect) -> object:
        """Carry out an effect that must wait. Raises EffectFailed."""

    async def close(self) -> None:
        """End all work under way."""


class StateInMemory:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.memory = MemoryState(secrets.token_bytes(32))

    def at_once(self, effect: StateEffect) -> object:
        now = self._clock()
        match effect:
            case Identify(credentials):
                return self.memory.identify(credentials)
            case CountUse(key, limits):
                return self.memory.count_use(key, limits, now)
            case ReadCache(key):
                return self.memory.read_cache(key, now)
            case WriteCache(key, value, ttl, group, most):
                self.memory.write_cache(key, value, ttl, group, most, now)
        return None

    async def carry_out(self, effect: StateEffect) -> object:
        return self.at_once(effect)

    async def close(self) -> None:
        """Do nothing: no work is ever under way."""


def credentials_we_add(headers: Iterable[tuple[str, str]], login: Login | None) -> bytes:
    """Return what identifies the operator to an upstream; empty if nothing does."""
    lines = sorted(f"{name.lower()}: {value}" for name, value in headers)
    if login is not None:
        with suppress(StartError):
            lines.append(login.value() or "")
    return "\n".join(lines).encode("utf-8", "surrogateescape")


def credentials_of_command(typed: Mapping[str, str], folder: str | None) -> bytes:
    """Return what identifies the user of a command: its environment and its folder.

    Any variable may name a user, so we leave out only those that belong to a terminal or a process.
    """
    known = {k: v for k, v in os.environ.items() if not _OF_NO_USER.fullmatch(k)}
    lines = [folder or os.getcwd(), *(f"{k}={v}" for k, v in sorted({**known, **typed}.items()))]
    return "\n".join(lines).encode("utf-8", "surrogateescape")


def open_state(settings: StateSettings) -> RuleState:
    """Return the state that a policy asks for. Raises StartError if it cannot be used."""
    if settings.url is None:
        return StateInMemory()
    from mcp_tool_filter.adapters.effects.redis_state import RedisState

    return RedisState(settings.url, settings.prefix)
