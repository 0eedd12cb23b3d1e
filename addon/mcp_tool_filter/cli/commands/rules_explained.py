"""``mcp-tool-filter rules explain``: show which rules judge a message, and how."""

from __future__ import annotations

from collections.abc import Iterator

from mcp_tool_filter.adapters.effects.rehearsal import Rehearsal, lines_of, rehearse, shown_outcome
from mcp_tool_filter.cli.settings.usage import UsageError
from mcp_tool_filter.errors import ProtocolError
from mcp_tool_filter.policy.rules.model import Policy
from mcp_tool_filter.policy.rules.subject import Evaluated
from mcp_tool_filter.protocol.messages import Message, Notification, Request, parse_message


def explain(policy: Policy, raw: bytes, answers: bytes | None) -> Iterator[str]:
    """Yield the lines to print."""
    message = _parse(raw)
    asked = _parse(answers) if answers else None
    if not isinstance(asked, Request | Notification):
        asked = None
    trace: list[Evaluated] = []
    outcome = rehearse(Rehearsal(policy), message, asked=asked, trace=trace)
    yield from (f"Warning: {warning}" for warning in policy.warnings)
    if not trace:
        yield "no rule applies to this message"
    yield from lines_of(trace)
    yield f"Outcome: {shown_outcome(outcome)}"


def _parse(raw: bytes) -> Message:
    try:
        return parse_message(raw)
    except ProtocolError as error:
        raise UsageError("This is no message that rules can judge", why=str(error)) from None
