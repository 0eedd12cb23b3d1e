"""The methods that revisions and accepted extensions define, and what others are about."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import unquote

from mcp_tool_filter.core.messages.messages import fold

CLIENT_REQUESTS: Final = frozenset(
    {
        "completion/complete",
        "initialize",
        "logging/setLevel",
        "ping",
        "prompts/get",
        "prompts/list",
        "resources/list",
        "resources/read",
        "resources/subscribe",
        "resources/templates/list",
        "resources/unsubscribe",
        "server/discover",
        "subscriptions/listen",
        "tasks/cancel",
        "tasks/get",
        "tasks/list",
        "tasks/result",
        "tools/call",
        "tools/list",
    }
)
"""What a client may ask of the upstream. (The union ``ClientRequest`` of the official schemas.)"""
_OF_EXTENSIONS: Final = frozenset({"resources/directory/read", "skills/get", "skills/list"})
"""The same of accepted extensions: SEP-2640 (skills)."""
_DEFINED: Final = CLIENT_REQUESTS | _OF_EXTENSIONS
_TOPIC = re.compile(r"[\W_]*(tools|prompts|resources|skills|completion)[\W_]")


def undefined_topic(method: str) -> str:
    """Return what a method is about if nobody has defined it; empty for all others.

    >>> [undefined_topic(one) for one in ("tools/resolve", "Prompts.List", "tools/list", "x/tools")]
    ['tools', 'prompts', '', '']
    """
    return "" if method in _DEFINED else topic_of(method)


def topic_of(method: str) -> str:
    """Return what a method is about, if that is something we filter."""
    found = _TOPIC.match(fold(unquote(unquote(method))))
    return found[1] if found else ""
