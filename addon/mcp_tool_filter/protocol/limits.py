"""Limits on what a peer can make us hold: how long, how deep, how many."""

from __future__ import annotations

from dataclasses import dataclass

from mcp_tool_filter.errors import ProtocolError

MEBIBYTE = 1024 * 1024


MOST_IN_BATCH = 1000
"""Messages in a batch: we read and decide one after the other, while all other clients wait."""
MOST_PARTS = 20_000
"""Members and elements that we look into, in one message.

Parts that we only check may have any number.
"""
MOST_LISTED = 250_000
"""The same limit for the tool lists in a message."""
MOST_SEARCHED = 200_000
"""Objects and members of JSON that is searched at every depth."""


class OverLimit(ProtocolError):
    """A peer sent something that may be honest, but is more than we hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    message: int = 10 * MEBIBYTE
    """Bytes of one message: a request body, a JSON answer, an event, a line."""
    pending: int = 20 * MEBIBYTE
    """Bytes of an unfinished event or line."""
    unfinished: int = 128 * MEBIBYTE
    """Bytes of all messages that are being received or sent, for all clients together."""
    depth: int = 128
    """Levels of JSON nesting."""
    sessions: int = 10_000
    """Remembered sessions; we forget the least recently used first."""
    exchanges: int = 1_000
    """Requests in flight that we remember for one session."""
    exchange_bytes: int = 256 * 1024
    """Bytes of the ids of these requests."""
    idle: float = 24 * 3600.0
    """Seconds after which a silent session is forgotten."""
