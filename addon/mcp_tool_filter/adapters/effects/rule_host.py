"""Carry out the effects of rules: at once if possible, else on the event loop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator

from mcp_tool_filter.adapters.effects.callables import Callables
from mcp_tool_filter.adapters.effects.rule_state import RuleState
from mcp_tool_filter.adapters.effects.scripts import run_script
from mcp_tool_filter.adapters.effects.webhooks import Webhooks
from mcp_tool_filter.policy.effects import Effect
from mcp_tool_filter.policy.rule_effects import (
    CallPython,
    CountUse,
    EffectFailed,
    Identify,
    Measure,
    ReadCache,
    RunScript,
    SendCopy,
    SendWebhook,
    Warn,
    WriteCache,
    WriteLog,
)
from mcp_tool_filter.policy.rules.link import Later

log = logging.getLogger(__name__)

_LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warn": logging.WARNING,
    "error": logging.ERROR,
}
_MOST_NAMES = 1000  # of metrics, and of warnings
_MOST_IN_BACKGROUND = 50  # scripts at once
_MOST_OUTPUT = 10 * 1024 * 1024

type Sender = Callable[[SendCopy], None]


def _enter_nowhere(_effect: WriteLog) -> None:
    """Do nothing: there is no audit log."""


class RuleHost:
    """Carries out the effects of all rules of the process."""

    def __init__(self, state: RuleState, send_copy: Sender | None = None) -> None:
        self.state = state
        self.metrics: dict[str, float] = {}
        self.webhooks = Webhooks()
        self._callables = Callables()
        self.enter_log: Callable[[WriteLog], None] = _enter_nowhere
        """Adds log entries of rules to the audit log, if there is one."""
        self._send_copy = send_copy
        self._warned: set[str] = set()
        self._scripts: set[asyncio.Task[None]] = set()

    def at_once(self, effect: Effect) -> object:
        """Return the result of an effect, or LATER if it must wait."""
        match effect:
            case Identify() | CountUse() | ReadCache() | WriteCache():
                return self.state.at_once(effect)
            case WriteLog(level, message, rule):
                log.log(_LEVELS[level], "Rule %s: %s", rule, message)
                self.enter_log(effect)
            case Warn(text):
                self.warn_once(text)
            case Measure(name, value):
                if name in self.metrics or len(self.metrics) < _MOST_NAMES:
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
                return await run_script(effect, most_output=_MOST_OUTPUT)
            case CallPython():
                return await self._callables.call(effect)
            case _:
                return self.at_once(effect)

    def counters(self) -> Iterator[tuple[str, float]]:
        """Yield the counters of the rules, and of webhooks that did not arrive."""
        yield from self.metrics.items()
        for name, count in (
            ("webhooks dropped", self.webhooks.dropped),
            ("webhooks failed", self.webhooks.failed),
        ):
            if count:
                yield name, float(count)

    def replace_state(self, state: RuleState) -> None:
        """Use another state for limits and caches from now on."""
        closing = asyncio.get_running_loop().create_task(self.state.close())
        self._scripts.add(closing)
        closing.add_done_callback(self._scripts.discard)
        self.state = state

    def forget_warnings(self) -> None:
        """Allow each warning once more, because the rules have changed."""
        self._warned.clear()

    def warn_once(self, text: str) -> None:
        if text not in self._warned and len(self._warned) < _MOST_NAMES:
            self._warned.add(text)
            log.warning("%s", text)

    async def close(self) -> None:
        """End all work under way; webhooks get a few seconds to arrive."""
        for task in list(self._scripts):
            task.cancel()
        await asyncio.gather(*self._scripts, return_exceptions=True)
        await self.webhooks.close()
        await self.state.close()

    def _run_in_background(self, effect: RunScript) -> None:
        if len(self._scripts) >= _MOST_IN_BACKGROUND:
            self.warn_once(
                f"Rule {effect.rule!r}: too many of its scripts are running; some are skipped"
            )
            return
        task = asyncio.get_running_loop().create_task(self._run(effect))
        self._scripts.add(task)
        task.add_done_callback(self._scripts.discard)

    async def _run(self, effect: RunScript) -> None:
        try:
            result = await run_script(effect, most_output=_MOST_OUTPUT)
            problem = f"the script ended with status {result.status}" if result.status else ""
        except EffectFailed as error:
            problem = str(error)
        if problem:
            self.warn_once(f"Rule {effect.rule!r}: run_script failed: {problem}")
