"""Carry out the effects of rules: at once if possible, else on the event loop.

A user's function may block, and may never return. One that is not async runs in a thread of its
own. Not in asyncio's pool: a few that hang would fill it, so that all others waited, and the end of
the process would wait for them, too. A script runs without a shell, with a time limit, and with
limited output.

In tests of rules and in replays nothing is sent and nothing waits; only scripts and callables that
decide do run.
"""

from __future__ import annotations

import asyncio
import errno
import inspect
import logging
import os
import signal
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import count
from threading import Thread
from typing import Any

from mcp_tool_filter.adapters.rules.sending import Webhooks
from mcp_tool_filter.adapters.rules.state import RuleState
from mcp_tool_filter.policy.effects import Delay, Effect
from mcp_tool_filter.policy.rule_effects import (
    CallPython,
    CountUse,
    EffectFailed,
    Identify,
    Measure,
    ReadCache,
    RunScript,
    ScriptResult,
    SendCopy,
    SendWebhook,
    TooLarge,
    Warn,
    WriteCache,
    WriteLog,
)
from mcp_tool_filter.rules.chain import Later

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


_READ_SIZE = 64 * 1024


async def run_script(effect: RunScript, *, most_output: int) -> ScriptResult:
    """Run a script. Raises EffectFailed if it cannot start or does not end in time."""
    try:
        process = await asyncio.create_subprocess_exec(
            *effect.command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE if effect.decides else asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            env={**os.environ, **dict(effect.environment)},
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        if getattr(error, "errno", None) == errno.E2BIG:
            raise TooLarge("an argument is too large for a script; stdin has no limit") from None
        why = getattr(error, "strerror", None) or str(error)
        raise EffectFailed(f"the script cannot be started: {why}") from None
    try:
        async with asyncio.timeout(effect.timeout):
            output, _ = await asyncio.gather(
                _read(process, most_output), _write(process, effect.input)
            )
            return ScriptResult(await process.wait(), output)
    except TimeoutError:
        raise EffectFailed(f"the script took longer than {effect.timeout:g}s") from None
    finally:
        await _end(process)


async def _write(process: asyncio.subprocess.Process, text: bytes) -> None:
    assert process.stdin
    with suppress(OSError):  # a script need not read its input
        process.stdin.write(text)
        await process.stdin.drain()
    process.stdin.close()


async def _read(process: asyncio.subprocess.Process, most: int) -> bytes:
    if process.stdout is None:
        return b""
    output = bytearray()
    while chunk := await process.stdout.read(_READ_SIZE):
        output += chunk
        if len(output) > most:
            raise EffectFailed(f"the script wrote more than {most} bytes")
    return bytes(output)


async def _end(process: asyncio.subprocess.Process) -> None:
    """End the process group of a script."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    # First close the pipe: unread output would keep it open, and the wait would not end.
    transport = getattr(process, "_transport", None)
    if transport is not None:
        for pipe in filter(None, map(transport.get_pipe_transport, (0, 1))):
            pipe.close()
    if process.returncode is None:
        await process.wait()
    if transport is not None:  # only now: it would take the exit status away from who waits for it
        transport.close()


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
        for name, number in (
            ("webhooks dropped", self.webhooks.dropped),
            ("webhooks failed", self.webhooks.failed),
        ):
            if number:
                yield name, float(number)

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
