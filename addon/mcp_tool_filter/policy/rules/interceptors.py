"""Method interceptors: built-in checks of one method, and users' own classes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from mcp_tool_filter.policy.rules.fields import parse_field
from mcp_tool_filter.policy.rules.subject import Subject
from mcp_tool_filter.policy.rules.uris import (
    ResourceUri,
    UnclearUri,
    is_inside,
    matches_glob,
    parse_uri,
)

_URI = parse_field("uri")
_NAME = parse_field("name")
PERIODS = {"per_second": 1.0, "per_minute": 60.0, "per_hour": 3600.0}
RESOURCE_METHODS = ("resources/read", "resources/subscribe")


@dataclass(frozen=True, slots=True)
class ToolCallInterceptor:
    """Allows only calls of some tools, at a limited rate per session and tool."""

    allowed_tools: frozenset[str] | None = None
    limits: tuple[tuple[int, float], ...] = ()
    """Pairs: how many calls in how many seconds."""

    def problem_in(self, subject: Subject) -> str | None:
        """Return why a call is blocked, or None. Raises Unjudgeable."""
        found = subject.find("params", _NAME)
        name = found[0].text if found else None
        if self.allowed_tools is not None and name not in self.allowed_tools:
            return f"Tool '{name}' not allowed"
        return None


@dataclass(frozen=True, slots=True)
class ResourceAccessInterceptor:
    """Allows only resources in some places, except those that a glob denies."""

    allowed: tuple[ResourceUri, ...] | None = None
    denied: tuple[str, ...] = ()

    def problem_in(self, subject: Subject) -> str | None:
        """Return why a request is blocked, or None. Raises Unjudgeable."""
        found = subject.find("params", _URI)
        try:
            uri = parse_uri((found[0].text if found else None) or "")
        except UnclearUri:
            return "Resource not allowed"
        inside = self.allowed is None or any(is_inside(uri, place) for place in self.allowed)
        if not inside or any(matches_glob(uri, glob) for glob in self.denied):
            return "Resource not allowed"
        return None


@dataclass(frozen=True, slots=True)
class UserInterceptor:
    """A user's object with ``request`` or ``response``, each of which may be async."""

    name: str
    instance: Any = field(compare=False)


type MethodInterceptor = ToolCallInterceptor | ResourceAccessInterceptor | UserInterceptor


@dataclass(slots=True, kw_only=True)
class InterceptedExchange:
    """What a user's class gets."""

    message: dict[str, object]
    """The judged message; the class may change and return it."""
    request: dict[str, object] | None
    """The request that a response answers; for a request, the request itself."""
    method: str | None
    tool: str | None
    session_id: str
    session: dict[str, object]
    """For the class to use; kept as long as the session."""
    credential: str
    """Identifies the asker without revealing a credential."""
