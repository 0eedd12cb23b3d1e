"""The actions of rules, as values. ``perform`` carries them out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields

from mcp_tool_filter.policy.rules.fields import Field
from mcp_tool_filter.policy.rules.json_patch import Operation
from mcp_tool_filter.policy.rules.patterns import RulePattern
from mcp_tool_filter.policy.rules.templates import JsonTemplate, Template
from mcp_tool_filter.policy.rules.values import Json


@dataclass(frozen=True, slots=True)
class Allow:
    pass


@dataclass(frozen=True, slots=True)
class Block:
    reason: Template


@dataclass(frozen=True, slots=True)
class InjectError:
    code: int
    message: Template
    data: JsonTemplate | None


@dataclass(frozen=True, slots=True)
class Wait:
    seconds: float


@dataclass(frozen=True, slots=True)
class SetField:
    part: str
    field: Field
    value: JsonTemplate


@dataclass(frozen=True, slots=True)
class RemoveField:
    field: Field


@dataclass(frozen=True, slots=True)
class MergePatch:
    patch: Json


@dataclass(frozen=True, slots=True)
class JsonPatch:
    operations: tuple[Operation, ...]


@dataclass(frozen=True, slots=True)
class CallFunction:
    name: str
    function: Callable[..., object]


@dataclass(frozen=True, slots=True)
class Redact:
    field: Field | None
    pattern: RulePattern
    replacement: Template


@dataclass(frozen=True, slots=True)
class Log:
    level: str
    message: Template


@dataclass(frozen=True, slots=True)
class Metric:
    name: str
    value: Template


@dataclass(frozen=True, slots=True)
class Webhook:
    url: Template
    include_message: bool
    headers: tuple[tuple[str, Template], ...]
    timeout: float


@dataclass(frozen=True, slots=True)
class Script:
    path: str
    args: tuple[Template, ...]
    timeout: float
    decides: bool


@dataclass(frozen=True, slots=True)
class Fork:
    copies: int
    to: str | None


@dataclass(frozen=True, slots=True)
class Cache:
    key: Template
    ttl: float
    max_entries: int


@dataclass(frozen=True, slots=True)
class RateLimit:
    key: Template
    limit: int
    window: float


type Action = (
    Allow
    | Block
    | InjectError
    | Wait
    | SetField
    | RemoveField
    | MergePatch
    | JsonPatch
    | CallFunction
    | Redact
    | Log
    | Metric
    | Webhook
    | Script
    | Fork
    | Cache
    | RateLimit
)

REFUSALS = Block | InjectError
ALWAYS = Log | Metric | Webhook
"""These still run after the rule has refused the message."""
CHANGES = SetField | RemoveField | MergePatch | JsonPatch | Redact
"""These always change the message."""
FOR_REQUESTS = RemoveField | Fork | Cache


def templates_in(action: Action) -> Iterator[Template]:
    for one in fields(action):
        value = getattr(action, one.name)
        parts = value if isinstance(value, tuple) else (value,)
        for part in parts:
            if isinstance(part, tuple):
                part = part[-1]  # a header's value
            if isinstance(part, JsonTemplate):
                yield from part.templates
            elif isinstance(part, Template):
                yield part


def is_of_response(action: Action) -> bool:
    """Tell whether an action only makes sense for a response."""
    if isinstance(action, SetField) and action.part == "result":
        return True
    return any(template.of_response for template in templates_in(action))


def is_of_request(action: Action) -> bool:
    """Tell whether an action only makes sense for a request."""
    return isinstance(action, FOR_REQUESTS) or (
        isinstance(action, SetField) and action.part == "params"
    )
