"""Call users' functions, which may block, and may never return.

One that is not async runs in a thread of its own. Not in asyncio's pool: a few that hang would fill
it, so that all others waited, and the end of the process would wait for them, too.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from concurrent.futures import Future
from threading import Thread
from typing import Any

from mcp_tool_filter.rooms.rules.rule_effects import CallPython, EffectFailed

log = logging.getLogger(__name__)

MOST_AT_ONCE = 100


class Callables:
    """Calls all functions of the process."""

    def __init__(self, *, most: int = MOST_AT_ONCE) -> None:
        self._most = most
        self._running: set[Future[object]] = set()

    async def call(self, effect: CallPython) -> object:
        """Return what a function makes of its argument. Raises EffectFailed."""
        try:
            async with asyncio.timeout(effect.within):
                made: Any
                if inspect.iscoroutinefunction(effect.function):
                    made = effect.function(effect.argument)
                else:
                    made = await self._in_thread(effect)
                return await made if inspect.isawaitable(made) else made
        except TimeoutError:
            raise EffectFailed("it took too long") from None
        except EffectFailed:
            raise
        except Exception as error:
            log.debug("a user's function raised", exc_info=True)
            raise EffectFailed(f"it raised {type(error).__name__}") from None

    async def _in_thread(self, effect: CallPython) -> object:
        if len(self._running) >= self._most:
            raise EffectFailed(f"{self._most} calls of users' functions have not returned")
        came = Future[object]()
        came.set_running_or_notify_cancel()  # the caller may give up, but not cancel it

        def run() -> None:
            try:
                made = effect.function(effect.argument)
            except BaseException as error:
                is_usual = isinstance(error, Exception) and not isinstance(error, StopIteration)
                came.set_exception(error if is_usual else RuntimeError(repr(error)))
            else:
                came.set_result(made)
            finally:
                self._running.discard(came)

        self._running.add(came)
        Thread(target=run, daemon=True).start()
        return await asyncio.wrap_future(came)
