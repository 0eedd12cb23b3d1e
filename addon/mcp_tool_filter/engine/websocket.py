"""A WebSocket through the engine: frames by wsproto on both sides, each message judged by the project's ``Conversation``."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import partial

from wsproto import ConnectionType
from wsproto.connection import Connection
from wsproto.events import BytesMessage, CloseConnection, Message, Ping, Pong, TextMessage
from wsproto.utilities import ProtocolError

from mcp_tool_filter.conversation.in_order import InOrder
from mcp_tool_filter.policy.effects import waits
from mcp_tool_filter.policy.verdict import Drop, Forward, Reply, Rewrite

log = logging.getLogger(__name__)


@dataclass
class Shown:
    from_client: bool
    raw: bytes | None
    is_text: bool


class _Side:
    def __init__(self, kind: ConnectionType, write: object, socket: Socket) -> None:
        self.ws, self.write = Connection(kind), write
        self.parts: list[object] = []
        self.size = 0
        most = socket.conversation.policy.config.limits.pending
        self.held: InOrder[list[tuple[bool, bytes, bool]]] = InOrder(
            socket.exchange.service.effects.carry_out, partial(socket.woken, self), most=most
        )

    def say(self, raw: bytes, is_text: bool) -> None:
        self.write(self.ws.send(TextMessage(raw.decode()) if is_text else BytesMessage(raw)))


class Socket:
    """Both sides of one WebSocket; the exchange's ``seat``."""

    def __init__(self, exchange: object) -> None:
        self.exchange, self.conversation = exchange, exchange.socket
        self.host = exchange.down.host
        self.client = _Side(ConnectionType.SERVER, self.host.send, self)
        self.upstream = _Side(ConnectionType.CLIENT, exchange.up.write, self)
        self.shown: Shown | None = None
        self.is_closed = False
        exchange._point("websocket_start", lambda: None)

    def from_client(self, data: bytes) -> None:
        self._receive(self.client, self.upstream, data)

    def from_upstream(self, data: bytes) -> None:
        self._receive(self.upstream, self.client, data)

    def _receive(self, side: _Side, other: _Side, data: bytes) -> None:
        if self.is_closed:
            return None
        try:
            side.ws.receive_data(data)
            for event in side.ws.events():
                match event:
                    case Message():
                        side.parts.append(event.data)
                        side.size += len(event.data)
                        if side.size > self.conversation.policy.config.limits.pending:
                            return self._cut("a message that is too long")
                        if event.message_finished:
                            is_text = isinstance(event, TextMessage)
                            whole = (
                                "".join(side.parts).encode()
                                if is_text
                                else b"".join(map(bytes, side.parts))
                            )
                            side.parts, side.size = [], 0
                            self._show(side is self.client, whole, is_text)
                    case Ping() | Pong():
                        other.write(other.ws.send(event))
                    case CloseConnection():
                        other.write(other.ws.send(CloseConnection(event.code, event.reason)))
                        side.write(side.ws.send(event.response()))
                        self.is_closed = self.exchange.is_over = True
                        self.closed = (side is self.client, int(event.code), event.reason)
                        self.exchange._point("websocket_end", lambda: None)
                        return self.host.close()
        except ProtocolError as error:
            self._cut(str(error))
        except Exception:
            log.exception("cannot judge a WebSocket message")
            self._cut("internal error")

    def _show(self, from_client: bool, raw: bytes, is_text: bool) -> None:
        shown = Shown(from_client, raw, is_text)
        if self.host.point is None:
            return self._judge(shown)
        self.shown = shown
        self.exchange._point("websocket_message", lambda: self._judge(shown))

    def _judge(self, shown: Shown) -> None:
        if shown.raw is None or self.is_closed:
            return
        side = self.client if shown.from_client else self.upstream
        judge = (
            self.conversation.from_client
            if shown.from_client
            else self.conversation.judge_from_upstream
        )
        judged = judge(shown.raw, self.exchange)
        render = partial(self._outcome, shown)
        if waits(judged):
            side.held.wait(judged, len(shown.raw), render)
        elif side.held.is_waiting:
            side.held.add(render(judged), len(shown.raw))
        else:
            self._say(render(judged))

    def woken(self, side: _Side) -> None:
        for said in side.held.take():
            self._say(said)
        self.host.wake()

    def _say(self, said: list[tuple[bool, bytes, bool]]) -> None:
        for to_client, raw, is_text in said:
            (self.client if to_client else self.upstream).say(raw, is_text)

    def _outcome(self, shown: Shown, outcome: object) -> list[tuple[bool, bytes, bool]]:
        onward = not shown.from_client
        if isinstance(outcome, Exception):
            log.error("cannot judge a WebSocket message", exc_info=outcome)
            return []
        match outcome.verdict:
            case Forward():
                return [(onward, shown.raw, shown.is_text)]
            case Rewrite(text) as changed:
                beside = [(True, r, True) for r in changed.owed] + [
                    (False, r, True) for r in changed.to_upstream
                ]
                return [(onward, text, shown.is_text), *beside]
            case Reply(text):
                return [(shown.from_client, text, True)]
            case Drop():
                return []

    def _cut(self, why: str) -> None:
        self.close()
        self.exchange.failed_because = why
        self.exchange.cut()

    def close(self) -> None:
        self.is_closed = True
        self.client.held.abandon()
        self.upstream.held.abandon()
