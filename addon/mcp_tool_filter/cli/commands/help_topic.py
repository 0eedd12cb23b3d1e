"""``mcp-tool-filter help TOPIC``: print a page that explains more than ``--help``."""

from __future__ import annotations

from pathlib import Path

from mcp_tool_filter.cli.settings.commands import TOPICS
from mcp_tool_filter.cli.settings.flags import WORDS, Given
from mcp_tool_filter.cli.settings.usage import no_such

_DOCS = Path(__file__).resolve().parents[2] / "docs"


def run(typed: Given) -> int:
    """Print a page, or list the topics."""
    words = typed.get(WORDS, [])
    if not words:
        print("Topics:", ", ".join(TOPICS))
        print("Read a page with: mcp-tool-filter help TOPIC")
        return 0
    if words[0] not in TOPICS:
        raise no_such("topic", words[0], TOPICS, help="mcp-tool-filter help")
    name = "CHANGELOG" if words[0] == "changelog" else words[0]
    print((_DOCS / f"{name}.md").read_text(encoding="utf-8"), end="")
    return 0
