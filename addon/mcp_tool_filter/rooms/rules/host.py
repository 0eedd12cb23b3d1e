"""Carry out the effects of rules: at once if possible, else on the event loop.

A user's function may block, and may never return. One that is not async runs in a thread of its
own. Not in asyncio's pool: a few that hang would fill it, so that all others waited, and the end of
the process would wait for them, too. A script runs without a shell, with a time limit, and with
limited output.

Webhooks are posted from a queue. Copies of requests go to the upstream or to another server; they
get our own ids, and their answers are dropped. Neither ever delays a message.

In tests of rules and in replays nothing is sent and nothing waits; only scripts and callables that
decide do run.
"""

from __future__ import annotations

import asyncio
import errno
import inspect
import json
import logging
import os
import secrets
import signal
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from threading import Thread
from typing import Any

from mcp_tool_filter.core.policy.effects import Delay, Effect, Together, at_once
from mcp_tool_filter.core.process.background import Background, keep
from mcp_tool_filter.core.process.sentences import Once
from mcp_tool_filter.core.sockets.client import Headers, HttpClient
from mcp_tool_filter.core.sockets.connect import HttpFailed
from mcp_tool_filter.core.upstream.clients import JSON_BODY, JSON_OR_EVENTS
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
    ScriptResult,
    SendCopy,
    SendWebhook,
    TooLarge,
    Warn,
    WriteCache,
    WriteLog,
)
from mcp_tool_filter.rooms.rules.state import RuleState, StateInMemory
from mcp_tool_filter.rooms.rules.templates import split_url

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


# Webhooks, and copies of requests

MOST_WAITING = 1000
_AT_END = 5.0  # seconds for the last ones
_AT_ONCE = 8  # so that one hanging receiver does not delay the others
_RETRY_AFTER = (1.0, 5.0)  # seconds


class Webhooks:
    """Posts all webhooks of the process."""

    def __init__(
        self,
        *,
        most: int = MOST_WAITING,
        retry_after: tuple[float, ...] = _RETRY_AFTER,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._waiting: deque[tuple[SendWebhook, bytes]] = deque()
        self._most = most
        self._retry_after = retry_after
        self._now = now
        self.workers: set[asyncio.Task[None]] = set()
        self.sent = self.failed = self.dropped = 0

    def send(self, effect: SendWebhook) -> None:
        """Queue a webhook; drop the oldest one if the queue is full."""
        at = datetime.fromtimestamp(self._now(), UTC).isoformat(timespec="milliseconds")
        body = f'{{"time":{json.dumps(at)},{effect.members}}}'.encode()
        if len(self._waiting) >= self._most:
            self._waiting.popleft()
            if not self.dropped:
                log.warning("The queue of webhooks is full: the oldest are dropped")
            self.dropped += 1
        self._waiting.append((effect, body))
        if len(self.workers) < _AT_ONCE:
            self._start_worker()

    async def close(self, within: float = _AT_END) -> None:
        """Deliver what is queued, for a limited time, and tell how many are left."""
        end = asyncio.get_running_loop().time() + within
        while self._waiting or self.workers:
            while len(self.workers) < min(_AT_ONCE, len(self._waiting)):
                self._start_worker()  # the end of the event loop cancels workers
            left = end - asyncio.get_running_loop().time()
            if left <= 0:
                break
            await asyncio.wait(self.workers, timeout=left)
        workers = list(self.workers)
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
        if self._waiting:
            log.warning("At the end %d webhooks were not delivered", len(self._waiting))

    def _start_worker(self) -> None:
        keep(self.workers, asyncio.get_running_loop().create_task(self._work()))

    async def _work(self) -> None:
        while self._waiting:
            effect, body = self._waiting.popleft()
            try:
                await self._deliver(effect, body)
            except asyncio.CancelledError:
                self._waiting.appendleft((effect, body))
                raise
            except Exception:
                self.failed += 1
                log.exception("cannot send a webhook of rule %r", effect.rule)

    async def _deliver(self, effect: SendWebhook, body: bytes) -> None:
        problem = ""
        for pause in (0.0, *self._retry_after):
            await asyncio.sleep(pause)
            problem, may_retry = await _post(effect, body)
            if not problem:
                self.sent += 1
                return
            if not may_retry:
                break
        self.failed += 1
        log.warning("A webhook of rule %r failed: %s", effect.rule, problem)


async def _post(effect: SendWebhook, body: bytes) -> tuple[str, bool]:
    """POST once; return the problem, and whether a retry may succeed."""
    try:
        origin, target = split_url(effect.url)
        headers = [JSON_BODY]
        headers += [(name.encode(), value.encode()) for name, value in effect.headers]
    except ValueError as error:
        return str(error), False
    client = HttpClient(origin)
    try:
        async with (
            asyncio.timeout(effect.timeout),
            client.exchange(b"POST", target, headers, body) as response,
        ):
            status = response.status
            return (response.status_line if status >= 300 else "", status >= 500)
    except HttpFailed as error:
        return str(error), True
    except TimeoutError:
        return f"no answer within {effect.timeout:g}s", True
    finally:
        await client.close()


_MOST_COPIES = 100  # at once
_TIMEOUT = 30.0
_LONGEST_ANSWER_TO_COPY = 10 * 1024 * 1024
USUAL_HEADERS = (
    JSON_BODY,
    JSON_OR_EVENTS,
)

type ToUpstream = Callable[[bytes, SendCopy], object]


class Copies:
    """Sends all copies of the process."""

    def __init__(self, to_upstream: ToUpstream) -> None:
        self._to_upstream = to_upstream
        self._background = Background()
        self._count = 0
        self.id_prefix = f"copy-{secrets.token_hex(8)}-"
        """The prefix of the ids of copies."""

    def send(self, effect: SendCopy, headers: Headers = USUAL_HEADERS) -> None:
        """Send a copy of a request in the background."""
        self._count += 1
        text = f'{effect.head}"{self.id_prefix}{self._count}"{effect.tail}'.encode()
        if effect.to is None:
            self._to_upstream(text, effect)
        else:
            self.begin(_post_to(effect.to, headers, text))

    def begin(self, work: Coroutine[None, None, None]) -> None:
        """Run a coroutine in the background, unless too many are under way."""
        if len(self._background) >= _MOST_COPIES:
            work.close()
            log.warning("Too many of our own messages are being sent; one is skipped")
            return
        self._background.start(work)

    def done(self) -> None:
        self._background.cancel()


async def _post_to(url: str, headers: Headers, text: bytes) -> None:
    origin, path = split_url(url)
    await post_and_forget(HttpClient(origin, headers=headers), path, text)


async def post_and_forget(client: HttpClient, path: str, text: bytes) -> None:
    """POST a message, and drop the answer."""
    try:
        async with (
            asyncio.timeout(_TIMEOUT),
            client.exchange(b"POST", path, (), text) as response,
        ):
            with suppress(HttpFailed):
                await response.read(_LONGEST_ANSWER_TO_COPY)
    except (HttpFailed, TimeoutError) as error:
        log.info("One of our own messages was not delivered: %s", error or "no answer")
    finally:
        await client.close()


def with_usual(headers: Sequence[tuple[bytes, bytes]]) -> Headers:
    """Add the usual headers that a request lacks."""
    names = {name for name, _ in headers}
    return [*headers, *(one for one in USUAL_HEADERS if one[0] not in names)]


# All effects

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
        self._warned = Once(_MOST_NAMES)
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
        self._background.start(self.state.close())
        self.state = state

    def forget_warnings(self) -> None:
        """Allow each warning once more, because the rules have changed."""
        self._warned = Once(_MOST_NAMES)

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
            case Delay() | Outward() | RunScript(decides=False):
                return None
            case Together(decisions):
                return [at_once(answered(one, self.at_once)) for one in decisions]
            case RunScript() | CallPython():
                with ThreadPoolExecutor(max_workers=1) as thread:  # the event loop may be running
                    return thread.submit(asyncio.run, self.carry_out(effect)).result()
            case _:
                return super().at_once(effect)
