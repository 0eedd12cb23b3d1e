"""Find out whether the upstream can still be reached: open a new connection and close it."""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from collections.abc import Sequence
from enum import StrEnum

from mcp_tool_filter.http.origin import Origin

# Errors of this machine, which say nothing about the upstream.
_OURS = frozenset(
    {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL, errno.EAGAIN}
)
# Temporary errors: the network changes, or the upstream is starting.
_PASSING = frozenset(
    {errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETDOWN, errno.ECONNRESET, errno.ECONNABORTED}
)


class Reach(StrEnum):
    REACHED = "reached"
    LOST = "lost"
    DOUBTFUL = "doubtful"
    """No route, no DNS name or no TLS yet; if this lasts, the upstream is lost."""
    UNKNOWN = "unknown"
    """This machine could not even try: no descriptors or no memory."""


async def connect(
    origin: Origin, tls: ssl.SSLContext | None
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Open a connection. Raises OSError, or a group of them if the host has several addresses."""
    return await asyncio.open_connection(
        origin.host,
        origin.port,
        ssl=tls,
        server_hostname=origin.host if tls else None,
        all_errors=True,
    )


async def probe(origin: Origin, tls: ssl.SSLContext | None, timeout: float) -> Reach:
    """Open a connection to the upstream and close it."""
    try:
        async with asyncio.timeout(timeout):
            _, writer = await connect(origin, tls)
    except ExceptionGroup as group:
        return reach_in(group.exceptions)
    except OSError as error:  # includes TimeoutError and all TLS errors
        return reach_in([error])
    writer.transport.abort()
    return Reach.REACHED


def reach_in(errors: Sequence[Exception]) -> Reach:
    """Return what failed connections mean, given one error per address."""
    kinds = {_reach_in(error) for error in errors}
    for kind in (Reach.LOST, Reach.UNKNOWN):
        if kind in kinds:
            return kind
    return Reach.DOUBTFUL


def _reach_in(error: Exception) -> Reach:
    if isinstance(error, socket.gaierror):
        return Reach.DOUBTFUL
    number = error.errno if isinstance(error, OSError) else None
    if number in _OURS:
        return Reach.UNKNOWN
    return Reach.DOUBTFUL if number in _PASSING else Reach.LOST
