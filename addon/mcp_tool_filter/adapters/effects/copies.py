"""Send the copies of requests that rules order, to the upstream or to another server.

They get our own ids, and their answers are dropped.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress

from mcp_tool_filter.adapters.effects.webhooks import split_url
from mcp_tool_filter.adapters.fetch.http_client import Headers, HttpClient
from mcp_tool_filter.adapters.fetch.http_failures import HttpFailed
from mcp_tool_filter.policy.rule_effects import SendCopy

log = logging.getLogger(__name__)

_MOST_AT_ONCE = 100
_TIMEOUT = 30.0
_LONGEST_ANSWER = 10 * 1024 * 1024
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
                await response.read(_LONGEST_ANSWER)
    except (HttpFailed, TimeoutError) as error:
        log.info("One of our own messages was not delivered: %s", error or "no answer")
    finally:
        await client.close()


def with_usual(headers: Sequence[tuple[bytes, bytes]]) -> Headers:
    """Add the usual headers that a request lacks."""
    names = {name for name, _ in headers}
    return [*headers, *(one for one in USUAL_HEADERS if one[0] not in names)]
