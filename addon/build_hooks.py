"""What hatchling runs when we are built: the manual page comes into the wheel, so that
``man mcp-tool-filter`` finds it, and the links of the README become absolute, because the page of a
package index has no files beside it."""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

_LINK = re.compile(r"""(\]\(|(?:href|src)=")(?![a-z]{1,10}:|#|//)([^)\s"]+)""")
_PICTURE = (".png", ".svg", ".gif", ".jpg")


def with_absolute_links(text: str, repository: str, version: str) -> str:
    """Return a page whose links lead to the files of this version.

    >>> with_absolute_links("[a](b.md#c) ![d](e.png) [f](#g)", "https://host/us", "1.0")
    '[a](https://host/us/blob/v1.0/b.md#c) ![d](https://host/us/raw/v1.0/e.png) [f](#g)'
    """

    def absolute(link: re.Match[str]) -> str:
        before, path = link.groups()
        kind = "raw" if path.endswith(_PICTURE) else "blob"
        return f"{before}{repository}/{kind}/v{version}/{path}"

    return _LINK.sub(absolute, text)


class IndexPage(MetadataHookInterface):
    def update(self, metadata: dict[str, Any]) -> None:
        """Set the text that a package index shows."""
        root = Path(self.root)
        [version] = re.findall(
            r'^__version__ = "(.+)"$',
            (root / "addon" / "mcp_tool_filter" / "__init__.py").read_text(encoding="utf-8"),
            re.MULTILINE,
        )
        text = (root / "README.md").read_text(encoding="utf-8")
        repository = metadata["urls"]["Repository"]
        metadata["readme"] = {
            "content-type": "text/markdown",
            "text": with_absolute_links(text, repository, version),
        }


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
