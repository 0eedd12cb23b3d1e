"""Our session with one server, for one client: opened when it is first needed.

    leg = ServerSession(talk, running)
    await leg.open()                # Missing, if the server cannot be asked
    leg.send(raw, pending)          # a message of the client; its answer goes to pending.outlet
    answer = await leg.request("tools/list", "{}")
    leg.listen(); leg.close()

There are three kinds of servers: with a session (the answer comes on each POST), with HTTP+SSE (all
comes on one stream), and stateless ones, which need no session. A server that has forgotten the
session (404) gets a new one, and the message once more: it has not run.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mcp_tool_filter.core.http.bodies import is_event_stream
from mcp_tool_filter.core.http.head import Fields, mirrored_headers, param_headers_in, text_of
from mcp_tool_filter.core.messages.limits import (
    SESSION_REVISIONS,
    STATELESS_REVISIONS,
    Transport,
    revision_of,
)
from mcp_tool_filter.core.messages.messages import (
    INTERNAL_ERROR,
    UPSTREAM_LOST,
    Response,
    id_value,
    parse_message,
    read_message,
    render_error,
    singles,
)
from mcp_tool_filter.core.messages.sse import Event, EventParser, Oversized
from mcp_tool_filter.core.process.site import Site
from mcp_tool_filter.rooms.merged.messages import Offered, listening, quoted, with_id
from mcp_tool_filter.rooms.merged.visits import Visit, delete_head, get_head, post_head

if TYPE_CHECKING:
    from mcp_tool_filter.core.engine.wire import RequestHead
    from mcp_tool_filter.rooms.merged.session import Talk
    from mcp_tool_filter.rooms.serve.servers import Running

_PATIENCE = 30.0  # seconds for a server to start, and to answer ``initialize``
_FIRST_PAUSE = 1.0  # seconds until a stream that has ended is opened again
_LONGEST_PAUSE = 30.0
_MOST_TRIES = 8
_NO_ANSWER = "The server sent no answer"


class Missing(Exception):
    """A server that cannot be asked now; the text is for people."""


class NoSession(Missing):
    """A server that refuses ``initialize``."""


class Outlet:
    """Where messages for our client go: the answer to its POST, its stream, or stdout."""

    is_open = True
    resumes = False
    """True if the client itself reads on where a stream has ended."""
    origin: object = None
    """The host's own object of the client's request."""

    def begin(self) -> None:
        """The server answers with events, so ours may come later."""

    def answer(self, raw: bytes, others: bytes = b"") -> None:
        """Send the answer to a request. ``others`` are the lines of its event besides the data."""

    def tell(self, raw: bytes, others: bytes = b"") -> bool:
        """Send another message; False if nobody reads it."""
        return False

    def pause(self) -> None:
        """The server has ended its stream; the answer comes on another one."""


@dataclass(eq=False, slots=True)
class Pending:
    """A request that waits for its answer."""

    id: str
    """As it was written."""
    method: str
    outlet: Outlet
    leg: ServerSession | None = None
    called: str = ""
    """What the client calls the tool."""
    token: str | None = None
    ask: Visit | None = None
    rounds: int = 0
    """How often the server has asked for more input."""
    is_asking: bool = False
    """True while the client is asked for that input."""
    raw: bytes = b""
    """The request, if it may have to be sent again with more input."""
    last_id: bytes = b""
    """The id of the last event of its stream, if the server gives ids."""


@dataclass(eq=False)
class Own(Outlet):
    """Takes the answer to our own request."""

    came: asyncio.Future[bytes] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )

    def answer(self, raw: bytes, others: bytes = b"") -> None:
        if not self.came.done():
            self.came.set_result(raw)


class ServerSession:
    """Our side of it."""

    def __init__(self, talk: Talk, running: Running) -> None:
        self.talk, self.running, self.name = talk, running, running.plan.name
        self.is_open = self.is_stateless = self.is_legacy = False
        self.id = b""
        self.revision = ""
        self.offered: Offered = {}
        self._opening: asyncio.Task[None] | None = None
        self._post: RequestHead | None = None
        self._path = "/mcp"
        self._named_path: asyncio.Future[str] | None = None
        self._stream: ServerStream | None = None
        self._numbers = 0

    @property
    def site(self) -> Site | None:
        return self.running.site

    # Opening and closing

    async def open(self) -> None:
        """Open a session, unless it is open. Raises Missing."""
        if self.is_open and self.running.site is not None:
            return
        if self._opening is None or self._opening.done():
            self._opening = self.talk.spawn(self._open())
        try:
            await asyncio.shield(self._opening)
        except TimeoutError:
            raise Missing(f"The server {self.name} does not answer") from None

    async def _open(self) -> None:
        async with asyncio.timeout(_PATIENCE):
            site = await self._running_site()
            fetched = site.listener.fetched
            is_newer, known = fetched.revision in STATELESS_REVISIONS, self.talk.endpoint.only_newer
            self.is_stateless = is_newer and (self.talk.is_stateless or self.name in known)
            self.is_legacy = fetched.transport is Transport.LEGACY_SSE
            self.offered, self.id, self._post = fetched.offered, b"", None
            self.revision = ""
            if not self.is_stateless:
                try:
                    await self._initialize()
                except NoSession:  # of both eras, a server gets what our client speaks
                    if not is_newer:
                        raise
                    known.add(self.name)
                    self.is_stateless = True
            self.revision = fetched.revision if self.is_stateless else self.revision
        self.is_open = True
        if self.talk.is_listening:
            self.listen()

    async def _running_site(self) -> Site:
        if self.running.site is None:
            await asyncio.wait([self.running.start()])
        if (site := self.running.site) is None:
            raise Missing(f"The server {self.name} is not available")
        return site

    async def _initialize(self) -> None:
        talk = self.talk
        if self.is_legacy:
            self._named_path = asyncio.get_running_loop().create_future()
            self.listen()
            self._path = await self._named_path
        asked = talk.revision if talk.revision in SESSION_REVISIONS else SESSION_REVISIONS[-1]
        params = (
            f'{{"protocolVersion":"{asked}","capabilities":{talk.capabilities},'
            f'"clientInfo":{talk.client_info}}}'
        )
        said = self._result_of(await self.request("initialize", params))
        self.revision = str(said.get("protocolVersion") or asked)
        offered = said.get("capabilities")
        self.offered = offered if isinstance(offered, dict) else {}
        self._post = None
        await self._post_alone(b'{"jsonrpc":"2.0","method":"notifications/initialized"}')
        if talk.level is not None and "logging" in self.offered:
            await self.request("logging/setLevel", f'{{"level":{talk.level}}}')

    def _result_of(self, answer: bytes) -> Mapping[str, Any]:
        """Return a result. Raises Missing, with the text of the error."""
        try:
            said = json.loads(answer)
        except (ValueError, RecursionError):
            said = {}
        if isinstance(result := said.get("result"), dict):
            return result
        error = said.get("error")
        is_ours = isinstance(error, dict) and error.get("code") == UPSTREAM_LOST
        if isinstance(error, dict) and is_ours:
            raise Missing(str(error.get("message")))
        raise NoSession(f"The server {self.name} refuses a session")

    async def _post_alone(self, raw: bytes) -> None:
        """Send a notification; return when the server has it."""
        errand = Errand(self, raw, None)
        over = errand.over = asyncio.get_running_loop().create_future()
        errand.begin()
        await over

    def close(self) -> None:
        """End the session."""
        if self._stream is not None:
            self._stream.close()
        if self.id and self.site is not None:
            Errand(self, b"", None).begin(delete_head(self.name, self.session_fields))
        self.is_open, self.id = False, b""

    def lose(self, id: bytes) -> None:
        """The server has forgotten the session with this id."""
        if self.id == id:
            self.is_open, self.id, self._post = False, b"", None

    # Sending

    def send(self, raw: bytes, pending: Pending | None = None) -> None:
        """Send a message of the client, or of our own. The session is open."""
        Errand(self, raw, pending).begin()

    async def request(self, method: str, params: str) -> bytes:
        """Return the answer to our own request. Raises Missing."""
        self._numbers += 1
        id = f'"mcp-tool-filter:{self.name}:{self._numbers}"'
        raw = f'{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{params}}}'.encode()
        pending = Pending(id, method, own := Own(), self)
        self.talk.waiting[id_value(id)] = pending
        try:
            self.send(self.talk.as_stateless(raw) if self.is_stateless else raw, pending)
            return await own.came
        finally:
            self.talk.waiting.pop(id_value(id), None)
            if pending.ask is not None and not own.came.done():
                pending.ask.leave()

    def head_for(self, raw: bytes) -> RequestHead:
        """Return the head of a POST with this message."""
        if self.is_stateless:
            message = parse_message(raw, self.talk.limits)
            return post_head(self.name, "/mcp", tuple(mirrored_headers(message, self._params())))
        if self._post is None:
            self._post = post_head(self.name, self._path, self.session_fields)
        return self._post.again()

    def _params(self) -> Mapping[str, Any]:
        return _ParamHeaders(self.site)

    @property
    def session_fields(self) -> Fields:
        fields: list[tuple[bytes, bytes]] = []
        if self.id:
            fields.append((b"mcp-session-id", self.id))
        if revision_of(self.revision).has_header:
            fields.append((b"mcp-protocol-version", self.revision.encode()))
        return tuple(fields)

    # Streams

    def listen(self) -> None:
        """Open the stream on which the server says what answers no request."""
        if self._stream is None or self._stream.is_over:
            self._stream = ServerStream(self)
            self._stream.begin()

    def subscribe_again(self) -> None:
        """Listen to a stateless server with the present subscriptions."""
        if self._stream is not None and self.is_stateless:
            self._stream.close()
            self._stream = None
            self.listen()

    def note_no_path(self) -> None:
        """The stream of HTTP+SSE has ended; perhaps before it has named a path."""
        if self._named_path is not None and not self._named_path.done():
            self._named_path.set_exception(Missing(f"The server {self.name} is not available"))

    def resume(self, last_id: bytes, outlet: Outlet) -> None:
        """Read a stream on, behind the event with this id."""
        ServerStream(self, outlet, last_id).begin()

    def take_event(self, event: Event | Oversized, outlet: Outlet) -> None:
        """Take an event of the server."""
        if not isinstance(event, Event):
            return
        if event.name == b"endpoint" and self._named_path is not None:
            path = (event.data or b"").decode("latin-1").strip()
            if not self._named_path.done():
                self._named_path.set_result(path.removeprefix(f"/{self.name}"))
            return
        others = _renamed(event.others, self.name) if event.others else b""
        if event.data and event.data.strip():
            self.talk.from_server(self, event.data, outlet, others)
        elif others:
            outlet.tell(b"", others)


class _ParamHeaders(dict[str, Any]):
    """Which arguments a server's tools want in headers, as far as its list is known."""

    def __init__(self, site: Site | None) -> None:
        self._known = site.listener.snapshot.allowed if site is not None else {}

    def get(self, name: str, default: Any = None) -> Any:
        raw = self._known.get(name)
        return param_headers_in(raw) if raw is not None else default


def _renamed(others: bytes, server: str) -> bytes:
    """Return the lines of an event besides its data, with the server's name before its id."""
    lines = []
    for line in others.split(b"\n"):
        key, _, value = line.partition(b":")
        if key == b"id":
            value = value.removeprefix(b" ")
            line = b"id: %b.%b" % (server.encode(), value) if value else line
        lines.append(line)
    return b"\n".join(lines)


def _id_in(event: Event, before: bytes) -> bytes:
    """Return the id of an event; without one, that of the event before it."""
    for line in event.others.split(b"\n"):
        if line.startswith(b"id:"):
            return line[3:].strip()
    return before


class Errand:
    """One POST to a server, and its answer."""

    def __init__(self, leg: ServerSession, raw: bytes, pending: Pending | None) -> None:
        self._leg, self._raw, self._pending = leg, raw, pending
        self._status = 0
        self._events: EventParser | None = None
        self._parts: list[bytes] = []
        self._session = leg.id
        self._is_second = False
        self.over: asyncio.Future[None] | None = None

    def begin(self, head: RequestHead | None = None) -> None:
        leg, pending = self._leg, self._pending
        ask = Visit(leg.talk.visitor, self)
        called = ""
        if pending is not None:
            pending.ask, called = ask, pending.called
        ask.begin(leg.talk.route, head or leg.head_for(self._raw), self._raw, called)

    # The answer

    def on_head(self, status: int, fields: Fields) -> None:
        self._status = status
        pending, leg = self._pending, self._leg
        if pending is not None and pending.method == "initialize" and status == 200:
            leg.id = text_of(fields, b"mcp-session-id").encode("latin-1")
        if status == 200 and is_event_stream(text_of(fields, b"content-type")):
            self._events = EventParser(max_pending=leg.talk.limits.pending)
            if pending is not None:
                pending.outlet.begin()

    def on_data(self, data: bytes) -> None:
        if self._events is None or self._pending is None:
            self._parts.append(data)
            return
        for event in self._events.feed(data):
            if isinstance(event, Event):
                self._pending.last_id = _id_in(event, self._pending.last_id)
            self._leg.take_event(event, self._pending.outlet)

    def on_end(self, *, is_cut: bool) -> None:
        pending, talk, leg = self._pending, self._leg.talk, self._leg
        if self.over is not None and not self.over.done():
            self.over.set_result(None)
        is_lost = self._status == 404 and self._session and not self._is_second
        if is_lost:
            leg.lose(self._session)
        if is_lost and self._raw and not (pending and pending.method == "initialize"):
            talk.spawn(self._once_more())
            return
        if pending is None or not talk.waits_for(pending):
            return
        body = b"".join(self._parts)
        if self._events is not None:
            if pending.last_id and pending.outlet.resumes:
                pending.outlet.pause()
            elif pending.last_id:
                ServerStream(leg, pending.outlet, pending.last_id, pending).begin()
            elif not leg.is_legacy:
                self._fail(INTERNAL_ERROR, _NO_ANSWER)
        elif self._status == 202 and leg.is_legacy:
            pass  # the answer comes on the stream, whatever the body says
        elif self._status < 300 and body.strip():
            self._take_body(body)
        else:
            self._take_refusal(body)

    def _take_body(self, body: bytes) -> None:
        pending, talk = self._pending, self._leg.talk
        assert pending is not None
        if body.lstrip()[:1] != b"[":
            talk.from_server(self._leg, body, pending.outlet)
        else:
            for one in singles(parse_message(body, talk.limits)):
                talk.from_server(self._leg, one.place.raw, pending.outlet)
        if talk.waits_for(pending):
            self._fail(INTERNAL_ERROR, _NO_ANSWER)

    def _take_refusal(self, body: bytes) -> None:
        """Answer with the server's own error if it says one; with no word of its logins."""
        pending, leg = self._pending, self._leg
        assert pending is not None
        if self._status in (401, 403):
            leg.talk.note_login(leg.name)
            site = leg.site
            url = site.url if site is not None else ""
            text = f"The server {leg.name} wants a login: mcp-tool-filter login {url}"
            return self._fail(UPSTREAM_LOST, text)
        said = read_message(body) if body else None
        if isinstance(said, Response) and said.result is None and b'"id"' in body:
            return leg.talk.from_server(leg, with_id(body, pending.id), pending.outlet)
        if self._status < 300:
            return self._fail(INTERNAL_ERROR, _NO_ANSWER)
        return self._fail(INTERNAL_ERROR, f"The server {leg.name} answered HTTP {self._status}")

    def _fail(self, code: int, text: str) -> None:
        pending = self._pending
        assert pending is not None
        if pending.is_asking:
            return
        self._leg.talk.settle(pending, render_error(pending.id, code, text))

    def on_failure(self) -> None:
        if self._pending is not None:
            self._pending.is_asking = False
            self._fail(INTERNAL_ERROR, "Internal error")
        if self.over is not None and not self.over.done():
            self.over.set_result(None)

    async def _once_more(self) -> None:
        """Send the message again in a new session."""
        pending, leg = self._pending, self._leg
        self._is_second, self._parts = True, []
        try:
            await leg.open()
        except Missing as missing:
            if pending is not None:
                self._fail(UPSTREAM_LOST, str(missing))
            return
        if pending is None or leg.talk.waits_for(pending):
            self._session = leg.id
            self.begin()


class ServerStream:
    """A stream of a server: what answers no request, or the rest of an answer."""

    def __init__(
        self,
        leg: ServerSession,
        outlet: Outlet | None = None,
        last_id: bytes = b"",
        pending: Pending | None = None,
    ) -> None:
        """With an ``outlet``, it is read on for a client, which gets what comes and its ids; with
        ``pending``, as often as it takes until that has its answer."""
        self._leg, self._outlet, self._last_id = leg, outlet, last_id
        self._pending, self._tries = pending, 0
        self._ask: Visit | None = None
        self._events: EventParser | None = None
        self._pause = _FIRST_PAUSE
        self._is_closed = False
        self.is_over = False

    def begin(self) -> None:
        leg, talk = self._leg, self._leg.talk
        self._events = None
        self._ask = Visit(talk.visitor, self)
        if leg.is_stateless:
            params = f'{{"notifications":{listening(talk.subscriptions(leg))}}}'
            id = quoted(f"mcp-tool-filter:{leg.name}:stream")
            raw = f'{{"jsonrpc":"2.0","id":{id},"method":"subscriptions/listen","params":{params}}}'
            body = talk.as_stateless(raw.encode())
            self._ask.begin(talk.route, leg.head_for(body), body)
            return
        fields = leg.session_fields
        if self._last_id:
            fields = (*fields, (b"last-event-id", self._last_id))
        self._ask.begin(talk.route, get_head(leg.name, "/mcp", fields), b"")

    def close(self) -> None:
        self._is_closed = self.is_over = True
        if self._ask is not None:
            self._ask.leave()

    def on_head(self, status: int, fields: Fields) -> None:
        if status == 200 and is_event_stream(text_of(fields, b"content-type")):
            self._events = EventParser(max_pending=self._leg.talk.limits.pending)
        elif status == 404 and self._outlet is None:
            self._leg.lose(self._leg.id)

    def on_data(self, data: bytes) -> None:
        if self._events is None:
            return
        self._pause = _FIRST_PAUSE
        for event in self._events.feed(data):
            if isinstance(event, Event):
                self._last_id = _id_in(event, self._last_id)
            self._leg.take_event(event, self._outlet or self._leg.talk.stream)

    def on_end(self, *, is_cut: bool) -> None:
        self._ask = None
        leg = self._leg
        leg.note_no_path()
        if self._pending is not None:
            return self._resume_for(self._pending)
        if self._outlet is not None:
            self.is_over = True
            return self._outlet.pause()
        if leg.is_legacy:  # the session has ended with it
            self.is_over, leg.is_open = True, False
            return leg.talk.lose_all(leg)
        if self._events is None or self._is_closed or not leg.is_open:
            self.is_over = True  # the server offers none
            return None
        leg.talk.spawn(self._again())
        return None

    def on_failure(self) -> None:
        self.is_over = True

    def _resume_for(self, pending: Pending) -> None:
        talk = self._leg.talk
        self._tries += 1
        if self._tries < _MOST_TRIES and talk.waits_for(pending):
            talk.spawn(self._again())
            return
        talk.settle(pending, render_error(pending.id, INTERNAL_ERROR, _NO_ANSWER))

    async def _again(self) -> None:
        await asyncio.sleep(self._pause)
        self._pause = min(self._pause * 2, _LONGEST_PAUSE)
        if not self._is_closed and self._leg.is_open and self._leg.site is not None:
            self.begin()
        else:
            self.is_over = True
