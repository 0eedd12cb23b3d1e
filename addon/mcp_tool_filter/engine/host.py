"""What a host implements: it carries out the engine's orders, and runs other addons.

A host moves bytes and decides nothing. It creates an ``H1Client`` (or ``H2Client``) for each client
connection, and gives it what comes: ``receive``, ``gone`` (also for a half-closed connection),
``held`` (the client reads slowly, or again) and ``tick`` (every few seconds, for the time-outs).
For each connection to an upstream it creates an ``Upstream`` and calls its ``receive`` and
``lost``. The engine may order anything within such a call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from mcp_tool_filter.engine.exchange import Exchange


class Address(NamedTuple):
    """Where a request goes if not to the listener's upstream."""

    host: str
    port: int
    is_tls: bool

    @property
    def authority(self) -> bytes:
        """The value of Host."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        usual = self.port == (443 if self.is_tls else 80)
        return (host if usual else f"{host}:{self.port}").encode()


type Point = Callable[[str, Exchange, Callable[[], None]], None]


class Host(Protocol):
    """What the engine orders for one client connection."""

    own: str
    """Our address to which the client has connected."""
    peer: str
    """The client's address."""
    port: int
    """The client's port."""
    is_tls: bool
    """True if the client uses TLS."""
    point: Point | None
    """Runs other addons at a named point (requestheaders, request, responseheaders, response,
    error, websocket_start, websocket_message, websocket_end), then calls its last argument. At
    ``answered`` the client has all of the answer, and it is too late to change anything. None if
    there are no other addons."""

    def send(self, data: bytes) -> None:
        """Send these bytes to the client. After ``abort`` or ``close`` this does nothing."""

    def close(self) -> None:
        """Close the connection when all is sent: half first, so that a client that still sends can
        read our answer; what it sends is thrown away, a few seconds and a few megabytes long."""

    def abort(self) -> None:
        """Close the connection so that the client notices that something is missing."""

    def hold(self, on: bool) -> None:
        """Stop reading from the client, or read on."""

    def connect(self, exchange: Exchange, *, fresh: bool) -> None:
        """Find a connection for an exchange; call its ``connected`` or ``unreachable``.

        An idle connection is used unless ``fresh``, or unless it has been idle for so long that
        ``exchange.may_use`` refuses it. If the exchange is over by then, the connection stays idle.
        """

    def call_later(self, seconds: float, act: Callable[[], None]) -> None:
        """Call this after other connections were served, or later; then wake."""

    def wake(self) -> None:
        """Carry out what was ordered: the engine was called from outside of the host's events."""
