"""What the header names of a request tell, whatever the values are.

A client sends the same names with each request. So we judge a set of names once, and then only look
up the result:

>>> read_names((b"Host", b"Content-Type", b"X-User"))
HeaderNames(places={b'host': 0, b'content-type': 1, b'x-user': 2}, problem=None, \
are_harmless=False, are_silent=True, credentials=frozenset(), askers=frozenset({b'x-user'}))
>>> read_names((b"Host", b"host")).problem, read_names((b"Mcp_Name",)).problem
('a header twice', 'a header that could be taken for another')
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

LONGEST_KEPT = 4096  # bytes of all names
# If one of these is repeated, readers differ on which value counts.
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
# What else may name a user or a group of users, or choose the tools to list. An upstream may list
# other tools to them; each is an asker of its own.
_ASKERS = re.compile(
    rb"from|accept-language|x-mcp-.*|(?!mcp-param-)mcp-.*|(?!sec-websocket-|mcp-param-).*(?:user|tenant|org|account|customer|member|person|principal|identity|subject|owner|role"
    rb"|group|team|workspace|project|realm|scope|profile|email|login|client-?id|company|consumer"
    rb"|namespace|subscription|permission|session|key|passport|entitlement|toolset).*"
)
# Names of the request itself: its id, its trace.
_OF_THE_REQUEST = re.compile(
    rb"(?:x-)?(?:(?:client|ms-client|amzn?|amz|vercel|goog)-)*"
    rb"(?:request|correlation|trace|span|transaction|operation|message|invocation|activity|event)"
    rb"-?id|(?:x-)?idempotency-key|x-b3-.*|b3|x-amzn-trace-id|x-cloud-trace-context|cf-ray"
    rb"|uber-trace-id|sentry-trace|x-datadog-.*|newrelic|elastic-apm-traceparent|grpc-trace-bin"
    rb"|x-request-start|x-(?:timestamp|nonce)"
)
HARMLESS = frozenset({
    # How the message is sent. We replace Host and Accept-Encoding.
    b"host", b"connection", b"keep-alive", b"proxy-connection", b"te", b"upgrade",
    b"http2-settings", b"content-length", b"content-type", b"content-encoding",
    b"transfer-encoding", b"accept", b"accept-encoding", b"expect", b"priority", b"date",
    # Which program asks, and MCP's own headers, which are judged elsewhere.
    b"user-agent", b"mcp-session-id", b"mcp-protocol-version", b"mcp-method", b"mcp-name",
    b"last-event-id",
    # Which trace the request belongs to (not "baggage": that may name a user).
    b"traceparent", b"tracestate",
    # What a browser adds to every request.
    b"sec-fetch-site", b"sec-fetch-mode", b"sec-fetch-dest", b"sec-fetch-user",
    b"sec-fetch-storage-access", b"sec-ch-ua", b"sec-ch-ua-mobile", b"sec-ch-ua-platform",
    b"sec-gpc", b"dnt", b"upgrade-insecure-requests", b"cache-control", b"pragma",
})  # fmt: skip
"""An upstream cannot identify the asker by any of these; ``is_harmless`` knows more of them."""


@dataclass(frozen=True, slots=True)
class HeaderNames:
    places: Mapping[bytes, int]
    """Each name in lower case, and the index of its header; of repeated ones, the last."""
    problem: str | None
    """Why a request with these names is refused, or None."""
    are_harmless: bool
    """True if an upstream cannot identify the asker by any of them."""
    are_silent: bool
    """True if ``Head.said`` reads none of them."""
    credentials: frozenset[bytes]
    """The names by which an upstream could identify the asker."""
    askers: frozenset[bytes]
    """Those that make a request one of another asker, if their values differ."""


@lru_cache(maxsize=128)
def read_names(names: tuple[bytes, ...]) -> HeaderNames:
    """Return what header names tell.

    (Cached; for names above LONGEST_KEPT call ``__wrapped__``.)
    """
    places = {name.lower(): at for at, name in enumerate(names)}
    return HeaderNames(
        places,
        _problem_in(names, places),
        HARMLESS.issuperset(places) or all(map(is_harmless, places)),
        _SAID.isdisjoint(places),
        frozenset(filter(is_credential, places)),
        frozenset(filter(_is_of_asker, places)),
    )


def is_credential(name: bytes) -> bool:
    """Tell by its name whether a header may identify the asker to an upstream."""
    return _CREDENTIALS.fullmatch(name) is not None


def is_harmless(name: bytes) -> bool:
    """Tell whether an upstream cannot identify the asker by a header of this name."""
    return name in HARMLESS or _OF_THE_REQUEST.fullmatch(name) is not None


def _is_of_asker(name: bytes) -> bool:
    if is_harmless(name):
        return False
    return is_credential(name) or _ASKERS.fullmatch(name) is not None


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
