"""What a client says that it is capable of: an upstream may list other tools to it then."""

from __future__ import annotations

import hashlib
import json
from functools import lru_cache

from mcp_tool_filter.protocol.messages import Message, Request

_LONGEST_CAPABILITIES = 4096  # characters that are kept as they are
ALL_CAPABILITIES = (
    '{"elicitation":{"form":{},"url":{}},"roots":{"listChanged":true},'
    '"sampling":{"context":{},"tools":{}},"tasks":{"cancel":{},"list":{},"requests":'
    '{"elicitation":{"create":{}},"sampling":{"createMessage":{}}}}}'
)
"""All that a client can declare in any revision: our own fetch does."""
IN_META = "io.modelcontextprotocol/clientCapabilities"


def capabilities_in(message: Message) -> str | None:
    """Return what a request declares its client to be capable of, in one spelling."""
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


@lru_cache(maxsize=256)  # clients of the same program declare the same; long ones are not kept
def _canonical(capabilities: str) -> str:
    try:
        value = json.loads(capabilities, parse_int=str, parse_float=str)
    except (ValueError, RecursionError):
        return capabilities
    return json.dumps(value, sort_keys=True, separators=(",", ":"))
