"""Which results a cache may keep."""

from __future__ import annotations

from mcp_tool_filter.errors import ProtocolError
from mcp_tool_filter.policy.rules.fields import find_member
from mcp_tool_filter.protocol.scan import Value, open_value


def may_be_kept(text: str, result: Value) -> bool:
    """Tell whether a result is final: no tool failed, and the upstream wants to know no more.

    What cannot be judged is not kept.
    """
    try:
        members = open_value(text, result).members or ()
        is_error = find_member(members, "isError")
        kind = find_member(members, "resultType")
    except ProtocolError:
        return False
    has_failed = is_error is not None and text[is_error.value.start : is_error.value.end] == "true"
    return not has_failed and (kind is None or kind.value.text == "complete")
