r"""Documents about a server that are read without MCP lead to us. (They also show no hidden tool:
``rooms/things/described``.)

A Server Card (SEP-2127, before SEP-1649) is at ``/.well-known/mcp/server-card.json``, at
``/.well-known/mcp.json``, or below the endpoint; a catalog names the cards of a domain. Clients
connect to the URL in it, so that one of the upstream would lead them past the filter:

>>> card = b'{"remotes": [{"url": "http://localhost:3000/mcp"}], "tools": []}'
>>> with_our_urls(card, "http://localhost:6273", UpstreamNames("http://127.0.0.1:3000"))
b'{"remotes": [{"url": "http://localhost:6273/mcp"}], "tools": []}'
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from mcp_tool_filter.core.errors import ProtocolError
from mcp_tool_filter.core.http.places import ALONE, PathMap
from mcp_tool_filter.core.http.urls import UpstreamNames, may_lead_round
from mcp_tool_filter.core.messages.scan import EACH, Value, open_value, scan
from mcp_tool_filter.core.messages.tools import Edit, with_edits
from mcp_tool_filter.rooms.logins.logins_through import Sides

_IN_TEXT = re.compile(r"(?:https?|wss?):[/\\]{2}[^\s\"'<>`|^]+", re.IGNORECASE)
_AT_END = ".,;:!?)]}"


def with_our_urls(
    document: bytes, ours: str, upstream: UpstreamNames, mount: PathMap = ALONE
) -> bytes | None:
    """Return a document that names us in place of the upstream; None if it names neither.

    Raises ProtocolError if some client could take a URL in it for the upstream's that we cannot
    rewrite.
    """
    text, root = scan(document, {})
    edits = []
    for value in _strings_in(text, root):
        said = value.text or ""
        new = _rewritten(said, Sides(ours, upstream, mount))
        if new != said:
            edits.append(Edit(value.start, value.end, json.dumps(new, ensure_ascii=False)))
    return with_edits(text, 0, len(text), edits).encode() if edits else None


def _strings_in(text: str, value: Value) -> Iterator[Value]:
    if value.text is not None:
        yield value
        return
    opened = open_value(text, value, {EACH: {}})
    for element in opened.elements or ():
        yield from _strings_in(text, element)
    for member in opened.members or ():
        if "://" in member.key:
            raise ProtocolError("a document with a URL as a key")
        yield from _strings_in(text, member.value)


def _rewritten(said: str, sides: Sides) -> str:
    upstream = sides.upstream
    if (new := sides.our_url(said)) is not None:
        return new
    if not re.search(r"\s", said) and may_lead_round(said, upstream):
        raise ProtocolError("a document with a URL that some clients take for the upstream's")

    def replaced(found: re.Match[str]) -> str:
        url = found[0].rstrip(_AT_END)
        new = sides.our_url(url)
        if new is None and may_lead_round(url, upstream):
            raise ProtocolError("a document with a URL that some clients take for the upstream's")
        return found[0] if new is None else new + found[0][len(url) :]

    return _IN_TEXT.sub(replaced, said)
