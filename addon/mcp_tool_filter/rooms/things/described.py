"""Remove hidden tools from what describes tools in a way that we do not know, byte for byte.

That is the answer to a request ``tools/…`` that MCP does not define yet, such as ``tools/catalog``,
and a document about a server. An entry there may have a name and no schema, so that the search for
definitions (``core/messages/tools``) would not find it. We look at every array of objects with a
name.
An array that names a tool of the list, or is called ``tools``, is one of tools, and keeps only
those that are exposed. Any other array loses what the choice hides by its name.

>>> from mcp_tool_filter.core.policy.choice import Choice
>>> from mcp_tool_filter.core.policy.patterns import parse_pattern
>>> from mcp_tool_filter.core.policy.snapshot import take_snapshot
>>> from mcp_tool_filter.core.messages.scan import scan
>>> snapshot = take_snapshot([], Choice(deny=(parse_pattern("^rm"),)))
>>> text, root = scan(b'{"found": [ {"name":"rm"}, {"name":"a"} ]}', {})
>>> Described(text, snapshot).without_hidden(root)
'{"found": [ {"name":"a"} ]}'
"""

from __future__ import annotations

import json
import re
import sys
from base64 import b64decode
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING
from urllib.parse import unquote

from mcp_tool_filter.core.errors import ProtocolError
from mcp_tool_filter.core.messages.limits import Limits
from mcp_tool_filter.core.messages.messages import (
    Batch,
    Response,
    Single,
    fold,
    is_too_long_to_open,
    parse_message,
    refuse_misreadable,
)
from mcp_tool_filter.core.messages.scan import EACH, Member, Value, open_value, scan
from mcp_tool_filter.core.messages.tools import (
    HIDDEN_TOOL,
    SERVER_INFO,
    Edit,
    ShowsHidden,
    cache_edits,
    edited,
    removed,
    says_of_list,
    shows_tool_beside_content,
    with_edits,
    without,
)
from mcp_tool_filter.core.policy.choice import NOT_ALLOWED, UNDECIDED
from mcp_tool_filter.core.policy.snapshot import Snapshot, Standing, shown
from mcp_tool_filter.core.policy.verdict import Forward, Reason, Rewrite, Why

if TYPE_CHECKING:
    from mcp_tool_filter.rooms.things.things import Things

_TOOLS, _TOOL, _NAME, _SCHEMA = "tools", "tool", "name", "inputschema"
_NAMED_OTHERWISE = frozenset({"groups", "server", "serverinfo", "provider"})
"""What has a name and is no tool, but may list tools."""
_NAMES_A_TOOL = frozenset({_TOOL, "toolname", "toolid"})
"""Members whose string names a tool."""
_NAMING = frozenset({_TOOLS, "names", "toolnames"})
"""Arrays whose strings name tools."""
_OF_ARGUMENTS = frozenset({"arguments", "parameters", "params"})
"""Arrays of the named arguments of a tool."""
_OTHERS = frozenset({"prompts", "resources", "resourcetemplates", "skills"})
"""Lists of what is no tool; ``things`` filters them."""
_OTHERS_SAY = _OTHERS | {fold(SERVER_INFO)}
_CONTENT = frozenset({"uri", "text", "blob", "mimeType", "_meta"})
_LONGEST_CARD_URI = 4096  # characters
_UNCLEAR = ""
"""In place of a name that two readers could read differently."""


def decide_described(
    message: Response, snapshot: Snapshot, limits: Limits, *, is_ours: bool
) -> Forward | Rewrite:
    """Remove hidden tools from such an answer. Raises ProtocolError if one cannot be removed."""
    result, place = message.result, message.place
    assert result is not None
    if is_too_long_to_open(place.cut(result)):
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


def decide_beside(message: Single, snapshot: Snapshot) -> Forward | Rewrite:
    """Remove hidden tools from what is beside the tools of a list."""
    place, holder = message.place, _holder_of(message)
    search = Described(place.text, snapshot, pins=False)
    edits: list[Edit] = []
    gone: list[Member] = []
    for member in holder.members or ():
        key = fold(member.key)
        if key == _TOOLS or key in _OTHERS_SAY:
            continue
        try:
            if is_too_long_to_open(place.cut(member.value)):
                raise ShowsHidden(HIDDEN_TOOL)
            new = search.without_hidden(member.value, key)
        except ShowsHidden:
            gone.append(member)
        else:
            edits += [Edit(member.value.start, member.value.end, new)] if new is not None else []
    if not edits and not gone:
        return Forward()
    changed = parse_again(edited(place, [*edits, *removed(holder, gone)]))
    text = edited(changed.place, cache_edits(changed.place.text, _holder_of(changed)))
    return Rewrite(text, Reason(Why.HIDDEN, tuple(map(shown, search.hidden))))


def parse_again(text: bytes) -> Single:
    """Parse a message from which we have removed something; it was within the limits."""
    changed = parse_message(text, Limits(message=sys.maxsize))
    assert not isinstance(changed, Batch)
    return changed


def _holder_of(message: Single) -> Value:
    holder = message.result if isinstance(message, Response) else message.params
    assert holder is not None
    return holder


_CARD_URI = re.compile(r"server[-_ .]?card", re.IGNORECASE)
_ELSEWHERE = frozenset({"remotes", "packages"})
"""Members of a card that say how to reach the server, or to start it, without us."""


def is_card_uri(uri: str) -> bool:
    """Tell whether a resource may be a Server Card (SEP-2127).

    >>> is_card_uri("mcp://server-card.json"), is_card_uri("file:///a/cards.json")
    (True, False)
    """
    return len(uri) < _LONGEST_CARD_URI and _CARD_URI.search(unquote(uri)) is not None


def decide_card(
    message: Response, snapshot: Snapshot, things: Things | None, limits: Limits
) -> Forward | Rewrite:
    """Remove hidden tools and things from a Server Card that is read as a resource, and what leads
    past us: its reader is connected already. Raises ProtocolError if that is not possible.
    """
    result, text = message.result, message.place.text
    contents = result.get("contents") if result else None
    if contents is None or (snapshot.choice.hides_nothing and things is None):
        return Forward()
    edits = []
    for one in open_value(text, contents, {EACH: {}}).elements or ():
        refuse_misreadable(one.members or (), _CONTENT)
        said, blob = one.get("text"), one.get("blob")
        if blob is not None and b64decode(blob.text or "")[:100].lstrip().startswith(b"{"):
            raise ProtocolError("a Server Card in base64")
        if said is None or (said.text or "").lstrip()[:1] not in ("{", "["):
            continue
        card = (said.text or "").encode()
        new = document_without_hidden(card, snapshot, things, limits, besides=_ELSEWHERE)
        if new is not None:
            written = json.dumps(new.decode(), ensure_ascii=False)
            edits.append(Edit(said.start, said.end, written))
    return Rewrite(edited(message.place, edits), Reason(Why.HIDDEN)) if edits else Forward()


def document_without_hidden(
    document: bytes,
    snapshot: Snapshot,
    things: Things | None,
    limits: Limits,
    *,
    besides: Collection[str] = (),
) -> bytes | None:
    """Return a document about a server without hidden tools and things, and without some members
    ``besides``; None if it shows none.

    Raises ProtocolError if it cannot be read, or if one cannot be removed.
    """
    text, root = scan(document, {EACH: {}}, limits)
    if is_too_long_to_open(text):
        raise ProtocolError("too many members to look for hidden tools")
    new = Described(text, snapshot, pins=False).without_hidden(root, "server")
    if new is not None:
        whole = f"{text[: root.start]}{new}{text[root.end :]}"
        text, root = scan(whole.encode(), {EACH: {}}, limits)
    edits = list(things.edits_in(text, root)) if things else []
    others = [one for one in root.members or () if fold(one.key) in besides]
    if new is None and not edits and not others:
        return None
    signed = [one for one in root.members or () if says_of_list(one)]
    return with_edits(text, 0, len(text), [*edits, *removed(root, [*others, *signed])]).encode()


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
        self._is_in_tool = False
        """True inside of an exposed tool: there, only names of other tools of the list count."""

    def without_hidden(self, value: Value, key: str = "") -> str | None:
        """Return a part of the text without hidden tools; None if it shows none.

        Raises ProtocolError if one cannot be removed.
        """
        opened = open_value(self._text, value, {EACH: {}})
        if opened.elements is not None:
            return self._without_elements(opened, opened.elements, key)
        keys = [fold(member.key) for member in opened.members or ()]
        name = None if key in _NAMED_OTHERWISE else self._name_in(opened)
        if self._is_hidden_entry(opened, name, are_tools=key == _TOOL, is_alone=True):
            raise ShowsHidden(HIDDEN_TOOL)
        if _SCHEMA in keys:  # the definition of an exposed tool, as it is
            return None
        before = self._is_in_tool
        self._is_in_tool = before or (name is not None and self._is_known(name))
        try:
            return self._without_members(opened, keys, key)
        finally:
            self._is_in_tool = before

    def _without_members(self, opened: Value, keys: Sequence[str], key: str) -> str | None:
        gone = []
        edits: list[Edit] = []
        members = opened.members or ()
        is_map = key == _TOOLS or any(self._is_known(member.key) for member in members)
        for folded, member in zip(keys, members, strict=True):
            if folded in _OTHERS_SAY or (self._is_in_tool and folded in _OF_ARGUMENTS):
                continue
            is_entry = is_map and self._text[member.value.start] == "{"
            if is_entry and self._is_hidden(member.key, is_tool=key == _TOOLS):
                gone.append(member)
                self.hidden.append(member.key)
            elif (new := self.without_hidden(member.value, folded)) is not None:
                edits.append(Edit(member.value.start, member.value.end, new))
        edits += removed(opened, gone)
        return with_edits(self._text, opened.start, opened.end, edits) if edits else None

    def _without_elements(self, array: Value, elements: tuple[Value, ...], key: str) -> str | None:
        names = [None if key in _NAMED_OTHERWISE else self._name_in(one) for one in elements]
        are_tools = key == _TOOLS or any(self._is_known(name) for name in names if name)
        kept: list[bool] = []
        changed: dict[int, str] = {}
        for number, (element, name) in enumerate(zip(elements, names, strict=True)):
            is_text = element.text is not None and key in _NAMING
            name = element.text if is_text else name
            new = None
            if is_text:
                is_hidden = name is not None and self._is_hidden(name, is_tool=False)
            else:
                is_hidden = self._is_hidden_entry(element, name, are_tools=are_tools)
            if not is_hidden:
                try:
                    new = self._exposed(element, name if are_tools else None, key)
                except ShowsHidden:  # somewhere in it: all of it goes
                    is_hidden = True
            kept.append(not is_hidden)
            if is_hidden:
                self.hidden.append(name or "?")
            elif new is not None:
                changed[number] = new
        return None if all(kept) and not changed else without(self._text, array, kept, changed)

    def _exposed(self, element: Value, tool: str | None, key: str) -> str | None:
        """Return what becomes of an element that stays; None if it stays as it is."""
        has_schema = any(fold(member.key) == _SCHEMA for member in element.members or ())
        if tool is None or not has_schema:
            return self.without_hidden(element, key if key in _NAMED_OTHERWISE else "")
        known = self._snapshot.allowed.get(tool)
        if not self._pins or known is None:
            return None
        written = self._text[element.start : element.end]
        return None if known == written.encode() else known.decode()

    def _is_hidden_entry(
        self, value: Value, name: str | None, *, are_tools: bool, is_alone: bool = False
    ) -> bool:
        """Tell whether an object of this name is a hidden tool, or names one in another member.

        One ``is_alone`` if it is in no array: then most that have a name are no tools, so what
        nobody allows by name stays.
        """
        others = [
            one.value.text
            for one in value.members or ()
            if one.value.text is not None and fold(one.key).replace("_", "") in _NAMES_A_TOOL
        ]
        if any(self._is_hidden(other, is_tool=True) for other in others):
            return True
        if name is None or not self._is_hidden(name, is_tool=are_tools):
            return False
        if any(fold(one.key) == _TOOLS for one in value.members or ()) and not are_tools:
            return name in self._snapshot.denied  # a group of tools
        if are_tools or not is_alone or name == _UNCLEAR or name in self._snapshot.denied:
            return True
        return self._snapshot.choice.hiding(name) is not NOT_ALLOWED

    def _is_known(self, name: str) -> bool:
        return name in self._snapshot.allowed.names or name in self._snapshot.denied

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
        if name in self._snapshot.denied:
            return True
        if self._is_in_tool and not self._snapshot.is_open:
            return False
        by = self._snapshot.choice.hiding(name)
        return by is not None and by is not UNDECIDED
