"""The state of rate limits and caches: in this process, or in Redis, shared by several."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from typing import Protocol

from mcp_tool_filter.policy.rule_effects import CountUse, Identify, ReadCache, WriteCache
from mcp_tool_filter.policy.rules.memory import MemoryState
from mcp_tool_filter.policy.rules.model import StateSettings

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


def open_state(settings: StateSettings) -> RuleState:
    """Return the state that a policy asks for. Raises StartError if it cannot be used."""
    if settings.url is None:
        return StateInMemory()
    from mcp_tool_filter.adapters.effects.redis_state import RedisState

    return RedisState(settings.url, settings.prefix)
