"""Put into words what the filter does: verdicts, and what is said of an upstream.

Verdicts get a sentence in comments and replays, and a single word in entries and spans:

>>> from mcp_tool_filter.core.policy.taking import take_snapshot
>>> from mcp_tool_filter.core.policy.verdict import Reply
>>> denied = Reply(b"", Reason(Why.UNKNOWN, ("no_such_tool",)))
>>> describe(denied, take_snapshot([]))
'not found: no_such_tool (the upstream has no such tool)'

A text that peers choose is said once, and there is a limit:

>>> said = Once(most=2)
>>> [said.is_new(text) for text in ("a", "a", "b", "c")]
[True, False, True, False]
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import assert_never

from mcp_tool_filter.core.conversation.memory import Fetched
from mcp_tool_filter.core.http.shown import shown_url
from mcp_tool_filter.core.messages.sizes import MANY
from mcp_tool_filter.core.policy.choice import describe_hider
from mcp_tool_filter.core.policy.config import Config
from mcp_tool_filter.core.policy.patterns import EXCEPT
from mcp_tool_filter.core.policy.snapshot import Snapshot, Standing, shown
from mcp_tool_filter.core.policy.verdict import (
    TOOL,
    Drop,
    Forward,
    Reason,
    Reply,
    Rewrite,
    Verdict,
    Why,
)

_LONGEST_NAME = 64  # characters of a client's name
CLIENT_NAME = "client name"
"""Where observers keep it in the notes of a session."""


def verdict_word(verdict: Verdict) -> str:
    match verdict:
        case Forward():
            return "forwarded"
        case Rewrite():
            return "changed"
        case Reply(_, reason):
            return "answered" if reason.why in (Why.CACHED, Why.STORED) else "refused"
        case Drop():
            return "dropped"
        case unexpected:
            assert_never(unexpected)


def describe(verdict: Verdict, snapshot: Snapshot) -> str:
    """Describe a verdict and its reason."""
    if isinstance(verdict, Forward):
        return "forwarded"
    return describe_reason(verdict.reason, snapshot)


def describe_reported(would: Verdict, snapshot: Snapshot) -> str:
    """Describe what would have happened to a message that was forwarded."""
    return f"would be {reported_word(would)}: {describe(would, snapshot)}"


def reported_word(would: Verdict) -> str:
    is_refused = isinstance(would, Rewrite) and would.reason.why in (Why.BLOCKED, Why.INVALID)
    return "refused" if is_refused else verdict_word(would)


def describe_reason(reason: Reason, snapshot: Snapshot) -> str:
    match reason.why:
        case Why.HIDDEN if reason.thing != TOOL:
            by = f"\n  {reason.pattern or reason.detail}: {listed(reason.tools)}"
            return _hidden(len(reason.tools), reason.thing) + by
        case Why.DENIED if reason.thing != TOOL:
            return f"not found: {listed(reason.tools)} ({reason.detail})"
        case Why.CACHED:
            denied = _by_pattern(snapshot.denied, snapshot)
            return f"{_hidden(len(snapshot.denied))}, answered from the snapshot{denied}"
        case Why.HIDDEN if reason.tools:
            return _hidden(len(reason.tools)) + _by_pattern(reason.tools, snapshot)
        case Why.HIDDEN:
            return "tools as they were at start-up"
        case Why.UNKNOWN if not reason.tools:
            return f"not found: {reason.detail}"
        case Why.DENIED | Why.UNKNOWN:
            return "; ".join(_not_found(tool, snapshot) for tool in reason.tools)
        case Why.BLOCKED:
            return f"refused by rule {reason.rule}: {reason.detail}"
        case Why.CHANGED:
            by = f" ({reason.detail})" if reason.detail else ""
            return f"changed by rule {reason.rule}{by}"
        case Why.STORED:
            return "answered with a stored result"
        case Why.CANCELLED:
            return "cancelled by the client while it waited"
        case Why.INVALID:
            return f"invalid message from the upstream: {reason.detail}"
        case why:
            return f"refused ({why}): {reason.detail}"


def hider_of(tool: str, snapshot: Snapshot) -> str:
    """Describe what hides a tool.

    >>> from mcp_tool_filter.core.policy.taking import take_snapshot
    >>> hider_of("a", take_snapshot([]))
    'the upstream has no such tool'
    """
    return describe_hider(snapshot.hiding(tool))


def _not_found(tool: str, snapshot: Snapshot) -> str:
    if snapshot.standing(tool) is Standing.ALLOWED:
        return shown(tool)
    return f"not found: {shown(tool)} ({hider_of(tool, snapshot)})"


def _hidden(count: int, what: str = TOOL) -> str:
    return f"hidden {count} {what}" + ("" if count == 1 else "s")


def _by_pattern(tools: Iterable[str], snapshot: Snapshot) -> str:
    hiders = ((tool, snapshot.hiding(tool)) for tool in tools)
    named = ((tool, (by.text or by.says) if by else "not in the snapshot") for tool, by in hiders)
    return "".join(f"\n  {text}: {listed(found)}" for text, found in grouped(named))


def grouped(named: Iterable[tuple[str, str]]) -> Iterable[tuple[str, list[str]]]:
    """Return each label with the names that have it."""
    names: dict[str, list[str]] = {}
    for name, label in named:
        names.setdefault(label, []).append(name)
    return names.items()


def listed(names: Sequence[str], most: int = 20) -> str:
    more = len(names) - most
    return ", ".join(map(shown, names[:most])) + (f" and {more} more" if more > 0 else "")


class Once:
    """Limits different texts: peers choose some of the words, and must not fill our memory or the
    log."""

    def __init__(self, most: int = MANY) -> None:
        self._most = most
        self._said: set[str] = set()

    def is_new(self, text: str) -> bool:
        """Tell whether to report a text: it is new, and there were not too many others."""
        if text in self._said or len(self._said) >= self._most:
            return False
        self._said.add(text)
        return True

    def has_said(self, text: str) -> bool:
        return text in self._said

    def forget(self, matches: Callable[[str], bool]) -> None:
        self._said = {text for text in self._said if not matches(text)}

    def log(self, logger: logging.Logger, level: int, text: str, *values: object) -> None:
        whole = text % values if values else text
        if self.is_new(whole):
            logger.log(level, "%s", whole)


def counted(texts: Iterable[str]) -> Iterator[str]:
    """Yield each text once, with its count if it is repeated.

    >>> list(counted(["a", "b", "a"]))
    ['a (2 times)', 'b']
    """
    for text, count in Counter(texts).items():
        yield text if count == 1 else f"{text} ({count} times)"


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
    is_shadow: bool = False
    """True if nothing is enforced."""

    @property
    def shown_upstream(self) -> str:
        """The upstream without secrets; a command never has any here."""
        return shown_url(self.upstream) if "://" in self.upstream[:8] else self.upstream


def introduce(
    upstream: str, fetched: Fetched, address: str, *, is_shadow: bool = False
) -> Introduction:
    """Return the introduction of an upstream that we serve at this address."""
    return Introduction(
        upstream=upstream + fetched.endpoint,
        server=f"{fetched.server_name} {fetched.server_version}".strip() or "unnamed",
        transport=fetched.transport,
        revision=fetched.revision,
        listens_at=address + fetched.endpoint,
        is_listed=fetched.is_listed,
        is_shadow=is_shadow,
    )


_NOTHING_ENFORCED = (
    "Warning: nothing is enforced: in shadow mode, the filter only reports what it would hide,"
    " refuse or change"
)

_NOTHING_DENIED = "Warning: nothing is denied: there is no deny or allow pattern"


def warnings_about(config: Config) -> list[str]:
    """Return the warnings about the patterns that need no tool list."""
    shadow = [_NOTHING_ENFORCED] if config.shadow else []
    if config.denies_nothing:
        return [*shadow, _NOTHING_DENIED]
    patterns = [pattern for pattern in config.patterns if pattern.option != EXCEPT]
    return shadow + [
        f'Warning: the pattern "{pattern.text}": {pattern.hint}'
        for pattern in patterns
        if pattern.hint
    ]
