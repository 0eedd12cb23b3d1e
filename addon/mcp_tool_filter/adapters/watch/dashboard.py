"""The content and actions of the page ``/mcp``, served by mitmweb or by ``--dashboard``.

The page requests the state every second. A click on a tool requests the patterns that would result,
and "apply" edits the option ``deny`` like mitmweb's own page, with the same checks.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mcp_tool_filter.observers.statistics import Timeline
from mcp_tool_filter.policy.config import Config
from mcp_tool_filter.policy.patterns import NOTHING, switched

if TYPE_CHECKING:
    from mcp_tool_filter.policy.snapshot import Snapshot

FILES = Path(__file__).parents[1] / "mitmproxy" / "web" / "files"
TYPES = {
    "page.html": "text/html; charset=UTF-8",
    "page.js": "text/javascript; charset=UTF-8",
    "page.css": "text/css; charset=UTF-8",
    "mitmweb.css": "text/css; charset=UTF-8",
}
_MOST_UNDONE = 50


def not_let_in(title: str, how: str, *, style: str) -> str:
    """Return a page for a visitor without a token."""
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<title>MCP tool filter</title><link rel="stylesheet" href="{style}">'
        f'<body class="alone"><main><section><h1>{title}</h1><p>{how}</p></section></main></html>'
    )


type ApplyPatterns = Callable[[list[str]], str]
"""Sets the deny patterns; returns the problem with them, or an empty text."""


class Dashboard:
    """The dashboard of the process."""

    def __init__(
        self,
        overview: Callable[[], dict[str, object]],
        config: Callable[[], Config],
        snapshots: Callable[[], Sequence[Snapshot]],
        edit: ApplyPatterns,
    ) -> None:
        self._overview = overview
        self._config = config
        self._snapshots = snapshots
        self._edit = edit
        self.has_flows = False
        """True if a message's flow can be viewed at ``/#/flows/ID``."""
        self._before: list[list[str]] = []
        self.timeline = Timeline()

    def state(self) -> dict[str, object]:
        """Return everything that the page shows."""
        deny = self._deny()
        return {
            **self._overview(),
            "recent": self.timeline.recent(),
            "steps": self.timeline.steps(),
            "callers": self.timeline.callers(),
            "flows": self.has_flows,
            "deny": deny,
            "command": shlex.join(_flags(deny)),
            "can_undo": bool(self._before),
        }

    def preview(self, hide: Sequence[str], show: Sequence[str]) -> dict[str, object]:
        """Return patterns that hide and expose these tools, and how to make them permanent."""
        names = list(dict.fromkeys(name for one in self._snapshots() for name in _names_in(one)))
        deny = switched(self._config().deny, names, set(hide), set(show))
        return {"deny": deny, "command": shlex.join(_flags(deny))}

    def apply(self, deny: Sequence[str]) -> dict[str, object]:
        """Set the patterns; return the problem with them, if any."""
        before = self._deny()
        problem = self._edit(list(deny))
        if not problem and before != list(deny):
            self._before = [*self._before[-_MOST_UNDONE:], before]
        return {"problem": problem}

    def undo(self) -> dict[str, object]:
        """Restore the patterns before the last change."""
        if not self._before:
            return {"problem": "There is nothing to undo"}
        problem = self._edit(self._before[-1] or [NOTHING])
        if not problem:
            self._before.pop()
        return {"problem": problem}

    def _deny(self) -> list[str]:
        return [pattern.regex for pattern in self._config().deny]


def _names_in(snapshot: Snapshot) -> list[str]:
    return [*snapshot.allowed, *snapshot.denied]


def _flags(deny: Sequence[str]) -> list[str]:
    return [word for pattern in deny for word in ("--deny", pattern)]


def _names(value: object) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise TypeError("not a list of names")
    return value


CHANGES: dict[str, Callable[[Dashboard, dict[str, object]], dict[str, object]]] = {
    "preview": lambda board, said: board.preview(_names(said["hide"]), _names(said["show"])),
    "apply": lambda board, said: board.apply(_names(said["deny"])),
    "undo": lambda board, _said: board.undo(),
}
