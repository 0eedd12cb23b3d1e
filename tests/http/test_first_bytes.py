"""Which protocol is spoken on a connection, by the first bytes of both sides."""

from __future__ import annotations

import pytest

from mcp_tool_filter.http.recognise import Spoken, first_bytes


@pytest.mark.parametrize(
    ("client", "server", "spoken"),
    [
        (b"", b"", Spoken.UNKNOWN),
        (b"\x16", b"", Spoken.UNKNOWN),
        (b"\x16\x03\x01", b"", Spoken.TLS),
        (b"P", b"", Spoken.UNKNOWN),
        (b"POST /mcp HTT", b"", Spoken.UNKNOWN),
        (b"POST /mcp HTTP/1.1\r\n", b"", Spoken.HTTP),
        (b"\r\n\r\nPOST /mcp HTTP/1.1\r\n", b"220 smtp", Spoken.HTTP),
        (b"PRI * HTTP/2.0\r\n", b"", Spoken.HTTP),
        (b"POST\x0b/mcp\x0cHTTP/1.1\r\n", b"", Spoken.HTTP),
        (b"\x0b\xa0POST\xa0/mcp\x1fHTTP/1.1\r\n", b"", Spoken.HTTP),
        (b"POST /mcp RTSP/1.1\r\n", b"", Spoken.HTTP),
        (b"SOURCE /mcp ICE/1.0\r\n", b"", Spoken.HTTP),
        (b"POST /mcp?" + b"a" * 70_000, b"", Spoken.HTTP),
        (b"POST /mcp?" + b"a" * 70_000 + b" HTTP/1.1\r\n", b"", Spoken.HTTP),
        (b"\r\n" * 40_000 + b"POST /mcp HTTP/1.1\r\n", b"220 smtp", Spoken.HTTP),
        (b"\r\n" * 40_000, b"", Spoken.HTTP),
        (b"\r\n" * 40_000, b"220 smtp", Spoken.OTHER),
        (b"INVITE sip:a@b SIP/2.0\r\n", b"", Spoken.OTHER),
        (b"EHLO me\r\n", b"", Spoken.OTHER),
        (b"SSH-2.0-x y\r\n", b"", Spoken.OTHER),
        (b"\x00\x00\x00\x08\x04\xd2", b"", Spoken.OTHER),
        (b"", b"220 smtp", Spoken.OTHER),
        (b"", b"\r\nHT", Spoken.UNKNOWN),
        (b"", b"HTTP/1.1 200 OK\r\n", Spoken.UNKNOWN),
    ],
)
def test_the_first_bytes_tell_the_protocol(client: bytes, server: bytes, spoken: Spoken) -> None:
    assert first_bytes(client, server) is spoken
