"""A WebSocket: wsproto reads the frames of both sides, and we judge each message.

WebSockets are no standard transport of MCP, but some servers offer them. No extension is ever
offered or accepted: a compressed message of 300 KB can hold 800 MB. Messages of one side keep their
order; one that waits for a decision holds back only what follows it. Pings, pongs, and the code and
reason of a close pass from one side to the other.

Frames cost much more than their bytes: ten thousand empty ones fit into one read. So a side gets
a limited number of them per turn; then others are served, and this side is not read meanwhile.
"""

from __future__ import annotations

import base64
import hashlib
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, assert_never

from wsproto import ConnectionType
from wsproto.connection import Connection, ConnectionState
from wsproto.events import (
    BytesMessage,
    CloseConnection,
    Event,
    Message,
    Ping,
    Pong,
    TextMessage,
)
from wsproto.utilities import ProtocolError as FrameError

from mcp_tool_filter.core.conversation.policy_in_force import LOST_ANSWER, Judged
from mcp_tool_filter.core.errors import ProtocolError
from mcp_tool_filter.core.http.head import values_of
from mcp_tool_filter.core.policy.effects import InOrder, waits
from mcp_tool_filter.core.policy.verdict import Drop, Forward, Reply, Rewrite

if TYPE_CHECKING:
    from mcp_tool_filter.core.engine.exchange import Exchange
    from mcp_tool_filter.core.http.head import Fields, Head

log = logging.getLogger(__name__)

GOING_AWAY, INTERNAL_ERROR, TOO_BIG = 1001, 1011, 1009
_MOST_PIECES = 100_000
"""Frames of one message: even empty ones cost time."""
_MOST_EVENTS = 64
"""Frames of one side that we read before others are served."""
_HELD_BESIDES = 512
"""Bytes that a held message takes besides its own: many small ones are not free."""
_LOST = CloseConnection(1006)  # no frame can say this
_KEY_SUFFIX = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


def problem_in_handshake(asked: Head, fields: Fields) -> str | None:
    """Return the reason to refuse a 101 that does not accept the WebSocket as we asked for it."""
    key = asked.get(b"sec-websocket-key") or ""
    digest = hashlib.sha1(key.encode() + _KEY_SUFFIX, usedforsecurity=False).digest()
    if [one.lower() for one in values_of(fields, b"upgrade")] != [b"websocket"]:
        return "an upgrade that was not requested"
    if b"upgrade" not in b",".join(values_of(fields, b"connection")).lower().replace(
        b" ", b""
    ).split(b","):
        return "a WebSocket without Connection: Upgrade"
    if values_of(fields, b"sec-websocket-accept") != [base64.b64encode(digest)]:
        return "a WebSocket with a wrong Sec-WebSocket-Accept"
    if values_of(fields, b"sec-websocket-extensions"):
        return "a WebSocket extension that was not requested"
    offered = [one.strip() for one in (asked.get(b"sec-websocket-protocol") or "").split(",")]
    chosen = values_of(fields, b"sec-websocket-protocol")
    if len(chosen) > 1 or any(one.decode("latin-1") not in offered for one in chosen):
        return "a WebSocket subprotocol that was not requested"
    return None


@dataclass(slots=True)
class Shown:
    """A message as other addons see it: they may change ``raw``, or drop it with None."""

    from_client: bool
    raw: bytes | None
    is_text: bool
    view: object = None
    """The host's own view of the message."""


@dataclass(frozen=True, slots=True)
class Closed:
    """How the WebSocket ended; ``code`` as the peer said it, or as we did."""

    by_client: bool
    code: int
    reason: str | None


@dataclass(frozen=True, slots=True)
class _Said:
    to_client: bool
    raw: bytes
    is_text: bool = True


type _Outcome = list[_Said | CloseConnection]


class _Side:
    """One peer: what it sends, and how to send to it."""

    def __init__(
        self,
        kind: ConnectionType,
        write: Callable[[bytes], None],
        hold: Callable[[bool], None],
        queue: InOrder[_Outcome],
    ) -> None:
        self.frames = Connection(kind)
        self.queue = queue
        """Its messages that wait for a decision, and those behind them."""
        self.parts = bytearray()
        """The unfinished message."""
        self.pieces = 0
        """The frames that it came in."""
        self.is_reading = False
        self.is_shown = True
        """True while other addons look at its newest message, or at the handshake."""
        self.is_gone = False
        """True when its connection has ended: nothing is sent to it."""
        self._write, self._hold = write, hold
        self._is_busy = self._is_full = self._is_held = False

    @property
    def is_client(self) -> bool:
        return not self.frames.client

    def send(self, event: Event) -> None:
        is_open = self.frames.state is ConnectionState.OPEN and not self.is_gone
        if is_open or isinstance(event, CloseConnection):
            self._write(bytes(self.frames.send(event)))

    def say(self, raw: bytes, *, is_text: bool) -> None:
        self.send(TextMessage(raw.decode(errors="replace")) if is_text else BytesMessage(raw))

    def close(self, event: CloseConnection) -> None:
        """Send the close, or answer the peer's; send nothing if it is closed already."""
        is_open = self.frames.state in (ConnectionState.OPEN, ConnectionState.REMOTE_CLOSING)
        if is_open and not self.is_gone:
            self.send(event)

    def busy(self, on: bool) -> None:
        """True if some of its frames wait for a later turn."""
        self._is_busy = on
        self._settle()

    def full(self, on: bool) -> None:
        """The other side does not read what this one sends."""
        self._is_full = on
        self._settle()

    def _settle(self) -> None:
        if (self._is_busy or self._is_full) is not self._is_held:
            self._is_held = not self._is_held
            self._hold(self._is_held)


class Socket:
    """Both sides of one WebSocket. The exchange's ``seat`` from the 101 to the end."""

    def __init__(self, exchange: Exchange) -> None:
        up, host, conversation = exchange.up, exchange.down.host, exchange.socket
        assert up is not None
        assert conversation is not None
        self.exchange, self.conversation, self._host = exchange, conversation, host
        self._most = conversation.policy.config.limits.pending
        self._client = _Side(ConnectionType.SERVER, host.send, host.hold, self._in_order())
        self._upstream = _Side(ConnectionType.CLIENT, up.write, up.slow_down, self._in_order())
        self.shown: Shown | None = None
        """The message that other addons look at; valid while their hook is started."""
        self.closed: Closed | None = None
        self._is_over = False

    def _in_order(self) -> InOrder[_Outcome]:
        carry_out = self.exchange.service.effects.carry_out
        return InOrder(carry_out, self._say_decided, most=self._most)

    @property
    def held_bytes(self) -> int:
        """Bytes in memory."""
        return sum(len(one.parts) + one.queue.size for one in (self._client, self._upstream))

    def begin(self, from_client: bytes, from_upstream: bytes) -> None:
        """Begin with what came right behind the handshake."""
        self.from_client(from_client)
        self.from_upstream(from_upstream)

        def started() -> None:
            for side in (self._client, self._upstream):
                side.is_shown = False
                self._read(side)

        self.exchange.point("websocket_start", started)

    # Called by the connections

    def from_client(self, data: bytes) -> None:
        self._receive(self._client, data)

    def from_upstream(self, data: bytes) -> None:
        self._receive(self._upstream, data)

    def client_is_slow(self, on: bool) -> None:
        """The client reads slowly, or reads on: read from the upstream as slowly."""
        self._upstream.full(on)

    def upstream_is_slow(self, on: bool) -> None:
        """The same for the upstream."""
        self._client.full(on)

    def upstream_lost(self) -> None:
        """The upstream is gone: pass on what it sent, fail the waiting requests, and close."""
        self._upstream.is_gone = True
        self._read(self._upstream)

    def close(self) -> None:
        """The client has left, or must get nothing more."""
        self._client.is_gone = True
        self._finish(CloseConnection(GOING_AWAY), by_client=True)

    # Other messages and endings

    def inject(self, raw: bytes, *, to_client: bool, is_text: bool, view: object = None) -> None:
        """Judge a message that the user makes up, as if the other side had sent it."""
        self._guarded(self._judge, Shown(not to_client, raw, is_text, view))

    def say(self, raw: bytes) -> None:
        """Send our own message to the upstream, after the client's messages that wait."""
        self._guarded(self._say_behind, self._client, [_Said(False, raw)])
        self._host.wake()

    def tell_list_changed(self) -> None:
        """Send the notification after the messages that still wait, if the client expects it."""
        for notice in self.conversation.list_changed_notices(in_session=True):
            self._guarded(self._say_behind, self._upstream, [_Said(True, notice)])

    def end(self, code: int, reason: str) -> None:
        """End it ourselves: every waiting request gets an error, then both sides are closed."""
        if self._is_over:
            return
        for reply in self.conversation.lose():
            self._client.say(reply, is_text=True)
        self._close(CloseConnection(code, reason), by_client=False)

    # Frames

    def _receive(self, side: _Side, data: bytes) -> None:
        if not self._is_over and side.frames.state is ConnectionState.OPEN:
            side.frames.receive_data(data)
            if side.is_shown:
                side.busy(True)
            self._read(side)

    def _read(self, side: _Side) -> None:
        """Take what a side has sent, up to the limit for one turn."""
        if not (side.is_reading or side.is_shown or self._is_over):
            self._guarded(self._take_events, side)

    def _take_events(self, side: _Side) -> None:
        side.is_reading = True
        try:
            for count, event in enumerate(islice(side.frames.events(), _MOST_EVENTS), 1):
                self._take(side, event)
                if self._is_over:
                    return None
                if side.is_shown:
                    return side.busy(True)
                if count == _MOST_EVENTS:
                    side.busy(True)
                    return self._host.call_later(0, partial(self._read, side))
            side.busy(False)
            if side.is_gone:
                self._say_behind(side, [_LOST])
        finally:
            side.is_reading = False

    def _take(self, side: _Side, event: Event) -> None:
        other = self._upstream if side is self._client else self._client
        match event:
            case Message():
                self._collect(side, event)
            case Ping() | Pong():
                other.send(event)
            case CloseConnection():
                self._say_behind(side, [event])

    def _collect(self, side: _Side, event: Message[Any]) -> None:
        data = event.data
        side.parts += data.encode() if isinstance(data, str) else data
        side.pieces += 1
        if len(side.parts) > self._most or side.pieces > _MOST_PIECES:
            reason = "message too long"
            return self._close(CloseConnection(TOO_BIG, reason), by_client=side.is_client)
        if event.message_finished:
            raw, side.parts, side.pieces = bytes(side.parts), bytearray(), 0
            self._show(side, Shown(side.is_client, raw, isinstance(event, TextMessage)))
        return None

    # Messages

    def _show(self, side: _Side, shown: Shown) -> None:
        """Let other addons see a message before we judge it; their hook may take its time."""
        if self._host.point is None:
            return self._judge(shown)
        self.shown, side.is_shown = shown, True

        def seen() -> None:
            side.is_shown = False
            self._guarded(self._judge, shown)
            self._read(side)

        self.exchange.point("websocket_message", seen)
        return None

    def _judge(self, shown: Shown) -> None:
        if (raw := shown.raw) is None or self._is_over:
            return None

        def outcome(judged: Judged | Exception) -> _Outcome:
            said = _outcome(shown.from_client, raw, shown.is_text, judged)
            if (tap := self.exchange.tap) is not None:
                told = [one for one in said if isinstance(one, _Said)]
                tap.passed(shown, [(one.to_client, one.raw, one.is_text) for one in told])
            return said

        side = self._client if shown.from_client else self._upstream
        if self.exchange.looks_for_mcp:
            if not _is_mcp(raw):
                return self._say_behind(side, [_Said(not shown.from_client, raw, shown.is_text)])
            self.exchange.looks_for_mcp = False
        if shown.from_client:
            judged = self.conversation.from_client(raw, self.exchange)
        else:
            judged = self.conversation.judge_from_upstream(raw, self.exchange)
        if waits(judged):
            side.queue.wait(judged, len(raw) + _HELD_BESIDES, outcome)
        else:
            self._say_behind(side, outcome(judged))
        return None

    def _say_behind(self, side: _Side, outcome: _Outcome) -> None:
        """Send now, or after the messages of this side that still wait."""
        if side.queue.is_waiting:
            size = sum(len(one.raw) for one in outcome if isinstance(one, _Said))
            side.queue.add(outcome, size + _HELD_BESIDES)
        else:
            self._say(side, outcome)

    def _say_decided(self) -> None:
        """Send messages whose decisions are made."""
        for side in (self._client, self._upstream):
            for outcome in side.queue.take():
                self._guarded(self._say, side, outcome)
        self._host.wake()

    def _say(self, side: _Side, outcome: _Outcome) -> None:
        for one in outcome:
            if self._is_over:
                return
            if one is _LOST:
                self.end(INTERNAL_ERROR, LOST_ANSWER)
            elif isinstance(one, CloseConnection):
                self._close(one, by_client=side.is_client)
            else:
                to = self._client if one.to_client else self._upstream
                to.say(one.raw, is_text=one.is_text)

    # The end

    def _guarded(self, act: Callable[..., None], *args: object) -> None:
        """Close both sides if anything within raises."""
        try:
            act(*args)
        except (FrameError, ProtocolError, OverflowError) as error:
            log.warning("A WebSocket was closed: %s", error)
            self.end(INTERNAL_ERROR, "")
        except Exception:
            log.exception("cannot judge a WebSocket message")
            if self._is_over:  # it was being closed
                self.exchange.cut("internal error")
            else:
                self.end(INTERNAL_ERROR, "")

    def _close(self, event: CloseConnection, *, by_client: bool) -> None:
        """Send both sides the reason, and close both connections."""
        if not self._is_over:
            self._finish(event, by_client=by_client)
            self.exchange.talked(is_lost=self._upstream.is_gone)

    def _finish(self, event: CloseConnection, *, by_client: bool) -> None:
        if self._is_over:
            return
        self._is_over = True
        self.closed = Closed(by_client, int(event.code), event.reason)
        for side in (self._client, self._upstream):
            side.queue.abandon()
            side.close(event)
        self.exchange.tell("websocket_end")


def _outcome(from_client: bool, raw: bytes, is_text: bool, outcome: Judged | Exception) -> _Outcome:
    """Return all messages that result from one."""
    if isinstance(outcome, Exception):
        log.error("cannot judge a WebSocket message", exc_info=outcome)
        return [CloseConnection(INTERNAL_ERROR, "")]
    match outcome.verdict:
        case Forward():
            return [_Said(not from_client, raw, is_text)]
        case Rewrite(text) as changed:
            owed = [_Said(True, reply) for reply in changed.owed]
            answers = [_Said(False, reply) for reply in changed.to_upstream]
            return [_Said(not from_client, text, is_text), *owed, *answers]
        case Reply(text):
            return [_Said(from_client, text)]
        case Drop():
            return []
        case unexpected:
            assert_never(unexpected)


def _is_mcp(raw: bytes) -> bool:
    """Tell whether a message of a WebSocket that may carry anything is MCP."""
    from mcp_tool_filter.rooms.forward.recognise import (  # only forward proxies
        TrafficKind,
        kind_of_body,
    )

    return kind_of_body(raw) is TrafficKind.MCP
