"""stdio in front of a URL: pass lines between our client and an upstream that speaks HTTP.

A thread reads stdin and waits until each message has been sent, so that notifications and answers
arrive in order; requests wait for their answers concurrently.

``StreamableUpstream`` posts each message and gets its answer there (since 2025-03-26): JSON, or an
event stream, which is resumed if it breaks. If the upstream has lost our session (404), we open
another one with the client's own ``initialize``, and send the message again: it has not run.
``LegacyUpstream`` gets all answers on one GET stream (HTTP+SSE, 2024-11-05). Both pass each message
of the upstream to the pipe, which judges it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import KW_ONLY, dataclass, field
from threading import Thread
from typing import Final, cast

from mcp_tool_filter.core.errors import LostUpstream, ProtocolError
from mcp_tool_filter.core.http.bodies import EVENT_STREAM, JSON
from mcp_tool_filter.core.http.head import (
    ParamHeaders,
    mirrored_headers,
    param_headers_in,
    revision_in,
)
from mcp_tool_filter.core.messages.limits import Limits
from mcp_tool_filter.core.messages.messages import (
    INTERNAL_ERROR,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    NOT_LOGGED_IN,
    UPSTREAM_LOST,
    Message,
    Notification,
    Request,
    id_value,
    parse_message,
    singles,
)
from mcp_tool_filter.core.messages.sse import Event, Oversized
from mcp_tool_filter.core.policy.effects import waits
from mcp_tool_filter.core.policy.snapshot import Snapshot
from mcp_tool_filter.core.policy.verdict import Verdict
from mcp_tool_filter.core.process.background import Effects, keep
from mcp_tool_filter.core.sockets.client import Headers, HttpClient, HttpResponse
from mcp_tool_filter.core.sockets.connect import (
    ConnectionLost,
    HttpFailed,
    LoginNeeded,
    NotConnected,
)
from mcp_tool_filter.core.upstream.clients import (
    EVENTS,
    JSON_BODY,
    JSON_OR_EVENTS,
    OwnLegacyStream,
    Poster,
    read_away,
)
from mcp_tool_filter.core.upstream.replies import EventReader, Refused, plain
from mcp_tool_filter.rooms.stdio.child import read_some, write_all
from mcp_tool_filter.rooms.stdio.judge import LineJudge, cancelled_by, is_answer, routes
from mcp_tool_filter.rooms.stdio.lines import CutLine, LineParser, on_one_line, string_in
from mcp_tool_filter.rooms.stdio.waiting import HeldLines

_LAST_ANSWERS = 5.0  # seconds for open answers after the client has closed its side
_GOODBYE = 3.0  # seconds for a client to read the errors for its waiting requests
_TICK = 0.01
_ORDERED = 30.0  # seconds that a message may take before the next one is sent regardless
_LONGEST_HOLD = 600.0  # seconds in which a rule may still hold a message at the end
_ENDLESS = ("subscriptions/listen",)  # requests whose answers we do not wait for at the end
_ERROR_BODY: Final = 64 * 1024
_RETRY: Final = 1.0  # seconds, unless the upstream states another time
_LONGEST_RETRY: Final = 30.0
_MOST_TRIES: Final = 8  # attempts to resume a stream without receiving anything


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
        try:
            await self.upstream.open()
            Thread(target=self._read_client, daemon=True).start()
            return await self._ended
        finally:
            for post in [*self._posts.values(), *self._endless]:
                post.cancel()
            await self.upstream.close()

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
        await self.tell_client(back)
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
        await self.tell_client(onward)
        for reply in back:
            await self.upstream.post(reply, [], [])

    def waits_for(self, ids: Sequence[str]) -> bool:
        """Tell whether any of these requests has no answer yet."""
        return self.judge.asker.waits_for(ids) or self.judge.waits_for(self._own(ids))

    async def fail(self, ids: Sequence[str], code: int, text: str) -> None:
        """Answer those of these requests that still wait with an error."""
        self.judge.asker.give_up(ids, is_lost=code == UPSTREAM_LOST)
        await self.tell_client(self.judge.answer_instead(self._own(ids), code, text))

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
        await self.tell_client(await self._lost_replies())
        if not self._ended.done():
            if not isinstance(error, StreamEnded):  # that session is over in any case
                self.say("To keep running when the upstream is lost: --keep-running")
            self.say(str(LostUpstream()))
        self.end(1)

    async def _lost_replies(self, besides: Sequence[str] = ()) -> list[bytes]:
        """Return an error for each request that has no answer yet, except for these methods."""
        held = await self._held.lose()
        return [*self.judge.lost_replies(besides=besides), *held]

    async def tell_client(self, lines: Sequence[bytes]) -> None:
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
        late = asyncio.create_task(self.tell_client(lost))
        await asyncio.wait([late], timeout=self.goodbye)
        self.end(0)

    def _is_anything_due(self) -> bool:
        if not self._held.is_empty or self._answers_held:
            return True
        if any(post not in self._endless for post in self._posts.values()):
            return True
        return any(method not in _ENDLESS for method in self.judge.methods_in_flight())


# The upstream's side


class StreamableUpstream:
    """Answers come on each POST; in an older session, others on a GET stream."""

    def __init__(self, http: HttpClient, path: str, pipe: Pipe, limits: Limits) -> None:
        self.poster = Poster(http, path, limit=limits.message)
        self._pipe = pipe
        self._limits = limits
        self._opening: bytes | None = None
        self._initialized: bytes | None = None
        self._replacing = asyncio.Lock()
        self._stream: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Do nothing: nothing must be open before the first message."""

    async def post(
        self, body: bytes, ids: Sequence[str], headers: Headers, *, method: str = ""
    ) -> None:
        """Send a message, and receive everything in its answer."""
        if method == "initialize":
            self.poster.session, self._opening, self._initialized = None, body, None
        elif method == "notifications/initialized":
            self._initialized = body
        async with reporting_failure(self._pipe, ids):
            session = self.poster.session
            if not await self._post(body, ids, headers, method):
                return
            # The upstream has refused the message because of its session, so it has not run.
            if not (await self._replace(session) and not await self._post(body, ids, headers, "")):
                await self._pipe.fail(ids, INVALID_REQUEST, "Session terminated")

    async def _post(self, body: bytes, ids: Sequence[str], headers: Headers, method: str) -> bool:
        """Send a message, and receive its answer; return whether the session is lost instead."""
        # A message may state its revision; then it belongs to no session.
        is_stateless = any(name == b"mcp-protocol-version" for name, _ in headers)
        session = [] if is_stateless else self.poster.headers
        sent = [JSON_OR_EVENTS, JSON_BODY, *session, *headers]
        async with self.poster.exchange(b"POST", sent, body) as response:
            if method == "initialize" and response.status < 300:
                self.poster.session = response.header(b"mcp-session-id") or None
            if response.status == 404 and any(name == b"mcp-session-id" for name, _ in sent):
                await read_away(response)
                return True
            await self._take(response, ids, method)
        return False

    async def _replace(self, lost: bytes | None) -> bool:
        """Open a session in the place of a lost one; return whether there is one now."""
        async with self._replacing:
            if self.poster.session == lost:  # else another message has replaced it
                self.poster.forget_session()
                if self._opening is None or not await self._reopen(self._opening):
                    self.poster.session = lost
                    return False
        if self._stream and self._stream.done():
            self._stream = asyncio.create_task(self._follow(_Place(endless=True)))
        return True

    async def _reopen(self, opening: bytes) -> bool:
        sent = [JSON_OR_EVENTS, JSON_BODY]
        async with self.poster.exchange(b"POST", sent, opening) as response:
            session = response.header(b"mcp-session-id")
            async for said in self._messages_in(response):
                revision = string_in(said, "result", "protocolVersion")
                if revision is not None and revision.isascii():
                    break
                await self._pipe.receive(said)
            else:
                return False
            await read_away(response)
        if self.poster.revision and revision != self.poster.revision:
            return False  # the client relies on the revision that it knows
        self.poster.session = session
        if self._initialized:
            await self._post(self._initialized, (), (), "")
        return True

    async def _messages_in(self, response: HttpResponse) -> AsyncIterator[bytes]:
        if response.status != 200:
            return
        if response.media_type == EVENT_STREAM:
            async for event in EventReader(response, self._limits.pending):
                if isinstance(event, Event) and event.is_message and event.data:
                    yield event.data
        elif response.media_type == JSON:
            yield await response.read(self._limits.message)

    def listen(self) -> None:
        """Open the GET stream, once a session is initialized."""
        if self._stream is None:
            self._stream = asyncio.create_task(self._follow(_Place(endless=True)))

    async def close(self) -> None:
        """End the session."""
        if self._stream:
            self._stream.cancel()
            await asyncio.wait([self._stream])
        await self.poster.close()

    async def _take(self, response: HttpResponse, ids: Sequence[str], method: str) -> None:
        if response.status >= 300:
            await self._take_refusal(response, ids, method)
        elif response.media_type == EVENT_STREAM and response.status == 200:
            await self._take_stream(response, ids)
        elif response.media_type == JSON:
            await self._take_body(response, ids)
        else:
            await read_away(response)
        await self._pipe.fail(ids, INTERNAL_ERROR, "The server sent no answer")

    async def _take_body(self, response: HttpResponse, ids: Sequence[str]) -> None:
        try:
            body = await response.read(self._limits.message)
        except ConnectionLost:
            raise
        except HttpFailed as error:  # too long, or not decodable
            await self._pipe.fail(ids, INTERNAL_ERROR, plain(str(error)))
            return
        if body.strip():
            await self._pipe.receive(body)

    async def _take_refusal(self, response: HttpResponse, ids: Sequence[str], method: str) -> None:
        body = b""
        with suppress(HttpFailed):
            body = await response.read(_ERROR_BODY)
        for answer in _errors_in(body, ids):
            await self._pipe.receive(answer)
        code, text = INTERNAL_ERROR, f"The server answered {plain(response.status_line)}"
        if response.status == 404 or (method == "server/discover" and response.status < 500):
            code, text = METHOD_NOT_FOUND, "Method not found"
        await self._pipe.fail(ids, code, text)

    async def _take_stream(self, response: HttpResponse, ids: Sequence[str]) -> None:
        """Receive an answer that is a stream; resume it if it breaks."""
        place = _Place()
        try:
            await self._receive_events(response, place, ids)
        except (HttpFailed, ProtocolError) as error:
            if place.last_id is None:
                raise ConnectionLost(str(error)) from None
        await self._follow(place, ids)

    async def _follow(self, place: _Place, ids: Sequence[str] = ()) -> None:
        """Get a stream, again whenever it breaks, as long as one of these requests waits; if it is
        endless, as long as the upstream offers one."""
        is_first = place.endless
        while place.may_resume and (place.endless or self._pipe.waits_for(ids)):
            if not is_first:
                await place.wait()
            is_first = False
            headers = [EVENTS, *self.poster.headers]
            if place.last_id:
                headers.append((b"last-event-id", place.last_id))
            try:
                async with self.poster.exchange(b"GET", headers) as response:
                    if response.status == 200 and response.media_type == EVENT_STREAM:
                        await self._receive_events(response, place, ids)
                    elif place.endless or response.status < 500:
                        return
            except NotConnected as error:
                await self._pipe.missed(error)
            except HttpFailed:
                pass
            except ProtocolError:  # a stream that we cannot read
                return

    async def _receive_events(
        self, response: HttpResponse, place: _Place, ids: Sequence[str] = ()
    ) -> None:
        async for event in EventReader(response, self._limits.pending):
            place.note(event)
            await receive_event(event, self._pipe)
            if ids and not self._pipe.waits_for(ids):
                await read_away(response)
                return


class _Place:
    """The position in a stream, and when it may be resumed."""

    def __init__(self, *, endless: bool = False) -> None:
        self.last_id: bytes | None = None
        self._retry = _RETRY
        self._tries = 0
        self.endless = endless

    def note(self, event: Event | Oversized) -> None:
        self._tries = 0
        if not isinstance(event, Event):
            return
        for line in event.others.split(b"\n"):
            key, _, value = line.partition(b":")
            value = value.removeprefix(b" ")
            if key == b"id" and b"\0" not in value:
                self.last_id = value or None
            elif key == b"retry" and value.isdigit():
                self._retry = min(int(value[:9]) / 1000, _LONGEST_RETRY)

    @property
    def may_resume(self) -> bool:
        return self.endless or (self.last_id is not None and self._tries < _MOST_TRIES)

    async def wait(self) -> None:
        delay = min(self._retry * 2 ** max(0, self._tries - 1), _LONGEST_RETRY)
        self._tries += 1
        await asyncio.sleep(delay)


class LegacyUpstream(OwnLegacyStream):
    """HTTP+SSE: a GET stream with all answers, and a path to post to, which it names."""

    def __init__(self, http: HttpClient, path: str, pipe: Pipe, limits: Limits) -> None:
        super().__init__(http, path, limit=limits.pending)
        self._pipe = pipe

    async def open(self) -> None:
        """Open the stream, and wait until it names the path to post to. Raises HttpFailed."""
        try:
            await super().open()
        except (Refused, ProtocolError) as error:
            raise HttpFailed(str(error)) from None

    async def post(
        self, body: bytes, ids: Sequence[str], headers: Headers, *, method: str = ""
    ) -> None:
        """Send a message; its answer comes on the stream."""
        async with reporting_failure(self._pipe, ids):
            try:
                await self.poster.tell(body, self.poster.headers)
            except Refused as refused:
                text = f"The server answered {refused.status_line}"
                is_probe = method == "server/discover" and refused.status < 500
                code = METHOD_NOT_FOUND if is_probe else INTERNAL_ERROR
                await self._pipe.fail(ids, code, text)

    def listen(self) -> None:
        """The stream is open already."""

    async def _read(self, events: EventReader) -> None:
        why = "The event stream has ended"
        try:
            async for event in events:
                await receive_event(event, self._pipe)
        except (HttpFailed, ProtocolError) as error:
            why = str(error)
        await self._pipe.missed(StreamEnded(why))


class StreamEnded(HttpFailed):
    """The one stream of an HTTP+SSE session is gone, and the session with it."""


@asynccontextmanager
async def reporting_failure(pipe: Pipe, ids: Sequence[str]) -> AsyncIterator[None]:
    """Answer these requests with an error if the upstream gives no answer that can be read."""
    try:
        yield
    except ProtocolError as error:
        await pipe.fail(ids, INTERNAL_ERROR, plain(str(error)))
    except HttpFailed as error:
        await pipe.fail(ids, *words_for(error))
        await pipe.missed(error)


async def receive_event(event: Event | Oversized, pipe: Pipe) -> None:
    if isinstance(event, Oversized):
        await pipe.receive(CutLine(event.beginning, b"", len(event.beginning)))
    elif event.is_message and event.data and event.data.strip():
        await pipe.receive(event.data)


def words_for(error: HttpFailed) -> tuple[int, str]:
    """Return the error code and text for a request that got no answer."""
    if isinstance(error, LoginNeeded):
        return NOT_LOGGED_IN, plain(str(error))
    return UPSTREAM_LOST, f"Upstream connection lost: {plain(str(error))}"


def _errors_in(body: bytes, ids: Sequence[str]) -> list[bytes]:
    """Return the JSON-RPC errors for a refusal, with the request's id if it has none."""
    try:
        message = json.loads(body)
    except (ValueError, RecursionError):
        return []
    if not isinstance(message, dict) or not isinstance(message.get("error"), dict):
        return []
    if message.get("id") is not None or len(ids) != 1:
        return [body]
    error = json.dumps(message["error"])
    return [f'{{"jsonrpc":"2.0","id":{ids[0]},"error":{error}}}'.encode()]
