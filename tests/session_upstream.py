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
from typing import Any

from tests.http_server import Handler, serving
from tests.raw_upstream import TIMEOUT

MIRRORED = {
    "region": {"type": "string", "x-mcp-header": "Region"},
    "deep": {"properties": {"n": {"type": "integer", "x-mcp-header": "N"}}},
}
NAMES = ("read_file", "delete_file", "stream", "resume", "ask", "push", "pretty", "drop")
TOOLS: list[dict[str, Any]] = [{"name": name, "inputSchema": {"type": "object"}} for name in NAMES]
TOOLS.append({"name": "mirrored", "inputSchema": {"type": "object", "properties": MIRRORED}})


@dataclass
class Seen:
    method: str
    path: str
    headers: dict[str, str]
    message: Any

    @property
    def asked(self) -> str:
        """The MCP method, if there is one."""
        return str(self.message.get("method", "")) if isinstance(self.message, dict) else ""


@dataclass
class SessionUpstream:
    url: str = ""
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
        return [f"{seen.method} {seen.asked}".strip() for seen in self.journal]

    def forget(self) -> None:
        """Begin the journal anew."""
        self.journal.clear()

    def calls(self) -> list[Seen]:
        return [seen for seen in self.journal if seen.asked == "tools/call"]


@contextmanager
def session_upstream(*, offers_stream: bool = True, port: int = 0) -> Iterator[SessionUpstream]:
    upstream = SessionUpstream(offers_stream=offers_stream)
    with serving(_Handler, upstream=upstream, port=port) as at:
        upstream.url = f"http://127.0.0.1:{at}/mcp"
        yield upstream
        upstream.pushed.put(b"")


class _Handler(Handler):
    upstream: SessionUpstream

    def do_POST(self) -> None:
        message = json.loads(self.read_body())
        self._note(message)
        if self.path != "/mcp" or self._names_another_session():
            self.say(404)
        elif "method" not in message:
            self.upstream.answers.put(message)
            self.say(202)
        elif "id" not in message:
            self.say(202)
        else:
            self._answer(message)

    def do_GET(self) -> None:
        self._note(None)
        if last := self.headers.get("last-event-id"):
            self._stream(_result(json.loads(last), _text("resumed")))
        elif not self.upstream.offers_stream or self.path != "/mcp":
            self.say(405)
        else:
            self._begin_stream()
            while data := self.upstream.pushed.get():
                self._event(json.loads(data))
            self._end_stream()

    def do_DELETE(self) -> None:
        self._note(None)
        self.say(200)

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
                has = {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}}
                self._json(_result(id, has))
            case "initialize":
                revision, info = params["protocolVersion"], {"name": "sessions", "version": "1"}
                result = {
                    "protocolVersion": revision,
                    "capabilities": {"tools": {}},
                    "serverInfo": info,
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
                note = {"jsonrpc": "2.0", "method": "notifications/message", "params": {}}
                self._stream(note, _result(id, _text("streamed")))
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
                self.say(arguments["code"])
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
        self.say_head(200, ("content-type", "text/event-stream"), ("transfer-encoding", "chunked"))

    def _event(self, message: dict[str, Any]) -> None:
        self._write(b"event: message\ndata: " + json.dumps(message).encode() + b"\n\n")

    def _write(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))
        self.wfile.flush()

    def _end_stream(self) -> None:
        self.wfile.write(b"0\r\n\r\n")
        self.wfile.flush()

    def _stream(self, *messages: dict[str, Any]) -> None:
        self._begin_stream()
        for one in messages:
            self._event(one)
        self._end_stream()

    def _json(self, message: dict[str, Any], *headers: tuple[str, str]) -> None:
        self._body(json.dumps(message).encode(), "application/json", *headers)

    def _body(self, body: bytes, kind: str = "application/json", *headers: tuple[str, str]) -> None:
        self.say(200, body, ("content-type", kind), *headers)


def _result(id: Any, result: dict[str, Any]) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": id, "result": result}


def _text(text: str) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": text}]}
