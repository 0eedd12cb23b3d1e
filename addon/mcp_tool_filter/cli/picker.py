"""The screen of ``pick``: a list to search, tools to hide, and what remains."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import urwid

from mcp_tool_filter.cli.report import estimate_tokens
from mcp_tool_filter.cli.terminal import shortened
from mcp_tool_filter.core.policy.snapshot import shown

if TYPE_CHECKING:
    from mcp_tool_filter.cli.commands.look import Tool


_PALETTE = [
    ("hidden", "dark gray", ""),
    ("focus", "standout", ""),
    ("bar", "bold", ""),
]
_MARK = len("destructive, open-world")
_BEFORE_NAME = len("[hide] ")
_NARROWEST = len("Choose the tools to hide") - _BEFORE_NAME
_KEYS = "space: hide or show · a: all listed · /: search · enter: done · esc, q: quit"


def pick(tools: Sequence[Tool]) -> list[str] | None:
    """Let the user pick tools; return the names to hide, or None if they quit."""
    picker = Picker(tools)
    screen = urwid.display.raw.Screen(output=sys.stderr)  # stdout is for the result
    urwid.MainLoop(picker.widget, _PALETTE, screen=screen, unhandled_input=picker.key).run()
    return picker.result


class Picker:
    """The state of the screen: the list, and the tools to hide."""

    def __init__(self, tools: Sequence[Tool]) -> None:
        self._tools = tools
        self.hidden = {tool.name for tool in tools if not tool.is_exposed}
        self.result: list[str] | None = None
        """The names to hide, in the server's order, once the user has finished."""
        self._before = set(self.hidden)
        self._is_leaving = False
        self._search = urwid.Edit("Search: ")
        self._rows = [Row(tool, self) for tool in tools]
        self._list = urwid.ListBox(urwid.SimpleFocusListWalker(self._rows))
        self.widest = min(40, max(_NARROWEST, *(_width_of(shown(tool.name)) for tool in tools)))
        self._status = urwid.Text("", wrap="ellipsis")
        head = f"{'Choose the tools to hide':{_BEFORE_NAME + self.widest}} {'TOKENS':>7}"
        title = urwid.Text(f"{head}  {'':{_MARK}}  DESCRIPTION", wrap="clip")
        self.widget = urwid.Frame(self._list, header=urwid.AttrMap(title, "bar"))
        urwid.connect_signal(self._search, "postchange", lambda *_: self._show_found())
        self._show_status()

    def key(self, key: str | tuple[Any, ...]) -> bool:
        """Handle a key that no widget has used; return whether it had a meaning."""
        if self.widget.focus_position == "footer":
            return self._key_in_search(key)
        if self._is_leaving:
            if key in ("y", "Y"):
                raise urwid.ExitMainLoop
            self._show_status()
            return True
        match key:
            case "enter":
                self.result = [tool.name for tool in self._tools if tool.name in self.hidden]
                raise urwid.ExitMainLoop
            case "esc" if self._search.edit_text:
                self._search.set_edit_text("")
            case "q" | "esc" if self.hidden != self._before:  # a slip must not lose the choices
                self._is_leaving = True
                self._status.set_text("Quit without your choices? y: yes · any other key: no")
            case "q" | "esc":
                raise urwid.ExitMainLoop
            case "/":
                self.widget.footer = urwid.AttrMap(self._search, "bar")
                self.widget.focus_position = "footer"
            case "a":
                names = {row.tool.name for row in self._list.body}
                self.toggle(names - self.hidden or names)
            case _:
                return False
        return True

    def _key_in_search(self, key: str | tuple[Any, ...]) -> bool:
        if key == "esc":
            self._search.set_edit_text("")
        if key in ("enter", "esc", "down", "up"):
            self.widget.focus_position = "body"
            self._show_status()
            return True
        return False

    def _show_found(self) -> None:
        """List the tools that match the search."""
        wanted = self._search.edit_text.lower()
        found = [
            row
            for row in self._rows
            if wanted in row.tool.name.lower() or wanted in row.tool.description.lower()
        ]
        self._list.body = urwid.SimpleFocusListWalker(found)

    def toggle(self, names: set[str]) -> None:
        """Hide these tools, or show those that are hidden."""
        self.hidden ^= names
        self._show_status()

    def _show_status(self) -> None:
        """Show how many tools remain."""
        self._is_leaving = False
        saved = sum(tool.size for tool in self._tools if tool.name in self.hidden)
        left = len(self._tools) - len(self.hidden)
        self._status.set_text(
            f"{left} of {len(self._tools)} tools remain · {len(self.hidden)} hidden"
            f" · saves about {estimate_tokens(saved)} tokens per tools/list\n{_KEYS}"
        )
        self.widget.footer = urwid.AttrMap(self._status, "bar")


def _width_of(text: str) -> int:
    """Return how many columns a text takes. (A Chinese character takes two.)"""
    return int(urwid.calc_width(text, 0, len(text)))


class Row(urwid.Widget):  # type: ignore[misc]  # urwid has no types
    """A line of the list. It gets its text when it is drawn: a server may have thousands of tools,
    and few of them are on the screen."""

    _sizing = frozenset({urwid.FLOW})
    _selectable = True
    no_cache: ClassVar = ["render"]  # the picker knows what is hidden

    def __init__(self, tool: Tool, picker: Picker) -> None:
        super().__init__()
        self.tool, self._picker = tool, picker

    def rows(self, _size: object, _focus: bool = False) -> int:
        return 1

    def keypress(self, _size: object, key: str) -> str | None:
        if key != " ":
            return key
        self._picker.toggle({self.tool.name})
        return None

    def render(self, size: object, focus: bool = False) -> urwid.Canvas:
        is_hidden = self.tool.name in self._picker.hidden
        name = shortened(shown(self.tool.name), self._picker.widest)
        name += " " * (self._picker.widest - _width_of(name))
        tokens = estimate_tokens(self.tool.size)
        said = f"{self.tool.mark:{_MARK}}  {self.tool.description}"
        mark = "[hide]" if is_hidden else "[    ]"
        text = urwid.Text(f"{mark} {name} {tokens:>7}  {said}", wrap="ellipsis")
        look = "focus" if focus else "hidden" if is_hidden else None
        return urwid.AttrMap(text, look).render(size, focus)
