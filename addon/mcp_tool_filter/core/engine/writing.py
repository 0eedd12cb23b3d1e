"""Write HTTP/1.1: heads and chunks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    pass

PHRASES = {
    200: b"OK",
    202: b"Accepted",
    400: b"Bad Request",
    403: b"Forbidden",
    404: b"Not Found",
    408: b"Request Timeout",
    413: b"Payload Too Large",
    431: b"Request Header Fields Too Large",
    500: b"Internal Server Error",
    501: b"Not Implemented",
    502: b"Bad Gateway",
    503: b"Service Unavailable",
}
LONG = 65536
"""A body of more bytes is sent by itself: joining it to its head would copy it."""


def render_fields(fields: Iterable[tuple[bytes, bytes]]) -> bytes:
    return b"".join([b"%b: %b\r\n" % one for one in fields])


def render_request(method: str, target: str, fields: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Return a request's head without its end and its length."""
    line = b"%b %b HTTP/1.1\r\n" % (method.encode(), target.encode("latin-1"))
    return line + render_fields(fields)


def render_chunk(data: bytes) -> bytes:
    """Return a chunk; there is none without bytes, which would end the body."""
    return b"%x\r\n%b\r\n" % (len(data), data) if data else b""
