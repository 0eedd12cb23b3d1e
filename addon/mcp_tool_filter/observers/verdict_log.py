"""What the log says of verdicts: refusals, invalid messages, and each drift once."""

from __future__ import annotations

import logging

from mcp_tool_filter.policy.snapshot import shown
from mcp_tool_filter.policy.verdict import Forward, Verdict, Why

log = logging.getLogger(__name__)

_MOST_WARNINGS = 1000
_EVERYDAY = (Why.CACHED, Why.HIDDEN, Why.CHANGED, Why.STORED)


class VerdictLog:
    """One for each process."""

    def __init__(self) -> None:
        self._warned: set[str] = set()

    def tell(self, verdict: Verdict) -> None:
        if isinstance(verdict, Forward):
            return
        reason = verdict.reason
        for sentence in reason.drift:
            self._warn_once(sentence)
        if reason.why is Why.INVALID:
            log.warning("The upstream sent an invalid message: %s", reason.detail)
        elif reason.why not in _EVERYDAY:
            names = ", ".join(map(shown, reason.tools))
            by = f" by rule {reason.rule}" if reason.rule else ""
            log.info("Refused (%s%s): %s", reason.why, by, names or reason.detail)

    def _warn_once(self, sentence: str) -> None:
        if sentence not in self._warned and len(self._warned) < _MOST_WARNINGS:
            self._warned.add(sentence)
            log.warning("%s", sentence)
