"""An MCP server over HTTP that keeps a journal of requests, for tests of our own clients.

with session_upstream() as upstream:
    ...  # upstream.url, upstream.journal

It speaks Streamable HTTP with a session (2025-11-25), and 2026-07-28 without. Some tools have an
effect: ``stream`` answers with events, ``resume`` breaks its stream off and goes on with it after
Last-Event-ID, ``ask`` asks the client for its roots, ``push`` sends a notification on the GET
stream, ``pretty`` answers with line breaks, ``drop`` hangs up, ``die`` stops the server, ``status``
answers with that HTTP status, ``slow`` takes its time, ``big`` answers with so many bytes.
"""

from __future__ import annotations

import json
import queue
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.raw_upstream import TIMEOUT

TOOLS = [
    {"name": name, "inputSchema": {"type": "object"}}
    for name in ("read_file", "delete_file", "stream", "resume", "ask", "push", "pretty", "drop")
] + [
    {
        "name": "mirrored",
        "inputSchema": {
            "type": "object",
            "properties": {
                "region": {"type": "string", "x-mcp-header": "Region"},
                "deep": {"properties": {"n": {"type": "integer", "x-mcp-header": "N"}}},
            },
        },
    }
]


@dataclass
class Seen:
    method: str
    path: str
    headers: dict[str, str]
    message: Any


@dataclass
class SessionUpstream:
    url: str
    server: ThreadingHTTPServer
    journal: list[Seen] = field(default_factory=list)
    answers: queue.SimpleQueue[Any] = field(default_factory=queue.SimpleQueue)
    """What clients answered to questions."""
    pushed: queue.SimpleQueue[bytes] = field(default_factory=queue.SimpleQueue)
    """What goes out on the GET stream."""
    cancelled: threading.Event = field(default_factory=threading.Event)
    """Somebody hung up on the tool ``slow``."""
    offers_stream: bool = True
    sessions: int = 1
    """How often the session was lost, and one: it is in the session's name."""

    @property
    def session(self) -> str:
        return f"session-{self.sessions}"

    def methods(self) -> list[str]:
        """The HTTP and MCP methods that were asked for, oldest first."""
        return [
            f"{seen.method} {seen.message['method']}"
            if isinstance(seen.message, dict) and "method" in seen.message
            else seen.method
            for seen in self.journal
        ]

    def forget(self) -> None:
        """Begin the journal anew."""
        self.journal.clear()

    def calls(self) -> list[Seen]:
        return [
            seen
            for seen in self.journal
            if isinstance(seen.message, dict) and seen.message.get("method") == "tools/call"
        ]


@contextmanager
def session_upstream(*, offers_stream: bool = True) -> Iterator[SessionUpstream]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.daemon_threads = True
    upstream = SessionUpstream(f"http://127.0.0.1:{server.server_port}/mcp", server)
    upstream.offers_stream = offers_stream
    server.handle_error = lambda *_: None  # type: ignore[method-assign]  # clients hang up
    server.upstream = upstream  # type: ignore[attr-defined]  # for its handlers
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield upstream
    finally:
        upstream.pushed.put(b"")
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    @property
    def upstream(self) -> SessionUpstream:
        found: SessionUpstream = self.server.upstream  # type: ignore[attr-defined]  # set above
        return found

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        message = json.loads(body)
        self._note(message)
        if self.path != "/mcp" or self._names_another_session():
            self._status(404)
        elif "method" not in message:
            self.upstream.answers.put(message)
            self._status(202)
        elif "id" not in message:
            self._status(202)
        else:
            self._answer(message)

    def do_GET(self) -> None:
        self._note(None)
        if last := self.headers.get("last-event-id"):
            id = json.loads(last)
            self._begin_stream()
            self._event(_result(id, _text("resumed")))
            self._end_stream()
        elif not self.upstream.offers_stream or self.path != "/mcp":
            self._status(405)
        else:
            self._begin_stream()
            while data := self.upstream.pushed.get():
                self._event(json.loads(data))
            self._end_stream()

    def do_DELETE(self) -> None:
        self._note(None)
        self._status(200)

    def _names_another_session(self) -> bool:
        named = self.headers.get("mcp-session-id")
        return named is not None and named != self.upstream.session

    def _note(self, message: Any) -> None:
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.upstream.journal.append(Seen(self.command, self.path, headers, message))

    def _answer(self, message: dict[str, Any]) -> None:
        id, params = message["id"], message.get("params") or {}
        modern = "_meta" in params
        match message["method"]:
            case "server/discover":
                result: dict[str, Any] = {
                    "supportedVersions": ["2026-07-28"],
                    "capabilities": {"tools": {}},
                }
                self._json(_result(id, result))
            case "initialize":
                result = {
                    "protocolVersion": params["protocolVersion"],
                    "capabilities": {"tools": {}},
                    "serverInfo": {"name": "sessions", "version": "1"},
                }
                self._json(_result(id, result), ("mcp-session-id", self.upstream.session))
            case "tools/list":
                more = {"resultType": "complete", "ttlMs": 0} if modern else {}
                self._json(_result(id, {"tools": TOOLS, **more}))
            case "tools/call":
                self._call(id, params["name"], params.get("arguments") or {})
            case "subscriptions/listen":
                self._begin_stream()
                self._event({"jsonrpc": "2.0", "method": "notifications/subscriptions/ack"})
                self._wait_for_hang_up()
            case "ping":
                self._json(_result(id, {}))
            case _:
                self._json({"jsonrpc": "2.0", "id": id, "error": {"code": -32601, "message": "no"}})

    def _call(self, id: Any, name: str, arguments: dict[str, Any]) -> None:
        match name:
            case "stream":
                self._begin_stream()
                self._event({"jsonrpc": "2.0", "method": "notifications/message", "params": {}})
                self._event(_result(id, _text("streamed")))
                self._end_stream()
            case "resume":
                self._begin_stream()
                self._write(b"id: %s\nretry: 10\ndata: \n\n" % json.dumps(id).encode())
                self._end_stream()
            case "ask":
                self._begin_stream()
                self._event({"jsonrpc": "2.0", "id": "q1", "method": "roots/list"})
                answer = self.upstream.answers.get(timeout=TIMEOUT)
                self._event(_result(id, _text(json.dumps(answer["result"]))))
                self._end_stream()
            case "push":
                note = {"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}
                self.upstream.pushed.put(json.dumps(note).encode())
                self._json(_result(id, _text("pushed")))
            case "pretty":
                body = json.dumps(_result(id, _text("a\nb")), indent=2).replace("\n", "\r\n")
                self._body(body.encode())
            case "drop":
                self._hang_up()
            case "die":
                self.server.shutdown()
                self.server.server_close()
                self._hang_up()
            case "status":
                self._status(arguments["code"])
            case "slow":
                self._begin_stream()
                self._wait_for_hang_up()
                self.upstream.cancelled.set()
            case "big":
                self._json(_result(id, _text("x" * arguments["bytes"])))
            case "text":
                self._body(arguments["body"].encode(), arguments.get("type", "application/json"))
            case _:
                self._json(_result(id, _text(name)))

    def _hang_up(self) -> None:
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)

    def _wait_for_hang_up(self) -> None:
        end = time.monotonic() + TIMEOUT
        with suppress(OSError):
            while time.monotonic() < end:
                self._write(b": still here\n\n")
                time.sleep(0.02)

    def _begin_stream(self) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()

    def _event(self, message: dict[str, Any]) -> None:
        self._write(b"event: message\ndata: " + json.dumps(message).encode() + b"\n\n")

    def _write(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))
        self.wfile.flush()

    def _end_stream(self) -> None:
        self.wfile.write(b"0\r\n\r\n")
        self.wfile.flush()

    def _status(self, code: int) -> None:
        self.send_response(code)
        self.send_header("content-length", "0")
        self.end_headers()

    def _json(self, message: dict[str, Any], *headers: tuple[str, str]) -> None:
        self._body(json.dumps(message).encode(), "application/json", *headers)

    def _body(self, body: bytes, kind: str = "application/json", *headers: tuple[str, str]) -> None:
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        for name, value in headers:
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)


def _result(id: Any, result: dict[str, Any]) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": id, "result": result}


def _text(text: str) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": text}]}
