"""How others frame the same bytes of HTTP/1: h11, Node (llhttp), and mitmproxy's own layer."""

from __future__ import annotations

import json
import shutil
import subprocess
from base64 import b64decode, b64encode
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

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


@dataclass
class Read:
    """One message as some reader frames it."""

    first: str
    """The method; empty for an answer."""
    second: str
    """The target, or the status."""
    body: bytes = b""
    is_complete: bool = False


def by_h11(raw: bytes, method: str = "") -> list[Read]:
    """Read requests as a strict server does, or the answer to one as a strict client does."""
    found: list[Read] = []
    connection = h11.Connection(h11.CLIENT if method else h11.SERVER)
    if method:
        connection.send(h11.Request(method=method, target="/", headers=[("host", "x")]))
        connection.send(h11.EndOfMessage())
    connection.receive_data(raw)
    connection.receive_data(b"")
    with suppress(h11.ProtocolError):
        while True:
            match connection.next_event():
                case h11.Request(method=asked, target=target):
                    found.append(Read(asked.decode(), target.decode()))
                case h11.Response(status_code=status):
                    found.append(Read("", str(status)))
                case h11.Data(data=data):
                    found[-1].body += bytes(data)
                case h11.EndOfMessage():
                    found[-1].is_complete = True
                    if method or not _goes_on(connection):
                        return found
                case h11.InformationalResponse():
                    pass
                case _:
                    return found
    return found


def _goes_on(server: h11.Connection) -> bool:
    """Answer a request; tell whether the connection is read behind it."""
    server.send(h11.Response(status_code=200, headers=[("content-length", "0")]))
    server.send(h11.EndOfMessage())
    if server.our_state is h11.DONE:
        server.start_next_cycle()
        return True
    return False


def by_mitmproxy(raw: bytes, method: str = "") -> list[Read]:
    """Read requests, or the answer to one, as mitmproxy's own HTTP layer does."""
    found: list[Read] = []
    client = Client(peername=("127.0.0.1", 1), sockname=("127.0.0.1", 2), timestamp_start=0)
    context = Context(client, Options())
    context.server = Server(address=("x", 80))
    layer = Http1Client(context) if method else Http1Server(context)
    todo: list[events.Event] = [events.Start()]
    if method:
        todo.append(RequestHeaders(1, Request.make(method, "http://x/"), end_stream=True))
        todo.append(RequestEndOfMessage(1))
    todo.append(events.DataReceived(context.server if method else client, raw))
    todo += [events.ConnectionClosed(context.server)] * bool(method)
    while todo:
        try:
            orders = list(layer.handle_event(todo.pop(0)))
        except Exception:  # it crashes, and the connection with it
            return found
        for order in orders:
            match order.event if isinstance(order, ReceiveHttp) else None:
                case RequestHeaders(request=request):
                    found.append(Read(request.data.method.decode(), _target_of(request)))
                case ResponseHeaders(response=response):
                    found.append(Read("", str(response.status_code)))
                case RequestData(data=data) | ResponseData(data=data):
                    found[-1].body += data
                case RequestEndOfMessage(stream_id=number):
                    found[-1].is_complete = True
                    done = ResponseHeaders(number, Response.make(200, b""), end_stream=True)
                    todo += [done, ResponseEndOfMessage(number)]
                case ResponseEndOfMessage():
                    found[-1].is_complete = True
                    return found
    return found


def _target_of(request: Request) -> str:
    """Return the target as it was written."""
    if request.authority and request.method == "CONNECT":
        return request.authority
    origin = f"{request.scheme}://{request.authority}" if request.authority else ""
    return origin + request.path


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
