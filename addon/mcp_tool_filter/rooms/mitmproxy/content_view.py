"""The content view "MCP": the messages of a body in readable form, and our changes to them.

A second view, "MCP-before", shows the messages before our changes.
"""

from __future__ import annotations

from collections.abc import Iterator

from mitmproxy import contentviews
from mitmproxy.contentviews import Contentview, Metadata, SyntaxHighlight
from mitmproxy.http import HTTPFlow, Message

from mcp_tool_filter.rooms.recordings.flow_dump import KEY
from mcp_tool_filter.rooms.recordings.reading import holds_message, render_body, tools_in

_BEFORE_JSON = 2.0  # the priority of mitmproxy's own view of JSON is 1
_ENOUGH = 4096


class McpView(Contentview):
    """mitmproxy chooses it for every body that contains messages."""

    name = "MCP"

    @property
    def syntax_highlight(self) -> SyntaxHighlight:
        return "yaml"

    def prettify(self, data: bytes, metadata: Metadata) -> str:
        shown = render_body(data, _content_type(metadata, data))
        changes = "\n".join(_change_lines(data, metadata))
        return f"{changes}\n\n{shown}" if changes else shown

    def render_priority(self, data: bytes, metadata: Metadata) -> float:
        holds = bool(data) and holds_message(data[:_ENOUGH], _content_type(metadata, data))
        return _BEFORE_JSON if holds else -1


class BeforeView(McpView):
    """Shows a body before our changes, if the user chooses it."""

    name = "MCP-before"

    def prettify(self, data: bytes, metadata: Metadata) -> str:
        flow, message = metadata.flow, metadata.http_message
        before: bytes | None = None
        if isinstance(flow, HTTPFlow) and message is not None:
            before = _before(flow, message)
        if before is None:
            raise ValueError("the message before our change is not known")
        return render_body(before, _content_type(metadata, before))

    def render_priority(self, data: bytes, metadata: Metadata) -> float:
        return -1


def add_views() -> None:
    """Register both views; registering them again changes nothing."""
    contentviews.add(McpView)
    contentviews.add(BeforeView)


def _content_type(metadata: Metadata, data: bytes) -> str:
    if metadata.content_type is None and data[:1] in (b"{", b"["):
        return "application/json"
    return metadata.content_type or "application/octet-stream"


def _change_lines(data: bytes, metadata: Metadata) -> Iterator[str]:
    """Yield lines to show above a body: its verdict, and what it was before."""
    flow = metadata.flow
    if not isinstance(flow, HTTPFlow) or metadata.http_message is None:
        return
    if flow.comment:
        yield from (f"# {line}".rstrip() for line in flow.comment.split("\n"))
    before = _before(flow, metadata.http_message)
    if before is None or before == data:
        return
    content_type = _content_type(metadata, data)
    after = tools_in(data, content_type)
    if removed := [
        one for one in dict.fromkeys(tools_in(before, content_type)) if one not in after
    ]:
        yield f"# removed: {', '.join(removed)}"
    whose = "the client" if metadata.http_message is flow.request else "the upstream"
    yield f"# before: {len(before):,} bytes from {whose}; after: {len(data):,} bytes"


def _before(flow: HTTPFlow, message: Message) -> bytes | None:
    """Return the body as it was received, if known."""
    kept = flow.metadata.get(KEY) or {}
    if message is flow.request:
        body: bytes | None = kept["asked"]["body"] if "asked" in kept else None
        return body
    if "said" not in kept:
        return None
    return b"".join(data for _, data in kept["said"]["chunks"])
