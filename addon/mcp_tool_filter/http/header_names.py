"""What the names of a request's headers tell, whatever their values are.

A client sends the same names with each of its requests. So what can be said by them alone is found
out once, and then only looked up:

>>> read_names((b"Host", b"Content-Type", b"X-User"))
HeaderNames(places={b'host': 0, b'content-type': 1, b'x-user': 2}, problem=None, \
are_harmless=False, are_silent=True, credentials=frozenset())
>>> read_names((b"Host", b"host")).problem, read_names((b"Mcp_Name",)).problem
('a header twice', 'a header that could be taken for another')
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

LONGEST_KEPT = 4096  # bytes of all names
# Said twice, each of these could be taken either way.
_ONCE = frozenset({
    b"mcp-method", b"mcp-name", b"mcp-session-id", b"mcp-protocol-version", b"last-event-id",
    b"content-type", b"content-encoding", b"content-length", b"transfer-encoding", b"host",
})  # fmt: skip
_SAID = frozenset({
    b"mcp-method", b"mcp-name", b"mcp-session-id", b"mcp-protocol-version", b"content-encoding",
})  # fmt: skip
_CREDENTIALS = re.compile(
    rb"cookie|.*(?:api[-_]?key|access[-_]?key|token|secret|credential|auth|jwt|assertion|passw).*",
    re.IGNORECASE,
)
HARMLESS = frozenset({
    # How the message is sent. We replace Host and Accept-Encoding.
    b"host", b"connection", b"keep-alive", b"proxy-connection", b"te", b"upgrade",
    b"http2-settings", b"content-length", b"content-type", b"content-encoding",
    b"transfer-encoding", b"accept", b"accept-encoding", b"expect", b"priority", b"date",
    # Which program asks, and what MCP itself says; whoever judges a list looks at these.
    b"user-agent", b"mcp-session-id", b"mcp-protocol-version", b"mcp-method", b"mcp-name",
    b"last-event-id",
    # Which trace the request belongs to (not "baggage": that may name a user).
    b"traceparent", b"tracestate",
    # What a browser adds of itself, for each page alike.
    b"sec-fetch-site", b"sec-fetch-mode", b"sec-fetch-dest", b"sec-fetch-user",
    b"sec-fetch-storage-access", b"sec-ch-ua", b"sec-ch-ua-mobile", b"sec-ch-ua-platform",
    b"sec-gpc", b"dnt", b"upgrade-insecure-requests", b"cache-control", b"pragma",
})  # fmt: skip
"""By none of these could an upstream tell who asks."""


@dataclass(frozen=True, slots=True)
class HeaderNames:
    places: Mapping[bytes, int]
    """Each name in lower case, and which header says it: the last one, if several do."""
    problem: str | None
    """Why a request with these names is refused."""
    are_harmless: bool
    """An upstream cannot tell by any of them who asks."""
    are_silent: bool
    """None of them is one that ``Head.said`` asks for."""
    credentials: frozenset[bytes]
    """Those by which an upstream could know who asks."""


@lru_cache(maxsize=128)
def read_names(names: tuple[bytes, ...]) -> HeaderNames:
    """Return what the names of a request's headers tell; for longer ones call ``__wrapped__``."""
    places = {name.lower(): at for at, name in enumerate(names)}
    return HeaderNames(
        places,
        _problem_in(names, places),
        HARMLESS.issuperset(places),
        _SAID.isdisjoint(places),
        frozenset(filter(is_credential, places)),
    )


def is_credential(name: bytes) -> bool:
    """Tell by a header's name whether an upstream may know by it who asks."""
    return _CREDENTIALS.fullmatch(name) is not None


def _problem_in(names: tuple[bytes, ...], places: Mapping[bytes, int]) -> str | None:
    if len(places) < len(names):
        once = [lower for name in names if (lower := name.lower()) in _ONCE]
        if len(set(once)) < len(once):
            return "a header twice"
    if any(map(_is_like_another, places)):
        return "a header that could be taken for another"
    return None


def _is_like_another(name: bytes) -> bool:
    plain = re.sub(rb"[^a-z0-9]+", b"-", name).strip(b"-")
    return name not in _ONCE and plain in _ONCE
