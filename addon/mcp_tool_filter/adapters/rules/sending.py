"""Send what rules order: webhooks, and copies of requests. Neither ever delays a message.

Webhooks are posted from a queue. Copies go to the upstream or to another server; they get our own
ids, and their answers are dropped.
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
import time
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from urllib.parse import urlsplit

from mcp_tool_filter.adapters.sockets.client import Headers, HttpClient
from mcp_tool_filter.adapters.sockets.connect import HttpFailed
from mcp_tool_filter.errors import InvalidOption
from mcp_tool_filter.http.urls import Origin, parse_origin
from mcp_tool_filter.policy.rule_effects import SendCopy, SendWebhook

log = logging.getLogger(__name__)

MOST_WAITING = 1000
_AT_END = 5.0  # seconds for the last ones
_AT_ONCE = 8  # so that one hanging receiver does not delay the others
_RETRY_AFTER = (1.0, 5.0)  # seconds
_LONGEST_ANSWER = 64 * 1024


class Webhooks:
    """Posts all webhooks of the process."""

    def __init__(
        self,
        *,
        most: int = MOST_WAITING,
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
        worker = asyncio.get_running_loop().create_task(self._work())
        self.workers.add(worker)
        worker.add_done_callback(self.workers.discard)

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
        headers = [(b"content-type", b"application/json")]
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


def split_url(url: str) -> tuple[Origin, str]:
    """Return a URL's origin and target. Raises ValueError."""
    if not url.isascii() or not url.isprintable() or " " in url:
        raise ValueError("the URL has characters that are not allowed in a URL")
    try:
        origin = parse_origin(url)
    except InvalidOption as error:
        raise ValueError(error.why) from None
    parts = urlsplit(url)
    return origin, (parts.path or "/") + (f"?{parts.query}" if parts.query else "")


_MOST_AT_ONCE = 100
_TIMEOUT = 30.0
_LONGEST_ANSWER_TO_COPY = 10 * 1024 * 1024
USUAL_HEADERS = (
    (b"content-type", b"application/json"),
    (b"accept", b"application/json, text/event-stream"),
)

type ToUpstream = Callable[[bytes, SendCopy], object]


class Copies:
    """Sends all copies of the process."""

    def __init__(self, to_upstream: ToUpstream) -> None:
        self._to_upstream = to_upstream
        self._tasks: set[asyncio.Task[None]] = set()
        self._count = 0
        self.id_prefix = f"copy-{secrets.token_hex(8)}-"
        """The prefix of the ids of copies."""

    def send(self, effect: SendCopy, headers: Headers = USUAL_HEADERS) -> None:
        """Send a copy of a request in the background."""
        self._count += 1
        text = f'{effect.head}"{self.id_prefix}{self._count}"{effect.tail}'.encode()
        if effect.to is None:
            self._to_upstream(text, effect)
        else:
            self.begin(_post_to(effect.to, headers, text))

    def begin(self, work: Coroutine[None, None, None]) -> None:
        """Run a coroutine in the background, unless too many are under way."""
        if len(self._tasks) >= _MOST_AT_ONCE:
            work.close()
            log.warning("Too many of our own messages are being sent; one is skipped")
            return
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def done(self) -> None:
        for task in list(self._tasks):
            task.cancel()


async def _post_to(url: str, headers: Headers, text: bytes) -> None:
    origin, path = split_url(url)
    await post_and_forget(HttpClient(origin, headers=headers), path, text)


async def post_and_forget(client: HttpClient, path: str, text: bytes) -> None:
    """POST a message, and drop the answer."""
    try:
        async with (
            asyncio.timeout(_TIMEOUT),
            client.exchange(b"POST", path, (), text) as response,
        ):
            with suppress(HttpFailed):
                await response.read(_LONGEST_ANSWER_TO_COPY)
    except (HttpFailed, TimeoutError) as error:
        log.info("One of our own messages was not delivered: %s", error or "no answer")
    finally:
        await client.close()


def with_usual(headers: Sequence[tuple[bytes, bytes]]) -> Headers:
    """Add the usual headers that a request lacks."""
    names = {name for name, _ in headers}
    return [*headers, *(one for one in USUAL_HEADERS if one[0] not in names)]
