"""What an answer may be that is no message: an error page, a form, a metadata document.

It passes unless some client could find a hidden tool in it.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from mcp_tool_filter.errors import ProtocolError
from mcp_tool_filter.protocol.codings import looks_like_json
from mcp_tool_filter.protocol.limits import Limits
from mcp_tool_filter.protocol.scan import scan
from mcp_tool_filter.protocol.tools import shows_tool

# In the last ones ASCII means ASCII; whoever reads JSON reads UTF-8 all the same.
_READABLE = ("utf-8", "utf8", "us-ascii", "ascii", "iso-8859-1", "latin1", "windows-1252")
_CHARSET = re.compile(r"""charset[^=;]*=\s*["']?([^"';\s]*)""")


def refuse_partial(status: int, content_type: str) -> None:
    """Raise ProtocolError for what shows a part, or in letters that we do not read."""
    if status == 206:
        raise ProtocolError("a part of an answer that nobody asked for in parts")
    if not set(_CHARSET.findall(content_type.lower())) <= set(_READABLE):
        raise ProtocolError("a charset that is not accepted")


def could_show_tool(body: bytes, names: Collection[str], limits: Limits) -> bool:
    """Tell whether some client could find a tool of these names in a body that is no message."""
    try:
        scan(body, {}, limits)
    except ProtocolError:
        return looks_like_json(body) or _mentions_schema(body)
    return shows_tool(body.decode(), names)


def _mentions_schema(body: bytes) -> bool:
    """Look into text, but not HTML, which no client reads for tools."""
    bare = body.replace(b"\0", b"").lower()
    return not bare.lstrip().startswith(b"<") and (b"inputschema" in bare or b"\\u" in bare)
