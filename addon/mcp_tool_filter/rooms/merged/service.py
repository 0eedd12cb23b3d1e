"""Serve the merged endpoints over HTTP: ``/mcp``, and ``/PROFILE/mcp`` for each profile.

    merged = Merged(servers, merging, connect)
    merged.adopt(merging)     # the file was read again
    merged.close()

Heads were judged by the gate of the whole process when a request comes here. A POST is answered
with JSON if only answers come, and with events as soon as anything else does.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Final

from mcp_tool_filter.core.conversation.memory import Fetched
from mcp_tool_filter.core.conversation.policy_in_force import oversized
from mcp_tool_filter.core.engine.exchange import Exchange, Phase
from mcp_tool_filter.core.engine.service import nothing
from mcp_tool_filter.core.engine.steps import Answer
from mcp_tool_filter.core.engine.upstream import Upstream
from mcp_tool_filter.core.errors import ProtocolError
from mcp_tool_filter.core.http.asked import Answered, refused
from mcp_tool_filter.core.http.bodies import decode_body
from mcp_tool_filter.core.http.head import Fields, Head, problem_in_mirrored, revision_in
from mcp_tool_filter.core.http.listener import Listener, open_listener
from mcp_tool_filter.core.messages.limits import (
    NEWEST_STATELESS,
    SESSION_REVISIONS,
    STATELESS_REVISIONS,
    OverLimit,
    revision_of,
)
from mcp_tool_filter.core.messages.messages import (
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    Batch,
    Message,
    Request,
    parse_message,
    render_batch,
    render_error,
    singles,
)
from mcp_tool_filter.core.messages.sse import render_event
from mcp_tool_filter.core.policy.config import Config
from mcp_tool_filter.core.policy.verdict import Reply, Why
from mcp_tool_filter.core.process.background import in_background
from mcp_tool_filter.rooms.lane.lane import plain_call
from mcp_tool_filter.rooms.merged.endpoint import Kept, MergedEndpoint
from mcp_tool_filter.rooms.merged.messages import (
    META,
    agreed_revision,
    client_capabilities,
    render_result,
    text_at,
    value_at,
    with_value,
)
from mcp_tool_filter.rooms.merged.server_session import Outlet
from mcp_tool_filter.rooms.merged.session import Talk
from mcp_tool_filter.rooms.merged.visits import Connect, Visitor

if TYPE_CHECKING:
    from mcp_tool_filter.core.engine.service import GoOn
    from mcp_tool_filter.rooms.merged.choices import Merging
    from mcp_tool_filter.rooms.serve.servers import Servers

_EVENTS: Final = ((b"content-type", b"text/event-stream"), (b"cache-control", b"no-store"))
_HEARTBEAT: Final = 25.0  # seconds between two comments on a quiet stream
_MOST_WARNINGS: Final = 1000
_NO_SESSION = render_error(None, INVALID_REQUEST, "Missing Mcp-Session-Id: initialize first")
_UNKNOWN_SESSION = render_error(None, INVALID_REQUEST, "Session not found")
_UNSUPPORTED = render_error(None, INVALID_REQUEST, "Unsupported MCP-Protocol-Version")
_NO_METHOD = render_error(None, INVALID_REQUEST, "Method not allowed")


class Merged:
    """All merged endpoints of the process, by their paths."""

    def __init__(self, servers: Servers, merging: Merging, connect: Connect) -> None:
        """``connect`` reaches upstreams that are not in this process."""
        self._servers, self._connect = servers, connect
        config = Config(limits=servers.whole.config.limits)
        nowhere = open_listener(upstream="http://servers.invalid", config=config, fetched=Fetched())
        self._nothing = nowhere.policy
        self.endpoints: dict[str, MergedEndpoint] = {}
        self._warned: set[str] = set()
        servers.on_change = self.note_change
        self.adopt(merging)

    def adopt(self, merging: Merging) -> None:
        """Serve what the file has now. Sessions of endpoints that stay go on."""
        gone = set(self.endpoints)
        for profile in merging.profiles:
            path = profile.path
            gone.discard(path)
            known = self.endpoints.get(path)
            if known is not None:
                known.adopt(merging, profile)
                continue
            known = MergedEndpoint(self._servers, merging, profile, self._nothing, self._warn_once)
            self.endpoints[path] = known
            door = _Door(known, self._connect)
            name = profile.name or "mcp"
            self._servers.more[path] = self._servers.open_service(name, door.take)
        for path in gone:
            self.endpoints.pop(path).close()
            self._servers.whole.more_services.remove(self._servers.more.pop(path))

    def serve_lines(self, path: str, on_end: Callable[[], None]) -> None:
        """Serve what is at a path over stdin and stdout, too."""
        from mcp_tool_filter.rooms.merged.stdio import Lines

        Lines(self.endpoints[path], self._connect, on_end).start()

    def _warn_once(self, text: str) -> None:
        """Warn of what may be so in several profiles."""
        if text not in self._warned and len(self._warned) < _MOST_WARNINGS:
            self._warned.add(text)
            self._servers.whole.warn(text)

    def begin(self) -> None:
        """The process has its observers now: tell them of what is unknown here."""
        whole = self._servers.whole
        whole.observe(self._nothing)
        whole.shown_besides = self._shown

    def _shown(self) -> dict[str, Listener]:
        whole, address = self._servers.whole, self._servers.address
        whole.addresses |= {one.name: address + path for path, one in self.endpoints.items()}
        return {one.name: one.shown() for one in self.endpoints.values()}

    def note_change(self) -> None:
        for endpoint in self.endpoints.values():
            endpoint.note_change()

    def close(self) -> None:
        for endpoint in self.endpoints.values():
            endpoint.close()

    @property
    def lines(self) -> list[str]:
        """The lines of the report."""
        return [self._line(path, one) for path, one in self.endpoints.items()]

    def _line(self, path: str, endpoint: MergedEndpoint) -> str:
        known, name = endpoint.present(), endpoint.name
        servers, tools, hidden = len(endpoint.members), len(known), len(known.hidden)
        of = "1 server" if servers == 1 else f"{servers} servers"
        many = "1 tool" if tools == 1 else f"{tools} tools"
        return f"  {name}: {self._servers.address}{path} -> {of}: {many}, {hidden} hidden"


class _Door:
    """The HTTP side of one endpoint."""

    def __init__(self, endpoint: MergedEndpoint, connect: Connect) -> None:
        self._endpoint, self._connect = endpoint, connect
        self._talks: dict[str, Talk] = {}

    def take(self, exchange: Exchange, _go_on: GoOn) -> None:
        """Answer a request, now or later."""
        head = exchange.head.notes.head
        assert head is not None
        match exchange.head.method:
            case "POST":
                self._post(exchange, head)
            case "GET":
                self._get(exchange, head)
            case "DELETE":
                if (talk := self._talk_of(exchange, head)) is not None:
                    del self._talks[head.said.session_id or ""]
                    self._endpoint.leave(talk)
                    _reply(exchange, 200)
            case "OPTIONS":
                _reply(exchange, 204)
            case _:
                _reply(exchange, 405, _NO_METHOD)

    # POST

    def _post(self, exchange: Exchange, head: Head) -> None:
        listener = exchange.service.listener
        limits = listener.config.limits
        try:
            if problem := head.problem:
                raise ProtocolError(problem[0])
            body = decode_body(exchange.body, head.said.coding or "", limit=limits.message)
            if self._take_plain(exchange, head, body):
                return None
            message = parse_message(body, limits)
        except OverLimit as error:
            said = oversized(exchange.body, str(error))
            return self._refuse(exchange, said, 200 if b'"id":null' not in said.text else 413)
        except ProtocolError as error:
            return self._refuse(exchange, refused(exchange.body, Why.MALFORMED, str(error), limits))
        if why := problem_in_mirrored(head, message):
            return self._refuse(exchange, refused(body, Why.MISMATCH, why, limits))
        try:
            return self._take_message(exchange, head, message)
        except ProtocolError as error:
            return self._refuse(exchange, refused(body, Why.MALFORMED, str(error), limits))

    def _take_plain(self, exchange: Exchange, head: Head, body: bytes) -> bool:
        """Pass a call on that needs no reading, the commonest request; False for any other."""
        talk = self._talks.get(head.said.session_id or "")
        has_more = head.get(b"mcp-method") or head.get(b"mcp-name") or b'"_meta"' in body
        if talk is None or has_more or head.said.revision not in (None, *SESSION_REVISIONS):
            return False
        call = plain_call(body) if body.count(b'"name"') == 1 else None
        if call is None or (passing := talk.passing(call.id, call.tool)) is None:
            return False
        self._talk_of(exchange, head)  # it was used just now
        passing(body, _PostOutlet(exchange, talk, 1, head))
        return True

    def _refuse(self, exchange: Exchange, said: Reply, status: int = 400) -> None:
        exchange.service.listener.tell_refused(said, exchange)
        _reply(exchange, status, said.text)

    def _take_message(self, exchange: Exchange, head: Head, message: Message) -> None:
        if revision_in(message) is not None or head.said.revision in STATELESS_REVISIONS:
            return self._take_stateless(exchange, head, message)
        if isinstance(message, Request) and message.method == "initialize":
            in_background(_answering(exchange, self._initialize(exchange, message)))
            return None
        talk = self._talk_of(exchange, head)
        if talk is None:
            return None
        if isinstance(message, Batch) and not revision_of(talk.revision).has_batches:
            raise ProtocolError("a batch, which this revision does not have")
        members = list(singles(message))
        waits = sum(isinstance(one, Request) for one in members)
        if waits == 0:
            for one in members:
                talk.take(one, talk.stream)
            return _reply(exchange, 202)
        is_batch = isinstance(message, Batch)
        outlet = _PostOutlet(exchange, talk, waits, head, is_batch=is_batch)
        for one in members:
            talk.take(one, outlet)
        return None

    def _take_stateless(self, exchange: Exchange, head: Head, message: Message) -> None:
        """Take a message of 2026-07-28, which belongs to no session."""
        if not isinstance(message, Request):
            return _reply(exchange, 202)  # in this revision a client cancels by disconnecting
        if not self._endpoint.is_stateless:
            error = render_error(message.id, METHOD_NOT_FOUND, "Method not found")
            return _reply(exchange, 404, error)
        if message.method == "server/discover":
            result = self._endpoint.introduction(NEWEST_STATELESS)
            return _reply(exchange, 200, render_result(message.id, result))
        talk, message = open_stateless(self._endpoint, self._visitor(exchange), message)
        outlet = _PostOutlet(exchange, talk, 1, head, is_alone=True)
        talk.take(message, outlet)
        return None

    def _visitor(self, exchange: Exchange) -> Visitor:
        host = exchange.down.host
        return Visitor(self._connect, host.peer, host.port)

    # Sessions

    async def _initialize(self, exchange: Exchange, message: Request) -> None:
        await self._endpoint.settle()
        talk = open_talk(self._endpoint, self._visitor(exchange), message)
        name = secrets.token_hex(16)
        self._talks[name] = talk
        self._forget_some()
        answer = render_result(message.id, self._endpoint.introduction(talk.revision))
        _reply(exchange, 200, answer, ((b"mcp-session-id", name.encode()),))

    def _forget_some(self) -> None:
        """Forget the sessions that nobody has used for longest, if there are too many."""
        limits, now = self._endpoint.limits, asyncio.get_running_loop().time()
        for name, talk in list(self._talks.items()):
            is_old = talk.used_at + limits.idle < now and talk.used_at
            if not is_old and len(self._talks) <= limits.sessions:
                break
            del self._talks[name]
            self._endpoint.leave(talk)

    def _talk_of(self, exchange: Exchange, head: Head) -> Talk | None:
        """Return the talk of a request; else refuse it."""
        name = head.said.session_id
        if not name:
            _reply(exchange, 400, _NO_SESSION)
            return None
        if (talk := self._talks.pop(name, None)) is None:
            _reply(exchange, 404, _UNKNOWN_SESSION)
            return None
        self._talks[name] = talk  # the one that was used last is at the end
        talk.used_at = asyncio.get_running_loop().time()
        if head.said.revision not in (None, *SESSION_REVISIONS):
            _reply(exchange, 400, _UNSUPPORTED)
            return None
        return talk

    # GET

    def _get(self, exchange: Exchange, head: Head) -> None:
        if "text/event-stream" not in (head.get(b"accept") or ""):
            return _reply(exchange, 406)
        if (talk := self._talk_of(exchange, head)) is None:
            return None
        last_id = (head.get(b"last-event-id") or "").encode("latin-1")
        longest_first = sorted(self._endpoint.members, key=len, reverse=True)
        for server in longest_first if last_id else ():
            own = last_id.removeprefix(f"{server}.".encode())
            if own != last_id and (leg := talk.leg(server)).is_open:
                return leg.resume(own, _StreamOutlet(exchange, talk, has_ids=True))
        before = talk.stream
        stream = _StreamOutlet(exchange, talk)
        if isinstance(before, Kept):
            for one in before.drain():
                stream.tell(one)
        elif isinstance(before, _StreamOutlet):
            before.pause()
        talk.stream = stream
        talk.start_listening()
        return None


def open_talk(endpoint: MergedEndpoint, visitor: Visitor, message: Request) -> Talk:
    """Return the talk that an ``initialize`` begins."""
    declared, info = value_at(message, "capabilities"), value_at(message, "clientInfo")
    place = message.place
    talk = Talk(
        endpoint,
        visitor,
        revision=agreed_revision(text_at(message, "protocolVersion")),
        capabilities=client_capabilities(place.cut(declared)) if declared else "{}",
        client_info=place.cut(info) if info else '{"name":"unknown","version":"0"}',
    )
    endpoint.join(talk)
    talk.lists.remember_shown()
    return talk


def open_stateless(
    endpoint: MergedEndpoint, visitor: Visitor, message: Request
) -> tuple[Talk, Request]:
    """Return the talk of one request, and the request as servers may see it."""
    place = message.place
    declared = value_at(message, "_meta", f"{META}clientCapabilities")
    info = value_at(message, "_meta", f"{META}clientInfo")
    capabilities = client_capabilities(place.cut(declared)) if declared else "{}"
    if declared is not None and capabilities != place.cut(declared):
        path = "params", "_meta", f"{META}clientCapabilities"
        changed = parse_message(with_value(place.raw, capabilities, *path), endpoint.limits)
        assert isinstance(changed, Request)
        message = changed
    talk = Talk(
        endpoint,
        visitor,
        revision=NEWEST_STATELESS,
        capabilities=capabilities,
        client_info=place.cut(info) if info else "{}",
    )
    return talk, message


async def _answering(exchange: Exchange, work: Coroutine[None, None, None]) -> None:
    """Run work that answers an exchange."""
    try:
        await work
    except Exception as error:
        exchange.fail(error)
    exchange.down.host.wake()


def _reply(exchange: Exchange, status: int, body: bytes = b"", fields: Fields = ()) -> None:
    if not exchange.is_over:
        exchange.reply(Answered(status, body), with_cors=False, fields=(*_cors(exchange), *fields))
        exchange.down.host.wake()


def _cors(exchange: Exchange) -> Fields:
    """Return the headers for a page of another origin, which the gate has admitted."""
    head = exchange.head.notes.head
    origin = head.get(b"origin") if head is not None else None
    if origin is None:
        return ()
    return (
        (b"access-control-allow-origin", origin.encode("latin-1")),
        (b"access-control-allow-headers", b"*, authorization"),
        (b"access-control-allow-methods", b"GET, POST, DELETE, OPTIONS"),
        (b"access-control-expose-headers", b"mcp-session-id"),
        (b"vary", b"origin"),
    )


class _Outlet(Outlet):
    """Events on an exchange."""

    resumes = True

    def __init__(self, exchange: Exchange, talk: Talk) -> None:
        self._exchange, self._talk = exchange, talk
        self.origin = exchange
        self.is_open = True
        exchange.up = Upstream(write=_ignore, abort=self._left, hold=self._hold, idle=nothing)
        self._has_begun = False

    def _begin(self) -> None:
        if self._has_begun or not self.is_open:
            return
        self._has_begun = True
        exchange = self._exchange
        answer = exchange.answer = Answer(200, None, (*_EVENTS, *_cors(exchange)))
        exchange.phase = Phase.STREAMING
        exchange.say(b"", answer)
        exchange.down.host.wake()

    def _write(self, raw: bytes, others: bytes = b"") -> None:
        """Send an event; ``others`` are its lines besides the data."""
        data = render_event(raw) if raw or not others else b"data: \n\n"
        if others:
            data = others.strip(b"\n") + b"\n" + data
        self._send(data)

    def _send(self, data: bytes) -> None:
        if self.is_open and self._exchange.has_begun:
            self._exchange.say(data)
            self._exchange.down.host.wake()

    def _end(self) -> None:
        if self.is_open:
            self.is_open, self._exchange.up = False, None
            if self._has_begun and self._exchange.has_begun:
                self._exchange.end_stream()
                self._exchange.down.host.wake()

    def _left(self) -> None:
        """The client reads no more."""
        if self.is_open:
            self.is_open = False
            self._talk.leave(self)

    def _hold(self, on: bool) -> None:
        self._talk.slow_down(self, on)


class _PostOutlet(_Outlet):
    """The answer to a POST with requests."""

    def __init__(
        self,
        exchange: Exchange,
        talk: Talk,
        waits: int,
        head: Head,
        *,
        is_batch: bool = False,
        is_alone: bool = False,
    ) -> None:
        """``is_alone`` if the talk ends with it."""
        super().__init__(exchange, talk)
        self._waits, self._is_batch, self._is_alone = waits, is_batch, is_alone
        self._takes_events = "text/event-stream" in (head.get(b"accept") or "")
        self._answers: list[bytes] = []

    def begin(self) -> None:
        if self._takes_events and not self._has_begun and self.is_open:
            self._begin()
            for one in self._answers:
                self._write(one)

    def answer(self, raw: bytes, others: bytes = b"") -> None:
        if not self.is_open:
            return
        self._waits -= 1
        if self._has_begun:
            self._write(raw, others)
            if self._waits == 0:
                self._end()
        else:
            self._answers.append(raw)
            if self._waits == 0:
                self._reply()
        if self._waits == 0 and self._is_alone:
            self._talk.end()

    def _reply(self) -> None:
        self._end()
        body = render_batch(self._answers) if self._is_batch else self._answers[0]
        _reply(self._exchange, 200, body)

    def tell(self, raw: bytes, others: bytes = b"") -> bool:
        if not self._takes_events or not self.is_open:
            return False
        self.begin()
        self._write(raw, others)
        return True

    def pause(self) -> None:
        """End without an answer: the client reads on elsewhere, or has cancelled."""
        self._waits -= 1
        if self._waits > 0 or not self.is_open:
            return
        if self._answers and not self._has_begun:
            self._reply()
            return
        self.begin()
        has_begun = self._has_begun
        self._end()
        if not has_begun:
            _reply(self._exchange, 202)

    def _left(self) -> None:
        super()._left()
        if self._is_alone:
            self._talk.end()


class _StreamOutlet(_Outlet):
    """The answer to a GET."""

    def __init__(self, exchange: Exchange, talk: Talk, *, has_ids: bool = False) -> None:
        super().__init__(exchange, talk)
        self._has_ids = has_ids
        self._begin()
        self._send(b": open\n\n")
        self._beat_later()

    def answer(self, raw: bytes, others: bytes = b"") -> None:
        self.tell(raw, others)

    def tell(self, raw: bytes, others: bytes = b"") -> bool:
        if self.is_open and (raw or self._has_ids):
            self._write(raw, others if self._has_ids else b"")
        return self.is_open

    def pause(self) -> None:
        self._end()

    def _left(self) -> None:
        super()._left()
        self._talk.lose_stream(self)

    def _beat(self) -> None:
        if self.is_open:
            self._send(b": alive\n\n")
            self._beat_later()

    def _beat_later(self) -> None:
        asyncio.get_running_loop().call_later(_HEARTBEAT, self._beat)


def _ignore(_data: bytes) -> None:
    pass
