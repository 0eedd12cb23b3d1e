"""Put into words what the filter does: verdicts, and the lines in the log.

Verdicts get a sentence in comments and replays, and a single word in entries and spans:

>>> from mcp_tool_filter.core.policy.snapshot import take_snapshot
>>> from mcp_tool_filter.core.policy.verdict import Reply
>>> denied = Reply(b"", Reason(Why.UNKNOWN, ("no_such_tool",)))
>>> describe(denied, take_snapshot([]))
'not found: no_such_tool (the upstream has no such tool)'

The log has all refusals, but each invalid message and each drift only once, because nobody reads a
log that repeats one line a thousand times:

>>> said = Once(most=2)
>>> [said.is_new(text) for text in ("a", "a", "b", "c")]
[True, False, True, False]
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import assert_never

from mcp_tool_filter.core.conversation.memory import Fetched
from mcp_tool_filter.core.conversation.policy_in_force import Judged
from mcp_tool_filter.core.http.shown import shown_url
from mcp_tool_filter.core.messages.sizes import MANY
from mcp_tool_filter.core.policy.choice import describe_hider
from mcp_tool_filter.core.policy.config import Config
from mcp_tool_filter.core.policy.patterns import EXCEPT
from mcp_tool_filter.core.policy.snapshot import (
    Snapshot,
    Standing,
    is_about_lock,
    shown,
)
from mcp_tool_filter.core.policy.verdict import (
    EVERYDAY,
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

    >>> from mcp_tool_filter.core.policy.snapshot import take_snapshot
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


def is_refusal(verdict: Verdict) -> bool:
    """Tell whether the verdict refuses the message."""
    return not isinstance(verdict, Forward) and verdict.reason.why not in EVERYDAY


"""Limit on different texts: peers choose some of the words, and must not fill our memory or the
log."""


class Once:
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


log = logging.getLogger(__name__)

_CAPABILITIES = ("elicitation", "experimental", "extensions", "roots", "sampling", "tasks")


class VerdictLog:
    """The verdict log of one process."""

    def __init__(self, warn: Callable[[str], None] | None = None) -> None:
        """``warn`` gets the sentences about hidden tools if people do not read the log."""
        self._once = Once()
        self._warn = warn

    def tell_of(self, judged: Judged) -> None:
        """Log the verdict on a message, and for which kind of asker a tool is hidden."""
        verdict, would = judged.verdict, judged.would
        if not isinstance(verdict, Forward):
            self.tell(verdict, _kind_of(judged) if verdict.reason.drift else "")
        elif would is not None:
            self._tell_of_lock(would)
            if log.isEnabledFor(logging.INFO):
                log.info("Only reported: %s", describe_reported(would, judged.snapshot))

    def tell_hidden(self, faults: Iterable[str], judged: Judged) -> None:
        """Log what clients do not get: one kind of asker if they asked for it, else all."""
        self.warn_of(faults, _kind_of(judged) if judged.exchange else "")

    def _tell_of_lock(self, would: Verdict) -> None:
        if not isinstance(would, Forward):
            self.warn_of(filter(is_about_lock, would.reason.drift))

    def know(self, faults: Collection[str]) -> tuple[str, ...]:
        """Return what the report should say; it is not repeated, nor what was said before."""
        fresh = tuple(sentence for sentence in faults if not self._once.has_said(sentence))
        for sentence in fresh:
            self._once.is_new(sentence)
        return fresh

    def warn_of(self, sentences: Iterable[str], kind: str = "") -> None:
        """Warn of what holds for one kind of asker, or for all."""
        for sentence in sentences:
            text = f"{sentence} ({kind})" if kind and not is_about_lock(sentence) else sentence
            if not self._once.is_new(text):
                continue
            if self._warn:
                self._warn(f"Warning: {text}")
            log.warning("%s", text, extra={"is_said": self._warn is not None})

    def tell_of_lock(self, faults: Collection[str]) -> None:
        """Log what another lock does not approve; what is no fault any more may become one
        again."""
        self._once.forget(lambda said: is_about_lock(said) and said not in faults)
        self.warn_of(filter(is_about_lock, faults))

    def tell_alone(self, judged: Judged) -> None:
        """Log the verdict on a message where there is only one client."""
        if judged.would is not None:
            self._tell_of_lock(judged.would)
        self.tell(judged.verdict)

    def tell(self, verdict: Verdict, kind: str = "") -> None:
        """Log a verdict; its drift is that of one ``kind`` of asker, or of all."""
        if isinstance(verdict, Forward):
            return
        reason = verdict.reason
        self.warn_of(reason.drift, kind)
        if reason.why is Why.INVALID:
            text = "The upstream sent an invalid message: %s"
            self._once.log(log, logging.WARNING, text, reason.detail)
        elif is_refusal(verdict) and log.isEnabledFor(logging.INFO):
            names = ", ".join(map(shown, reason.tools))
            by = f" by rule {reason.rule}" if reason.rule else ""
            log.info("Refused (%s%s): %s", reason.why, by, names or reason.detail)


def _kind_of(judged: Judged) -> str:
    """Describe the kind of asker without its identity.

    >>> from mcp_tool_filter.core.policy.situation import Client, Direction, Session
    >>> client = Client(session=Session(revision="2025-11-25", capabilities='{"roots":{}}'))
    >>> _kind_of(Judged(Direction.FROM_UPSTREAM, None, Forward(), client, None))
    'for clients with MCP 2025-11-25 and the capabilities roots'
    """
    client = judged.client
    said = judged.exchange.capabilities if judged.exchange else None
    if said is None and client.session is not None:
        said = client.session.capabilities
    try:
        declared = json.loads(said or "{}")
    except ValueError:  # long ones are kept only as a hash
        declared = {}
    known = [
        capability
        for capability in _CAPABILITIES
        if isinstance(declared, dict) and capability in declared
    ]
    with_what = f"the capabilities {', '.join(known)}" if known else "no capabilities"
    who = " and credentials" if client.who else ""
    revision = shown(client.revision or "of unknown revision")
    return f"for clients with MCP {revision} and {with_what}{who}"


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
