"""One listener: an upstream, its policy, and the decisions on its HTTP traffic.

It knows HTTP but no host: requests and answers come in as values, decisions go out as values, and
the host carries them out. ``conversation`` judges the messages. If a decision waits, a generator of
effects returns the same value.

``judge_requests`` judges requests, ``judge_answers`` answers; both share the state in
``one_upstream``.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from mcp_tool_filter.conversation.conversation import Conversation
from mcp_tool_filter.conversation.memory import Fetched
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
    """Judges the traffic of one upstream; it also opens streams and sockets."""

    __slots__ = ()

    def open_stream(
        self, exchange: HttpExchange, target: str, send: Callable[[bytes], bool] | None
    ) -> EventStream:
        """Return the filter for an event stream; ``send`` adds bytes of ours to the stream."""
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
        """Return the conversation for a WebSocket."""
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
        """Remember the endpoint where a client of the older transport will post, and make it lead
        to us."""
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
    """Return a listener with its snapshot.

    Raises StartError if the fetched list cannot be judged.
    """
    policy = PolicyInForce(config=config, fetched=fetched, clock=clock)
    if observe:
        policy.observe = observe
    names = names or UpstreamNames(upstream)
    return Listener(upstream=upstream, policy=policy, names=names, keeps_host=keeps_host)
