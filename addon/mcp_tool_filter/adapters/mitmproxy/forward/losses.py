"""Detect a lost upstream: it is lost only if a new connection cannot be made.

A reset, a GOAWAY, a disconnect or an error on our side fails only one request. Each makes us probe
whether the upstream is still there.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from mitmproxy.proxy.mode_specs import ProxyMode, ReverseMode

from mcp_tool_filter.adapters.serving.background import in_background
from mcp_tool_filter.adapters.serving.limits import Reserve
from mcp_tool_filter.adapters.sockets.connect import Reach

log = logging.getLogger(__name__)

PAUSE = 0.25
"""Seconds between two probes of one upstream, because clients can make requests fail at will."""
_PROBES = 2
"""A dying process may still accept a connection after it has broken off others: ask again."""
PATIENCE = 1.0
"""Seconds between two probes if the first was unclear."""

type OnLoss = Callable[[ReverseMode], None]
type Probe = Callable[[ReverseMode], Awaitable[Reach]]


class Losses:
    """Probes an upstream after a failed request; calls ``on_loss`` if it is lost."""

    def __init__(self, probe: Probe, on_loss: OnLoss, reserve: Reserve) -> None:
        self._probe = probe
        self._on_loss = on_loss
        self._reserve = reserve
        self._suspected: dict[str, bool] = {}
        """The upstreams being probed, by mode, and whether a newer failure needs another probe."""

    def suspect(self, mode: ProxyMode, patience: float) -> None:
        """Probe the upstream of this mode; ``patience`` is how many seconds an unclear result may
        last."""
        if not isinstance(mode, ReverseMode):
            return
        if mode.full_spec in self._suspected:
            self._suspected[mode.full_spec] = True
            return
        self._suspected[mode.full_spec] = False
        in_background(self._look_after(mode, patience))

    async def _look_after(self, mode: ReverseMode, patience: float) -> None:
        await asyncio.sleep(0)  # mitmproxy starts tasks eagerly, inside the hook
        try:
            to_go = _PROBES
            while to_go:
                self._suspected[mode.full_spec] = False
                if await self._is_lost(mode, patience):
                    self._on_loss(mode)
                    return
                await asyncio.sleep(PAUSE)
                to_go = _PROBES if self._suspected[mode.full_spec] else to_go - 1
        finally:
            del self._suspected[mode.full_spec]

    async def _is_lost(self, mode: ReverseMode, patience: float) -> bool:
        loop = asyncio.get_running_loop()
        end = loop.time() + patience
        while True:
            with self._reserve.lent():
                reach = await self._probe(mode)
            log.debug("the upstream was probed: %s", reach)
            if reach in (Reach.REACHED, Reach.LOST):
                return reach is Reach.LOST
            if loop.time() + PATIENCE > end:
                return reach is Reach.DOUBTFUL
            await asyncio.sleep(PATIENCE)
