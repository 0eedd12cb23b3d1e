"""What an answer may be that is no message: an error page, a form, a metadata document.

It passes unless some client could find a hidden tool in it.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import lru_cache

from mcp_tool_filter.errors import ProtocolError
from mcp_tool_filter.http.codings import looks_like_json
from mcp_tool_filter.http.media_type import charsets_in
from mcp_tool_filter.protocol.limits import Limits
from mcp_tool_filter.protocol.scan import decode, scan
from mcp_tool_filter.protocol.tools import shows_tool

# In the last ones ASCII means ASCII; whoever reads JSON reads UTF-8 all the same.
_READABLE = frozenset({
    "utf-8", "utf8", "us-ascii", "ascii", "iso-8859-1", "latin1", "windows-1252",
})  # fmt: skip


@lru_cache(maxsize=128)  # the same few pass again and again
def refuse_partial(status: int, content_type: str) -> None:
    """Raise ProtocolError for what shows a part, or in letters that we do not read."""
    if status == 206:
        raise ProtocolError("a part of an answer that nobody asked for in parts")
    if not _READABLE.issuperset(charsets_in(content_type)):
        raise ProtocolError("a charset that is not accepted")


def could_show_tool(body: bytes, names: Collection[str], limits: Limits) -> bool:
    """Tell whether some client could find a tool of these names in a body that is no message."""
    try:
        scan(body, None, limits)
    except ProtocolError:
        return looks_like_json(body) or _mentions_schema(body, names)
    return shows_tool(body.decode(), names)


def refuse_packed(content_type: str, body: bytes) -> None:
    """Raise ProtocolError for a body that is called JSON and no text at all."""
    if "json" in content_type.lower():
        decode(body)


def _mentions_schema(body: bytes, names: Collection[str]) -> bool:
    """Look into text; in markup, which is for people, a schema alone is no definition."""
    bare = body.replace(b"\0", b"").lower()
    if bare.lstrip().startswith(b"<"):
        named = any(name.lower().encode() in bare for name in names)
        return named and b"inputschema" in bare
    return bool(names) and (b"inputschema" in bare or b"\\u" in bare)
