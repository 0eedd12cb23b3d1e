"""Show lines that a command prints between its messages."""

from __future__ import annotations

from collections.abc import Callable

from mcp_tool_filter.errors import ProtocolError
from mcp_tool_filter.protocol.limits import Limits, OverLimit
from mcp_tool_filter.protocol.scan import scan

_MOST_SHOWN = 2000  # bytes


def show_stray_line(line: bytes, limits: Limits, say: Callable[[str], None]) -> bool:
    """Show a line that is not JSON, with a mark; return False if it may be JSON."""
    try:
        scan(line, {}, limits)
    except OverLimit:  # it may be JSON; then a warning explains the problem
        return False
    except ProtocolError:
        text = line[:_MOST_SHOWN].decode("utf-8", "backslashreplace")
        more = "…" if len(line) > _MOST_SHOWN else ""
        say(f"[not JSON, from the command] {_printable(text)}{more}")
        return b'"jsonrpc"' not in line
    return False


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
