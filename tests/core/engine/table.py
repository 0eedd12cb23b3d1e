"""The engine on a table: bytes are put in by hand, and what it orders lies there to be looked at.

table = Table()
client = table.client()
client.says(post(PING))
link = table.links[0]          # the connection that the engine has asked for
link.says(answer(RESULT))
assert client.got == ...
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from mcp_tool_filter.cli.parsing import parse_config
from mcp_tool_filter.core.conversation.memory import Fetched, example
from mcp_tool_filter.core.engine.client_h1 import H1Client
from mcp_tool_filter.core.engine.exchange import Exchange
from mcp_tool_filter.core.engine.service import Asking, Seats, Service
from mcp_tool_filter.core.engine.upstream import Upstream
from mcp_tool_filter.core.engine.wire import DEFAULT_LIMITS, HttpLimits
from mcp_tool_filter.core.http.listener import open_listener
from mcp_tool_filter.core.messages.messages import Response, Single
from mcp_tool_filter.core.policy.effects import Deciding, Decision, Delay, begin
from mcp_tool_filter.core.policy.situation import Situation
from mcp_tool_filter.core.policy.verdict import Forward, Verdict
from tests.raw_client import post
from tests.raw_upstream import answer

PING = b'{"jsonrpc":"2.0","id":1,"method":"ping"}'
PONG = b'{"jsonrpc":"2.0","id":1,"result":{}}'
LIST = b'{"jsonrpc":"2.0","id":1,"method":"tools/list"}'
UPSTREAM = "http://upstream:3000"


def call(name: str = "read", *, id: str = "1") -> bytes:
    params = f'{{"name":"{name}"}}'
    return f'{{"jsonrpc":"2.0","id":{id},"method":"tools/call","params":{params}}}'.encode()


def result(text: str = "", *, id: str = "1") -> bytes:
    return f'{{"jsonrpc":"2.0","id":{id},"result":{{"content":[],"x":"{text}"}}}}'.encode()


@dataclass
class Waiting:
    """A decision that the engine waits for."""

    decision: Deciding[Any]
    done: Callable[[Any], None]
    is_cancelled: bool = False

    def decide(self, came: object = None) -> None:
        """Let it come to its end; each effect gives this."""
        try:
            self.decision.send(None)
            while True:
                self.decision.send(came)
        except StopIteration as made:
            self.done(made.value)


class SlowLink:
    """A link of the chain that has to wait before it decides on these methods and ids."""

    def __init__(self, *slow: str) -> None:
        self._slow = slow

    def decide(self, message: Single, situation: Situation) -> Decision[Verdict]:
        name = message.id if isinstance(message, Response) else message.method
        return begin(self._wait()) if name in self._slow else Forward()

    def _wait(self) -> Deciding[Verdict]:
        yield Delay(1.0)
        return Forward()


@dataclass
class Effects:
    waiting: list[Waiting] = field(default_factory=list)

    def carry_out(self, decision: Deciding[Any], done: Callable[[Any], None]) -> Callable[[], None]:
        one = Waiting(decision, done)
        self.waiting.append(one)

        def cancel() -> None:
            one.is_cancelled = True

        return cancel


class Link:
    """A connection to the upstream."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self.got = b""
        self.is_open = True
        self.is_held = False
        self.up = Upstream(write=self._write, abort=self._abort, hold=self._hold, idle=self._idle)

    def _write(self, data: bytes) -> None:
        assert self.is_open
        self.got += data

    def _abort(self) -> None:
        self.is_open = False
        self.table.idle = [one for one in self.table.idle if one is not self]

    def _hold(self, on: bool) -> None:
        self.is_held = on

    def _idle(self) -> None:
        if self.is_open:
            self.table.idle.append(self)

    def says(self, data: bytes) -> None:
        if self.is_open:
            self.up.receive(data)

    def ends(self) -> None:
        """Close the connection."""
        self._abort()
        self.up.lost()


class Client:
    """A client's connection; it is the engine's host."""

    own, peer, port = "127.0.0.1", "127.0.0.2", 50000

    def __init__(self, table: Table) -> None:
        self.table = table
        self.is_tls = False
        self.point = table.point or (lambda _name, _exchange, go_on: go_on())
        self.got = b""
        self.is_open = True
        self.was_aborted = False
        self.is_held = False
        self.engine = H1Client(table.service, self, table.exchange_type)

    def says(self, data: bytes, *, cut_at: int = 0) -> None:
        """Send bytes, in pieces of ``cut_at`` if that is given."""
        for at in range(0, len(data), cut_at or len(data)):
            self.engine.receive(data[at : at + (cut_at or len(data))])

    def leaves(self) -> None:
        self.is_open = False
        self.engine.gone()

    def taken(self) -> bytes:
        """Return what has come since the last time."""
        got, self.got = self.got, b""
        return got

    def send(self, data: bytes) -> None:
        if self.is_open:
            self.got += data

    def close(self) -> None:
        self.is_open = False

    def abort(self) -> None:
        self.is_open, self.was_aborted = False, True

    def hold(self, on: bool) -> None:
        self.is_held = on

    def connect(self, exchange: Asking) -> None:
        table = self.table
        if table.refuses:
            exchange.unreachable("Connection refused")
        elif table.idle and (table.idle_for < exchange.most_idle or exchange.may_use_any):
            exchange.connected(table.idle.pop().up)
        elif table.connects_later:
            table.connecting.append(exchange)
        else:
            table.open_for(exchange)

    def call_later(self, seconds: float, act: Callable[[], None]) -> None:
        self.table.later.append(act)

    def wake(self) -> None:
        pass


class Table:
    """One listener with its clients, and its connections to the upstream."""

    def __init__(
        self,
        *tools: str,
        limits: HttpLimits = DEFAULT_LIMITS,
        seats: Seats | None = None,
        exchange_type: type[Exchange] = Exchange,
        point: Any = None,
        fetched: Fetched | None = None,
        slow: tuple[str, ...] = (),
        **options: Any,
    ) -> None:
        self.effects = Effects()
        config = parse_config(deny=["^wipe"], **options)
        self.listener = open_listener(
            upstream=UPSTREAM,
            config=config,
            fetched=fetched or replace(example(*tools or ("read", "wipe")), endpoint="/mcp"),
        )
        if slow:
            self.listener.policy.links = (SlowLink(*slow),)
        host = b"upstream:3000"
        self.service = Service(self.listener, host, self.effects, limits=limits, seats=seats)
        self.exchange_type, self.point = exchange_type, point
        self.links: list[Link] = []
        self.idle: list[Link] = []
        self.idle_for = 0.0
        """How long idle connections have been idle."""
        self.refuses = False
        self.connects_later = False
        self.connecting: list[Asking] = []
        self.later: list[Callable[[], None]] = []

    def client(self) -> Client:
        return Client(self)

    def serve_others(self) -> int:
        """Let time pass, until nothing is to be done later; return how often something was."""
        turns = 0
        while self.later:
            self.later.pop(0)()
            turns += 1
        return turns

    def open_for(self, exchange: Asking) -> None:
        link = Link(self)
        self.links.append(link)
        exchange.connected(link.up)

    @property
    def link(self) -> Link:
        """The newest connection."""
        return self.links[-1]

    def asks(self, body: bytes = PING, **more: Any) -> Client:
        """Return a client that has posted this."""
        client = self.client()
        client.says(post(body, **more))
        return client

    def answers(self, body: bytes = PONG) -> bytes:
        """Let a new client ask, the upstream answer, and return what the client gets."""
        client = self.asks()
        self.link.says(answer(body))
        return client.got
