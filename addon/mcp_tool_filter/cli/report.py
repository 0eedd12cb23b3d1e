"""The report at the start: what is exposed, what is hidden, what that saves, and the warnings.

>>> print(estimate_tokens(5000))
1,250
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from mcp_tool_filter.core.http.shown import shown_url
from mcp_tool_filter.core.policy.choice import NOT_ALLOWED, Cause, Hider, is_locked
from mcp_tool_filter.core.policy.patterns import Pattern
from mcp_tool_filter.core.policy.snapshot import CatalogItem, Snapshot
from mcp_tool_filter.core.process.sentences import Introduction, counted, grouped, listed

_BYTES_PER_TOKEN = 4  # of JSON with English text: a rule of thumb

_MOST_IN_REPORT = 12


def only_warnings(report: str) -> str:
    """Return the lines of a report that are shown even with ``--quiet``."""
    return "\n".join(line for line in report.splitlines() if line.startswith("Warning:"))


def render_report(who: Introduction, snapshot: Snapshot, more: Sequence[str] = ()) -> str:
    """Render the report: a few lines, some ``more``, and the warnings last."""
    return "\n".join(_lines(who, snapshot, more))


def render_line(who: Introduction, snapshot: Snapshot, more: Sequence[str] = ()) -> str:
    """Render the report on one line; the warnings follow on others."""
    lines = list(_lines(who, snapshot, more))
    warnings = [line for line in lines if line.startswith("Warning:")]
    said = [line.strip() for line in lines if line not in warnings]
    return "\n".join(["; ".join(said), *warnings])


def estimate_tokens(size: int) -> str:
    return f"{tokens_in(size):,}"


def tokens_in(size: int) -> int:
    """Estimate the tokens of so many bytes."""
    return size // _BYTES_PER_TOKEN


def _lines(who: Introduction, snapshot: Snapshot, more: Sequence[str]) -> Iterator[str]:
    exposed, gone = len(snapshot.allowed), len(snapshot.denied)
    yield f"MCP tool filter: {shown_url(who.listens_at)} -> {who.shown_upstream}"
    if not who.is_listed:
        yield "  Tools are listed when the first client logs in; the patterns apply at once"
        return
    revision = f", {who.revision}" if who.revision else ""
    yield f"  Upstream: {who.server}, {who.transport}{revision}"
    if who.is_shadow:
        yield f"  Tools: {exposed + gone}, all exposed; {gone} would be denied"
    else:
        yield f"  Tools: {exposed + gone}, of which {gone} denied, {exposed} exposed"
    yield from (f"    {one}" for one in hidden_by(snapshot))
    yield from _lines_about_catalog(snapshot.catalog, is_shadow=who.is_shadow)
    saved = snapshot.denied_bytes
    tokens = estimate_tokens(saved)
    so_far = "0 bytes; enforced, it would be " if who.is_shadow else ""
    yield f"  Saved: {so_far}{saved:,} bytes of context, about {tokens} tokens per tools/list"
    yield from (line if line.startswith("Warning:") else f"  {line}" for line in more)
    yield from warnings_in(snapshot)


def lines_about_rules(names: Sequence[str]) -> list[str]:
    """Return the line of the report that names the rules in order, if there are any."""
    return [f"Rules: {len(names)}: {listed(names, _MOST_IN_REPORT)}"] if names else []


def warnings_in(snapshot: Snapshot) -> Iterator[str]:
    """Yield the warnings about the patterns and the definitions of a tool list."""
    for said in (*pattern_warnings(snapshot), *counted(snapshot.faults)):
        yield f"Warning: {said}"


def pattern_warnings(
    snapshot: Snapshot, matched: Collection[tuple[str, str]] = ()
) -> Iterator[str]:
    """Yield what may be wrong with the user's choice, as its effect on a tool list shows.

    Patterns that are ``matched`` elsewhere, by option and text, are fine.
    """
    for pattern in snapshot.unmatched:
        if (pattern.option, pattern.text) in matched:
            continue
        yield f'the pattern "{pattern.text}" matches no {pattern.thing}'
    [*hiders] = dict.fromkeys(snapshot.denied.values())
    is_empty = bool(hiders) and not snapshot.allowed
    for pattern in snapshot.too_wide:
        if not is_empty or hiders != [pattern]:
            yield f'the pattern "{pattern.text}" matches every tool'
    if is_empty and snapshot.is_unannotated:
        many = len(snapshot.denied)
        whose = f"none of its {many} tools has" if many > 1 else "its only tool has no"
        yield f"no tool is left: {whose} annotations: use --allow"
    elif is_empty and len(hiders) == 1 and hiders[0].text:
        yield f"no tool is left: {_in_words(hiders[0])} every tool"
    elif is_empty:
        choice, why = snapshot.choice, ""
        if hiders == [NOT_ALLOWED]:
            why = ": no allow pattern matches one"
        elif choice.hints:
            why = ": " + " and ".join(by.text or "allow" for by in hiders) + " hide all of them"
        elif choice.deny and choice.allow:
            why = ": deny wins over allow; to keep a tool that deny hides, use --except"
        yield f"no tool is left{why}"


def _in_words(by: Hider) -> str:
    return f'the pattern "{by.text}" matches' if isinstance(by, Pattern) else f"{by.text} hides"


def counted_items(items: Sequence[CatalogItem], *, is_shadow: bool) -> Iterator[tuple[str, str]]:
    """Yield each kind of thing, and how many there are of it.

    >>> items = [CatalogItem("prompt", "a", "^a"), CatalogItem("prompt", "b")]
    >>> list(counted_items(items, is_shadow=False))
    [('prompt', 'Prompts: 2, of which 1 denied, 1 exposed')]
    """
    for kind in dict.fromkeys(one.kind for one in items):
        hides = [bool(one.pattern) for one in items if one.kind == kind]
        every, gone = len(hides), sum(hides)
        said = f"of which {gone} denied, {every - gone} exposed"
        if is_shadow:
            said = f"all exposed; {gone} would be denied"
        yield kind, f"{kind.capitalize()}s: {every}, {said}"


def _lines_about_catalog(items: Sequence[CatalogItem], *, is_shadow: bool) -> Iterator[str]:
    for kind, said in counted_items(items, is_shadow=is_shadow):
        yield f"  {said}"
        hidden = ((one.name, one.pattern) for one in items if one.pattern and one.kind == kind)
        for pattern, names in grouped(hidden):
            yield f'    "{pattern}": {listed(names, _MOST_IN_REPORT)}'


def hidden_by(snapshot: Snapshot) -> Iterator[str]:
    """Yield each pattern or flag that hides tools, with their names."""

    def label(by: Hider) -> str:
        text = f'"{by.text}"' if isinstance(by, Pattern) else by.text or "not allowed"
        return f"{text}, {by.says}" if isinstance(by, Cause) and is_locked(by) else text

    for text, names in grouped((name, label(by)) for name, by in snapshot.denied.items()):
        yield f"{text}: {listed(names, _MOST_IN_REPORT)}"
