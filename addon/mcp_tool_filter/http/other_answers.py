"""Judge answers that are not messages: error pages, forms, metadata documents.

They pass unless some client could find a hidden tool in them.
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

# In the last ones ASCII bytes mean ASCII; JSON is always read as UTF-8.
_READABLE = frozenset({
    "utf-8", "utf8", "us-ascii", "ascii", "iso-8859-1", "latin1", "windows-1252",
})  # fmt: skip


@lru_cache(maxsize=128)  # the same few come again and again
def refuse_partial(status: int, content_type: str) -> None:
    """Raise ProtocolError for a partial answer, or one in a charset that we do not read."""
    if status == 206:
        raise ProtocolError("a partial answer that was not requested")
    if not _READABLE.issuperset(charsets_in(content_type)):
        raise ProtocolError("a charset that is not accepted")


def could_show_tool(body: bytes, names: Collection[str], limits: Limits) -> bool:
    """Tell whether some client could find one of these tools in a body that is not a message."""
    try:
        scan(body, None, limits)
    except ProtocolError:
        return looks_like_json(body) or _mentions_schema(body, names)
    return shows_tool(body.decode(), names)


def refuse_non_text(content_type: str, body: bytes) -> None:
    """Raise ProtocolError for a body that claims to be JSON but is not text."""
    if "json" in content_type.lower():
        decode(body)


def _mentions_schema(body: bytes, names: Collection[str]) -> bool:
    """Search text for a schema. In markup, which is for people, a schema alone does not count."""
    bare = body.replace(b"\0", b"").lower()
    if bare.lstrip().startswith(b"<"):
        named = any(name.lower().encode() in bare for name in names)
        return named and b"inputschema" in bare
    return bool(names) and (b"inputschema" in bare or b"\\u" in bare)
