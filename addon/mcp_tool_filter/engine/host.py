"""What a host implements: the engine's orders, and the point where other addons run."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from mcp_tool_filter.engine.exchange import Exchange


class Host(Protocol):
    """What the engine orders. One per client connection."""

    own: str
    peer: str
    point: Callable[[str, Exchange, Callable[[], None]], None] | None

    def send(self, data: bytes) -> None: ...
    def close(self) -> None: ...
    def abort(self) -> None: ...
    def hold(self, on: bool) -> None: ...
    def connect(self, exchange: Exchange, *, fresh: bool) -> None: ...
