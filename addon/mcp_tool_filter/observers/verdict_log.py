"""Log verdicts: all refusals, but each invalid message and each drift only once.

A text is reported once, because nobody reads a log that repeats one line a thousand times.

>>> said = Once(most=2)
>>> [said.is_new(text) for text in ("a", "a", "b", "c")]
[True, False, True, False]
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from mcp_tool_filter.conversation.judged import Judged
from mcp_tool_filter.policy.snapshot import shown
from mcp_tool_filter.policy.verdict import Forward, Verdict, Why

_MOST = 1000
"""Limit on different texts: peers choose some of the words, and must not fill our memory or the
log."""


class Once:
    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        self._said: set[str] = set()

    def is_new(self, text: str) -> bool:
        """Tell whether to report a text: it is new, and there were not too many others."""
        if text in self._said or len(self._said) >= self._most:
            return False
        self._said.add(text)
        return True

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
_EVERYDAY = (Why.CACHED, Why.HIDDEN, Why.CHANGED, Why.STORED)


class VerdictLog:
    """The verdict log of one process."""

    def __init__(self, warn: Callable[[str], None] | None = None) -> None:
        """``warn`` gets the sentences about hidden tools if people do not read the log."""
        self._once = Once()
        self._warn = warn

    def tell_of(self, judged: Judged) -> None:
        """Log the verdict on a message, and for which kind of asker a tool is hidden."""
        verdict = judged.verdict
        if isinstance(verdict, Forward):
            return
        if verdict.reason.drift:
            self._tell_hidden(verdict.reason.drift, _kind_of(judged))
        self.tell(verdict, with_drift=False)

    def tell_hidden(self, faults: Iterable[str], judged: Judged) -> None:
        """Log the tools that cannot be exposed in a list that was fetched for a client."""
        self._tell_hidden(faults, _kind_of(judged))

    def know(self, faults: Iterable[str]) -> None:
        """Do not repeat what the report has said already."""
        for sentence in faults:
            self._once.is_new(sentence)

    def _tell_hidden(self, sentences: Iterable[str], kind: str = "") -> None:
        for sentence in sentences:
            text = f"{sentence} ({kind})" if kind else sentence
            if not self._once.is_new(text):
                continue
            if self._warn:
                self._warn(f"Warning: {text}")
            log.warning("%s", text, extra={"is_said": self._warn is not None})

    def tell(self, verdict: Verdict, *, with_drift: bool = True) -> None:
        if isinstance(verdict, Forward):
            return
        reason = verdict.reason
        if with_drift:
            self._tell_hidden(reason.drift)
        if reason.why is Why.INVALID:
            text = "The upstream sent an invalid message: %s"
            self._once.log(log, logging.WARNING, text, reason.detail)
        elif reason.why not in _EVERYDAY and log.isEnabledFor(logging.INFO):
            names = ", ".join(map(shown, reason.tools))
            by = f" by rule {reason.rule}" if reason.rule else ""
            log.info("Refused (%s%s): %s", reason.why, by, names or reason.detail)


def _kind_of(judged: Judged) -> str:
    """Describe the kind of asker without its identity.

    >>> from mcp_tool_filter.policy.exchange import Client, Direction, Session
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
    known = [one for one in _CAPABILITIES if isinstance(declared, dict) and one in declared]
    with_what = f"the capabilities {', '.join(known)}" if known else "no capabilities"
    who = " and credentials" if client.who else ""
    revision = shown(client.revision or "of unknown revision")
    return f"for clients with MCP {revision} and {with_what}{who}"
