"""Count what happened: messages, verdicts, and the last refusals.

>>> from mcp_tool_filter.core.policy.situation import Client
>>> from mcp_tool_filter.core.policy.taking import take_snapshot
>>> from mcp_tool_filter.core.policy.verdict import Reply
>>> counted = Statistics()
>>> denied, none = Reply(b"", Reason(Why.DENIED, ("delete_file",))), take_snapshot([])
>>> counted.note(Judged(Direction.FROM_CLIENT, None, denied, Client(), none), now=1.0)
>>> counted.refused, counted.refusals[0].tool
(1, 'delete_file')

Names that clients choose cannot fill our memory:

>>> from collections import Counter
>>> calls: Counter[str] = Counter()
>>> for name in ("a", "b", "a", "c"):
...     count_bounded(calls, name, most=2)
>>> dict(calls)
{'a': 2, 'b': 1}
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from mcp_tool_filter.core.conversation.policy_in_force import (
    Judged,
    Observer,
    PlainCall,
    PlainObserver,
)
from mcp_tool_filter.core.messages.messages import Response
from mcp_tool_filter.core.messages.sizes import MANY
from mcp_tool_filter.core.policy.choice import Hider, describe_hider
from mcp_tool_filter.core.policy.situation import Direction, RpcExchange
from mcp_tool_filter.core.policy.snapshot import Snapshot, shown
from mcp_tool_filter.core.policy.verdict import EVERYDAY, TOOL, Forward, Reason, Rewrite, Why

type JsonObject = dict[str, Any]
"""A part of what the page and the commands show; the page's ``files`` read it."""


def count_bounded(counter: Counter[str], name: str, *, most: int) -> None:
    """Count a name, unless it is new and there are already ``most`` names."""
    if name in counter or len(counter) < most:
        counter[name] += 1


def is_tool_error(response: Response) -> bool:
    """Tell whether a tool says that it has failed. (What a long result says is not read.)"""
    said = response.result.named.get("isError") if response.result else None
    return said is not None and response.place.cut(said) == "true"


_MOST_REFUSALS = 100


@dataclass(frozen=True, slots=True)
class RefusedMessage:
    """A call or another message that was refused."""

    at: float
    tool: str
    """Or the prompt, resource or skill; or what was wrong, if it names none."""
    because: Hider | str | None
    """What hides the tool; more about what was wrong; None if there is no such tool."""

    @property
    def why(self) -> str:
        """The same for people."""
        because = self.because
        return because if isinstance(because, str) else describe_hider(because)


@dataclass(frozen=True, slots=True)
class PlainObservers:
    """Tells several observers of plain calls."""

    each: Sequence[PlainObserver]

    def plain_begins(self, call: PlainCall) -> None:
        for one in self.each:
            one.plain_begins(call)

    def plain_ends(self, call: PlainCall) -> None:
        for one in self.each:
            one.plain_ends(call)

    def plain_leaves(self, call: PlainCall, exchange: RpcExchange, origin: object) -> None:
        for one in self.each:
            one.plain_leaves(call, exchange, origin)


@dataclass(slots=True, weakref_slot=True)
class Statistics:
    """The counts of one listener."""

    messages: int = 0
    lists: int = 0
    """Tool lists from which denied tools were removed."""
    saved_bytes: int = 0
    """What the denied tools would have cost in these lists."""
    refused: int = 0
    invalid: int = 0
    reported: int = 0
    """Messages that would have been refused or changed."""
    calls: Counter[str] = field(default_factory=Counter)
    """Forwarded calls, by tool."""
    failed_calls: Counter[str] = field(default_factory=Counter)
    """Calls that were answered with an error, by tool."""
    refused_calls: Counter[str] = field(default_factory=Counter)
    refusals: deque[RefusedMessage] = field(default_factory=lambda: deque(maxlen=_MOST_REFUSALS))
    """The last refusals, newest first."""

    def observer(
        self, clock: Callable[[], float], tell: Observer, others: Sequence[Observer]
    ) -> Observer:
        """Return what counts each message, and then informs the others; ``tell`` gets only those
        with something to log."""

        def observe(judged: Judged) -> None:
            self.note(judged, clock())
            reason = None if isinstance(judged.verdict, Forward) else judged.verdict.reason
            if judged.would or (reason and (reason.why not in EVERYDAY or reason.drift)):
                tell(judged)
            for other in others:
                other(judged)

        return observe

    def observer_of_plain(self, others: Sequence[PlainObserver | None]) -> PlainObserver | None:
        """Return what counts each plain call, and then informs the others; None if one of them
        needs its messages."""
        known = [other for other in others if other is not None]
        if len(known) < len(others):
            return None
        return PlainObservers([self, *known]) if known else self

    def plain_begins(self, call: PlainCall) -> None:
        self.messages += 1
        self._count(self.calls, call.tool)

    def plain_ends(self, call: PlainCall) -> None:
        self.messages += 1

    def plain_leaves(self, call: PlainCall, exchange: RpcExchange, origin: object) -> None:
        """It is counted already."""

    def note(self, judged: Judged, now: float) -> None:
        """Count a message and its verdict."""
        self.messages += 1
        verdict = judged.verdict
        if not isinstance(verdict, Forward):
            self._note_reason(verdict.reason, judged.snapshot, now)
        elif judged.would is not None:
            self.reported += 1
        for one in judged.members or (judged,):
            exchange = one.exchange
            if exchange is not None and exchange.tool is not None:
                self._note_call(one, exchange.tool)

    def _note_call(self, judged: Judged, tool: str) -> None:
        """Count a call that is forwarded, or that is answered with an error."""
        if judged.direction is Direction.FROM_CLIENT:
            if not isinstance(judged.verdict, Forward | Rewrite):
                return
            counter = self.calls
        else:
            answer = judged.message
            if not isinstance(answer, Response) or (answer.result and not is_tool_error(answer)):
                return
            counter = self.failed_calls
        self._count(counter, tool)

    @staticmethod
    def _count(counter: Counter[str], tool: str) -> None:
        if tool in counter:  # the keys are names as they are shown
            counter[tool] += 1
        else:
            count_bounded(counter, shown(tool), most=MANY)

    def _note_reason(self, reason: Reason, snapshot: Snapshot, now: float) -> None:
        match reason.why:
            case Why.CHANGED | Why.STORED | Why.CANCELLED:
                pass
            case Why.HIDDEN if reason.thing != TOOL:
                pass  # these are counts of tools
            case Why.CACHED | Why.HIDDEN:
                self.lists += 1
                self.saved_bytes += snapshot.denied_bytes
            case Why.INVALID:
                self.invalid += 1
            case _:
                self.refused += 1
                for tool in reason.tools:
                    name = shown(tool)
                    because: Hider | str | None = reason.detail
                    if reason.thing == TOOL:
                        count_bounded(self.refused_calls, name, most=MANY)
                        because = snapshot.hiding(tool)  # now: the patterns may change later
                    self.refusals.appendleft(RefusedMessage(now, name, because))
                if not reason.tools:
                    self.refusals.appendleft(RefusedMessage(now, str(reason.why), reason.detail))
