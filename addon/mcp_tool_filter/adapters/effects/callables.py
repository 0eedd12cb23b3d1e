"""Calls the functions of users, which may block, and may never return.

One that is not async runs in a thread of its own. Not in asyncio's pool: a few that hang would fill
it, so that all others waited, and the end of the process would wait for them, too.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from contextlib import suppress
from itertools import count
from threading import Thread
from typing import Any

from mcp_tool_filter.policy.rule_effects import CallPython, EffectFailed

log = logging.getLogger(__name__)

MOST_AT_ONCE = 100


class Callables:
    """Calls all functions of the process."""

    def __init__(self, *, most: int = MOST_AT_ONCE) -> None:
        self._most = most
        self._running: set[int] = set()
        self._numbers = count(1)

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
        loop = asyncio.get_running_loop()
        came: asyncio.Future[object] = loop.create_future()
        number = next(self._numbers)

        def settle(made: object, error: BaseException | None) -> None:
            if came.done():  # the caller has given up
                return
            if error is not None:
                came.set_exception(error)
            else:
                came.set_result(made)

        def run() -> None:
            made: object = None
            failed: BaseException | None = None
            try:
                made = effect.function(effect.argument)
            except StopIteration as error:  # a future cannot hold it
                failed = RuntimeError(repr(error))
            except BaseException as error:
                failed = error if isinstance(error, Exception) else RuntimeError(repr(error))
            self._running.discard(number)
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(settle, made, failed)

        self._running.add(number)
        Thread(target=run, name=f"callable-{number}", daemon=True).start()
        return await came
