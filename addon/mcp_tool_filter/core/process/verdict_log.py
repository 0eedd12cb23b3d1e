"""The lines in the log about verdicts.

It has all refusals, but each invalid message and each drift only once, because nobody reads a log
that repeats one line a thousand times.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection, Iterable

from mcp_tool_filter.core.conversation.policy_in_force import Judged
from mcp_tool_filter.core.policy.snapshot import is_about_lock, shown
from mcp_tool_filter.core.policy.verdict import EVERYDAY, Forward, Verdict, Why
from mcp_tool_filter.core.process.sentences import Once, describe_reported

log = logging.getLogger(__name__)

_CAPABILITIES = ("elicitation", "experimental", "extensions", "roots", "sampling", "tasks")


def is_refusal(verdict: Verdict) -> bool:
    """Tell whether the verdict refuses the message."""
    return not isinstance(verdict, Forward) and verdict.reason.why not in EVERYDAY


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
