"""The upstream's tools as they were fetched at start: allowed and denied, then frozen.

A tool that appears later is not exposed; one that changes keeps the definition it had. What the
upstream says otherwise since is drift, and worth a warning.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from mcp_tool_filter.policy.patterns import MAX_NAME, Pattern
from mcp_tool_filter.protocol.tools import Definition, Listing, shows_tool


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    allowed: Mapping[str, bytes]
    """Name to definition, in the upstream's order."""
    denied: Mapping[str, Pattern | None]
    """Name to the pattern that denied it; None if it is on no allow pattern."""
    denied_bytes: int = 0
    """What the definitions of the denied tools would have cost."""
    unmatched: tuple[Pattern, ...] = ()
    """Patterns that match no tool: perhaps misspelt."""
    faults: tuple[str, ...] = ()
    """What is wrong with tools that cannot be exposed."""
    tools: bytes = b"[]"
    """The allowed definitions as one JSON array."""


def take_snapshot(
    listings: Iterable[Listing], deny: Sequence[Pattern], allow: Sequence[Pattern] = ()
) -> Snapshot:
    """Apply the patterns to all pages of the upstream's list."""
    allowed: dict[str, bytes] = {}
    denied: dict[str, Pattern | None] = {}
    matched: set[Pattern] = set()
    faults: list[str] = []
    denied_bytes = 0
    for definition in (one for listing in listings for one in listing.definitions):
        name = definition.name
        if fault := _fault(definition, allowed):
            faults.append(fault)
        if fault or name is None:
            continue
        hits = [pattern for pattern in (*deny, *allow) if pattern.matches(name)]
        matched.update(hits)
        denying = next((pattern for pattern in hits if pattern in deny), None)
        if denying or (allow and not any(pattern in allow for pattern in hits)):
            denied[name] = denying
            denied_bytes += len(definition.raw)
        else:
            allowed[name] = definition.raw
    for name in [name for name, raw in allowed.items() if shows_tool(raw.decode(), denied)]:
        del allowed[name]
        faults.append(f"the tool {shown(name)} carries the definition of another: not exposed")
    return Snapshot(
        allowed=MappingProxyType(allowed),
        denied=MappingProxyType(denied),
        denied_bytes=denied_bytes,
        unmatched=tuple(pattern for pattern in (*deny, *allow) if pattern not in matched),
        faults=tuple(faults),
        tools=b"[" + b",".join(allowed.values()) + b"]",
    )


def drift_of(definition: Definition, snapshot: Snapshot) -> str | None:
    """Say in what a tool differs from the snapshot, if it does."""
    name = definition.name
    if definition.problem or name is None:
        return f"the upstream sent {definition.problem}: not exposed"
    if (known := snapshot.allowed.get(name)) is not None:
        if known == definition.raw or _means_the_same(known, definition.raw):
            return None
        return f"the upstream changed the tool {shown(name)}: the definition of the start stays"
    if name in snapshot.denied:
        return None
    return f"the upstream has a new tool {shown(name)}: not exposed before a restart"


def shown(name: str) -> str:
    """Return a tool name as people and clients may see it.

    >>> shown("delete_file"), shown("a\\n\\x1b[31m"), len(shown("x" * 1000))
    ('delete_file', 'a\\\\n\\\\x1b[31m', 129)
    """
    cut = name if len(name) <= 128 else name[:128] + "…"
    if cut.isprintable():
        return cut
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode()
        for letter in cut
    )


def _fault(definition: Definition, known: Mapping[str, bytes]) -> str | None:
    name = definition.name
    if definition.problem or name is None:
        return f"{definition.problem}: not exposed"
    if len(name) > MAX_NAME // 2 and len(name.encode("utf-16-le")) // 2 > MAX_NAME:
        return f"the tool name {shown(name)} is longer than {MAX_NAME} characters: not exposed"
    if name in known:
        return f"the upstream lists {shown(name)} twice: the first definition counts"
    return None


def _means_the_same(one: bytes, other: bytes) -> bool:
    return bool(json.loads(one, parse_int=str) == json.loads(other, parse_int=str))
