"""Rate limits and caches in Redis, so that several proxies share them.

The library ``redis`` is an extra: it is imported only if a policy names a Redis.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from mcp_tool_filter.errors import StartError
from mcp_tool_filter.policy.rule_effects import (
    CountUse,
    EffectFailed,
    Identify,
    ReadCache,
    WriteCache,
)
from mcp_tool_filter.policy.rules.driving import Later
from mcp_tool_filter.policy.rules.memory import MOST_BYTES, identify

if TYPE_CHECKING:
    from mcp_tool_filter.adapters.effects.rule_state import StateEffect

_CONNECT_TIMEOUT = 2.0
_LOST = "the state in Redis cannot be reached"
# All of a window's steps at once: no other process counts in between. The time is Redis's own, for
# the clocks of several machines differ. KEYS: the window. ARGV: a name for this use, then for each
# limit how many uses, in how many microseconds.
_COUNT_USE = """
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
local wait, longest = 0, 0
for i = 2, #ARGV, 2 do
  local limit, window = tonumber(ARGV[i]), tonumber(ARGV[i + 1])
  if window > longest then longest = window end
  local count = redis.call('ZCOUNT', KEYS[1], '(' .. string.format('%.0f', now - window), '+inf')
  if count >= limit then
    local needed = window
    if limit > 0 then
      local use = redis.call('ZREVRANGE', KEYS[1], limit - 1, limit - 1, 'WITHSCORES')
      needed = math.max(1, tonumber(use[2]) + window - now)
    end
    if needed > wait then wait = needed end
  end
end
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('%.0f', now - longest))
if wait > 0 then return tostring(wait) end
redis.call('ZADD', KEYS[1], string.format('%.0f', now), ARGV[1])
redis.call('PEXPIRE', KEYS[1], math.ceil(longest / 1000))
return false
"""
# KEYS: the entry, its group (a sorted set of entries by time), the number of bytes of all entries
# of this prefix is bounded by the group sizes. ARGV: value, milliseconds, most entries, now.
_WRITE_CACHE = """
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
redis.call('ZADD', KEYS[2], ARGV[4], KEYS[1])
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', ARGV[5])
local over = redis.call('ZCARD', KEYS[2]) - tonumber(ARGV[3])
if over > 0 then
  for _, key in ipairs(redis.call('ZPOPMIN', KEYS[2], over)) do redis.call('DEL', key) end
end
redis.call('PEXPIRE', KEYS[2], math.max(redis.call('PTTL', KEYS[2]), tonumber(ARGV[2])))
return false
"""


class NoRedis(StartError):
    def __init__(self) -> None:
        super().__init__(
            "The rules keep their state in Redis, and the Python package for it is missing",
            why="Install it with: pip install 'mcp-tool-filter[redis]'",
        )


class RedisState:
    def __init__(self, url: str, prefix: str) -> None:
        """Raises StartError if the library is missing or the URL cannot be read."""
        try:
            from redis.asyncio import Redis
            from redis.asyncio.retry import Retry
            from redis.backoff import NoBackoff
            from redis.exceptions import RedisError
        except ImportError:
            raise NoRedis from None
        try:
            self._redis: Any = Redis.from_url(
                url,
                socket_connect_timeout=_CONNECT_TIMEOUT,
                retry=Retry(NoBackoff(), 1),
                health_check_interval=30,
            )
        except ValueError as error:
            raise StartError(f"Invalid URL of the rules' state: {url}", why=str(error)) from None
        self._errors = (RedisError, OSError)
        self._prefix = prefix
        self._salt: bytes | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def at_once(self, effect: StateEffect) -> object:
        match effect:
            case Identify(credentials) if self._salt:
                return identify(self._salt, credentials)
            case WriteCache():
                task = asyncio.get_running_loop().create_task(self._write(effect))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
                return None
        return Later.LATER

    async def carry_out(self, effect: StateEffect) -> object:
        """Carry out an effect. Raises EffectFailed if Redis is lost, or does not answer in time."""
        within = getattr(effect, "within", _CONNECT_TIMEOUT)
        try:
            async with asyncio.timeout(within):
                return await self._ask(effect)
        except TimeoutError:
            raise EffectFailed("Redis took too long") from None
        except self._errors:
            raise EffectFailed(_LOST) from None

    async def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        with suppress(*self._errors):
            await self._redis.aclose()

    async def _ask(self, effect: StateEffect) -> object:
        match effect:
            case Identify(credentials):
                return identify(await self._shared_salt(), credentials)
            case CountUse(key, limits):
                pairs = [
                    number for limit, window in limits for number in (limit, int(window * 1e6))
                ]
                use = secrets.token_hex(8)
                wait = await self._redis.eval(_COUNT_USE, 1, self._prefix + key, use, *pairs)
                return None if wait is None else float(wait) / 1e6
            case ReadCache(key):
                return await self._redis.get(self._prefix + key)
            case WriteCache():
                await self._store(effect)
        return None

    async def _shared_salt(self) -> bytes:
        """Return the salt that the first process has made."""
        key = f"{self._prefix}salt"
        await self._redis.set(key, secrets.token_bytes(32), nx=True)
        salt = await self._redis.get(key)
        if not isinstance(salt, bytes) or not salt:
            raise EffectFailed(_LOST)
        self._salt = salt
        return salt

    async def _write(self, effect: WriteCache) -> None:
        with suppress(EffectFailed):  # what is not stored is asked for again
            await self.carry_out(effect)

    async def _store(self, effect: WriteCache) -> None:
        if len(effect.value) > MOST_BYTES:
            return
        now, lasts = time.time() * 1000, max(1, int(effect.ttl * 1000))
        await self._redis.eval(
            _WRITE_CACHE,
            2,
            self._prefix + effect.key,
            self._prefix + effect.group,
            effect.value,
            lasts,
            effect.max_entries,
            int(now),
            int(now - lasts),
        )
