"""Small HTTP servers, each in a thread, for tests that need no byte of their own."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread


class Handler(BaseHTTPRequestHandler):
    """Answers requests; a subclass says how."""

    protocol_version = "HTTP/1.1"

    def read_body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("content-length", 0)))

    def say_head(self, status: int, *headers: tuple[str, str]) -> None:
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.end_headers()

    def say(self, status: int, body: bytes = b"", *headers: tuple[str, str]) -> None:
        """Give a whole response."""
        self.say_head(status, ("Content-Length", str(len(body))), *headers)
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 100

    def handle_error(self, *_: object) -> None:
        """Clients may leave when they like."""


@contextmanager
def serving(
    handler: type[Handler], *, tls: ssl.SSLContext | None = None, port: int = 0, **known: object
) -> Iterator[int]:
    """Serve until the end of the block; yield the port. The handler has ``known`` as attributes."""
    server = _Server(("127.0.0.1", port), type("Own", (handler,), known))
    if tls:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    thread = Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
