"""The rules file: read at start, and read again when it changes."""

from __future__ import annotations

import logging
from collections.abc import Callable
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
    """Read a policy. Raises StartError: it cannot be read, or has mistakes."""
    return load_policy(_read(path), path, ThisMachine(Path(path).expanduser().parent))


def _read(path: str) -> bytes:
    try:
        with open(Path(path).expanduser(), "rb") as file:
            return file.read(LARGEST + 1)
    except OSError as error:
        raise UnreadableRules(path, error.strerror or str(error)) from None


class WatchedRules:
    """The policy of a file as it is by now; the old one stays while the file is bad."""

    def __init__(self, path: str, adopt: Callable[[Policy], None]) -> None:
        self._path = path
        self._adopt = adopt
        self._seen = self._look()
        self._is_gone = False

    def check(self) -> None:
        """Adopt the file's policy if the file has changed since the last look."""
        seen = self._look()
        if seen == self._seen:
            return
        self._seen = seen
        if seen is None:
            if not self._is_gone:
                log.warning("The rules file %s is gone; its rules stay in force", self._path)
            self._is_gone = True
            return
        self._is_gone = False
        try:
            policy = read_rules(self._path)
        except StartError as error:
            log.error("The old rules stay in force.\n%s", error)
            return
        self._adopt(policy)
        log.info("Read the rules file %s again: %d rules", self._path, len(policy.rules))
        for warning in policy.warnings:
            log.warning("Rules: %s", warning)

    def _look(self) -> tuple[int, int, int, int] | None:
        try:
            about = Path(self._path).expanduser().stat()
        except OSError:
            return None
        return about.st_ino, about.st_size, about.st_mtime_ns, about.st_ctime_ns
