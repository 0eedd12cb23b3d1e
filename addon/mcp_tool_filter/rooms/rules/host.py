"""Carry out the effects of rules: at once if possible, else on the event loop.

In tests of rules and in replays nothing is sent and nothing waits; only scripts and callables that
decide do run.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

from mcp_tool_filter.core.messages.sizes import MANY, MESSAGE
from mcp_tool_filter.core.policy.effects import Delay, Effect, Together, at_once
from mcp_tool_filter.core.process.background import Background
from mcp_tool_filter.core.process.sentences import Once
from mcp_tool_filter.rooms.rules.callables import Callables
from mcp_tool_filter.rooms.rules.chain import Later, answered
from mcp_tool_filter.rooms.rules.rule_effects import (
    CallPython,
    CountUse,
    EffectFailed,
    Identify,
    Locally,
    Measure,
    Outward,
    ReadCache,
    RunScript,
    SendCopy,
    SendWebhook,
    Warn,
    WriteCache,
    WriteLog,
)
from mcp_tool_filter.rooms.rules.scripts import run_script
from mcp_tool_filter.rooms.rules.state import RuleState, StateInMemory
from mcp_tool_filter.rooms.rules.webhooks import Webhooks

log = logging.getLogger(__name__)


_LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warn": logging.WARNING,
    "error": logging.ERROR,
}
_MOST_IN_BACKGROUND = 50  # scripts at once

type Sender = Callable[[SendCopy], None]


type EnterLog = Callable[[WriteLog], None]


class RuleHost:
    """Carries out the effects of all rules of the process."""

    def __init__(self, state: RuleState, send_copy: Sender | None = None) -> None:
        self.state = state
        self.metrics: dict[str, float] = {}
        self.webhooks = Webhooks()
        self._callables = Callables()
        self.enter_log: EnterLog = lambda _effect: None
        """Adds log entries of rules to the audit log, if there is one."""
        self._send_copy = send_copy
        self._warned = Once(MANY)
        self._background = Background()
        self._apart: StateInMemory | None = None
        """The limits of rules that are only evaluated."""

    def at_once(self, effect: Effect) -> object:
        """Return the result of an effect, or LATER if it must wait."""
        match effect:
            case Identify() | CountUse() | ReadCache() | WriteCache():
                return self.state.at_once(effect)
            case Locally(evaluated):
                if self._apart is None:
                    self._apart = StateInMemory()
                return self._apart.at_once(evaluated)
            case WriteLog(level, message, rule):
                log.log(_LEVELS[level], "Rule %s: %s", rule, message)
                self.enter_log(effect)
            case Warn(text):
                self.warn_once(text)
            case Measure(name, value):
                if name in self.metrics or len(self.metrics) < MANY:
                    self.metrics[name] = self.metrics.get(name, 0.0) + value
            case SendWebhook():
                self.webhooks.send(effect)
            case SendCopy():
                if self._send_copy:
                    self._send_copy(effect)
            case RunScript(decides=False):
                self._run_in_background(effect)
            case _:
                return Later.LATER
        return None

    async def carry_out(self, effect: Effect) -> object:
        """Carry out an effect that must wait. Raises EffectFailed."""
        match effect:
            case Identify() | CountUse() | ReadCache() | WriteCache():
                return await self.state.carry_out(effect)
            case RunScript():
                return await run_script(effect, most_output=MESSAGE)
            case CallPython():
                return await self._callables.call(effect)
            case _:
                return self.at_once(effect)

    def counters(self) -> Iterator[tuple[str, float]]:
        """Yield the counters of the rules, and of webhooks that did not arrive."""
        yield from self.metrics.items()
        for name, number in (
            ("webhooks dropped", self.webhooks.dropped),
            ("webhooks failed", self.webhooks.failed),
        ):
            if number:
                yield name, float(number)

    def replace_state(self, state: RuleState) -> None:
        """Use another state for limits and caches from now on."""
        self._background.start(self.state.close())
        self.state = state

    def forget_warnings(self) -> None:
        """Allow each warning once more, because the rules have changed."""
        self._warned = Once(MANY)

    def warn_once(self, text: str) -> None:
        self._warned.log(log, logging.WARNING, text)

    async def close(self) -> None:
        """End all work under way; webhooks get a few seconds to arrive."""
        await self._background.close()
        await self.webhooks.close()
        await self.state.close()

    def _run_in_background(self, effect: RunScript) -> None:
        if len(self._background) >= _MOST_IN_BACKGROUND:
            self.warn_once(
                f"Rule {effect.rule!r}: too many of its scripts are running; some are skipped"
            )
            return
        self._background.start(self._run(effect))

    async def _run(self, effect: RunScript) -> None:
        try:
            result = await run_script(effect, most_output=MESSAGE)
            problem = f"the script ended with status {result.status}" if result.status else ""
        except EffectFailed as error:
            problem = str(error)
        if problem:
            self.warn_once(f"Rule {effect.rule!r}: run_script failed: {problem}")


class OfflineHost(RuleHost):
    """Answers every effect at once."""

    def at_once(self, effect: Effect) -> object:
        match effect:
            case Delay() | Outward() | RunScript(decides=False):
                return None
            case Together(decisions):
                return [at_once(answered(decision, self.at_once)) for decision in decisions]
            case RunScript() | CallPython():
                with ThreadPoolExecutor(max_workers=1) as thread:  # the event loop may be running
                    return thread.submit(asyncio.run, self.carry_out(effect)).result()
            case _:
                return super().at_once(effect)
