"""Read the rules file, at start and when it changes."""

from __future__ import annotations

import logging
from pathlib import Path

from mcp_tool_filter.adapters.effects.machine import ThisMachine
from mcp_tool_filter.errors import StartError
from mcp_tool_filter.policy.rules.load import load_policy
from mcp_tool_filter.policy.rules.model import Policy
from mcp_tool_filter.policy.rules.source import LARGEST

log = logging.getLogger(__name__)


class UnreadableRules(StartError):
    def __init__(self, path: str, why: str) -> None:
        super().__init__(f"Cannot read the rules file: {path}", why=why)


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
    """A rules file that may change."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._seen: _Seen | None = None
        self._is_gone = False

    def read(self) -> Policy:
        """Read the current file. Raises StartError."""
        self._seen = self._look()  # before reading, so that a change meanwhile is noticed
        return read_rules(self._path)

    def has_changed(self) -> bool:
        """Tell whether the file has changed since it was last read.

        A missing file does not count as changed; we log that once.
        """
        seen = self._look()
        if seen is None and not self._is_gone:
            log.warning("The rules file %s is gone; its rules stay in force", self._path)
        self._is_gone = seen is None
        return seen is not None and seen != self._seen

    def _look(self) -> _Seen | None:
        try:
            about = Path(self._path).expanduser().stat()
        except OSError:
            return None
        return about.st_ino, about.st_size, about.st_mtime_ns, about.st_ctime_ns


type _Seen = tuple[int, int, int, int]
