"""``--record`` in front of a command: open the file before anything starts."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from mcp_tool_filter.errors import InvalidOption

if TYPE_CHECKING:
    from mcp_tool_filter.adapters.recordings.line_recorder import LineRecorder


def open_recorder(path: str) -> LineRecorder:
    """Open a recording that only its owner can read. Raises InvalidOption."""
    from mcp_tool_filter.adapters.recordings.line_recorder import LineRecorder
    from mcp_tool_filter.cli.output.beside_client import say_beside_client

    mode = os.O_WRONLY | os.O_CREAT | (os.O_APPEND if path.startswith("+") else os.O_TRUNC)
    try:
        descriptor = os.open(path.removeprefix("+"), mode, 0o600)
    except OSError as error:
        raise InvalidOption("--record", path, why=error.strerror or str(error)) from None

    def give_up(error: OSError) -> None:
        why = error.strerror or str(error)
        say_beside_client(f"Warning: The recording {path} ends here: {why}")

    return LineRecorder(os.fdopen(descriptor, "wb"), on_failure=give_up)
