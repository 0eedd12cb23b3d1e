"""Decide which of the operator's headers a request gets.

They add what a request lacks. A request with its own credentials gets none of ours: with both, an
upstream could give one user the rights of another.
"""

from __future__ import annotations

from collections.abc import Sequence

from mcp_tool_filter.http.head import Head
from mcp_tool_filter.http.header_names import is_credential

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
