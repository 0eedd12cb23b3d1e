"""What a request says of its client in its params: an upstream may list different tools for it."""

from __future__ import annotations

import hashlib
import json
from functools import lru_cache

from mcp_tool_filter.protocol.messages import Message, Request

_LONGEST_CAPABILITIES = 4096  # characters; of longer ones we keep only a hash
ALL_CAPABILITIES = (
    '{"elicitation":{"form":{},"url":{}},"roots":{"listChanged":true},'
    '"sampling":{"context":{},"tools":{}},"tasks":{"cancel":{},"list":{},"requests":'
    '{"elicitation":{"create":{}},"sampling":{"createMessage":{}}}}}'
)
"""All capabilities of any revision: our own fetch declares them."""
_OF_MCP = "io.modelcontextprotocol/"
_IN_META = f"{_OF_MCP}clientCapabilities"
# Members of ``_meta`` by which an upstream chooses no other tools. ``server-variant`` is one of the
# others, and there may be more in later revisions.
_HARMLESS = frozenset(
    _OF_MCP + name
    for name in ("protocolVersion", "clientInfo", "logLevel", "related-task", "subscriptionId")
)
VARIANT = "\n"
"""Separates the capabilities from what else makes the asker another one; no JSON has it."""


def capabilities_in(message: Message) -> str | None:
    """Return what a request declares of its client: the capabilities in canonical spelling, and
    other members of ``_meta`` that may change the upstream's list; None if nothing."""
    if not isinstance(message, Request) or message.params is None:
        return None
    meta = message.params.named.get("_meta")
    of_mcp = [one for one in (meta and meta.members) or () if one.key.startswith(_OF_MCP)]
    if message.method == "initialize":
        declared = message.params.named.get("capabilities")
    else:
        declared = meta.named.get(_IN_META) if meta else None
    others = [
        f'"{one.key}":{canonical(message.place.cut(one.value))}'
        for one in of_mcp
        if one.key not in _HARMLESS and one.value is not declared
    ]
    said = canonical(message.place.cut(declared)) if declared else None
    return VARIANT.join([said or "", *others]) if others else said


def canonical(capabilities: str) -> str:
    """Return the same text for all spellings of the same capabilities.

    >>> canonical('{"sampling": {}, "roots":{}}')
    '{"roots":{},"sampling":{}}'
    """
    if len(capabilities) > _LONGEST_CAPABILITIES:
        return hashlib.sha256(capabilities.encode()).hexdigest()
    return _canonical(capabilities)


@lru_cache(maxsize=256)  # all clients of one program declare the same; long ones are not cached
def _canonical(capabilities: str) -> str:
    try:
        value = json.loads(capabilities, parse_int=str, parse_float=str)
    except (ValueError, RecursionError):
        return capabilities
    return json.dumps(value, sort_keys=True, separators=(",", ":"))
