"""How long, how deep, how many: the bounds on what a peer can make us hold."""

from __future__ import annotations

from dataclasses import dataclass

from mcp_tool_filter.errors import ProtocolError

MEBIBYTE = 1024 * 1024


MOST_PARTS = 100_000
"""Members or elements of what we look into; what nobody looks into may have any number."""


class OverLimit(ProtocolError):
    """A peer sent what may be honest, but is more than we hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    message: int = 10 * MEBIBYTE
    """Bytes of one message: a request body, a JSON answer, an event, a line."""
    pending: int = 20 * MEBIBYTE
    """Bytes of an unfinished event or line."""
    depth: int = 128
    """Levels of JSON nesting."""
    sessions: int = 10_000
    """Remembered sessions; the least recently used is forgotten first."""
    exchanges: int = 1_000
    """Requests in flight that one session is remembered for."""
    exchange_bytes: int = 256 * 1024
    """Bytes of the ids of these requests."""
    idle: float = 24 * 3600.0
    """Seconds after which a silent session is forgotten."""
