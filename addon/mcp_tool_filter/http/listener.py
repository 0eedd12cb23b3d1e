"""One listener: an upstream, its policy, and what becomes of the HTTP that comes by.

It knows HTTP and no host: requests and answers come in as values, what becomes of them goes out
as values, and whoever owns the connection carries it out. What the messages in them mean is for
``conversation`` to say. Where a decision waits, a generator of effects returns the same value.

Requests are judged in ``judge_requests``, answers in ``judge_answers``; both share the state that
``one_upstream`` holds.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from mcp_tool_filter.conversation.conversation import Conversation
from mcp_tool_filter.conversation.fetched import Fetched
from mcp_tool_filter.conversation.policy_in_force import Observer, PolicyInForce
from mcp_tool_filter.http.event_stream import EventStream
from mcp_tool_filter.http.exchange import HttpExchange
from mcp_tool_filter.http.guard import UpstreamNames, kept_with_us
from mcp_tool_filter.http.judge_answers import JudgesAnswers
from mcp_tool_filter.http.judge_requests import JudgesRequests
from mcp_tool_filter.http.legacy import LONGEST_ENDPOINT, LegacyStream
from mcp_tool_filter.policy.config import Config
from mcp_tool_filter.policy.exchange import Session, Via
from mcp_tool_filter.protocol.sse import render_event


class Listener(JudgesRequests, JudgesAnswers):
    """What sits in front of one upstream; it opens streams and sockets, too."""

    __slots__ = ()

    def open_stream(
        self, exchange: HttpExchange, target: str, send: Callable[[bytes], bool] | None
    ) -> EventStream:
        """Stand between an event stream and its client; ``send`` puts bytes into it."""
        return EventStream(
            exchange.conversation,
            on_endpoint=partial(self._open_legacy, exchange, target, send),
            begins_with=b"".join(map(render_event, exchange.owed)),
        )

    def close_stream(self, exchange: HttpExchange) -> None:
        """Forget a stream that has ended."""
        if self.legacy.endpoints:
            self.legacy.close(exchange.conversation)

    def open_socket(self, exchange: HttpExchange) -> Conversation:
        """Begin what is said over a WebSocket, by both sides."""
        client = exchange.conversation.client
        is_like = exchange.is_like_the_fetch
        session = Session(started=self.policy.clock(), is_like_the_fetch=is_like)
        client = replace(client, via=Via.WEBSOCKET, session=session, said_revision=None)
        return Conversation(self.policy, client)

    def _open_legacy(
        self,
        exchange: HttpExchange,
        target: str,
        send: Callable[[bytes], bool] | None,
        url: str,
    ) -> str | None:
        """Remember where a client of the older transport will post; keep it with us."""
        kept = kept_with_us(url, self.names) if len(url) <= LONGEST_ENDPOINT else None
        if kept is None or send is None:
            return None
        client = exchange.conversation.client
        client.via = Via.LEGACY_SSE
        client.session = client.session or Session(
            started=self.policy.clock(), is_like_the_fetch=exchange.is_like_the_fetch
        )
        exchange.is_legacy = True
        self.legacy.open(target, kept, LegacyStream(send, exchange.conversation))
        return url if self.is_forward else kept


def open_listener(
    *,
    upstream: str,
    config: Config,
    fetched: Fetched,
    observe: Observer | None = None,
    clock: Callable[[], float] = time.monotonic,
    names: UpstreamNames | None = None,
    keeps_host: bool = False,
) -> Listener:
    """Take the snapshot. Raises StartError if what was fetched cannot be judged."""
    policy = PolicyInForce(config=config, fetched=fetched, clock=clock)
    if observe:
        policy.observe = observe
    names = names or UpstreamNames(upstream)
    return Listener(upstream=upstream, policy=policy, names=names, keeps_host=keeps_host)
