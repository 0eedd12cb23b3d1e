"""Settings as the command line and the environment give them, or what is wrong with them."""

from __future__ import annotations

import pytest

from mcp_tool_filter.cli.settings import Settings, read_settings
from mcp_tool_filter.errors import StartError

URL = "http://localhost:3000/mcp"


def settings(*argv: str, **environment: str) -> Settings:
    """What the words say, with MCP_TOOL_FILTER_X=… for each x."""
    named = {f"MCP_TOOL_FILTER_{name.upper()}": value for name, value in environment.items()}
    return read_settings(["--upstream", URL, *argv], named)


def complaint(*argv: str, **environment: str) -> str:
    with pytest.raises(StartError) as raised:
        settings(*argv, **environment).config()
    return str(raised.value)
