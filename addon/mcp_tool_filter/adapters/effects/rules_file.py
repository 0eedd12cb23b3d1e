"""Read the rules file, at start and when it changes."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path
from stat import S_ISREG

from mcp_tool_filter.adapters.effects.machine import ThisMachine
from mcp_tool_filter.errors import StartError
from mcp_tool_filter.policy.rules.load import load_policy
from mcp_tool_filter.policy.rules.model import Policy
from mcp_tool_filter.policy.rules.source import LARGEST

_SETTLED = 1.0  # seconds without a change, after which we take a file for complete

log = logging.getLogger(__name__)


class UnreadableRules(StartError):
    def __init__(self, path: str, why: str) -> None:
        super().__init__(f"Cannot read the rules file: {path}", why=why)


class StillWritten(Exception):
    """The file has changed while we read it."""


def read_rules(path: str) -> Policy:
    """Read a policy. Raises StartError if the file cannot be read or has mistakes."""
    return load_policy(_read(path), path, ThisMachine(Path(path).expanduser().parent))


def _read(path: str) -> bytes:
    try:
        with open(Path(path).expanduser(), "rb") as file:
            return file.read(LARGEST + 1)
    except OSError as error:
        raise UnreadableRules(path, error.strerror or str(error)) from None


class WatchedRules:
    """A rules file that may change.

    The beginning of a rules file is often a valid one with fewer rules, so we never read a file
    while it is being written: it must look the same for a while, and before and after we read it.
    """

    def __init__(self, path: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.path = path
        self._clock = clock
        self._seen: _Seen | None = None
        self._new: tuple[_Seen, float] | None = None
        """What a changed file looks like, and since when."""
        self._is_gone = False

    def read(self) -> Policy:
        """Read the current file. Raises StartError, or StillWritten if it changes meanwhile."""
        seen = self._look()
        try:
            return read_rules(self.path)
        finally:
            if self._look() != seen:
                raise StillWritten
            self._seen = seen

    def has_changed(self) -> bool:
        """Tell whether the file has changed since it was last read, and is complete.

        A missing file does not count as changed; we log that once.
        """
        seen = self._look()
        if seen is None and not self._is_gone:
            log.warning("The rules file %s is gone; its rules stay in force", self.path)
        self._is_gone = seen is None
        if seen is None or seen == self._seen:
            self._new = None
            return False
        if self._new is None or self._new[0] != seen:
            self._new = seen, self._clock()
        return self._clock() - self._new[1] >= _SETTLED

    def _look(self) -> _Seen | None:
        try:
            about = Path(self.path).expanduser().stat()
        except OSError:
            return None
        if not S_ISREG(about.st_mode):  # a pipe, which has neither a size nor a time of change
            return about.st_ino, 0, 0, 0
        return about.st_ino, about.st_size, about.st_mtime_ns, about.st_ctime_ns


type _Seen = tuple[int, int, int, int]
