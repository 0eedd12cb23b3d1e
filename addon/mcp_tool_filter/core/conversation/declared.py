"""What a message declares of its client: capabilities, program and revision.

An upstream may list other tools to another client, so they are part of its kind of asker.
"""

from __future__ import annotations

import hashlib
import json
from functools import lru_cache

from mcp_tool_filter.core.messages.limits import META_REVISION
from mcp_tool_filter.core.messages.messages import Notification, Request
from mcp_tool_filter.core.messages.scan import Value

_LONGEST_CAPABILITIES = 4096  # characters; of longer ones we keep only a hash
ALL_CAPABILITIES = (
    '{"elicitation":{"form":{},"url":{}},"roots":{"listChanged":true},'
    '"sampling":{"context":{},"tools":{}},"tasks":{"cancel":{},"list":{},"requests":'
    '{"elicitation":{"create":{}},"sampling":{"createMessage":{}}}}}'
)
"""All capabilities of any revision: our own fetch declares them."""
_OF_MCP = "io.modelcontextprotocol/"
_IN_META = f"{_OF_MCP}clientCapabilities"
_PROGRAM = f"{_OF_MCP}clientInfo"
# Members of ``_meta`` by which an upstream chooses no other tools. ``server-variant`` is one of the
# others, and there may be more in later revisions.
_HARMLESS = frozenset(
    _OF_MCP + name
    for name in ("protocolVersion", "clientInfo", "logLevel", "related-task", "subscriptionId")
)
VARIANT = "\n"
"""Separates the capabilities from what else makes the asker another one; no JSON has it."""


def capabilities_in(message: Request) -> str | None:
    """Return what a request declares of its client: the capabilities in canonical spelling, and
    other members of ``_meta`` that may change the upstream's list; None if nothing."""
    if message.params is None:
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


def program_in(message: Request) -> str | None:
    """Return what a request says of its client's program, in canonical spelling."""
    params = message.params
    if params is not None and message.method == "initialize":
        said = params.named.get("clientInfo")
    else:
        said = _in_meta(message, _PROGRAM)
    return canonical(message.place.cut(said)) if said else None


def revision_in(message: Request | Notification) -> str | None:
    """Return the revision that a message names in its ``_meta``."""
    said = _in_meta(message, META_REVISION)
    return said.text if said else None


def _in_meta(message: Request | Notification, name: str) -> Value | None:
    meta = message.params.named.get("_meta") if message.params else None
    return meta.named.get(name) if meta and meta.members is not None else None


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
