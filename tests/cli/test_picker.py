"""The rows of tools that a person picks from."""

from __future__ import annotations

from contextlib import suppress

import pytest
import urwid

from mcp_tool_filter.cli.commands.look import Tool
from mcp_tool_filter.cli.picker import Picker


def test_only_rows_on_the_screen_are_rendered(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server may have thousands of tools, and each letter of a search lists them anew."""
    made: list[str] = []
    tools = [Tool(f"tool_{number}", 100, "A tool") for number in range(10_000)]
    picker = Picker(tools)

    def make(tool: Tool) -> object:
        made.append(tool.name)
        return picker._row(tool)

    monkeypatch.setattr(picker._walker, "_make", make)
    for key in ("/", *"99", "enter", "a", "enter"):
        if picker.widget.keypress((60, 12), key):
            with suppress(urwid.ExitMainLoop):
                picker.key(key)
        picker.widget.render((60, 12), focus=True)
    assert 0 < len(made) < 200
    assert picker.result == [tool.name for tool in tools if "99" in tool.name]


def test_names_of_any_width_are_aligned() -> None:
    tools = [Tool(name, 100, "") for name in ("read", "日本語", "x" * 40)]
    lines = Picker(tools).widget.render((90, 6)).text
    ends = {len(line.decode().rstrip().encode("gbk", "replace")) for line in lines[1:4]}
    assert len(ends) == 1
