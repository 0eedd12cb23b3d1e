"""What all connections of one listener share.

The engine asks the service; ``adapters/serving`` fills it in, the same for both hosts. Everything
here is a value or a callable: the engine knows no event loop and no socket.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from mcp_tool_filter.conversation.in_order import OnDone
from mcp_tool_filter.http.listener import Listener
from mcp_tool_filter.policy.effects import Deciding

if TYPE_CHECKING:
    from mcp_tool_filter.engine.exchange import Exchange


class Effects(Protocol):
    """Carries out decisions that wait (``adapters/effects/carry_out.Effects``)."""

    def carry_out(self, decision: Deciding[Any], done: OnDone[Any]) -> Callable[[], None]: ...


def _nothing() -> None:
    pass


class Service:
    """One listener as the engine sees it."""

    def __init__(self, listener: Listener, authority: str, effects: Effects) -> None:
        self.listener = listener
        self.authority = authority.encode()
        """The upstream's Host."""
        self.effects = effects
        self.exchanges: set[Exchange] = set()
        """The open exchanges: losses, budgets, notices and the end of the process look here."""
        self.is_ending = False
        """True once the upstream is lost: what is asked from now on is answered as lost."""
        self.suspect: Callable[[], None] = _nothing
        """Called when a connection to the upstream failed: is the upstream lost?"""
        self.note_end_of_stream: Callable[[], None] = _nothing
        """Called at the clean end of a long stream: a restarting upstream ends it like this."""
        self.before_judging: Callable[[Exchange, Callable[[], None]], None] | None = None
        """Logins through us: may answer the exchange or change its request; then go on."""
        self.before_sending: Callable[[Exchange, Callable[[], None]], None] | None = None
        """Our own login: adds its token to ``out_fields``, perhaps after it was renewed."""
        self.before_answering: Callable[[Exchange, Callable[[], None]], bool] | None = None
        """Our own login: True if a 401 is kept from the client and the request is sent again."""
        self.most_waiting: Callable[[], bool] = lambda: False
        """True if no more clients are served (max_clients): such a client gets 503."""
