"""The state of rate limits and caches, in this process; ``redis_state`` is that of several."""

from __future__ import annotations

import secrets
import time
from array import array
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mcp_tool_filter.rooms.rules.credentials import identify
from mcp_tool_filter.rooms.rules.policy import StateSettings
from mcp_tool_filter.rooms.rules.rule_effects import CountUse, Identify, ReadCache, WriteCache

if TYPE_CHECKING:
    from mcp_tool_filter.rooms.rules.redis_state import RedisState

type StateEffect = Identify | CountUse | ReadCache | WriteCache


MOST_BYTES = 64 * 1024 * 1024
_MOST_KEYS = 100_000
_MOST_USES = 2_000_000
_PER_ENTRY_HERE = 200  # bytes that an entry costs besides its value


@dataclass(slots=True)
class _Entry:
    value: bytes
    expires: float
    group: str


class StateInMemory:
    """The state of one process; the least recently used is forgotten first.

    >>> state = StateInMemory()
    >>> [state.count_use("a", ((2, 60.0),), now=float(second)) for second in (0, 10, 20, 60)]
    [None, None, 40.0, None]
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        *,
        most_bytes: int = MOST_BYTES,
        most_keys: int = _MOST_KEYS,
        most_uses: int = _MOST_USES,
    ) -> None:
        self._clock = clock
        self._salt = secrets.token_bytes(32)
        self._most_bytes, self._most_keys, self._most_uses = most_bytes, most_keys, most_uses
        self._windows: OrderedDict[str, array[float]] = OrderedDict()
        self._uses = 0
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        self._groups: dict[str, OrderedDict[str, None]] = {}
        """The keys of each group's entries, oldest first."""
        self.bytes = 0

    def at_once(self, effect: StateEffect) -> object:
        now = self._clock()
        match effect:
            case Identify(credentials):
                return identify(self._salt, credentials)
            case CountUse(key, limits):
                return self.count_use(key, limits, now)
            case ReadCache(key):
                return self.read_cache(key, now)
            case WriteCache(key, value, ttl, group, most):
                self.write_cache(key, value, ttl, group, most, now)
        return None

    async def carry_out(self, effect: StateEffect) -> object:
        return self.at_once(effect)

    async def close(self) -> None:
        """Do nothing: no work is ever under way."""

    # Windows

    def count_use(
        self, key: str, limits: tuple[tuple[int, float], ...], now: float
    ) -> float | None:
        """Count a use; if that exceeds a limit, do not count it and return the seconds to wait."""
        uses = self._windows.get(key)
        if uses is None:
            uses = self._windows[key] = array("d")
        self._windows.move_to_end(key)
        wait = max((_wait(uses, limit, window, now) for limit, window in limits), default=0.0)
        longest = max((window for _, window in limits), default=0.0)
        past = bisect_right(uses, now - longest)
        del uses[:past]
        self._uses -= past
        if wait > 0:
            if not uses:  # a limit of 0: clients that choose keys must not fill the memory
                del self._windows[key]
            return wait
        uses.append(now)
        self._uses += 1
        self._forget_windows()
        return None

    def _forget_windows(self) -> None:
        while len(self._windows) > self._most_keys or self._uses > self._most_uses:
            if len(self._windows) == 1:
                return
            _, uses = self._windows.popitem(last=False)
            self._uses -= len(uses)

    # Cached results

    def read_cache(self, key: str, now: float) -> bytes | None:
        entry = self._entries.get(key)
        if entry is None:
            return None
        if entry.expires <= now:
            self._remove(key)
            return None
        self._entries.move_to_end(key)
        return entry.value

    def write_cache(
        self, key: str, value: bytes, ttl: float, group: str, max_entries: int, now: float
    ) -> None:
        if key in self._entries:
            self._remove(key)
        size = len(value) + _PER_ENTRY_HERE
        if size > self._most_bytes:
            return
        self._entries[key] = _Entry(value, now + ttl, group)
        keys = self._groups.setdefault(group, OrderedDict())
        keys[key] = None
        self.bytes += size
        while len(keys) > max_entries:
            self._remove(next(iter(keys)))
        while self.bytes > self._most_bytes:
            self._remove(next(iter(self._entries)))

    def _remove(self, key: str) -> None:
        entry = self._entries.pop(key)
        self.bytes -= len(entry.value) + _PER_ENTRY_HERE
        keys = self._groups[entry.group]
        keys.pop(key, None)
        if not keys:
            self._groups.pop(entry.group, None)


def _wait(uses: array[float], limit: int, window: float, now: float) -> float:
    """Return the seconds until one more use is within a limit; 0 if it is now."""
    first = bisect_right(uses, now - window)
    count = len(uses) - first
    if count < limit:
        return 0.0
    if limit <= 0:
        return window
    return max(uses[len(uses) - limit] + window - now, 1e-9)


type RuleState = StateInMemory | RedisState


def open_state(settings: StateSettings) -> RuleState:
    """Return the state that a policy asks for. Raises StartError if it cannot be used."""
    if settings.url is None:
        return StateInMemory()
    from mcp_tool_filter.rooms.rules.redis_state import RedisState  # most policies name none

    return RedisState(settings.url, settings.prefix)
