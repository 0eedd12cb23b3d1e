"""Puts the manual page into the wheel, so that ``man mcp-tool-filter`` finds it."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class ManualPage(BuildHookInterface):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Write the page, and tell where it is installed."""
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        if sys.version_info < (3, 12):  # noqa: UP036 - pip builds before it looks
            return  # pip refuses this Python next, with one sentence
        sys.path.insert(0, str(Path(self.root) / "addon"))
        try:
            from mcp_tool_filter.cli.help import render_manual
        finally:
            sys.path.pop(0)
        self._folder = tempfile.TemporaryDirectory()
        page = Path(self._folder.name) / "mcp-tool-filter.1"
        page.write_text(render_manual(), encoding="utf-8")
        build_data["shared_data"][str(page)] = "share/man/man1/mcp-tool-filter.1"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if self._folder:
            self._folder.cleanup()
