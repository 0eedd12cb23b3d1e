"""Send copies of requests to the upstream or another server.

They get our own ids, their answers are dropped, and none of them delays a message.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress

from mcp_tool_filter.core.messages.sizes import MESSAGE
from mcp_tool_filter.core.process.background import Background
from mcp_tool_filter.core.sockets.client import Headers, HttpClient
from mcp_tool_filter.core.sockets.connect import HttpFailed
from mcp_tool_filter.core.upstream.clients import JSON_BODY, JSON_OR_EVENTS
from mcp_tool_filter.rooms.rules.rule_effects import SendCopy
from mcp_tool_filter.rooms.rules.templates import split_url

log = logging.getLogger(__name__)

_MOST_COPIES = 100  # at once
_TIMEOUT = 30.0
USUAL_HEADERS = (JSON_BODY, JSON_OR_EVENTS)


type ToUpstream = Callable[[bytes, SendCopy], object]


class Copies:
    """Sends all copies of the process."""

    def __init__(self, to_upstream: ToUpstream) -> None:
        self._to_upstream = to_upstream
        self._background = Background()
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
        if len(self._background) >= _MOST_COPIES:
            work.close()
            log.warning("Too many of our own messages are being sent; one is skipped")
            return
        self._background.start(work)

    def done(self) -> None:
        self._background.cancel()


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
                await response.read(MESSAGE)
    except (HttpFailed, TimeoutError) as error:
        log.info("One of our own messages was not delivered: %s", error or "no answer")
    finally:
        await client.close()


def with_usual(headers: Sequence[tuple[bytes, bytes]]) -> Headers:
    """Add the usual headers that a request lacks."""
    names = {name for name, _ in headers}
    return [*headers, *(header for header in USUAL_HEADERS if header[0] not in names)]
