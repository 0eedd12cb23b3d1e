"""Tell whether the upstream can distinguish a request from the one that fetched the snapshot.

If it can, its answer may differ: another user's list, a list in another language. We list the
headers that make no difference; all others count as a difference:

>>> is_like_the_fetch(Head("POST", "/mcp", ((b"Accept", b"*/*"), (b"User-Agent", b"x"))))
True
>>> is_like_the_fetch(Head("POST", "/mcp", ((b"X-Forwarded-User", b"ann"),)))
False
"""

from __future__ import annotations

import re
from collections.abc import Set

from mcp_tool_filter.http.head import Head
from mcp_tool_filter.http.header_names import HARMLESS
from mcp_tool_filter.protocol.messages import Request

_PARAMS = frozenset({"_meta", "cursor"})
_META = frozenset({
    "progressToken", "traceparent", "tracestate",
    "io.modelcontextprotocol/protocolVersion", "io.modelcontextprotocol/clientInfo",
    "io.modelcontextprotocol/clientCapabilities",
})  # fmt: skip
_NONE: frozenset[bytes] = frozenset()


# Headers of gateways that differ with each request, or say how it came (not all X-Forwarded-…: some
# name a user), and those that repeat the message.
_NOT_OF_THE_ASKER = re.compile(
    rb"forwarded|via|x-real-ip|x-forwarded-(?:for|host|port|proto|scheme|server)"
    rb"|x-(?:request|correlation)-id|x-amzn-trace-id|x-cloud-trace-context|x-b3-.*|cf-ray"
    rb"|mcp-param-.*"
)


def credentials_in(head: Head) -> bytes:
    """Return the headers that identify the asker to an upstream; equal for equal credentials."""
    if not head.names.credentials:
        return b""
    said = [(name.lower(), value) for name, value in head.headers]
    return b"\n".join(b"%b: %b" % one for one in sorted(said) if one[0] in head.names.credentials)


def asker_in(head: Head) -> bytes:
    """Return all that an answer may depend on besides the message: an equal request of another
    user differs in it, even if the user is identified by the URL.
    """
    told = sorted(
        (name.lower(), value)
        for name, value in head.headers
        if name.lower() not in HARMLESS and not _NOT_OF_THE_ASKER.fullmatch(name.lower())
    )
    target = head.target.encode("utf-8", "surrogateescape")
    return b"\n".join([target, *(name + b":" + value for name, value in told)])


def is_like_the_fetch(
    head: Head, *, replaced: Set[bytes] = _NONE, known_origin: bool = False
) -> bool:
    """Tell whether an upstream must answer a request with this head as it answered the fetch.

    ``replaced`` are the names, in lower case, of headers that the upstream gets with our values.
    With ``known_origin`` the upstream has answered pages of this origin before.
    """
    return head.names.are_harmless or all(
        _is_harmless(name, head, known_origin)
        for name in head.names.places
        if name not in HARMLESS and name not in replaced
    )


def identity_in(head: Head) -> bytes:
    """Return everything by which an upstream could distinguish askers, in a fixed order."""
    told = sorted(
        (name.lower(), value) for name, value in head.headers if name.lower() not in HARMLESS
    )
    return b"\n".join([name + b":" + value for name, value in told])


def has_usual_params(request: Request) -> bool:
    """Tell whether a list request has only params that MCP defines."""
    if request.params is None:
        return True
    meta = request.params.named.get("_meta")
    return _PARAMS.issuperset(request.params.named) and (
        meta is None or (meta.members is not None and _META.issuperset(meta.named))
    )


def _is_harmless(name: bytes, head: Head, known_origin: bool) -> bool:
    value = head.get(name)
    match name:
        case b"accept-language":  # Node sends "*", which means the same as no header
            return value == "*"
        case b"origin":
            return known_origin
        case b"referer":  # browsers send only the origin of a page elsewhere
            return known_origin and value == f"{head.get(b'origin')}/"
    return False
