"""The effects of rules in tests of rules and in replays: nothing is sent, nothing waits.

Scripts and Python callables that decide do run. Nothing else leaves this process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor

from mcp_tool_filter.adapters.effects.rule_host import RuleHost
from mcp_tool_filter.policy.effects import Delay, Effect
from mcp_tool_filter.policy.rule_effects import (
    CallPython,
    RunScript,
    SendCopy,
    SendWebhook,
)


class OfflineHost(RuleHost):
    """Answers every effect at once."""

    def at_once(self, effect: Effect) -> object:
        match effect:
            case Delay() | SendWebhook() | SendCopy() | RunScript(decides=False):
                return None
            case RunScript() | CallPython():
                return _finished(self.carry_out(effect))
            case _:
                return super().at_once(effect)


def _finished(work: Coroutine[None, None, object]) -> object:
    """Run a coroutine to its end, even inside a running event loop. Raises EffectFailed."""
    with ThreadPoolExecutor(max_workers=1) as thread:
        return thread.submit(asyncio.run, work).result()
