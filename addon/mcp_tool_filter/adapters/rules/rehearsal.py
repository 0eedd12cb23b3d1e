"""Try out what a policy would do to a message, without sending anything, and tell the outcome."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

from mcp_tool_filter.adapters.rules.host import OfflineHost
from mcp_tool_filter.adapters.rules.state import StateInMemory
from mcp_tool_filter.policy.effects import Deciding, Effect, Together
from mcp_tool_filter.policy.verdict import Drop, Forward, Reply, Rewrite
from mcp_tool_filter.protocol.messages import (
    Message,
    Notification,
    Request,
    Response,
    Single,
    singles,
)
from mcp_tool_filter.rules.chain import judge
from mcp_tool_filter.rules.link import answered
from mcp_tool_filter.rules.model import Policy
from mcp_tool_filter.rules.subject import Circumstances, Evaluated, RulesOutcome, Subject


class Rehearsal:
    """Use one per test case: limits and caches start empty."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._host = OfflineHost(StateInMemory())
        self.session: dict[str, object] = {}
        """The session dict of users' own classes, kept between the messages of a case."""

    def judge(self, subject: Subject, trace: list[Evaluated] | None = None) -> RulesOutcome:
        """Judge a message; the evaluated rules are added to ``trace``."""
        return self._outcome_of(judge(self._policy, subject, time.monotonic, trace))

    def _outcome_of[Outcome](self, deciding: Deciding[Outcome]) -> Outcome:
        try:
            next(answered(deciding, self._at_once))
        except StopIteration as made:
            return cast("Outcome", made.value)
        raise AssertionError("nothing waits here")

    def _at_once(self, effect: Effect) -> object:
        if isinstance(effect, Together):
            return [self._outcome_of(one) for one in effect.decisions]
        return self._host.at_once(effect)


@dataclass(frozen=True, slots=True)
class Rehearsed:
    """An outcome; ``word`` is pass, block, drop or modify."""

    word: str
    rule: str = ""
    code: int | None = None
    text: str = ""
    """The error's message, or the changed message."""
    message: Single | None = None
    """The message as it would be forwarded."""
    detail: str = ""
    """The reason, if the client does not see it."""


def rehearse(
    rehearsal: Rehearsal,
    message: Message,
    *,
    asked: Request | Notification | None = None,
    from_client: bool = True,
    trace: list[Evaluated] | None = None,
) -> Rehearsed:
    """Judge a message; for a batch, return the most severe outcome."""
    about = Circumstances(from_client=from_client, session_id="test", session=rehearsal.session)
    outcomes = [
        _outcome(rehearsal.judge(Subject(one, about, _asked(one, asked)), trace))
        for one in singles(message)
    ]
    return max(outcomes, key=lambda one: _GRAVITY.index(one.word))


_GRAVITY = ("pass", "modify", "drop", "block")


def _asked(message: Single, asked: Request | Notification | None) -> Request | Notification | None:
    return asked if isinstance(message, Response) else None


def _outcome(judged: RulesOutcome) -> Rehearsed:
    refusal = judged.refusal
    match judged.to_verdict():
        case Drop():
            return Rehearsed("drop", refusal.rule if refusal else "")
        case Reply() | Rewrite() if refusal:
            told, detail = refusal.message, refusal.detail
            return Rehearsed("block", refusal.rule, refusal.code, told, detail=detail)
        case Rewrite(text):
            rules = [one.rule for one in judged.done]
            shown = text.decode()
            return Rehearsed("modify", rules[-1] if rules else "", None, shown, judged.message)
        case Forward() | Reply():
            matched = judged.matched[-1] if judged.matched else ""
            return Rehearsed("pass", matched, message=judged.message)


def lines_of(trace: list[Evaluated]) -> Iterator[str]:
    """Render the evaluated rules, one after the other."""
    for one in trace:
        if one.is_interceptor:
            yield f"{one.rule} (method interceptor): {'refused' if one.matched else 'let it pass'}"
        else:
            unmatched = "cannot be judged" if one.asked else "did not match"
            yield f"{one.rule}: {'matched' if one.matched else unmatched}"
        for label, holds in one.conditions:
            yield f"  {'yes' if holds else 'no '} {label}"
        if one.asked:
            yield f"  ?   {one.asked}"
        for action in one.done:
            yield f"  did {action}"


def shown_outcome(outcome: Rehearsed) -> str:
    by = f" by {outcome.rule}" if outcome.rule else ""
    if outcome.word == "block":
        why = f" (clients do not see this: {outcome.detail})" if outcome.detail else ""
        return f"block{by}: {outcome.code} {json.dumps(outcome.text)}{why}"
    if outcome.word == "modify":
        return f"modify{by}: {outcome.text}"
    return f"{outcome.word}{by if outcome.word == 'drop' else ''}"
