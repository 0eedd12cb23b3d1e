"""The editor of one server's tools: what its clients see and say instead of the server's own.

Policy, observers and rules have the server's own names and definitions. So each message of a client
is edited before it is judged, and each list after it was judged.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from mcp_tool_filter.core.errors import ProtocolError
from mcp_tool_filter.core.messages.carried import CALL, requests_within
from mcp_tool_filter.core.messages.limits import Limits
from mcp_tool_filter.core.messages.messages import (
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    Batch,
    Notification,
    Request,
    Response,
    Single,
    parse_message,
    render_batch,
    render_error,
)
from mcp_tool_filter.core.messages.scan import Value
from mcp_tool_filter.core.messages.tools import Edit as Change
from mcp_tool_filter.core.messages.tools import Listing, parse_listing, with_edits
from mcp_tool_filter.core.policy.choice import Claims
from mcp_tool_filter.core.policy.situation import EditedRequest, Editor
from mcp_tool_filter.core.policy.snapshot import Snapshot, shown
from mcp_tool_filter.core.policy.verdict import Drop, Reason, Reply, Why
from mcp_tool_filter.rooms.edits.definitions import (
    CannotEdit,
    edited_definition,
    fixed_arguments,
    plainly_fixed,
    problems_in,
)
from mcp_tool_filter.rooms.edits.tables import NO_EDIT, BadEdit, Edits

_LARGEST_KEPT = 64 * 1024 * 1024  # bytes of definitions, edited and not
_START = 256  # bytes: before the list in an answer of ours, and of the list, to find it by
_OTHERWISE = "Change the edit, or the patterns"


@dataclass(slots=True, eq=False)
class DefinitionEditor:
    """All edits of one server, and the definitions that they have made."""

    edits: Edits
    _kept: dict[bytes, bytes | None] = field(default_factory=dict)
    """None for a definition that cannot be edited: its tool is hidden."""
    _size: int = 0
    """Bytes of these definitions, before and after."""
    _lists: tuple[object, bytes] | None = None
    """The definitions of a snapshot, and all of them edited: most clients get this list."""

    def vouched(self, name: str, claims: Claims) -> Claims:
        return self.edits.vouched(name, claims)

    def exposed(self, own: str) -> str:
        """Return the name that clients know."""
        try:
            return self.edits.for_tool(own).name or own
        except BadEdit:
            return own

    def own(self, name: str, snapshot: Snapshot) -> str | None:
        """Return the server's own name of a tool; None if clients know no tool of this name."""
        own = self.edits.own_names.get(name)
        if own is not None and (_is_listed(own, snapshot) or name not in snapshot.allowed):
            return own
        if self.exposed(name) != name:
            return None  # it has a new name
        raw = snapshot.allowed.get(name)
        return None if raw is not None and self.edited(name, raw) is None else name

    # What clients say

    def asked(self, message: Single, snapshot: Snapshot, limits: Limits) -> EditedRequest:
        if isinstance(message, Response) or message.params is None:
            return EditedRequest(message, message)
        renames: list[Change] = []
        fixes: list[Change] = []
        for params in _calls_in(message):
            said = params.get("name")
            if said is None or said.text is None:
                continue  # policy refuses it
            name = self.own(said.text, snapshot)
            if name is None:
                refused = _refused(message, _not_found(said.text), said.text)
                return EditedRequest(message, message, refused)
            if name != said.text:
                renames.append(Change(said.start, said.end, json.dumps(name)))
            try:
                fixed = fixed_arguments(message.place.text, params, self.edits.for_tool(name))
            except CannotEdit as error:
                renamed = _with(message, renames, limits)
                return EditedRequest(
                    renamed, renamed, _refused(message, f"Invalid params: {error}", name)
                )
            fixes += [fixed] if fixed else []
        renamed = _with(message, renames, limits)
        return EditedRequest(
            _with(message, [*renames, *fixes], limits) if fixes else renamed, renamed
        )

    def plain(self, name: str, call: bytes, arguments: bytes, snapshot: Snapshot) -> bytes | None:
        if self.own(name, snapshot) != name:
            return None
        edit = self.edits.for_tool(name)
        if not edit.fix:
            return call
        mirrors = b"x-mcp-header" in snapshot.allowed.get(name, b"")  # in the head, too
        return None if mirrors else plainly_fixed(call, arguments, edit)

    # What clients get

    def told(self, text: bytes, snapshot: Snapshot, limits: Limits) -> bytes:
        """Return a message for the client with the edited definitions. Raises ProtocolError."""
        own = snapshot.allowed.tools
        at = text.find(own[:_START], 0, 2 * _START) if len(own) > 2 and text[:1] == b"{" else -1
        if at > 0 and text.startswith(own, at):  # the list of the snapshot, as it is
            return b"".join((text[:at], self._all_of(snapshot), text[at + len(own) :]))
        if b"tools" not in text and b"\\u" not in text:
            return text
        message = parse_message(text, limits)
        if not isinstance(message, Batch):
            return self._with_edited(message, snapshot) or text
        each = [self._with_edited(one, snapshot) for one in message.members]
        if not any(each):
            return text
        pairs = zip(each, message.members, strict=True)
        return render_batch([new or one.place.raw for new, one in pairs])

    def shown(self, snapshot: Snapshot) -> list[tuple[str, bytes]]:
        every = [
            (self.exposed(name), self._shown(name, raw, snapshot))
            for name, raw in snapshot.allowed.items()
        ]
        return [(name, raw) for name, raw in every if raw is not None]

    def _all_of(self, snapshot: Snapshot) -> bytes:
        known = self._lists
        if known is None or known[0] is not snapshot.allowed:
            written = b"[" + b",".join(raw for _, raw in self.shown(snapshot)) + b"]"
            known = self._lists = snapshot.allowed, written
        return known[1]

    def _with_edited(self, message: Single, snapshot: Snapshot) -> bytes | None:
        """Return a message with the edited definitions; None if it stays as it is."""
        if isinstance(message, Request) and message.method == "sampling/createMessage":
            return None  # these tools are for the model
        try:
            listing = parse_listing(message)
        except ProtocolError:
            return None  # policy has decided that it is no list
        if listing is None or not listing.has_definitions:
            return None
        edited = list(self._edited_in(listing, snapshot))
        if edited == [one.raw for one in listing.definitions]:
            return None
        return listing.with_tools(edited)

    def _edited_in(self, listing: Listing, snapshot: Snapshot) -> Iterator[bytes]:
        for one in listing.definitions:
            edited = one.raw if one.name is None else self._shown(one.name, one.raw, snapshot)
            if edited is not None:
                yield edited

    def _shown(self, name: str, raw: bytes, snapshot: Snapshot) -> bytes | None:
        """Return what a client sees of a tool; None if it must not see it."""
        other = self.edits.own_names.get(name)
        if other is not None and other != name and _is_listed(other, snapshot):
            return None  # another tool has this name now
        return self.edited(name, raw)

    def edited(self, name: str, raw: bytes) -> bytes | None:
        """Return a definition with its edits; None if that is not possible."""
        try:
            edit = self.edits.for_tool(name)
        except BadEdit:
            return None
        if edit is NO_EDIT:
            return raw
        if raw in self._kept:
            return self._kept[raw]
        try:
            list(problems_in(raw, edit))  # the report warns of them; some make an edit impossible
            edited: bytes | None = edited_definition(raw, edit)
        except CannotEdit:
            edited = None
        self._keep(raw, edited)
        return edited

    def _keep(self, raw: bytes, edited: bytes | None) -> None:
        """Remember an edited definition. An upstream may send others again and again."""
        size = len(raw) + len(edited or b"")
        if self._size + size > _LARGEST_KEPT:
            self._kept.clear()
            self._size = 0
        if size <= _LARGEST_KEPT:
            self._kept[raw] = edited
            self._size += size

    def refusal(self, text: bytes, names: Iterable[str]) -> bytes:
        """Return errors that we write with the names that the client knows."""
        for own in names:
            new = self.exposed(own)
            if new != own:
                text = text.replace(_quoted(_not_found(own)), _quoted(_not_found(new)))
        return text

    # The report

    @property
    def patterns(self) -> Iterable[str]:
        return self.edits.patterns

    def refuse_start(self, snapshots: Iterable[Snapshot]) -> None:
        """Raise BadEdit if these tools do not fit the edits."""
        for one in snapshots:
            self._refuse_taken_names(one)
            for name, raw in one.allowed.items():
                edit = self.edits.for_tool(name)
                try:
                    list(problems_in(raw, edit) if edit is not NO_EDIT else ())
                except CannotEdit as error:
                    raise BadEdit(f"The edit of {shown(name)} {error}", why=_OTHERWISE) from None

    def _refuse_taken_names(self, snapshot: Snapshot) -> None:
        for new, own in self.edits.own_names.items():
            if new != own and _is_listed(own, snapshot) and _is_listed(new, snapshot):
                what = f"The new name of {shown(own)} is taken: the server has a tool {shown(new)}"
                raise BadEdit(what, why=_OTHERWISE)

    def report(self, snapshot: Snapshot) -> Iterator[str]:
        for name in snapshot.allowed:
            if said := ", ".join(self.edits.for_tool(name).says()):
                yield f"Edited: {shown(name)}: {said}"

    def unmatched(self, snapshots: Iterable[Snapshot], beside: Editor | None = None) -> list[str]:
        names = [name for one in snapshots for name in (*one.allowed, *one.denied)]
        patterns = dict.fromkeys(self.edits.patterns)
        for shared in beside.patterns if beside else ():
            patterns.pop(shared, None)
        return [one for one in patterns if names and not self.edits.matches(one, names)]

    def warnings(self, snapshot: Snapshot, beside: Editor | None = None) -> Iterator[str]:
        """Yield what an edit wants and is not there; of the other editor's edits, less."""
        for name in self.unmatched([snapshot], beside):
            yield f"the edit of {shown(name)} matches no tool"
        for name, raw in snapshot.allowed.items():
            try:
                edit = self.edits.for_tool(name)
                if edit is NO_EDIT:
                    continue
                for problem in problems_in(raw, edit):
                    yield f"the edit of {shown(name)}: {problem}"
                edited_definition(raw, edit)
            except (CannotEdit, BadEdit) as error:
                yield f"{shown(name)} cannot be edited, so it is hidden: {error}"
            if (new := self.exposed(name)) != name and new in snapshot.allowed:
                yield f"{shown(new)} is hidden: {shown(name)} has this name now"


def _is_listed(name: str, snapshot: Snapshot) -> bool:
    return name in snapshot.allowed or name in snapshot.denied


def _calls_in(message: Request | Notification) -> Iterator[Value]:
    """Yield the params of a call, and those of the calls that a request carries."""
    if message.method == CALL and message.params is not None and message.params.members is not None:
        yield message.params
    for carried in requests_within(message):
        if carried.method == CALL and carried.params is not None:
            yield carried.params


def _with(message: Request | Notification, changes: list[Change], limits: Limits) -> Single:
    if not changes:
        return message
    place = message.place
    raw = with_edits(place.text, place.start, place.end, changes).encode()
    larger = max(limits.message, len(raw))
    changed = parse_message(raw, Limits(message=larger, depth=limits.depth))
    if isinstance(changed, Batch):
        raise ProtocolError("a batch in place of a message")
    return changed


def _not_found(name: str) -> str:
    return f"Tool not found: {shown(name)}"


def _quoted(text: str) -> bytes:
    """Return a text as ``render_error`` writes it, up to its end."""
    rendered = render_error("0", METHOD_NOT_FOUND, text)
    start = rendered.index(b'"message":') + len(b'"message":')
    return rendered[start : rendered.rindex(b'"') + 1]


def _refused(message: Request | Notification, text: str, name: str) -> Reply | Drop:
    is_unknown = text == _not_found(name)
    reason = Reason(Why.UNKNOWN if is_unknown else Why.EDITED, (name,), detail=text)
    if isinstance(message, Notification):
        return Drop(reason)
    code = METHOD_NOT_FOUND if is_unknown else INVALID_PARAMS
    return Reply(render_error(message.id, code, text), reason)
