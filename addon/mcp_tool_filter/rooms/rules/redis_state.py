"""The state of rate limits and caches in Redis, which several processes share.

In a cluster, a script may only use keys of one slot, so all names begin with the same hash tag. The
library ``redis`` is an extra, imported only if a policy names a Redis.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from mcp_tool_filter import how_to_install
from mcp_tool_filter.core.errors import StartError
from mcp_tool_filter.core.process.background import keep
from mcp_tool_filter.rooms.rules.chain import Later
from mcp_tool_filter.rooms.rules.credentials import identify
from mcp_tool_filter.rooms.rules.rule_effects import (
    CountUse,
    EffectFailed,
    Identify,
    ReadCache,
    WriteCache,
)

if TYPE_CHECKING:
    pass
from mcp_tool_filter.rooms.rules.state import MOST_BYTES, StateEffect

_CONNECT_TIMEOUT = 2.0
_LOST = "the state in Redis cannot be reached"


_PER_ENTRY = 300  # bytes that an entry costs besides its value
_PER_USE = 80  # bytes
_PLAIN_HOST = re.compile(r"[\w.-]+(:\d+)?(/\d*)?")


_HASH_TAG = re.compile(r"[^{]*\{[^}]+\}", re.DOTALL)


# Clients choose how many keys there are, so what is kept is registered: all of a kind together
# takes no more than so many bytes, and what ends first is forgotten first. The last three KEYS are
# what is kept, a sorted set of all names by their end (in milliseconds), and a hash of their sizes.
_REGISTER = """
local name, ends, sizes = KEYS[#KEYS - 2], KEYS[#KEYS - 1], KEYS[#KEYS]
local function forget(old)
  redis.call('ZREM', ends, old)
  local known = redis.call('HGET', sizes, old)
  if not known then return end
  local size, group = string.match(known, '(%d+) (.*)')
  redis.call('HINCRBY', sizes, '', '-' .. size)
  redis.call('HDEL', sizes, old)
  if group ~= '' then redis.call('ZREM', group, old) end
end
local function keep(size, group, lasts, now, most)
  forget(name)
  for _, old in ipairs(redis.call('ZRANGEBYSCORE', ends, '-inf', now, 'LIMIT', 0, 100)) do
    forget(old)
  end
  redis.call('HSET', sizes, name, size .. ' ' .. group)
  redis.call('ZADD', ends, string.format('%.0f', now + lasts), name)
  if group ~= '' then redis.call('ZADD', group, string.format('%.0f', now + lasts), name) end
  local total = redis.call('HINCRBY', sizes, '', size)
  while total > most do
    local first = redis.call('ZRANGE', ends, 0, 1)
    local old = first[1] == name and first[2] or first[1]
    if not old or old == name then break end
    redis.call('DEL', old)
    forget(old)
    total = tonumber(redis.call('HGET', sizes, ''))
  end
  local register = math.max(redis.call('PTTL', ends), lasts)
  redis.call('PEXPIRE', ends, register)
  redis.call('PEXPIRE', sizes, register)
end
"""


# All of a window's steps at once: no other process counts in between. The time is Redis's own, for
# the clocks of several machines differ. KEYS: as above. ARGV: a name for this use, the most bytes
# of all windows, then for each limit how many uses, in how many microseconds.
_COUNT_USE = f"""{_REGISTER}
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
local wait, longest = 0, 0
for i = 3, #ARGV, 2 do
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
local lasts = math.ceil(longest / 1000)
redis.call('PEXPIRE', KEYS[1], lasts)
local size = {_PER_ENTRY} + {_PER_USE} * redis.call('ZCARD', KEYS[1])
keep(size, '', lasts, math.floor(now / 1000), tonumber(ARGV[2]))
return false
"""


# KEYS: the group (a sorted set of entries by their end), then as above. ARGV: value, milliseconds,
# most entries of the group, most bytes of all entries.
_WRITE_CACHE = f"""{_REGISTER}
local clock = redis.call('TIME')
local now, lasts = clock[1] * 1000 + math.floor(clock[2] / 1000), tonumber(ARGV[2])
redis.call('SET', name, ARGV[1], 'PX', lasts)
keep({_PER_ENTRY} + #ARGV[1], KEYS[1], lasts, now, tonumber(ARGV[4]))
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
for _, old in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1 - tonumber(ARGV[3]))) do
  redis.call('DEL', old)
  forget(old)
end
redis.call('PEXPIRE', KEYS[1], math.max(redis.call('PTTL', KEYS[1]), lasts))
return false
"""


def tagged(prefix: str) -> str:
    """Put a prefix in braces unless it has some: Redis computes the slot of a key from the text in
    braces.

    >>> tagged("mcp:"), tagged("{team}:mcp:"), tagged("")
    ('{mcp:}', '{team}:mcp:', '{mcp}')
    """
    for name in (prefix, f"{{{prefix}}}"):
        if _HASH_TAG.match(name):
            return name
    return f"{{mcp}}{prefix}"


def shown_url(url: str) -> str:
    """Return a URL as it may be shown: without what could be a password.

    >>> shown_url("redis://u:secret@host:99999/0"), shown_url("redis://:secret-host:6379/0")
    ('redis://***@host:99999/0', 'redis://***')
    """
    scheme, _, rest = url.partition("://")
    _, at, host = rest.rpartition("@")
    is_plain = _PLAIN_HOST.fullmatch(host) is not None
    return f"{scheme}://{'***@' if at else ''}{host}" if is_plain else f"{scheme}://***"


class NoRedis(StartError):
    def __init__(self) -> None:
        super().__init__(
            "The rules keep their state in Redis, but the Python package for it is missing",
            why=f"Install it with: {how_to_install('redis')}",
        )


class RedisState:
    """The state of several processes."""

    def __init__(self, url: str, prefix: str, *, most_bytes: int = MOST_BYTES) -> None:
        """Windows may use ``most_bytes``, and cached results as many again.

        Raises StartError if the library is missing or the URL cannot be read.
        """
        try:
            from redis.asyncio import Redis, RedisCluster
            from redis.asyncio.retry import Retry
            from redis.backoff import NoBackoff
            from redis.exceptions import MovedError, RedisError
        except ImportError:
            raise NoRedis from None
        options: Any = {
            "socket_connect_timeout": _CONNECT_TIMEOUT,
            "retry": Retry(NoBackoff(), 1),
            "health_check_interval": 30,
        }
        try:
            self._redis: Any = Redis.from_url(url, **options)
        except ValueError as error:
            why = str(error).partition(" as ")[0]  # what follows may be a part of the password
            raise StartError(
                f"Invalid URL of the rules' state: {shown_url(url)}", why=why
            ) from None
        self._errors = (RedisError, OSError)
        self._moved = MovedError
        self._open_cluster: Callable[[], Any] = partial(RedisCluster.from_url, url, **options)
        self._prefix = tagged(prefix)
        self._most_bytes = most_bytes
        self._salt: bytes | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def at_once(self, effect: StateEffect) -> object:
        match effect:
            case Identify(credentials) if self._salt:
                return identify(self._salt, credentials)
            case WriteCache():
                keep(self._tasks, asyncio.get_running_loop().create_task(self._write(effect)))
                return None
        return Later.LATER

    async def carry_out(self, effect: StateEffect) -> object:
        """Carry out an effect. Raises EffectFailed if Redis is lost or too slow."""
        within = getattr(effect, "within", _CONNECT_TIMEOUT)
        try:
            async with asyncio.timeout(within):
                try:
                    return await self._ask(effect)
                except self._moved:  # the URL names one node of a cluster, but another has our keys
                    await self._find_node()
                    return await self._ask(effect)
        except TimeoutError:
            raise EffectFailed("Redis took too long") from None
        except self._errors:
            raise EffectFailed(_LOST) from None

    async def close(self) -> None:
        if self._tasks:  # another process may want what a short session has cached
            await asyncio.wait(self._tasks, timeout=_CONNECT_TIMEOUT)
        for task in list(self._tasks):
            task.cancel()
        with suppress(*self._errors):
            await self._redis.aclose()

    async def _find_node(self) -> None:
        one_node, self._redis = self._redis, self._open_cluster()
        with suppress(*self._errors):
            await one_node.aclose()

    async def _ask(self, effect: StateEffect) -> object:
        match effect:
            case Identify(credentials):
                return identify(await self._shared_salt(), credentials)
            case CountUse(key, limits):
                pairs = [
                    number for limit, window in limits for number in (limit, int(window * 1e6))
                ]
                use = secrets.token_hex(8)
                keys = self._keys("window", key)
                wait = await self._redis.eval(
                    _COUNT_USE, len(keys), *keys, use, self._most_bytes, *pairs
                )
                return None if wait is None else float(wait) / 1e6
            case ReadCache(key):
                return await self._redis.get(self._prefix + key)
            case WriteCache():
                await self._store(effect)
        return None

    async def _shared_salt(self) -> bytes:
        """Return the salt, which the first process creates."""
        key = f"{self._prefix}salt"
        await self._redis.set(key, secrets.token_bytes(32), nx=True)
        salt = await self._redis.get(key)
        if not isinstance(salt, bytes) or not salt:
            raise EffectFailed(_LOST)
        self._salt = salt
        return salt

    async def _write(self, effect: WriteCache) -> None:
        with suppress(EffectFailed):  # what is not stored is requested again
            await self.carry_out(effect)

    async def _store(self, effect: WriteCache) -> None:
        if len(effect.value) > self._most_bytes:
            return
        keys = (self._prefix + effect.group, *self._keys("cache", effect.key))
        lasts = max(1, int(effect.ttl * 1000))
        await self._redis.eval(
            _WRITE_CACHE,
            len(keys),
            *keys,
            effect.value,
            lasts,
            effect.max_entries,
            self._most_bytes,
        )

    def _keys(self, kind: str, key: str) -> tuple[str, str, str]:
        """Return the key's full name, and the names of its register."""
        prefix = self._prefix
        return prefix + key, f"{prefix}register:{kind}:ends", f"{prefix}register:{kind}:sizes"
