"""Lets each session call so many different tools, and no more."""

from __future__ import annotations

from typing import Any


class CallBudget:
    def __init__(self, config: dict[str, Any]) -> None:
        self._most = config["most"]

    async def request(self, exchange: Any) -> str | dict[str, object] | None:
        """Return a reason to block, the changed message, or None."""
        used = exchange.session.setdefault("tools", set())
        if exchange.tool not in used and len(used) >= self._most:
            return f"This session may use {self._most} tools"
        used.add(exchange.tool)
        return None
