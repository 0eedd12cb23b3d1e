"""TCP keepalive: notice a peer that has vanished without a word, such as a laptop that sleeps.

A stream may be quiet for hours, so silence alone says nothing. The system asks the peer instead,
after a minute and then four times, and resets a connection that does not answer.
"""

from __future__ import annotations

import socket
from contextlib import suppress
from typing import Any

_IDLE, _BETWEEN, _TIMES = 60, 15, 4
"""Seconds of silence before the first question, seconds between two, and how many."""
_NAMES = {
    "TCP_KEEPIDLE": _IDLE,
    "TCP_KEEPALIVE": _IDLE,  # macOS calls it so
    "TCP_KEEPINTVL": _BETWEEN,
    "TCP_KEEPCNT": _TIMES,
}
_OPTIONS = [
    (getattr(socket, name), value) for name, value in _NAMES.items() if hasattr(socket, name)
]


def keep_alive(connected: Any) -> None:
    """Let the system ask the peer of a socket, or of asyncio's view of it, if it is there."""
    with suppress(OSError, AttributeError):  # it has left already, or is no TCP
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _OPTIONS:
            connected.setsockopt(socket.IPPROTO_TCP, option, value)
