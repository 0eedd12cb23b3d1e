"""Remove hidden tools from what describes tools in a way that we do not know, byte for byte.

That is the answer to a request ``tools/…`` that MCP does not define yet, such as ``tools/catalog``,
and a document about a server. An entry there may have a name and no schema, so that the search for
definitions (``protocol/tools``) would not find it. We look at every array of objects with a name.
An array that names a tool of the list, or is called ``tools``, is one of tools, and keeps only
those that are exposed. Any other array loses what the choice hides by its name.

>>> from mcp_tool_filter.policy.choice import Choice
>>> from mcp_tool_filter.policy.patterns import parse_pattern
>>> from mcp_tool_filter.policy.snapshot import take_snapshot
>>> from mcp_tool_filter.protocol.scan import scan
>>> snapshot = take_snapshot([], Choice(deny=(parse_pattern("^rm"),)))
>>> text, root = scan(b'{"found": [ {"name":"rm"}, {"name":"a"} ]}', {})
>>> Described(text, snapshot).without_hidden(root)
'{"found": [ {"name":"a"} ]}'
"""

from __future__ import annotations

from mcp_tool_filter.errors import ProtocolError
from mcp_tool_filter.policy.choice import UNDECIDED
from mcp_tool_filter.policy.snapshot import Snapshot, Standing, shown
from mcp_tool_filter.policy.verdict import Forward, Reason, Rewrite, Why
from mcp_tool_filter.protocol.limits import Limits
from mcp_tool_filter.protocol.messages import Response, fold, is_too_long_to_search, parse_message
from mcp_tool_filter.protocol.scan import EACH, Value, open_value
from mcp_tool_filter.protocol.tools import (
    HIDDEN_TOOL,
    Edit,
    ShowsHidden,
    cache_edits,
    edited,
    removed,
    shows_tool_beside_content,
    with_edits,
    without,
)

_TOOLS, _TOOL, _NAME, _SCHEMA = "tools", "tool", "name", "inputschema"
_NAMING = frozenset({_TOOLS, "names", "toolnames"})
"""Arrays whose strings name tools."""
_OTHERS = frozenset({"prompts", "resources", "resourcetemplates", "skills"})
"""Lists of what is no tool; ``things`` filters them."""
_UNCLEAR = ""
"""In place of a name that two readers could read differently."""


def decide_described(
    message: Response, snapshot: Snapshot, limits: Limits, *, is_ours: bool
) -> Forward | Rewrite:
    """Remove hidden tools from such an answer. Raises ProtocolError if one cannot be removed."""
    result, place = message.result, message.place
    assert result is not None
    if is_too_long_to_search(place.cut(result)):
        raise ProtocolError("too many members to look for hidden tools")
    search = Described(place.text, snapshot, pins=not is_ours)
    new = search.without_hidden(result)
    if new is None:
        _refuse_shown(message, snapshot)
        return Forward()
    changed = parse_message(edited(place, [Edit(result.start, result.end, new)]), limits)
    assert isinstance(changed, Response)
    _refuse_shown(changed, snapshot)
    hints = cache_edits(changed.place.text, changed.result) if changed.result else []
    hidden = tuple(map(shown, search.hidden))
    return Rewrite(edited(changed.place, hints), Reason(Why.HIDDEN, hidden))


def _refuse_shown(message: Response, snapshot: Snapshot) -> None:
    if shows_tool_beside_content(message, snapshot.never_shown):
        raise ShowsHidden(HIDDEN_TOOL)


class Described:
    """The search of one JSON text."""

    def __init__(self, text: str, snapshot: Snapshot, *, pins: bool = True) -> None:
        """If it ``pins``, a definition of an exposed tool is that of the snapshot."""
        self._text, self._snapshot, self._pins = text, snapshot, pins
        self.hidden: list[str] = []
        """The names of the tools that were removed."""

    def without_hidden(self, value: Value, key: str = "") -> str | None:
        """Return a part of the text without hidden tools; None if it shows none.

        Raises ProtocolError if one cannot be removed.
        """
        opened = open_value(self._text, value, {EACH: {}})
        if opened.elements is not None:
            return self._without_elements(opened, opened.elements, key)
        keys = [fold(member.key) for member in opened.members or ()]
        name = self._name_in(opened)
        if name is not None and self._is_hidden(name, is_tool=key == _TOOL):
            raise ShowsHidden(HIDDEN_TOOL)
        if _SCHEMA in keys:  # the definition of an exposed tool, as it is
            return None
        gone = []
        edits: list[Edit] = []
        for folded, member in zip(keys, opened.members or (), strict=True):
            if folded in _OTHERS:
                continue
            is_entry = self._text[member.value.start] == "{"
            if key == _TOOLS and is_entry and self._is_hidden(member.key, is_tool=True):
                gone.append(member)
                self.hidden.append(member.key)
            elif (new := self.without_hidden(member.value, folded)) is not None:
                edits.append(Edit(member.value.start, member.value.end, new))
        edits += removed(opened, gone)
        return with_edits(self._text, opened.start, opened.end, edits) if edits else None

    def _without_elements(self, array: Value, elements: tuple[Value, ...], key: str) -> str | None:
        names = [self._name_in(one) for one in elements]
        snapshot = self._snapshot
        are_tools = key == _TOOLS or any(
            name in snapshot.allowed.names or name in snapshot.denied for name in names if name
        )
        kept: list[bool] = []
        changed: dict[int, str] = {}
        for number, (element, name) in enumerate(zip(elements, names, strict=True)):
            is_text = element.text is not None and key in _NAMING
            name = element.text if is_text else name
            is_hidden = name is not None and self._is_hidden(
                name, is_tool=are_tools and not is_text
            )
            kept.append(not is_hidden)
            if is_hidden:
                self.hidden.append(name or "?")
            elif (new := self._exposed(element, name if are_tools else None)) is not None:
                changed[number] = new
        return None if all(kept) and not changed else without(self._text, array, kept, changed)

    def _exposed(self, element: Value, tool: str | None) -> str | None:
        """Return what becomes of an element that stays; None if it stays as it is."""
        if tool is None:
            return self.without_hidden(element)
        has_schema = any(fold(member.key) == _SCHEMA for member in element.members or ())
        known = self._snapshot.allowed.get(tool)
        if not self._pins or not has_schema or known is None:
            return None
        written = self._text[element.start : element.end]
        return None if known == written.encode() else known.decode()

    def _name_in(self, value: Value) -> str | None:
        """Return the name of an object; None if it has none."""
        named = [one.value.text for one in value.members or () if fold(one.key) == _NAME]
        if len(named) > 1 or (named and value.get(_NAME) is None):
            return _UNCLEAR
        return named[0] if named else None

    def _is_hidden(self, name: str, *, is_tool: bool) -> bool:
        if name == _UNCLEAR:
            return True
        if is_tool:
            return self._snapshot.standing(name) is not Standing.ALLOWED
        by = self._snapshot.choice.hiding(name)
        return name in self._snapshot.denied or (by is not None and by is not UNDECIDED)
