"""How others frame the same bytes of HTTP/1: h11, Node (llhttp), and mitmproxy's own layer."""

from __future__ import annotations

import json
import shutil
import subprocess
from base64 import b64decode, b64encode
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import h11
from mitmproxy.connection import Client, Server
from mitmproxy.http import Request, Response
from mitmproxy.options import Options
from mitmproxy.proxy import events
from mitmproxy.proxy.context import Context
from mitmproxy.proxy.layers.http._base import ReceiveHttp
from mitmproxy.proxy.layers.http._events import (
    RequestData,
    RequestEndOfMessage,
    RequestHeaders,
    ResponseData,
    ResponseEndOfMessage,
    ResponseHeaders,
)
from mitmproxy.proxy.layers.http._http1 import Http1Client, Http1Server


class Read(NamedTuple):
    """One message as some reader frames it."""

    first: str
    """The method; empty for an answer."""
    second: str
    """The target, or the status."""
    body: bytes
    is_complete: bool


def by_h11(raw: bytes) -> list[Read]:
    """Read requests as a strict server does."""
    found: list[Read] = []
    connection = h11.Connection(h11.SERVER)
    connection.receive_data(raw)
    connection.receive_data(b"")
    try:
        while True:
            event = connection.next_event()
            match event:
                case h11.Request():
                    found.append(Read(event.method.decode(), event.target.decode(), b"", False))
                case h11.Data():
                    found[-1] = found[-1]._replace(body=found[-1].body + bytes(event.data))
                case h11.EndOfMessage():
                    found[-1] = found[-1]._replace(is_complete=True)
                    connection.send(
                        h11.Response(status_code=200, headers=[("content-length", "0")])
                    )
                    connection.send(h11.EndOfMessage())
                    if connection.our_state is not h11.DONE:
                        return found
                    connection.start_next_cycle()
                case _:
                    return found
    except h11.ProtocolError:
        return found


def answer_by_h11(raw: bytes, method: str) -> list[Read]:
    """Read one answer as a strict client does."""
    found: list[Read] = []
    connection = h11.Connection(h11.CLIENT)
    connection.send(h11.Request(method=method, target="/", headers=[("host", "x")]))
    connection.send(h11.EndOfMessage())
    connection.receive_data(raw)
    connection.receive_data(b"")
    try:
        while True:
            event = connection.next_event()
            match event:
                case h11.Response():
                    found.append(Read("", str(event.status_code), b"", False))
                case h11.Data():
                    found[-1] = found[-1]._replace(body=found[-1].body + bytes(event.data))
                case h11.EndOfMessage():
                    found[-1] = found[-1]._replace(is_complete=True)
                    return found
                case h11.InformationalResponse():
                    pass
                case _:
                    return found
    except h11.ProtocolError:
        return found


def _context() -> Context:
    client = Client(peername=("127.0.0.1", 1), sockname=("127.0.0.1", 2), timestamp_start=0)
    context = Context(client, Options())
    context.server = Server(address=("x", 80))
    return context


def by_mitmproxy(raw: bytes) -> list[Read]:
    """Read requests as mitmproxy's own HTTP layer does."""
    found: list[Read] = []
    context = _context()
    layer = Http1Server(context)
    todo: list[events.Event] = [events.Start(), events.DataReceived(context.client, raw)]
    done = Response.make(200, b"")
    while todo:
        try:
            orders = list(layer.handle_event(todo.pop(0)))
        except Exception:  # it crashes, and the connection with it
            return found
        for order in orders:
            if not isinstance(order, ReceiveHttp):
                continue
            match order.event:
                case RequestHeaders(stream_id=number, request=request):
                    method = request.data.method.decode()
                    found.append(Read(method, _target_of(request), b"", False))
                case RequestData(data=data):
                    found[-1] = found[-1]._replace(body=found[-1].body + data)
                case RequestEndOfMessage(stream_id=number):
                    found[-1] = found[-1]._replace(is_complete=True)
                    todo += [
                        ResponseHeaders(number, done, end_stream=True),
                        ResponseEndOfMessage(number),
                    ]
    return found


def _target_of(request: Request) -> str:
    """Return the target as it was written."""
    if request.authority and request.method == "CONNECT":
        return request.authority
    if request.authority:
        return f"{request.scheme}://{request.authority}{request.path}"
    return request.path


def answer_by_mitmproxy(raw: bytes, method: str) -> list[Read]:
    """Read one answer as mitmproxy's own HTTP layer does."""
    found: list[Read] = []
    context = _context()
    layer = Http1Client(context)
    request = Request.make(method, "http://x/")
    todo: list[events.Event] = [
        events.Start(),
        RequestHeaders(1, request, end_stream=True),
        RequestEndOfMessage(1),
        events.DataReceived(context.server, raw),
        events.ConnectionClosed(context.server),
    ]
    for event in todo:
        try:
            orders = list(layer.handle_event(event))
        except Exception:  # it crashes, and the connection with it
            return found
        for order in orders:
            if not isinstance(order, ReceiveHttp):
                continue
            match order.event:
                case ResponseHeaders(response=response):
                    found.append(Read("", str(response.status_code), b"", False))
                case ResponseData(data=data):
                    found[-1] = found[-1]._replace(body=found[-1].body + data)
                case ResponseEndOfMessage():
                    found[-1] = found[-1]._replace(is_complete=True)
                    return found
    return found


class Node:
    """Node's HTTP server and client, as a process."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    def read(self, jobs: Sequence[tuple[str, bytes]]) -> list[list[Read]]:
        """Each job is ``requests``, ``upgrades`` or the method of the answered request; and bytes.

        (A server that waits for ``upgrades`` reads some requests differently.)
        """
        assert self._process.stdin
        assert self._process.stdout
        said = json.dumps([(kind, b64encode(raw).decode()) for kind, raw in jobs])
        self._process.stdin.write(said.encode() + b"\n")
        self._process.stdin.flush()
        return [
            [Read(first, str(second), b64decode(body), whole) for first, second, body, whole in one]
            for one in json.loads(self._process.stdout.readline())
        ]


@contextmanager
def node() -> Iterator[Node | None]:
    """Run Node, if there is one."""
    program = shutil.which("node")
    if program is None:
        yield None
        return
    script = Path(__file__).with_name("reader.mjs")
    pipe = subprocess.PIPE
    with subprocess.Popen([program, str(script)], stdin=pipe, stdout=pipe) as process:
        try:
            yield Node(process)
        finally:
            process.kill()
