r"""Tell from the first bytes of a connection whether it is HTTP.

A connection that cannot be HTTP passes unread; while it may be HTTP, we wait for more bytes.

>>> first_bytes(b"POST /mcp HTTP/1.1\r\n", b""), first_bytes(b"SSH-2.0-OpenSSH_9.6 x\r\n", b"")
(<Spoken.HTTP: 'http'>, <Spoken.OTHER: 'other'>)
"""

from __future__ import annotations

import re
from enum import StrEnum

_LONGEST_LINE = 64 * 1024
_BLANK = b" \t\r\n\0\x0b\x0c\x1c\x1d\x1e\x1f\x85\xa0"
# Bytes that some server accepts as a space, or as a blank line before a request. Node reads RTSP
# and ICE as HTTP. (HTTP/0.9 cannot send a body.)
_SPACE = rb"[ \t\r\x0b\x0c\x1c-\x1f\x85\xa0]"
_METHOD = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]"
_REQUEST = re.compile(
    _METHOD + b"+" + _SPACE + rb"[^\n]*" + _SPACE + b"(?:HTTP|RTSP|ICE)/", re.IGNORECASE
)
_MAY_BECOME_REQUEST = re.compile(_METHOD + b"{1,64}(?:" + _SPACE + rb"[^\n]*)?")


class Spoken(StrEnum):
    TLS = "tls"
    HTTP = "http"
    OTHER = "other"
    UNKNOWN = "unknown"
    """More bytes are needed."""


def first_bytes(from_client: bytes, from_server: bytes) -> Spoken:
    """Tell which protocol both sides speak, by all bytes so far."""
    if b"\x16\x03".startswith(from_client[:2]):
        if len(from_client) >= 3:
            return Spoken.TLS
        if from_client:
            return Spoken.UNKNOWN
    said = from_client.lstrip(_BLANK)[:_LONGEST_LINE]
    if not said:
        spoken = _greeting(from_server)
        is_too_much = spoken is Spoken.UNKNOWN and len(from_client) > _LONGEST_LINE
        return Spoken.HTTP if is_too_much else spoken  # it does not hold blank lines
    if _REQUEST.match(said):
        return Spoken.HTTP
    if not _MAY_BECOME_REQUEST.fullmatch(said):
        return Spoken.OTHER
    is_long = len(said) == _LONGEST_LINE  # some servers read a line that is even longer
    return Spoken.HTTP if is_long else Spoken.UNKNOWN


def _greeting(from_server: bytes) -> Spoken:
    """Judge a server that sends first: an early HTTP answer must not make the client's bytes pass
    unread."""
    said = from_server.lstrip(_BLANK)[:5].upper()
    return Spoken.UNKNOWN if b"HTTP/".startswith(said) else Spoken.OTHER
