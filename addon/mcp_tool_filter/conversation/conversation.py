r"""Read each message once, ask the policy, remember, and tell the observers.

HTTP bodies, events, WebSocket messages and stdio lines all enter here, as bytes; this module knows
no transport. It returns what happens to each:

>>> from mcp_tool_filter.conversation.fetched import example
>>> from mcp_tool_filter.conversation.policy_in_force import PolicyInForce
>>> from mcp_tool_filter.policy.config import parse_config
>>> policy = PolicyInForce(config=parse_config(deny=["^rm"]), fetched=example("read", "rm"))
>>> conversation = Conversation(policy)
>>> call = '{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"%s"}}'
>>> conversation.from_client((call % "read").encode()).verdict
Forward()
>>> conversation.from_client((call % "rm").encode()).verdict.text
b'{"jsonrpc":"2.0","id":1,"error":{"code":-32601,"message":"Tool not found: rm"}}'
>>> conversation.waiting
['1']

A decision that waits is a generator of effects that returns the same value; the module ``effects``
works with both.

``from_client`` judges the client's messages, ``from_upstream`` those of the upstream.
"""

from __future__ import annotations

from collections.abc import Collection

from mcp_tool_filter.conversation.from_client import FromClient
from mcp_tool_filter.conversation.from_upstream import FromUpstream
from mcp_tool_filter.conversation.judged import (
    LOST_ANSWER,
)
from mcp_tool_filter.conversation.list_changed import (
    notice,
)
from mcp_tool_filter.protocol.messages import UPSTREAM_LOST, render_error


class Conversation(FromClient, FromUpstream):
    """The messages between one client and the upstream, on one stream or one connection."""

    __slots__ = ()

    @property
    def waiting(self) -> list[str]:
        """The ids of all requests in flight, as the client wrote them."""
        return self.exchanges.ids

    def lose(self, *, besides: Collection[str] = ()) -> list[bytes]:
        """Return an error for each request in flight, except for those with these methods."""
        lost = self.exchanges.take_all(besides=besides)
        return [render_error(id, UPSTREAM_LOST, LOST_ANSWER) for id in lost]

    def list_changed_notices(self, *, in_session: bool) -> list[bytes]:
        """Return the notices for a client whose list has changed; none if it expects none.

        ``in_session`` says that notifications of the whole session reach it here.
        """
        session = self.client.session
        notices = [notice(id) for id in self.exchanges.subscriptions]
        if in_session and session is not None and session.declares_changes:
            notices.append(notice())
        return notices
