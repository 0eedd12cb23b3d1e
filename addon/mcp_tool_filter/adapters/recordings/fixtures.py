"""The types of the pytest plugin's fixtures. (Does not import pytest.)"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from mcp_tool_filter.adapters.recordings.transcript import Transcript


class McpReplay(Protocol):
    """The fixture ``mcp_replay``."""

    def __call__(
        self,
        path: str | Path,
        *,
        deny: str | Sequence[str] = (),
        allow: str | Sequence[str] = (),
        **options: str,
    ) -> Transcript:
        """Replay a recording with these patterns, and return its transcript."""


class McpRecordedUpstream(Protocol):
    """The fixture ``mcp_recorded_upstream``."""

    def __call__(self, path: str | Path) -> str:
        """Serve a recording until the test ends, and return its URL."""
