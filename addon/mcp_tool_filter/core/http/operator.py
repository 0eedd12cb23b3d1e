"""What the operator has set for the upstream wins over what a client sends: headers, and the query
of the upstream's URL. A client could switch off ``X-MCP-Readonly: true`` or ``?read_only=true``.

>>> operators_target("/mcp?Read%5Fonly=false&a=1", "/mcp?read_only=true")
'/mcp?read_only=true&a=1'
>>> operators_target("/x/../%6Dcp", "/mcp?read_only=true"), operators_target("/a", "/mcp?a=1")
('/x/../%6Dcp?read_only=true', '/a')
>>> operators_target("/mcp#?read_only=false", "/mcp?read_only=true")
'/mcp?read_only=true'

A client's own credentials stay: with the operator's in their place, it would have other rights.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import unquote, unquote_plus

from mcp_tool_filter.core.http.asker import HeaderPairs
from mcp_tool_filter.core.http.head import Fields, is_credential
from mcp_tool_filter.core.policy.config import plain_path

_OF_MESSAGES: Final = frozenset({
    b"accept", b"origin", b"last-event-id", b"mcp-session-id", b"mcp-protocol-version",
    b"mcp-method", b"mcp-name",
})  # fmt: skip
"""What a message itself needs."""


def without_decided(fields: Fields, headers: HeaderPairs) -> Fields:
    """Return a client's fields without those that the operator has set, in any spelling that a
    server takes for the same name.

    >>> without_decided(((b"X_Read_only", b"false"), (b"x-a", b"")), [("X-Read-Only", "true")])
    ((b'x-a', b''),)
    """
    decided = {_alike(name.encode()) for name, _ in without_credentials(headers)} - _OF_MESSAGES
    return tuple([field for field in fields if _alike(field[0]) not in decided])


def without_credentials(headers: HeaderPairs) -> HeaderPairs:
    return [header for header in headers if not is_credential(header[0].lower().encode())]


def _alike(name: bytes) -> bytes:
    return name.lower().replace(b"_", b"-")


def leads_to(target: str, endpoint: str) -> bool:
    """Tell whether some server could take a target for its endpoint. Some end a path at a ``#``.

    >>> leads_to("/mcp#/a", "/mcp"), leads_to("/a#/../mcp", "/mcp"), leads_to("/a#/mcp", "/mcp")
    (True, True, False)
    """
    path, end = plain_path(target), plain_path(endpoint)
    if path == end:
        return True
    decoded = unquote(unquote(path))
    readings = (decoded, _END.split(decoded, maxsplit=1)[0])
    return _resolved(unquote(unquote(end))) in map(_resolved, readings)


def operators_target(target: str, endpoint: str) -> str:
    """Return a target with the query of the operator's endpoint, if it could lead there."""
    path, _, query = target.partition("#")[0].partition("?")  # many servers cut it off there
    own = endpoint.partition("?")[2]
    if not own or not leads_to(target, endpoint):
        return target
    decided = set(map(_parameter, _PARTS.split(own)))
    theirs = _PARTS.split(query)
    if not decided.isdisjoint(map(_parameter, theirs)):
        query = "&".join(part for part in theirs if _parameter(part) not in decided)
    return f"{path}?{own}&{query}" if query else f"{path}?{own}"


_PARTS = re.compile("[&;]")
_END = re.compile(r"[?#\0]")


def _parameter(part: str) -> str:
    """Return the name of a query's parameter as the most careless server reads it."""
    name = unquote_plus(unquote_plus(part.partition("=")[0])).casefold().strip()
    return re.split(r"[\0\[]", name, maxsplit=1)[0].replace(" ", "_").replace(".", "_")


def _resolved(path: str) -> list[str]:
    parts: list[str] = []
    for part in path.replace("\\", "/").casefold().split("/"):
        name = part.partition(";")[0].strip()
        if name == "..":
            del parts[-1:]
        elif name not in ("", "."):
            parts.append(name)
    return parts
