"""Keep the registrations of clients in a file, because clients register only once.

There is one file per upstream, shared by all processes in front of it. Without the file (if the
folder is not writable), registrations end with this process.
"""

from __future__ import annotations

import asyncio
import logging
from hashlib import sha256
from pathlib import Path

from mcp_tool_filter.adapters.oauth.files import Stamp, locked, replace_file, stamp_of
from mcp_tool_filter.http.login_through.registrations import Registrations

log = logging.getLogger(__name__)

_LARGEST = 8 * 1024 * 1024  # far more than we write


class KeptRegistrations:
    """The file with the registrations for one upstream."""

    def __init__(self, folder: Path, upstream: str) -> None:
        self.path = folder / f"{sha256(upstream.encode()).hexdigest()[:32]}.json"
        self._read: Stamp | None = None
        self._has_warned = False

    async def read_into(self, registrations: Registrations) -> None:
        """Load what any process has written since we last looked."""
        stamp = stamp_of(self.path)
        if stamp is None or stamp == self._read:
            return
        self._read = stamp
        try:
            if stamp[2] > _LARGEST:
                raise ValueError("it is too large")
            registrations.learn(await asyncio.to_thread(self.path.read_bytes))
        except (OSError, ValueError) as error:
            self._warn(error)

    async def write(self, registrations: Registrations) -> None:
        """Write all registrations, including those that other processes have written meanwhile."""
        try:
            async with locked(self.path.with_suffix(".lock")):
                await self.read_into(registrations)
                await asyncio.to_thread(replace_file, self.path, registrations.render())
                self._read = stamp_of(self.path)
        except OSError as error:
            self._warn(error)

    def _warn(self, error: Exception) -> None:
        if not self._has_warned:
            self._has_warned = True
            reason = error.strerror if isinstance(error, OSError) else str(error)
            log.warning("Clients must register again after a restart: %s: %s", self.path, reason)
