"""Read what requests about tools ask for: which tool is called, which page of a list is wanted."""

from __future__ import annotations

from mcp_tool_filter.core.errors import ProtocolError
from mcp_tool_filter.core.messages.limits import META_REVISION, frozen
from mcp_tool_filter.core.messages.messages import Notification, Place, Request, refuse_misreadable
from mcp_tool_filter.core.messages.scan import Value, has_lone_surrogate

_CALL_PARAMS = frozenset({"name", "arguments", "_meta"})
_LIST_PARAMS = frozenset({"cursor", "_meta"})
_OF_MCP = "io.modelcontextprotocol/"
_META = frozenset({"progressToken", "traceparent", "tracestate"})


@frozen
class ToolCall:
    tool_name: str
    id: str | None
    """None for a notification: no client waits for an answer."""


@frozen
class ListRequest:
    id: str
    has_cursor: bool
    revision: str | None
    """The revision in the request's own ``_meta`` (since 2026-07-28)."""
    cursor: str | None = None
    is_usual: bool = True
    """True if it has only params that MCP defines: the upstream may answer others with another
    list, or with a part of it."""


def parse_tool_call(message: Request | Notification) -> ToolCall:
    """Read which tool is called. Raises ProtocolError if two readers could call different tools."""
    params = message.params
    if params is None or params.members is None:
        raise ProtocolError("a tools/call without params")
    named = params.named
    if len(named) != len(params.members) or not _CALL_PARAMS.issuperset(named):  # as few
        refuse_misreadable(params.members, _CALL_PARAMS)
    name = named.get("name")
    if name is None or name.text is None:
        raise ProtocolError("a tools/call without the name of a tool")
    if not name.text.isascii() and has_lone_surrogate(name.text):
        raise ProtocolError("half a surrogate pair in the name of a tool")
    return ToolCall(name.text, message.id if isinstance(message, Request) else None)


def parse_list_request(message: Request) -> ListRequest:
    """Read what a tools/list asks for."""
    params = message.params
    if params is None:
        return ListRequest(message.id, has_cursor=False, revision=None)
    if params.members is None:
        raise ProtocolError("a tools/list whose params are not an object")
    refuse_misreadable(params.members, _LIST_PARAMS)
    meta, cursor = params.named.get("_meta"), params.named.get("cursor")
    revision = meta.named.get(META_REVISION) if meta else None
    return ListRequest(
        id=message.id,
        has_cursor=cursor is not None,
        revision=revision.text if revision else None,
        cursor=cursor.text if cursor else None,
        is_usual=_LIST_PARAMS.issuperset(params.named)
        and (cursor is None or cursor.text is not None)  # others could be read as any page
        and _is_usual(message.place, meta),
    )


def _is_usual(place: Place, meta: Value | None) -> bool:
    if meta is None or meta.members is None:
        return meta is None or place.cut(meta) == "null"
    return all(key in _META or key.startswith(_OF_MCP) for key in meta.named)
