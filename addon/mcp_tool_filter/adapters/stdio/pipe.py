"""stdio in front of a URL: pass lines between our client and an upstream that speaks HTTP.

A thread reads stdin and waits until each message has been sent, so that notifications and answers
arrive in order; requests wait for their answers concurrently.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field
from threading import Thread
from typing import cast

from mcp_tool_filter.adapters.background import Effects, keep
from mcp_tool_filter.adapters.sockets.connect import HttpFailed
from mcp_tool_filter.adapters.stdio.child import read_some, write_all
from mcp_tool_filter.adapters.stdio.http_upstream import (
    LegacyUpstream,
    StreamableUpstream,
    StreamEnded,
)
from mcp_tool_filter.adapters.stdio.judge import LineJudge, cancelled_by, is_answer, routes
from mcp_tool_filter.adapters.stdio.waiting import HeldLines
from mcp_tool_filter.errors import LostUpstream, ProtocolError
from mcp_tool_filter.http.head import (
    ParamHeaders,
    mirrored_headers,
    param_headers_in,
    revision_in,
)
from mcp_tool_filter.policy.effects import waits
from mcp_tool_filter.policy.snapshot import Snapshot
from mcp_tool_filter.policy.verdict import Verdict
from mcp_tool_filter.protocol.limits import Limits
from mcp_tool_filter.protocol.lines import CutLine, LineParser, on_one_line
from mcp_tool_filter.protocol.messages import (
    UPSTREAM_LOST,
    Message,
    Notification,
    Request,
    id_value,
    parse_message,
    singles,
)

_LAST_ANSWERS = 5.0  # seconds for open answers after the client has closed its side
_GOODBYE = 3.0  # seconds for a client to read the errors for its waiting requests
_TICK = 0.01
_ORDERED = 30.0  # seconds that a message may take before the next one is sent regardless
_LONGEST_HOLD = 600.0  # seconds in which a rule may still hold a message at the end
_ENDLESS = ("subscriptions/listen",)  # requests whose answers we do not wait for at the end


@dataclass(eq=False)
class Pipe:
    """One session. Create it in a running event loop, set its upstream, then run it."""

    judge: LineJudge
    _: KW_ONLY
    say: Callable[[str], None]
    limits: Limits
    is_there: Callable[[], Awaitable[bool]] | None = None
    keeps_running: bool = False
    last_answers: float = _LAST_ANSWERS
    goodbye: float = _GOODBYE
    stdin: int = 0
    stdout: int = 1
    effects: Effects = field(default_factory=Effects, init=False)
    upstream: LegacyUpstream | StreamableUpstream = field(init=False)

    def __post_init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[int] = self._loop.create_future()
        self._writer = ThreadPoolExecutor(max_workers=1)
        self._writing = asyncio.Lock()
        self._posts: dict[str, asyncio.Task[None]] = {}
        self._endless: set[asyncio.Task[None]] = set()
        self._tools: dict[str, ParamHeaders] = {}
        self._answers_held = 0  # by rules
        self.judge.asker.send = self._ask
        fetch = self.judge.fetch_list
        self.effects.fetch_tools = lambda effect: asyncio.to_thread(fetch, effect)
        self._held = HeldLines(
            self.judge,
            self.effects,
            self._pass_on_decided,
            on_bug=self._fail,
            most=self.limits.pending,
        )

    def learn_tools(self, snapshot: Snapshot) -> None:
        """Learn which arguments the tools want in headers."""
        self._tools = {
            name: headers
            for name, raw in snapshot.allowed.items()
            if (headers := param_headers_in(raw))
        }

    async def run(self) -> int:
        """Pass messages until one side ends; return the exit code. Raises HttpFailed."""
        await self.upstream.open()
        Thread(target=self._read_client, daemon=True).start()
        code = await self._ended
        for post in [*self._posts.values(), *self._endless]:
            post.cancel()
        await self.upstream.close()
        return code

    def end(self, code: int = 0) -> None:
        """End the session."""
        if not self._ended.done():
            self._ended.set_result(code)

    # Messages of the client

    def _read_client(self) -> None:
        """Read stdin in a thread, no faster than messages can be sent."""
        parser = LineParser(max_pending=self.limits.pending)
        try:
            while chunk := read_some(self.stdin):
                if lines := parser.feed(chunk):
                    self._in_loop(self._from_client(lines)).result()
            if lines := parser.finish():
                self._in_loop(self._from_client(lines)).result()
        except OSError:
            pass  # the terminal is gone
        except RuntimeError:
            return  # the session has ended
        with suppress(RuntimeError):
            self._in_loop(self._see_out())

    def _in_loop(self, work: Coroutine[None, None, None]) -> Future[None]:
        """Start this in the loop. Raises RuntimeError if that is closed."""
        try:
            return asyncio.run_coroutine_threadsafe(work, self._loop)
        except RuntimeError:
            work.close()
            raise

    async def _from_client(self, lines: Iterable[bytes | CutLine]) -> None:
        for line in lines:
            try:
                decision = self.judge.from_client(line)
                is_behind = not self._held.is_empty and not is_answer(line, self.limits)
                if waits(decision) or is_behind:
                    await self._held.add(line, decision)
                else:
                    await self._pass_on_decided(line, decision)
            except Exception as error:
                self._fail(error)

    def _fail(self, error: BaseException) -> None:
        """End the session because of a bug, and let nothing through."""
        self.say(f"Error: Internal error: {error!r}\nShutting down proxy")
        self.end(1)

    def in_background(self, work: Coroutine[None, None, None]) -> None:
        """Run a coroutine in the background, at most until the session ends."""
        keep(self._endless, asyncio.create_task(work))

    def send_copy(self, text: bytes) -> None:
        """Send our own message to the upstream, and ignore the answer."""
        headers = mirrored_headers(parse_message(text, self.limits), self._tools)
        self.in_background(self.upstream.post(text, [], headers))

    def _ask(self, text: bytes) -> None:
        """Send our own request to the upstream; its answer comes to ``receive``."""
        message = cast("Request", parse_message(text, self.limits))
        headers = mirrored_headers(message, self._tools)
        post = self.upstream.post(text, [message.id], headers, method=message.method)
        self._loop.call_soon_threadsafe(self.in_background, post)

    async def _pass_on_decided(self, line: bytes | CutLine, verdict: Verdict) -> None:
        onward, back = routes(line, verdict, from_client=True)
        await self._tell_client(back)
        for message in onward:
            await self._send(message)

    async def _send(self, raw: bytes) -> None:
        message = parse_message(raw, self.limits)
        if self._cancels(message):
            return
        ids = [one.id for one in singles(message) if isinstance(one, Request)]
        method = message.method if isinstance(message, Request | Notification) else ""
        headers = mirrored_headers(message, self._tools)
        post = asyncio.create_task(self.upstream.post(raw, ids, headers, method=method))
        self._remember(post, ids, method)
        if method == "initialize" or not ids:
            # The next message may only be sent after the upstream has received this one.
            await asyncio.wait([post], timeout=_ORDERED)
        if method == "initialize":
            if revision := self.judge.server.revision:
                self.upstream.poster.revision = revision if revision.isascii() else ""
        elif method == "notifications/initialized":
            self.upstream.listen()

    def _remember(self, post: asyncio.Task[None], ids: Sequence[str], method: str) -> None:
        if method in _ENDLESS:
            keep(self._endless, post)
        keys = [id_value(id) for id in ids] or [f"notification {id(post)}"]
        for key in keys:
            self._posts[key] = post
        post.add_done_callback(lambda _: self._forget(keys, post))

    def _forget(self, keys: Sequence[str], post: asyncio.Task[None]) -> None:
        for key in keys:
            if self._posts.get(key) is post:
                del self._posts[key]
        if not post.cancelled() and (error := post.exception()):
            self._fail(error)

    def _cancels(self, message: Message) -> bool:
        """Cancel a request as 2026-07-28 does over HTTP: without a message, by closing its
        answer."""
        named = cancelled_by(message)
        if named is None:
            return False
        if revision_in(message) is None and self.judge.server.revision < "2026":
            return False
        if named and (post := self._posts.get(id_value(named))):
            self.judge.forget([named])
            post.cancel()
        return True

    # Messages of the upstream

    async def receive(self, said: bytes | CutLine) -> None:
        """Judge a message of the upstream, and send it to the client as one line."""
        line = said
        if isinstance(said, bytes):
            with suppress(ProtocolError):  # the filter refuses it
                line = on_one_line(said)
        decision = self.judge.from_upstream(line)
        if waits(decision):
            self._answers_held += 1
            try:
                decision = await self.effects.outcome_of(decision)
            finally:
                self._answers_held -= 1
        onward, back = routes(line, decision, from_client=False)
        await self._tell_client(onward)
        for reply in back:
            await self.upstream.post(reply, [], [])

    def waits_for(self, ids: Sequence[str]) -> bool:
        return self.judge.asker.waits_for(ids) or self.judge.waits_for(self._own(ids))

    async def fail(self, ids: Sequence[str], code: int, text: str) -> None:
        self.judge.asker.give_up(ids, is_lost=code == UPSTREAM_LOST)
        await self._tell_client(self.judge.answer_instead(self._own(ids), code, text))

    def _own(self, ids: Sequence[str]) -> list[str]:
        """Leave out ids that the client has reused since this request was answered."""
        post = asyncio.current_task()
        return [id for id in ids if self._posts.get(id_value(id)) is post]

    async def missed(self, error: HttpFailed) -> None:
        """End if the upstream is lost, that is if it accepts no connection any more."""
        is_lost = isinstance(error, StreamEnded)
        if not is_lost and self.is_there is not None:
            is_lost = not await self.is_there()
        if not is_lost or (self.keeps_running and not isinstance(error, StreamEnded)):
            return
        await self._tell_client(await self._lost_replies())
        if not self._ended.done():
            if not isinstance(error, StreamEnded):  # that session is over in any case
                self.say("To keep running when the upstream is lost: --keep-running")
            self.say(str(LostUpstream()))
        self.end(1)

    async def _lost_replies(self, besides: Sequence[str] = ()) -> list[bytes]:
        """Return an error for each request that has no answer yet, except for these methods."""
        held = await self._held.lose()
        return [*self.judge.lost_replies(besides=besides), *held]

    async def _tell_client(self, lines: Sequence[bytes]) -> None:
        if not lines:
            return
        data = b"".join(line + b"\n" for line in lines)
        try:
            async with self._writing:
                await self._loop.run_in_executor(self._writer, write_all, self.stdout, data)
        except OSError:  # the client does not read any more
            self.end(0)

    async def _see_out(self) -> None:
        """End when all open answers have come, or after a time limit."""
        start = self._loop.time()
        while self._is_anything_due():
            held = not self._held.is_empty or self._answers_held
            if self._loop.time() - start > (_LONGEST_HOLD if held else self.last_answers):
                break
            await asyncio.sleep(_TICK)
        lost = await self._lost_replies(besides=_ENDLESS)
        late = asyncio.create_task(self._tell_client(lost))
        await asyncio.wait([late], timeout=self.goodbye)
        self.end(0)

    def _is_anything_due(self) -> bool:
        if not self._held.is_empty or self._answers_held:
            return True
        if any(post not in self._endless for post in self._posts.values()):
            return True
        return any(method not in _ENDLESS for method in self.judge.methods_in_flight())
