"""The result of applying the rules to a message."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil

from mcp_tool_filter.policy.verdict import Drop, Forward, Reason, Reply, Rewrite, Verdict, Why
from mcp_tool_filter.protocol.messages import (
    Notification,
    Request,
    Response,
    Single,
    quote_harmlessly,
)

BLOCKED = -32001
UNCLEAR = -32600
NOT_CLEAR = "Invalid Request"


@dataclass(frozen=True, slots=True)
class Refusal:
    """An error that replaces a message; ``data`` is JSON."""

    code: int
    message: str
    data: str | None
    rule: str
    action: str
    detail: str = ""
    """For observers; a client never sees it."""

    def render(self, id: str | None) -> bytes:
        data = "" if self.data is None else f',"data":{self.data}'
        error = f'{{"code":{self.code},"message":{quote_harmlessly(self.message)}{data}}}'
        return f'{{"jsonrpc":"2.0","id":{id or "null"},"error":{error}}}'.encode()


def refuse(
    message: str, rule: str, action: str, *, retry_after: float | None = None, detail: str = ""
) -> Refusal:
    """Return a refusal with our own error code. The client learns which rule refused."""
    more = "" if retry_after is None else f',"retry_after":{max(1, ceil(retry_after))}'
    data = f'{{"rule":{quote_harmlessly(rule)},"action":{quote_harmlessly(action)}{more}}}'
    return Refusal(BLOCKED, message, data, rule, action, detail)


@dataclass(frozen=True, slots=True)
class StoreOrder:
    """An order to store the result of this request under a key."""

    key: str
    ttl: float
    group: str
    max_entries: int


@dataclass(frozen=True, slots=True)
class DoneAction:
    rule: str
    action: str


@dataclass(slots=True)
class Evaluated:
    """A rule that was evaluated, for a trace."""

    rule: str
    conditions: list[tuple[str, bool]] = field(default_factory=list)
    asked: str = ""
    """The condition that is being evaluated; it stays here if it cannot be judged."""
    matched: bool = False
    done: list[str] = field(default_factory=list)
    is_interceptor: bool = False


@dataclass(slots=True)
class RulesOutcome:
    """The outcome; ``message`` is the message after the rules' changes."""

    message: Single
    is_changed: bool = False
    refusal: Refusal | None = None
    filtered: Verdict | None = None
    """The tool filter's verdict on the changed message, unless it just passes."""
    cached: bytes | None = None
    """A stored result that answers the request."""
    stores: list[StoreOrder] = field(default_factory=list)
    done: list[DoneAction] = field(default_factory=list)
    matched: list[str] = field(default_factory=list)
    """The rules that matched."""

    @property
    def is_answered_by_rule(self) -> bool:
        """A rule answers instead of the upstream; nothing failed, and the message was clear."""
        return self.refusal is not None and self.refusal.action != "error"

    def to_verdict(self) -> Verdict:
        """Return the verdict on the message. (The caller answers with a cached result.)"""
        if self.refusal is not None:
            return self._refuse(self.refusal)
        if self.filtered is not None:
            return self.filtered
        if not self.is_changed:
            return Forward()
        rules = ", ".join(dict.fromkeys(one.rule for one in self.done))
        return Rewrite(self.message.place.raw, Reason(Why.CHANGED, rule=rules))

    def _refuse(self, refusal: Refusal) -> Verdict:
        detail = refusal.detail or refusal.message
        reason = Reason(Why.BLOCKED, detail=detail, rule=refusal.rule)
        match self.message:
            case Notification():
                return Drop(reason)
            case Request(id=id):
                return Reply(refusal.render(id), reason)
            case Response(id=id):
                return Rewrite(refusal.render(id), reason)
