"""Calls in connections that are no longer HTTP, or never were."""

# ruff: noqa: E501 - tables

from __future__ import annotations

from collections.abc import Iterator

from tests.attacks.hostile_requests.base import (
    CALL,
    HOST,
    SMUGGLED,
    Attack,
)


def in_upgrades() -> Iterator[Attack]:
    """Ways out of HTTP. What follows at once is what a tunnel would carry."""
    key = b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
    frame = masked(CALL)
    for label, headers in [
        (
            "version 8",
            b"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 8\r\n" + key,
        ),
        (
            "version 0",
            b"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 0\r\n" + key,
        ),
        (
            "versions 8, 13",
            b"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 8, 13\r\n" + key,
        ),
        (
            "version twice",
            b"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Version: 13\r\n"
            + key,
        ),
        (
            "version 13 and 8",
            b"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Version: 8\r\n"
            + key,
        ),
        ("no version", b"Upgrade: websocket\r\nConnection: Upgrade\r\n" + key),
        (
            "version 013",
            b"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 013\r\n" + key,
        ),
        (
            "Hixie",
            b"Upgrade: WebSocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key1: 4 @1  46546xW%0l 1 5\r\n",
        ),
        (
            "list with h2c",
            b"Upgrade: websocket, h2c\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
            + key,
        ),
        (
            "websocket with version",
            b"Upgrade: websocket/13\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n" + key,
        ),
        (
            "upgrade twice",
            b"Upgrade: websocket\r\nUpgrade: h2c\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
            + key,
        ),
        ("no connection", b"Upgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n"),
        (
            "h2c",
            b"Upgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAMAAABk\r\n",
        ),
        (
            "H2C",
            b"Upgrade: H2C\r\nConnection: upgrade, http2-settings\r\nHTTP2-Settings: AAMAAABk\r\n",
        ),
        ("h2c, foo", b"Upgrade: h2c, foo\r\nConnection: Upgrade\r\n"),
        ("TLS", b"Upgrade: TLS/1.0\r\nConnection: Upgrade\r\n"),
        ("unknown", b"Upgrade: mcp\r\nConnection: Upgrade\r\n"),
        ("connect-udp", b"Upgrade: connect-udp\r\nConnection: Upgrade\r\nCapsule-Protocol: ?1\r\n"),
        (
            "underscore",
            b"Sec_WebSocket_Version: 13\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n" + key,
        ),
        ("connection twice", b"Connection: keep-alive\r\nConnection: Upgrade\r\nUpgrade: foo\r\n"),
    ]:
        for method in (b"GET", b"POST", b"OPTIONS"):
            line = method + b" /mcp HTTP/1.1\r\n" + HOST
            yield Attack(
                f"upgrade {label} on {method.decode()}", line + headers + b"\r\n" + SMUGGLED, 2
            )
        yield Attack(
            f"upgrade {label}, frame behind",
            b"GET /ws HTTP/1.1\r\n" + HOST + headers + b"\r\n" + frame + SMUGGLED,
            2,
        )
    yield Attack(
        "HTTP/2 by prior knowledge",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0" + SMUGGLED,
    )
    yield Attack("PROXY protocol", b"PROXY TCP4 127.0.0.1 127.0.0.1 1 2\r\n" + SMUGGLED)
    yield Attack(
        "PROXY protocol 2",
        b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c" + b"\x7f\0\0\1" * 2 + b"\0\1\0\2" + SMUGGLED,
    )
    yield Attack("TLS alert", b"\x15\x03\x01\x00\x02\x02\x28" + SMUGGLED)
    yield Attack("no HTTP at all", CALL + b"\r\n\r\n")
    yield Attack("a line of JSON", CALL + b"\n\n" + CALL + b"\r\n\r\n")


def masked(data: bytes, first: int = 0x81) -> bytes:
    """A WebSocket frame from a client; the mask of zeros leaves its bytes as they are."""
    size = len(data)
    length = bytes([0x80 | size]) if size < 126 else b"\xfe" + size.to_bytes(2, "big")
    return bytes([first]) + length + b"\0\0\0\0" + data
