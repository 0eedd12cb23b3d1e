"""The tools of the demo's server."""

from __future__ import annotations

from mcp_tool_filter.cli.commands.demo_tools import TOOLS


def test_the_demos_tools_look_like_those_of_a_real_server() -> None:
    for tool in TOOLS:
        schema = tool["inputSchema"]
        assert schema["type"] == "object"
        assert set(schema["required"]) <= set(schema["properties"])
    assert len({tool["name"] for tool in TOOLS}) == 20
