"""Whose a URI is. URIs pass unchanged, so a table says which server one leads to.

>>> matches("file:///{name}", "file:///a"), matches("file:///{name}", "file:///a/b")
(True, False)
>>> matches("file:///{+path}/{name}", "file:///a/b/c"), matches("a://{x}", "b://1")
(True, False)
"""

from __future__ import annotations

import json
import re
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Final

from mcp_tool_filter.rooms.merged.lists import MergedList

MOST_NAMED: Final = 10_000
"""URIs that a session remembers besides those in lists."""
_LONGEST = 2048  # characters of one that is remembered
_VARIABLE = re.compile(r"\{([^{}]{1,256})\}")
_NAMED = re.compile(rb'"uri"\s{0,16}:\s{0,16}("(?:[^"\\\x00-\x1f]|\\.){1,2048}")')
_WITHIN = "/?#"
"""Characters that an ordinary variable does not contain."""


def matches(template: str, uri: str) -> bool:
    """Tell whether a URI can be an expansion of a template (RFC 6570).

    Each literal is looked for from the left, and if that fails, from the right. (An expression for
    ``re`` would backtrack.)
    """
    parts = _VARIABLE.split(template)
    literals, variables = parts[::2], parts[1::2]
    if not variables:
        return template == uri
    return _fits(literals, variables, uri, "find") or _fits(literals, variables, uri, "rfind")


def _fits(literals: Sequence[str], variables: Sequence[str], uri: str, way: str) -> bool:
    if not uri.startswith(literals[0]):
        return False
    at, last = len(literals[0]), len(uri) - len(literals[-1])
    if last < at or not uri.endswith(literals[-1]):
        return False
    for number, variable in enumerate(variables, start=1):
        is_last = number == len(variables)
        found = last if is_last else getattr(uri, way)(literals[number], at, last)
        if found < at or not _holds(variable, uri[at:found]):
            return False
        at = found + len(literals[number])
    return True


def _holds(variable: str, text: str) -> bool:
    """Tell whether a variable's expansion can be this text."""
    match variable[0]:
        case "+" | "#":
            return True
        case "/" | "?" | "&" | ";" | ".":
            return not text or text[0] == variable[0]
        case _:
            return bool(text) and not any(one in text for one in _WITHIN)


class Named:
    """The URIs that servers have named to a session, the oldest first."""

    def __init__(self) -> None:
        self._servers: OrderedDict[str, str] = OrderedDict()
        """Empty if several servers have named it."""

    def learn(self, server: str, message: bytes) -> None:
        """Remember the URIs in a server's message."""
        if b'"uri"' not in message:
            return
        for written in _NAMED.findall(message):
            uri = _meant(written)
            if uri is not None and len(uri) <= _LONGEST:
                self._note(uri, server)

    def _note(self, uri: str, server: str) -> None:
        before = self._servers.get(uri, server)
        self._servers[uri] = server if before == server else ""
        self._servers.move_to_end(uri)
        if len(self._servers) > MOST_NAMED:
            self._servers.popitem(last=False)

    def server_of(self, uri: str) -> str | None:
        """Return the only server that has named it."""
        return self._servers.get(uri) or None

    def __len__(self) -> int:
        return len(self._servers)


def _meant(written: bytes) -> str | None:
    try:
        text = json.loads(written)
    except ValueError:
        return None
    return text if isinstance(text, str) else None


def server_of(
    uri: str, listed: MergedList, named: Named, templates: MergedList, with_resources: Iterable[str]
) -> str | None:
    """Return the server that a URI leads to; None if that is unknown, or there are several."""
    if (owner := listed.owner(uri)) is not None:
        return owner[0]
    if listed.is_claimed(uri):
        return None
    if (server := named.server_of(uri)) is not None:
        return server
    fitting = {
        offer.server for offer in templates.offers for one in offer.items if matches(one.own, uri)
    }
    if fitting:
        return fitting.pop() if len(fitting) == 1 else None
    only = list(with_resources)
    return only[0] if len(only) == 1 else None
