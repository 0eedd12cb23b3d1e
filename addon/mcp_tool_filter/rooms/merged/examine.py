"""What is wrong with what the servers of a file list together, for ``doctor``.

for problem in examine(merging, {"files": known, …}):
    print(problem.what, problem.advice)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from mcp_tool_filter.cli.report import tokens_in
from mcp_tool_filter.core.errors import ProtocolError
from mcp_tool_filter.rooms.merged.choices import Merging, Profile, judged_for
from mcp_tool_filter.rooms.merged.lists import (
    KINDS,
    TOOLS,
    ListKind,
    MergedList,
    Offer,
    make_offer,
    parse_page,
)

if TYPE_CHECKING:
    from mcp_tool_filter.cli.commands.look import KnownTools

MORE_LISTS: Final = tuple(one.method for one in KINDS.values() if one is not TOOLS)
"""What has to be asked of a server besides its tools."""
_ADVICE: Final = {  # part of a warning: what to do about it
    "with its prefix": 'Give the server a shorter prefix: prefix = "…" in its table',
    "characters:": 'Give the server a shorter prefix: prefix = "…" in its table',
    "needs tasks": "Call it at the server's own path",
    "": 'Give one of them another prefix: prefix = "…" in its table',
}
_ONE_ONLY: Final = "Deny it at one of them, or let that one not merge: merge = false"


class Examined(NamedTuple):
    """One finding; a good one has no advice."""

    what: str
    advice: str = ""


def examine(merging: Merging, known: Mapping[str, KnownTools]) -> Iterator[Examined]:
    """Yield what ``/mcp`` and each profile show, and what is wrong; each problem once."""
    said: set[str] = set()
    for profile in merging.profiles:
        servers = [one for one in profile.servers if one in known]
        for kind in KINDS.values():
            offers = [_offer(kind, one, merging, profile, known[one]) for one in servers]
            merged = MergedList(kind, offers)
            if kind is TOOLS:
                tools = "1 tool" if len(merged) == 1 else f"{len(merged)} tools"
                yield Examined(f"{profile.path}: {tools}, {len(merged.hidden)} hidden")
                if servers and not len(merged):
                    yield Examined(f"{profile.path} leaves no tool", "Deny less, or allow more")
            for warning in merged.warnings:
                text = warning.removeprefix("Warning: ")
                if text not in said:
                    said.add(text)
                    advice = next(one for part, one in _ADVICE.items() if part in text)
                    advice = advice if kind.is_renamed else _ONE_ONLY
                    yield Examined(f"{profile.path}: {text}", advice)


def tools_of(
    merging: Merging, profile: Profile, known: Mapping[str, KnownTools]
) -> tuple[int, int, int]:
    """Return how many tools of the servers that are known a profile shows and hides, and their
    tokens."""
    servers = [one for one in profile.servers if one in known]
    offers = [_offer(TOOLS, one, merging, profile, known[one]) for one in servers]
    merged = MergedList(TOOLS, offers)
    return len(merged), len(merged.hidden), tokens_in(len(merged.body))


def _offer(
    kind: ListKind, server: str, merging: Merging, profile: Profile, known: KnownTools
) -> Offer:
    snapshot, editor = known.snapshot, known.config.editor
    hiding = judged_for(profile, snapshot, editor)
    listed: Sequence[tuple[str, bytes]]
    if kind is TOOLS:
        listed = editor.shown(snapshot) if editor else list(snapshot.allowed.items())
    else:
        hidden = {one.name for one in snapshot.catalog if one.pattern}
        listed = [one for one in _listed(kind, known) if one[0] not in hidden]
    return make_offer(kind, server, merging.prefixes[server], listed, None, hiding)


def _listed(kind: ListKind, known: KnownTools) -> Iterator[tuple[str, bytes]]:
    for page in known.fetched.others.get(kind.method, ()):
        try:
            yield from parse_page(kind, page).elements
        except ProtocolError:
            continue  # it has no such list
