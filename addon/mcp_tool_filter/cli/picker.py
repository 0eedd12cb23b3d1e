"""The screen of ``pick``: a list to search, tools to hide, and what remains."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import urwid

from mcp_tool_filter.cli.terminal import shortened
from mcp_tool_filter.observers.sentences import estimate_tokens
from mcp_tool_filter.policy.snapshot import shown

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
        self._hidden = {tool.name for tool in tools if not tool.is_exposed}
        self._before = set(self._hidden)
        self._is_leaving = False
        self._search = urwid.Edit("Search: ")
        self._walker = _Rows(self._row)
        self._widest = min(40, max(_NARROWEST, *(_width_of(shown(tool.name)) for tool in tools)))
        self._status = urwid.Text("", wrap="ellipsis")
        head = f"{'Choose the tools to hide':{_BEFORE_NAME + self._widest}} {'TOKENS':>7}"
        self.widget = urwid.Frame(
            urwid.ListBox(self._walker),
            header=urwid.AttrMap(
                urwid.Text(f"{head}  {'':{_MARK}}  DESCRIPTION", wrap="clip"), "bar"
            ),
        )
        self._is_done = False
        urwid.connect_signal(self._search, "postchange", lambda *_: self._list())
        self._list()
        self._show_status()

    @property
    def result(self) -> list[str] | None:
        """The names to hide, in the server's order; None unless the user has finished."""
        if not self._is_done:
            return None
        return [tool.name for tool in self._tools if tool.name in self._hidden]

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
                self._is_done = True
                raise urwid.ExitMainLoop
            case "esc" if self._search.edit_text:
                self._search.set_edit_text("")
            case "q" | "esc" if self._hidden != self._before:  # a slip must not lose the choices
                self._is_leaving = True
                self._status.set_text("Quit without your choices? y: yes · any other key: no")
            case "q" | "esc":
                raise urwid.ExitMainLoop
            case "/":
                self.widget.footer = urwid.AttrMap(self._search, "bar")
                self.widget.focus_position = "footer"
            case "a":
                self._toggle_listed()
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

    def _listed(self) -> list[Tool]:
        wanted = self._search.edit_text.lower()
        return [
            tool
            for tool in self._tools
            if wanted in tool.name.lower() or wanted in tool.description.lower()
        ]

    def _list(self) -> None:
        """Show the tools that match the search."""
        self._walker.show(self._listed())

    def _row(self, tool: Tool) -> _Row:
        return _Row(tool, self._widest, self._hidden, self._toggle)

    def _toggle(self, tool: Tool) -> None:
        self._hidden ^= {tool.name}
        self._show_status()

    def _toggle_listed(self) -> None:
        """Hide all listed tools, or expose them if all are hidden."""
        names = {tool.name for tool in self._listed()}
        if names <= self._hidden:
            self._hidden.difference_update(names)
        else:
            self._hidden.update(names)
        self._walker.redraw()
        self._show_status()

    def _show_status(self) -> None:
        """Show how many tools remain."""
        self._is_leaving = False
        saved = sum(tool.size for tool in self._tools if tool.name in self._hidden)
        left = len(self._tools) - len(self._hidden)
        self._status.set_text(
            f"{left} of {len(self._tools)} tools remain · {len(self._hidden)} hidden"
            f" · saves about {estimate_tokens(saved)} tokens per tools/list\n{_KEYS}"
        )
        self.widget.footer = urwid.AttrMap(self._status, "bar")


class _Rows(urwid.ListWalker):  # type: ignore[misc]  # urwid has no types
    """Creates rows when they become visible, because a server may have thousands of tools."""

    def __init__(self, make: Callable[[Tool], _Row]) -> None:
        self._make = make
        self.show([])

    def show(self, tools: Sequence[Tool]) -> None:
        """Show other tools, starting with the first one."""
        self._tools, self.focus = tools, 0
        self.redraw()

    def redraw(self) -> None:
        """Create all rows again."""
        self._rows: dict[int, _Row] = {}
        self._modified()

    def set_focus(self, position: int) -> None:
        self.focus = position
        self._modified()

    def __getitem__(self, position: int) -> _Row:
        if not 0 <= position < len(self._tools):
            raise IndexError(position)
        if position not in self._rows:
            self._rows[position] = self._make(self._tools[position])
        return self._rows[position]

    def __len__(self) -> int:
        return len(self._tools)

    def next_position(self, position: int) -> int:
        if position + 1 >= len(self._tools):
            raise IndexError(position)
        return position + 1

    def prev_position(self, position: int) -> int:
        if position <= 0:
            raise IndexError(position)
        return position - 1

    def positions(self, reverse: bool = False) -> Sequence[int]:
        at = range(len(self._tools))
        return at[::-1] if reverse else at


def _width_of(text: str) -> int:
    """Return how many columns a text takes. (A Chinese character takes two.)"""
    return int(urwid.calc_width(text, 0, len(text)))


class _Row(urwid.WidgetWrap):  # type: ignore[misc]  # urwid has no types
    def __init__(
        self, tool: Tool, widest: int, hidden: set[str], toggle: Callable[[Tool], None]
    ) -> None:
        self._tool, self._widest, self._hidden, self._on_toggle = tool, widest, hidden, toggle
        self._text = urwid.Text("", wrap="ellipsis")
        super().__init__(urwid.AttrMap(self._text, None, "focus"))
        self._draw()

    def selectable(self) -> bool:
        return True

    def keypress(self, _size: object, key: str) -> str | None:
        if key != " ":
            return key
        self._on_toggle(self._tool)
        self._draw()
        return None

    def _draw(self) -> None:
        is_hidden = self._tool.name in self._hidden
        mark = "[hide]" if is_hidden else "[    ]"
        name = shortened(shown(self._tool.name), self._widest)
        name += " " * (self._widest - _width_of(name))
        tokens = estimate_tokens(self._tool.size)
        said = f"{self._tool.mark:{_MARK}}  {self._tool.description}"
        self._text.set_text(f"{mark} {name} {tokens:>7}  {said}")
        self._w.set_attr_map({None: "hidden" if is_hidden else None})
