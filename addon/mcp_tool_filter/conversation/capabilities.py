"""The capabilities that a client declares: an upstream may list different tools for them."""

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
IN_META = "io.modelcontextprotocol/clientCapabilities"


def capabilities_in(message: Message) -> str | None:
    """Return the client capabilities that a request declares, in canonical spelling."""
    if not isinstance(message, Request) or message.params is None:
        return None
    if message.method == "initialize":
        declared = message.params.named.get("capabilities")
    else:
        meta = message.params.named.get("_meta")
        declared = meta.named.get(IN_META) if meta else None
    return canonical(message.place.cut(declared)) if declared else None


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
