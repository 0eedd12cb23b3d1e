"""Tell whether the upstream can distinguish a request from the one that fetched the snapshot.

If it can, its answer may differ: another user's list, a list in another language. We list the
headers that make no difference; all others count as a difference:

>>> is_like_the_fetch(Head("POST", "/mcp", ((b"Accept", b"*/*"), (b"User-Agent", b"x"))))
True
>>> is_like_the_fetch(Head("POST", "/mcp", ((b"X-Forwarded-User", b"ann"),)))
False

The operator's headers add what a request lacks (``headers_to_add``). A request with its own
credentials gets none of ours: with both, an upstream could give one user the rights of another.
"""

from __future__ import annotations

import re
from collections.abc import Sequence, Set

from mcp_tool_filter.http.head import Head, is_credential, is_harmless

_NONE: frozenset[bytes] = frozenset()


# Headers of gateways that say how a request came (not all X-Forwarded-…: some name a user), and
# those that repeat the message.
_NOT_OF_THE_ASKER = re.compile(
    rb"forwarded|via|x-real-ip|x-forwarded-(?:for|host|port|proto|scheme|server)|mcp-param-.*"
)
# Credentials that sign each request anew name the same user in the rest of their parts.
_SIGNED = re.compile(rb"(?i)(?:aws4-\S+|digest|hawk|oauth|signature|\S*hmac\S*)\s")
_OF_ONE_REQUEST = re.compile(
    rb"(?i)\b(?:oauth_)?(?:signature|sig|mac|c?nonce|nc|response|timestamp|ts|hash|created|expires"
    rb"|date|uri)=(?:\"[^\"]*\"|[^,;\s]*)"
)
# Cookies that a load balancer or a bot filter renews with each answer.
_RENEWED = re.compile(rb"(?i)AWSALB\w*|__cf_bm|_cfuvid|__cflb|_ga\w*|_gid")
_QUERY_OF_ONE_REQUEST = re.compile(
    r"(?i)(?:request|trace|correlation)[-_]?id|nonce|timestamp|ts|_|cache[-_]?bust(?:er)?|rand(?:om)?"
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
        if not is_harmless(name.lower()) and not _NOT_OF_THE_ASKER.fullmatch(name.lower())
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
        if not is_harmless(name) and name not in replaced
    )


def identity_in(head: Head, place: str = "") -> bytes:
    """Return what makes a request one of another asker, in a fixed order; empty if nothing does.

    A header that differs with each request is not part of it: then every request would be an asker
    about whom we know nothing, and a changed or new tool would pass. ``place`` is the target if the
    upstream may identify askers by it.
    """
    askers = head.names.askers
    told = sorted(
        name.lower() + b":" + _lasting(name.lower(), value)
        for name, value in head.headers
        if name.lower() in askers and (value != b"*" or name.lower() != b"accept-language")
    )
    if place:
        path, _, query = place.partition("?")
        parts = [one for one in query.split("&") if not _is_of_one_request(one)]
        told.insert(0, f"{path}?{'&'.join(parts)}".encode("utf-8", "surrogateescape"))
    return b"\n".join(told)


def _lasting(name: bytes, value: bytes) -> bytes:
    """Return the part of a credential that stays the same from one request to the next."""
    if name == b"cookie":
        cookies = (one.strip() for one in value.split(b";"))
        kept = (one for one in cookies if not _RENEWED.fullmatch(one.partition(b"=")[0]))
        return b";".join(sorted(kept))
    return _OF_ONE_REQUEST.sub(b"", value) if _SIGNED.match(value) else value


def _is_of_one_request(field: str) -> bool:
    return _QUERY_OF_ONE_REQUEST.fullmatch(field.partition("=")[0]) is not None


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


type HeaderPairs = Sequence[tuple[str, str]]


def headers_to_add(head: Head, headers: HeaderPairs, *, override: bool = False) -> HeaderPairs:
    """Return the headers of ours that a request gets.

    >>> headers_to_add(Head("POST", "/mcp", ()), [("Authorization", "ours")])
    [('Authorization', 'ours')]
    >>> headers_to_add(Head("POST", "/mcp", ((b"Cookie", b"a=b"),)), [("Authorization", "ours")])
    []
    """
    if override:
        return headers
    names = head.names.places
    missing = [one for one in headers if one[0].lower().encode() not in names]
    if missing and head.credentials:
        return [one for one in missing if not is_credential(one[0].lower().encode())]
    return missing
