"""What the log says of verdicts: refusals; each invalid message and each drift once."""

from __future__ import annotations

import logging

from mcp_tool_filter.observers.once import Once
from mcp_tool_filter.policy.snapshot import shown
from mcp_tool_filter.policy.verdict import Forward, Verdict, Why

log = logging.getLogger(__name__)

_EVERYDAY = (Why.CACHED, Why.HIDDEN, Why.CHANGED, Why.STORED)


class VerdictLog:
    """One for each process."""

    def __init__(self) -> None:
        self._once = Once()

    def tell(self, verdict: Verdict) -> None:
        if isinstance(verdict, Forward):
            return
        reason = verdict.reason
        for sentence in reason.drift:
            self._once.log(log, logging.WARNING, "%s", sentence)
        if reason.why is Why.INVALID:
            text = "The upstream sent an invalid message: %s"
            self._once.log(log, logging.WARNING, text, reason.detail)
        elif reason.why not in _EVERYDAY:
            names = ", ".join(map(shown, reason.tools))
            by = f" by rule {reason.rule}" if reason.rule else ""
            log.info("Refused (%s%s): %s", reason.why, by, names or reason.detail)
