"""Post webhooks from a queue; none of them delays a message."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime

from mcp_tool_filter.core.messages.sizes import MANY
from mcp_tool_filter.core.process.background import keep
from mcp_tool_filter.core.sockets.client import HttpClient
from mcp_tool_filter.core.sockets.connect import HttpFailed
from mcp_tool_filter.core.upstream.clients import JSON_BODY
from mcp_tool_filter.rooms.rules.rule_effects import SendWebhook
from mcp_tool_filter.rooms.rules.templates import split_url

log = logging.getLogger(__name__)

_AT_END = 5.0  # seconds for the last ones
_AT_ONCE = 8  # so that one hanging receiver does not delay the others
_RETRY_AFTER = (1.0, 5.0)  # seconds


class Webhooks:
    """Posts all webhooks of the process."""

    def __init__(
        self,
        *,
        most: int = MANY,
        retry_after: tuple[float, ...] = _RETRY_AFTER,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._waiting: deque[tuple[SendWebhook, bytes]] = deque()
        self._most = most
        self._retry_after = retry_after
        self._now = now
        self.workers: set[asyncio.Task[None]] = set()
        self.sent = self.failed = self.dropped = 0

    def send(self, effect: SendWebhook) -> None:
        """Queue a webhook; drop the oldest one if the queue is full."""
        at = datetime.fromtimestamp(self._now(), UTC).isoformat(timespec="milliseconds")
        body = f'{{"time":{json.dumps(at)},{effect.members}}}'.encode()
        if len(self._waiting) >= self._most:
            self._waiting.popleft()
            if not self.dropped:
                log.warning("The queue of webhooks is full: the oldest are dropped")
            self.dropped += 1
        self._waiting.append((effect, body))
        if len(self.workers) < _AT_ONCE:
            self._start_worker()

    async def close(self, within: float = _AT_END) -> None:
        """Deliver what is queued, for a limited time, and tell how many are left."""
        end = asyncio.get_running_loop().time() + within
        while self._waiting or self.workers:
            while len(self.workers) < min(_AT_ONCE, len(self._waiting)):
                self._start_worker()  # the end of the event loop cancels workers
            left = end - asyncio.get_running_loop().time()
            if left <= 0:
                break
            await asyncio.wait(self.workers, timeout=left)
        workers = list(self.workers)
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
        if self._waiting:
            log.warning("At the end %d webhooks were not delivered", len(self._waiting))

    def _start_worker(self) -> None:
        keep(self.workers, asyncio.get_running_loop().create_task(self._work()))

    async def _work(self) -> None:
        while self._waiting:
            effect, body = self._waiting.popleft()
            try:
                await self._deliver(effect, body)
            except asyncio.CancelledError:
                self._waiting.appendleft((effect, body))
                raise
            except Exception:
                self.failed += 1
                log.exception("cannot send a webhook of rule %r", effect.rule)

    async def _deliver(self, effect: SendWebhook, body: bytes) -> None:
        problem = ""
        for pause in (0.0, *self._retry_after):
            await asyncio.sleep(pause)
            problem, may_retry = await _post(effect, body)
            if not problem:
                self.sent += 1
                return
            if not may_retry:
                break
        self.failed += 1
        log.warning("A webhook of rule %r failed: %s", effect.rule, problem)


async def _post(effect: SendWebhook, body: bytes) -> tuple[str, bool]:
    """POST once; return the problem, and whether a retry may succeed."""
    try:
        origin, target = split_url(effect.url)
        headers = [JSON_BODY]
        headers += [(name.encode(), value.encode()) for name, value in effect.headers]
    except ValueError as error:
        return str(error), False
    client = HttpClient(origin)
    try:
        async with (
            asyncio.timeout(effect.timeout),
            client.exchange(b"POST", target, headers, body) as response,
        ):
            status = response.status
            return (response.status_line if status >= 300 else "", status >= 500)
    except HttpFailed as error:
        return str(error), True
    except TimeoutError:
        return f"no answer within {effect.timeout:g}s", True
    finally:
        await client.close()
