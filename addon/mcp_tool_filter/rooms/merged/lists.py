r"""What the servers list, under one roof: exposed names, merged lists, and whose a name is.

A tool or prompt is called prefix + own name, always; so no server renames what another one has. A
name is looked up in a table, and never split:

>>> read, list_ = (b'{"name":"%s","inputSchema":{}}' % name for name in (b"read", b"list"))
>>> files = make_offer(TOOLS, "files", "fs_", [("read", read), ("list", list_)])
>>> table = MergedList(TOOLS, [files, make_offer(TOOLS, "web", "web_", [("read", read)])])
>>> table.owner("fs_read"), table.owner("web_read"), table.owner("read")
(('files', 'read'), ('web', 'read'), None)
>>> table.body[:16]
b'{"name":"fs_read'

What two servers claim is nobody's, because each client could mean the other one:

>>> MergedList(TOOLS, [files, make_offer(TOOLS, "more", "fs_", [("read", read)])]).warnings
('Warning: files and more both have the tool fs_read: it is not shown',)
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, NamedTuple

from mcp_tool_filter.core.errors import ProtocolError
from mcp_tool_filter.core.messages.limits import Limits
from mcp_tool_filter.core.messages.scan import EACH, Many, scan
from mcp_tool_filter.core.policy.choice import EVERYTHING, Hider
from mcp_tool_filter.core.policy.patterns import MAX_NAME
from mcp_tool_filter.core.policy.snapshot import shown

LONG_NAME: Final = 54
"""Characters: some clients cut or refuse longer names, since they add a prefix of their own."""
_REFUSED = re.compile(r"[^A-Za-z0-9_-]")


class ListKind(NamedTuple):
    """One kind of things that servers list."""

    method: str
    member: str
    """The member of the result that has the list."""
    key: str
    """The member of an element that tells it from others."""
    word: str
    notice: str
    """The notification of a change; empty if there is none."""

    @property
    def capability(self) -> str:
        return self.method.partition("/")[0]

    @property
    def is_renamed(self) -> bool:
        return self.key == "name"


def _notice(of: str) -> str:
    return f"notifications/{of}/list_changed"


TOOLS: Final = ListKind("tools/list", "tools", "name", "tool", _notice("tools"))
PROMPTS: Final = ListKind("prompts/list", "prompts", "name", "prompt", _notice("prompts"))
RESOURCES: Final = ListKind("resources/list", "resources", "uri", "resource", _notice("resources"))
TEMPLATES: Final = ListKind(
    "resources/templates/list", "resourceTemplates", "uriTemplate", "template", _notice("resources")
)
SKILLS: Final = ListKind("skills/list", "skills", "uri", "skill", "")
KINDS: Final = {one.method: one for one in (TOOLS, PROMPTS, RESOURCES, TEMPLATES, SKILLS)}


def default_prefix(server: str) -> str:
    """Return the prefix of a server that has none of its own.

    >>> default_prefix("files"), default_prefix("my.files")
    ('files_', 'my_files_')
    """
    return _REFUSED.sub("_", server) + "_"


type Hiding = Callable[[str, bytes], Hider | None]
"""Returns what hides a tool, given by its name and definition."""


class Item(NamedTuple):
    """One thing as a client sees it."""

    exposed: str
    own: str
    raw: bytes


@dataclass(frozen=True, eq=False)
class Offer:
    """What one server shows of one kind, as clients see it. Sessions share it."""

    kind: ListKind
    server: str
    items: tuple[Item, ...]
    warnings: tuple[str, ...] = ()
    ttl: int | None = None
    hidden: Mapping[str, Hider] = field(default_factory=dict)
    """The exposed names of what a profile hides, and what hides each."""

    @cached_property
    def body(self) -> bytes:
        return b",".join([one.raw for one in self.items])


def make_offer(
    kind: ListKind,
    server: str,
    prefix: str,
    definitions: Iterable[tuple[str, bytes]],
    ttl: int | None = None,
    hiding: Hiding = EVERYTHING.hiding,
) -> Offer:
    """Return a server's list, given as its own keys with their definitions, as far as a profile
    chooses them."""
    items: list[Item] = []
    warnings: list[str] = []
    hidden: dict[str, Hider] = {}
    for own, raw in definitions:
        if kind is TOOLS and (by := hiding(own, raw)) is not None:
            hidden[prefix + own] = by
            continue
        if kind is TOOLS and _demands_tasks(raw):
            warnings.append(f"Warning: {server}: {shown(own)} needs tasks: it is not in /mcp")
            continue
        if not kind.is_renamed:
            items.append(Item(own, own, raw))
            continue
        exposed = prefix + own
        if len(exposed) > MAX_NAME:
            what = f"is longer than {MAX_NAME} characters with its prefix: it is not shown"
            warnings.append(f"Warning: {server}: {shown(exposed)} {what}")
            continue
        if len(exposed) > LONG_NAME:
            what = f"has {len(exposed)} characters: some clients cut or refuse it"
            warnings.append(f"Warning: {server}: {shown(exposed)} {what}; a shorter prefix helps")
        items.append(Item(exposed, own, renamed(raw, prefix)))
    return Offer(kind, server, tuple(items), tuple(warnings), ttl, hidden)


def _demands_tasks(raw: bytes) -> bool:
    if b"taskSupport" not in raw:
        return False
    _, root = scan(raw, {"execution": {}}, _ANY_SIZE)
    execution = root.get("execution")
    support = execution.get("taskSupport") if execution else None
    return support is not None and support.text == "required"


_ANY_SIZE = Limits(message=2**40, depth=200)


def renamed(raw: bytes, prefix: str) -> bytes:
    """Return a definition with a prefix before its name; every other byte stays.

    >>> renamed(b'{"title": "a", "name": "a\\\\u0062"}', "x_")
    b'{"title": "a", "name": "x_a\\\\u0062"}'
    """
    if not prefix:
        return raw
    text, root = scan(raw, {}, _ANY_SIZE)
    at = root["name"].start + 1  # behind the quote
    return f"{text[:at]}{json.dumps(prefix)[1:-1]}{text[at:]}".encode()


class ListPage(NamedTuple):
    """A server's answer to a list request."""

    elements: list[tuple[str, bytes]]
    """The own keys and bytes of what it lists."""
    cursor: str | None
    ttl: int | None
    """Milliseconds for which it is fresh, since 2026-07-28."""


def parse_page(kind: ListKind, answer: bytes) -> ListPage:
    """Read a server's answer. Raises ProtocolError. What has no key is left out."""
    outline = {"result": {kind.member: Many({EACH: {}})}}
    text, root = scan(answer, outline, _ANY_SIZE)
    result = root.get("result")
    found = result.get(kind.member) if result else None
    if result is None or found is None or found.elements is None:
        raise ProtocolError(f"no list of {kind.member}")
    cursor = result.get("nextCursor")
    elements = [
        (key.text, text[one.start : one.end].encode())
        for one in found.elements
        if (key := one.get(kind.key)) is not None and key.text is not None
    ]
    ttl = result.get("ttlMs")
    written = text[ttl.start : ttl.end] if ttl else ""
    fresh = int(written) if written.isdigit() and len(written) < 16 else None
    return ListPage(elements, (cursor.text or None) if cursor else None, fresh)


class MergedList:
    """The merged list of one kind, and whose each thing is. Sessions share it."""

    def __init__(self, kind: ListKind, offers: Sequence[Offer]) -> None:
        """The offers are in the file's order."""
        self.kind, self.offers = kind, tuple(offers)
        self._owners: dict[str, tuple[str, str]] = {}
        claims: dict[str, list[str]] = {}
        for offer in offers:
            for one in offer.items:
                before = self._owners.setdefault(one.exposed, (offer.server, one.own))
                if before[0] != offer.server:
                    claims.setdefault(one.exposed, [before[0]]).append(offer.server)
        for exposed in claims:
            del self._owners[exposed]
        self._claims = claims
        self.body = _joined(offers, claims)
        said = [one for offer in offers for one in offer.warnings]
        self.warnings = (*said, *(_warning(kind, *one) for one in claims.items()))

    def owner(self, exposed: str) -> tuple[str, str] | None:
        """Return the server that has this, and its own name of it; None if none or several do."""
        return self._owners.get(exposed)

    def is_claimed(self, exposed: str) -> bool:
        """Tell whether several servers claim this."""
        return exposed in self._claims

    def __len__(self) -> int:
        return len(self._owners)

    @property
    def hidden(self) -> dict[str, Hider]:
        """What a profile hides."""
        return {name: by for offer in self.offers for name, by in offer.hidden.items()}


def _joined(offers: Sequence[Offer], left_out: Collection[str]) -> bytes:
    if not left_out:
        return b",".join([offer.body for offer in offers if offer.items])
    kept = (one for offer in offers for one in offer.items if one.exposed not in left_out)
    return b",".join([one.raw for one in kept])


def _warning(kind: ListKind, exposed: str, servers: Sequence[str]) -> str:
    names = list(dict.fromkeys(servers))
    both = "both " if len(names) == 2 else ""
    who = f"{', '.join(names[:-1])} and {names[-1]}"
    return f"Warning: {who} {both}have the {kind.word} {shown(exposed)}: it is not shown"
