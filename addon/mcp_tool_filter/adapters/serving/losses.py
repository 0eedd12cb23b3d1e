"""Find out whether an upstream is lost, and what happens then.

It is lost only if a new connection cannot be made. A reset, a GOAWAY, a disconnect or an error on
our side fails only one request; each makes us probe. A lost upstream ends the process, or with
``--keep-running`` we wait until it is back and take its new list.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from mcp_tool_filter.adapters.serving.background import in_background
from mcp_tool_filter.adapters.serving.limits import Reserve
from mcp_tool_filter.adapters.serving.new_lists import named
from mcp_tool_filter.adapters.serving.site import Site, reason_in
from mcp_tool_filter.adapters.sockets.connect import Reach
from mcp_tool_filter.errors import LostUpstream, StartError

log = logging.getLogger(__name__)

PAUSE = 0.25
"""Seconds between two probes of one upstream, because clients can make requests fail at will."""
_FIRST_PAUSE = 0.05
"""Seconds after a failure: what has broken off a connection may be about to close its port."""
PROBES = 2
"""A dying process may still accept a connection after it has broken off others: ask again."""
PATIENCE = 1.0
"""Seconds between two probes if the first was unclear."""
_BACK_PAUSE = 0.5
"""Seconds between two checks whether an upstream is back. A client that reaches it ends the
wait."""
_BACK_PATIENCE = 10.0
"""Seconds for an upstream that accepts connections again to list its tools."""


@dataclass(frozen=True, slots=True)
class OnLoss:
    """What a loss needs from the process."""

    give_up: Callable[[], None]
    """Ends the process."""
    take_list: Callable[[Site], Awaitable[Sequence[str]]]
    """Takes a new list of an upstream that is back; returns the changes."""
    warn: Callable[[str], None]
    named: Callable[[Site], str]
    """Names an upstream in a sentence, if there are several."""


class Losses:
    """Watches over the upstreams of all sites."""

    def __init__(self, reserve: Reserve, on_loss: OnLoss) -> None:
        self._reserve = reserve
        self._on_loss = on_loss
        self._suspected: dict[str, bool] = {}
        """The sites being probed, and whether a newer failure needs another probe."""

    def suspect(self, site: Site) -> None:
        """Probe an upstream, because something with it has failed."""
        if site.listener.is_forward:
            return
        if site.name in self._suspected:
            self._suspected[site.name] = True
            return
        self._suspected[site.name] = False
        in_background(self._look_after(site))

    def note_end_of_stream(self, site: Site) -> None:
        """Note the clean end of a long stream: an upstream that restarts also ends it like this."""
        if not site.listener.config.fail_fast:
            self.suspect(site)

    async def _look_after(self, site: Site) -> None:
        await asyncio.sleep(_FIRST_PAUSE)
        try:
            to_go = PROBES
            while to_go:
                self._suspected[site.name] = False
                if await self._is_lost(site):
                    self._lose(site)
                    return
                await asyncio.sleep(PAUSE)
                to_go = PROBES if self._suspected[site.name] else to_go - 1
        finally:
            del self._suspected[site.name]

    async def _is_lost(self, site: Site) -> bool:
        loop = asyncio.get_running_loop()
        end = loop.time() + site.listener.config.connection_timeout
        while True:
            with self._reserve.lent():
                reach = await site.probe()
            log.debug("the upstream was probed: %s", reach)
            if reach in (Reach.REACHED, Reach.LOST):
                return reach is Reach.LOST
            if loop.time() + PATIENCE > end:
                return reach is Reach.DOUBTFUL
            await asyncio.sleep(PATIENCE)

    def _lose(self, site: Site) -> None:
        if site.listener.config.fail_fast:
            self._on_loss.give_up()
        elif not site.is_lost:
            site.is_lost = True
            said = f"Warning: {LostUpstream().what}{self._on_loss.named(site)}"
            self._on_loss.warn(f"{said}; waiting for it to come back")
            in_background(self._until_back(site))

    async def _until_back(self, site: Site) -> None:
        """Wait for an upstream; then use its new list, and report the changes in it."""
        loop, name = asyncio.get_running_loop(), self._on_loss.named(site)
        end: float | None = None
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(_BACK_PAUSE):
                    await site.reached.wait()
            site.reached.clear()
            if await site.probe() is not Reach.REACHED:
                end = None
                continue
            end = end or loop.time() + _BACK_PATIENCE
            try:
                news = named(await self._on_loss.take_list(site))
                said = f"The upstream{name} is back: {news}"
            except Exception as error:
                if isinstance(error, StartError) and loop.time() < end:
                    continue  # the upstream may still be starting
                if not isinstance(error, StartError):
                    log.exception("cannot take the list of an upstream that is back")
                why = reason_in(error)
                said = f"Warning: The upstream{name} is back, but the old list stays: {why}"
            site.is_lost = False
            self._on_loss.warn(said)
            return
