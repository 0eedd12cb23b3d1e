"""Print for people on stderr while stdin and stdout belong to the client."""

from __future__ import annotations

import sys
from contextlib import suppress


def say_beside_client(text: str) -> None:
    """Print a text in the chosen log format."""
    from mcp_tool_filter.cli.output.log import as_said  # late: a relay starts without it

    write_beside_client(as_said(text))


def write_beside_client(text: str) -> None:
    """Print a text unchanged."""
    with suppress(OSError, ValueError):  # a client may ignore our stderr
        sys.stderr.write(text + "\n")
        sys.stderr.flush()
