"""What the attacks by a client are made of."""

from __future__ import annotations

from dataclasses import dataclass

from tests.attacks.stage import DENIED

PLAIN = f'{{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{{"name":"{DENIED}"}}}}'
CALL = PLAIN.encode()
ALLOWED = CALL.replace(DENIED.encode(), b"read_file")
PING = b'{"jsonrpc":"2.0","id":7,"method":"ping"}'
HOST = b"Host: localhost\r\n"
JSON = b"Content-Type: application/json\r\nAccept: application/json, text/event-stream\r\n"
SMUGGLED = b"POST /mcp HTTP/1.1\r\n%s%sContent-Length: %d\r\n\r\n%s" % (HOST, JSON, len(CALL), CALL)


@dataclass(frozen=True)
class Attack:
    name: str
    raw: bytes
    answers: int = 1
    """How many answers to wait for."""


def post(body: bytes, headers: bytes = b"", *, path: bytes = b"/mcp", kind: bytes = JSON) -> bytes:
    length = b"Content-Length: %d\r\n" % len(body)
    return b"POST %s HTTP/1.1\r\n%s%s%s%s\r\n%s" % (path, HOST, kind, headers, length, body)


def chunked(*chunks: bytes, end: bytes = b"0\r\n\r\n") -> bytes:
    return b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks) + end
