"""The state of one message on its way through the rules."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from mcp_tool_filter.policy.effects import Deciding
from mcp_tool_filter.policy.rule_effects import (
    EffectFailed,
    Identify,
)
from mcp_tool_filter.policy.rules.changes import Edit, edit_part, replace_message
from mcp_tool_filter.policy.rules.judgement import Refusal, RulesOutcome
from mcp_tool_filter.policy.rules.subject import Subject, Watch
from mcp_tool_filter.policy.rules.templates import JsonTemplate, Template
from mcp_tool_filter.policy.verdict import Drop, Reply, Verdict, Why

type Clock = Callable[[], float]


@dataclass(slots=True)
class Run:
    """One message on its way through the rules."""

    subject: Subject
    clock: Clock
    deadline: float
    judgement: RulesOutcome
    watch: Watch
    allowed: bool = False
    """True after a rule has said ``allow``."""
    prefetched: dict[int, tuple[Subject, object]] = field(default_factory=dict)
    """Results of actions (by identity) that waited together, and the message they were for."""
    _credential: str | None = None

    def left(self) -> float:
        """Return how many seconds are left. Raises EffectFailed if there are none."""
        left = self.deadline - self.clock()
        if left <= 0:
            raise EffectFailed("the rules took too long")
        return left

    def credential(self) -> Deciding[str]:
        if self._credential is None:
            self._credential = str((yield Identify(self.subject.about.credentials)))
        return self._credential

    def text(
        self, template: Template | JsonTemplate, rule: str, write: Callable[[str], str] = str
    ) -> Deciding[str]:
        """Expand a template; ``write`` renders each inserted value."""
        several = template.templates if isinstance(template, JsonTemplate) else (template,)
        who = ""
        if any(one.asks_who for one in several):
            who = yield from self.credential()
        return template.render(self.subject, rule, who, write)

    def refuse(self, refusal: Refusal) -> None:
        """Refuse the message, unless it has been refused before."""
        if self.judgement.refusal is None:
            self.judgement.refusal = refusal

    def change(self, text: str | None) -> None:
        """Continue with a changed message; None changes nothing. Raises ImpossibleChange."""
        if text is None:
            return
        self.subject, verdict = replace_message(self.subject, text)
        self.judgement.message = self.subject.message
        self.judgement.is_changed = True
        self.judgement.filtered = verdict if _ends_chain(verdict) else None

    def edit(self, edit: Edit) -> None:
        part = "result" if self.subject.is_response else "params"
        self.change(edit_part(self.subject, part, edit))


def _ends_chain(verdict: Verdict) -> bool:
    """Tell whether the filter refuses a message. (A list answered from the snapshot continues.)"""
    return isinstance(verdict, Reply | Drop) and verdict.reason.why is not Why.CACHED


def message_text(subject: Subject) -> str:
    place = subject.message.place
    return place.text[place.start : place.end]
