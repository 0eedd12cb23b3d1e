"""The report at start: what is exposed, what is hidden, and what that saves.

>>> print(estimate_tokens(5000))
1,250
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mcp_tool_filter.conversation.memory import Fetched
from mcp_tool_filter.observers.redaction.shown import shown_url
from mcp_tool_filter.observers.verdict_log import counted
from mcp_tool_filter.policy.config import Config
from mcp_tool_filter.policy.snapshot import Snapshot, shown

_NOTHING_DENIED = "Warning: nothing is denied: there is no deny or allow pattern"

_BYTES_PER_TOKEN = 4  # of JSON with English text: a rule of thumb
_MOST_NAMES = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Introduction:
    """The upstream, its server, and our address."""

    upstream: str
    server: str
    transport: str
    revision: str
    listens_at: str
    is_listed: bool = True
    """False if the upstream lists its tools only to logged-in users."""

    @property
    def shown_upstream(self) -> str:
        """The upstream without secrets; a command never has any here."""
        return shown_url(self.upstream) if "://" in self.upstream[:8] else self.upstream


def introduce(upstream: str, fetched: Fetched, address: str) -> Introduction:
    """Return the introduction of an upstream that we serve at this address."""
    return Introduction(
        upstream=upstream + fetched.endpoint,
        server=f"{fetched.server_name} {fetched.server_version}".strip() or "unnamed",
        transport=fetched.transport,
        revision=fetched.revision,
        listens_at=address + fetched.endpoint,
        is_listed=fetched.is_listed,
    )


def warnings_about(config: Config) -> list[str]:
    """Return the warnings about the patterns that need no tool list."""
    if config.denies_nothing:
        return [_NOTHING_DENIED]
    patterns = (*config.deny, *config.allow)
    return [f'Warning: the pattern "{one.text}": {one.hint}' for one in patterns if one.hint]


def only_warnings(report: str) -> str:
    """Return the lines of a report that are shown even with ``--quiet``."""
    return "\n".join(line for line in report.splitlines() if line.startswith("Warning:"))


def render_report(who: Introduction, snapshot: Snapshot, rules: Sequence[str] = ()) -> str:
    """Render the report: a few lines, the warnings last. ``rules`` are named in order."""
    return "\n".join(_lines(who, snapshot, rules))


def estimate_tokens(size: int) -> str:
    return f"{size // _BYTES_PER_TOKEN:,}"


def _lines(who: Introduction, snapshot: Snapshot, rules: Sequence[str]) -> Iterator[str]:
    exposed, gone = len(snapshot.allowed), len(snapshot.denied)
    yield f"MCP tool filter: {shown_url(who.listens_at)} -> {who.shown_upstream}"
    if not who.is_listed:
        yield "  Tools are listed when the first client logs in; the patterns apply at once"
        return
    yield f"  Upstream: {who.server}, {who.transport}, {who.revision}"
    yield f"  Tools: {exposed + gone}, of which {gone} denied, {exposed} exposed"
    yield from _denied_lines(snapshot)
    saved = snapshot.denied_bytes
    tokens = estimate_tokens(saved)
    yield f"  Saved: {saved:,} bytes of context, about {tokens} tokens per tools/list"
    if rules:
        more = len(rules) - _MOST_NAMES
        listed = ", ".join(shown(name) for name in rules[:_MOST_NAMES])
        yield f"  Rules: {len(rules)}: {listed}" + (f" and {more} more" if more > 0 else "")
    for pattern in snapshot.unmatched:
        yield f'Warning: the pattern "{pattern.text}" matches no tool'
    for fault in counted(snapshot.faults):
        yield f"Warning: {fault}"


def _denied_lines(snapshot: Snapshot) -> Iterator[str]:
    by_pattern: dict[str, list[str]] = {}
    for name, pattern in snapshot.denied.items():
        by_pattern.setdefault(f'"{pattern.text}"' if pattern else "not allowed", []).append(name)
    for text, names in by_pattern.items():
        listed = ", ".join(shown(name) for name in names[:_MOST_NAMES])
        more = len(names) - _MOST_NAMES
        yield f"    {text}: {listed}" + (f" and {more} more" if more > 0 else "")
