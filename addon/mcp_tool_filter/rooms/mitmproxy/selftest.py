"""Find out at start whether this version of mitmproxy lets us filter.

mitmproxy may change how its layers, hooks and flows work together without changing how ordinary
traffic looks. So we push an allowed call, a denied call, a list and some known ways round a filter
through the real layers, in memory, as mitmproxy's own tests do. If anything else comes out than we
expect, the process must not start.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from types import SimpleNamespace
from typing import Any

from mitmproxy import version
from mitmproxy.addonmanager import AddonManager
from mitmproxy.addons.proxyserver import Proxyserver
from mitmproxy.connection import Client, Connection, ConnectionState
from mitmproxy.exceptions import AddonHalt
from mitmproxy.http import HTTPFlow, Response
from mitmproxy.options import Options
from mitmproxy.proxy import commands, events, layer
from mitmproxy.proxy.context import Context
from mitmproxy.proxy.layers import TCPLayer
from mitmproxy.proxy.mode_servers import ServerInstance
from mitmproxy.proxy.mode_specs import ProxyMode

from mcp_tool_filter.cli.parsing import parse_config
from mcp_tool_filter.core.conversation.memory import Fetched
from mcp_tool_filter.core.engine.service import Service
from mcp_tool_filter.core.errors import StartError
from mcp_tool_filter.core.http.listener import open_listener
from mcp_tool_filter.core.messages.limits import Transport
from mcp_tool_filter.core.messages.sizes import MANY
from mcp_tool_filter.core.policy.config import Config
from mcp_tool_filter.rooms.mitmproxy.flows import Flows
from mcp_tool_filter.rooms.mitmproxy.hooks import Hooks
from mcp_tool_filter.rooms.mitmproxy.layer import put_engine

_MODE = "reverse:http://upstream.invalid:80"
_KEPT, _HIDDEN, _MARK = b"kept_tool", b"hidden_tool", b"seen-by-nobody"

_LIST = (
    b'{"jsonrpc":"2.0","id":1,"result":{"tools":['
    b'{"name":"kept_tool","inputSchema":{"type":"object"}},'
    b'{"name":"hidden_tool","description":"seen-by-nobody","inputSchema":{"type":"object"}}]}}'
)
_RESULT = b'{"jsonrpc":"2.0","id":1,"result":{"content":[]}}'
# The snapshot answers no single page: this list comes from the upstream.
_ASK = b'{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"cursor":"2"}}'


def _call(name: bytes) -> bytes:
    return b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"%b"}}' % name


def _post(body: bytes, headers: bytes = b"") -> bytes:
    head = b"POST /mcp HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
    head += b"accept: application/json, text/event-stream\r\n"
    return b"%b%bcontent-length: %d\r\n\r\n%b" % (head, headers, len(body), body)


def _answer(body: bytes, kind: bytes = b"application/json") -> bytes:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n" % (kind, len(body))
    return head + body


def _ignore(*_: Any) -> None:
    """Do nothing."""


_UNWATCHED: Any = SimpleNamespace(is_watched=False)
"""Nobody looks at the flows of a probe."""
_NO_SOCKETS: Any = SimpleNamespace(
    later=_ignore, hold=_ignore, reset_when_closed=_ignore, is_slow=lambda _client: False
)
"""A probe has no sockets, and ends before anything is called later."""


def _wait(*_: Any) -> None:
    raise AssertionError("nothing here has to wait")


_NOTHING_WAITS: Any = SimpleNamespace(carry_out=_wait)


class _ChoosesEngine:
    """Chooses the layers as our addon does."""

    def __init__(self, service: Service, manager: AddonManager) -> None:
        self._service = service
        self._flows = Flows(Hooks(manager, self), _UNWATCHED, _NO_SOCKETS, _ignore)

    def next_layer(self, asked: layer.NextLayer) -> None:
        put_engine(asked, self._service, self._flows)
        raise AddonHalt


@dataclass(frozen=True, slots=True)
class Probe:
    """One connection with one request; what must, and what must not come out at either end."""

    what: str
    request: bytes
    answer: bytes = field(default_factory=lambda: _answer(_RESULT))
    to_upstream: tuple[bytes, ...] = ()
    not_to_upstream: tuple[bytes, ...] = (_HIDDEN,)
    to_client: tuple[bytes, ...] = ()
    not_to_client: tuple[bytes, ...] = (_MARK,)
    script: object = None
    """An addon after ours."""
    options: tuple[tuple[str, object], ...] = ()
    pieces: int = 1


def _lists(flow: HTTPFlow) -> None:
    flow.response = Response.make(200, _LIST, {"content-type": "application/json"})


def _script(hook: str, act: Callable[[Any], object]) -> object:
    return SimpleNamespace(**{hook: act})


def _change(hook: str, part: str, name: str, value: object) -> object:
    """Return a script that changes a flow's request or response."""
    return _script(hook, lambda flow: setattr(getattr(flow, part), name, value))


def _choose_tcp(asked: layer.NextLayer) -> None:
    """Take the bytes of each connection as they come."""
    asked.layer = TCPLayer(asked.context)


_UPGRADE = b"connection: upgrade\r\nupgrade: raw\r\n"
_SWITCHED = b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: raw\r\n\r\n"
PROBES = (
    Probe(
        "an allowed call",
        _post(_call(_KEPT)),
        to_upstream=(_KEPT,),
        to_client=(b"HTTP/1.1 200", _RESULT),
    ),
    Probe(
        "a denied call",
        _post(_call(_HIDDEN)),
        to_client=(b"HTTP/1.1 200", b"Tool not found: hidden_tool"),
    ),
    Probe(
        "a list",
        _post(_ASK),
        _answer(_LIST),
        to_upstream=(b"tools/list",),
        to_client=(_KEPT,),
        not_to_client=(_HIDDEN, _MARK),
    ),
    Probe(
        "a list in an event stream",
        _post(_ASK),
        _answer(b"data: " + _LIST + b"\n\n", b"text/event-stream"),
        to_client=(_KEPT,),
        not_to_client=(_HIDDEN, _MARK),
    ),
    Probe("another script's answer", _post(_ASK), script=_script("request", _lists)),
    Probe(
        "an early answer of another script", _post(_ASK), script=_script("requestheaders", _lists)
    ),
    Probe(
        "an answer changed after us",
        _post(_call(_KEPT)),
        to_upstream=(_KEPT,),
        script=_change("response", "response", "content", _LIST),
    ),
    Probe(
        "a request changed before us",
        _post(_ASK),
        script=_change("request", "request", "content", _call(_HIDDEN)),
    ),
    Probe(
        "an upgrade",
        _post(_ASK, _UPGRADE),
        _SWITCHED + _LIST,
        not_to_upstream=(b"tools/list", b"upgrade"),
        to_client=(b"HTTP/1.1 501",),
        not_to_client=(_KEPT, _MARK),
    ),
    Probe("an upgrade that was not requested", _post(_ASK), _SWITCHED + _LIST),
    Probe("an error page", _post(_ASK), b"HTTP/1.1 200 OK\r\n" + _MARK + b"\r\n\r\n"),
    Probe(
        "a layer chosen by a script",
        _post(_call(_HIDDEN)),
        script=_script("next_layer", _choose_tcp),
    ),
    Probe(
        "ignore_hosts",
        _post(_call(_HIDDEN)),
        options=(("ignore_hosts", [".*"]),),
    ),
    Probe(
        "a streamed request",
        _post(_call(_HIDDEN)),
        script=_change("requestheaders", "request", "stream", True),
        pieces=3,
    ),
    Probe(
        "a streamed answer",
        _post(_ASK),
        _answer(_LIST),
        script=_change("responseheaders", "response", "stream", True),
        pieces=3,
    ),
)


def refuse_other_mitmproxy() -> None:
    """Raise StartError if the filter would not hold in this version of mitmproxy."""
    with _silence():
        for probe in PROBES:
            try:
                problem = _problem_in(probe)
            except Exception as error:
                problem = f"{type(error).__name__}: {error}"
            if problem:
                why = f"A test with {probe.what} has failed ({' '.join(problem.split())[:200]})"
                raise StartError(
                    f"The tool filter does not work with mitmproxy {version.VERSION}", why=why
                )


def _problem_in(probe: Probe) -> str | None:
    run = ProbeRun(probe)
    run.play()
    got, sent = bytes(run.to_client), bytes(run.to_upstream)
    for wanted, refused, where, data in (
        (probe.to_upstream, probe.not_to_upstream, "upstream", sent),
        (probe.to_client, probe.not_to_client, "client", got),
    ):
        for one in wanted:
            if one not in data:
                return f"the {where} did not get {one[:40]!r}"
        for one in refused:
            if one in data:
                return f"the {where} got {one[:40]!r}"
    return None


class ProbeRun:
    """Plays one probe."""

    def __init__(self, probe: Probe) -> None:
        self._probe = probe
        self.to_client, self.to_upstream = bytearray(), bytearray()
        options = _options(probe.options)
        client = Client(
            peername=("127.0.0.1", 1),
            sockname=("127.0.0.1", 2),
            timestamp_start=time.time(),
            proxy_mode=ProxyMode.parse(_MODE),
            state=ConnectionState.OPEN,
        )
        self._context = Context(client, options)
        self._manager = AddonManager(SimpleNamespace(options=options))
        ours = _ChoosesEngine(_service(), self._manager)
        self._manager.chain = [ours, probe.script]
        mode: Any = ServerInstance.make(_MODE, Proxyserver())
        self._top = mode.make_top_layer(self._context)
        self._events: deque[events.Event] = deque([events.Start()])
        self._has_answered = False
        self.has_closed = False
        """True if we have closed the client's connection."""

    def play(self) -> None:
        client = self._context.client
        self._bring(client, self._probe.request)
        self._handle_all()
        client.state = ConnectionState.CLOSED
        self._events.append(events.ConnectionClosed(client))
        self._handle_all()

    def _bring(self, connection: Connection, data: bytes) -> None:
        size = -(-len(data) // self._probe.pieces)
        for at in range(0, len(data), size):
            self._events.append(events.DataReceived(connection, data[at : at + size]))

    def _handle_all(self) -> None:
        for _ in range(MANY):
            if not self._events:
                return
            for command in self._top.handle_event(self._events.popleft()):
                self._carry_out(command)
        raise AssertionError("it does not come to an end")

    def _carry_out(self, command: commands.Command) -> None:
        client = self._context.client
        match command:
            case commands.SendData(connection=connection, data=data):
                (self.to_client if connection is client else self.to_upstream).extend(data)
                if connection is not client and not self._has_answered:
                    self._answer_from(connection)
            case commands.CloseConnection(connection=connection) if connection is client:
                self.has_closed = True
            case commands.OpenConnection(connection=connection):
                connection.state = ConnectionState.OPEN
                self._events.append(events.OpenConnectionCompleted(command, None))
            case layer.NextLayerHook():
                _finish(self._manager.trigger_event(command))
                self._events.append(events.HookCompleted(command, None))
            case commands.StartHook():
                self._events.append(events.HookCompleted(command, None))

    def _answer_from(self, connection: Connection) -> None:
        raw = bytes(self.to_upstream)
        head, _, body = raw.partition(b"\r\n\r\n")
        lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-len")]
        if lengths and len(body) >= int(lengths[0].split(b":")[1]):
            self._has_answered = True
            self._bring(connection, self._probe.answer)


def _options(given: tuple[tuple[str, object], ...]) -> Options:
    options = Options()
    Proxyserver().load(options)
    options.update(connection_strategy="lazy")
    for name, value in given:
        options.update(**{name: value})
    return options


@cache
def _config() -> Config:
    return parse_config(deny=[f"^{_HIDDEN.decode()}$"])


def _service() -> Service:
    fetched = Fetched(
        transport=Transport.STREAMABLE,
        revision="2025-06-18",
        endpoint="/mcp",
        server_name="",
        server_version="",
        sessions=False,
        pages=(_LIST,),
        is_for_all=True,
    )
    listener = open_listener(upstream="http://upstream.invalid", config=_config(), fetched=fetched)
    return Service(listener, b"upstream.invalid", _NOTHING_WAITS)


def _finish(work: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine that has nothing to wait for."""
    try:
        work.send(None)
    except StopIteration:
        return
    raise AssertionError("mitmproxy waits for something")


@contextmanager
def _silence() -> Iterator[None]:
    """Log nothing: a probe that goes wrong is reported in two lines."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)
