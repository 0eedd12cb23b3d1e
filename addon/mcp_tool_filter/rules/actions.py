"""The actions of rules, as values, and how a rules file says them. ``perform`` carries them out."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from functools import partial
from urllib.parse import urlsplit

from mcp_tool_filter.rules import forms
from mcp_tool_filter.rules.edits import OPERATIONS, Operation
from mcp_tool_filter.rules.fields import (
    Field,
    Json,
    Number,
    Object,
    PathStep,
    RulePattern,
    Token,
    parse_pointer,
)
from mcp_tool_filter.rules.forms import Form, PatternOf, Schema, Spot
from mcp_tool_filter.rules.templates import JsonTemplate, Template, parse_template


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
    message: Template
    level: str


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


LONGEST_DELAY = 600.0
LEVELS = ("debug", "info", "warn", "error")
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
_ORIGIN = re.compile(r"https?://[^/?#]+[/?#]")
_MOST = 1_000_000_000
_NOTHING: Action = Allow()
"""What we read after a mistake. (The file is not used.)"""


def _read_allow(spot: Spot) -> Action:
    if spot.node.value not in (None, True) and spot.node.members != {}:
        spot.wrong("allow takes no value")
    return Allow()


def _redact(
    pattern: PatternOf, ignore_case: bool, field: Field | None, replacement: Template
) -> Action:
    return Redact(field, pattern(ignore_case), replacement)


def _read_metric_value(spot: Spot) -> Template:
    if isinstance(spot.node.value, Number):
        value = float(spot.node.value.text)
        if value < 0:
            spot.wrong("expected a number that is not negative: counters only grow")
        elif value == float("inf"):
            spot.wrong("expected a smaller number")
        return Template((spot.node.value.text,))
    return forms.TEMPLATE.read(spot)


def _http_url(text: str) -> Template:
    template = parse_template(text)
    start = template.parts[0] if template.parts else ""
    if isinstance(start, str) and not start.startswith(("http://", "https://")):
        raise ValueError("expected a URL that begins with http:// or https://")
    has_variables = len(template.parts) > 1 or not isinstance(start, str)
    if has_variables and not (isinstance(start, str) and _ORIGIN.match(start)):
        raise ValueError(
            "a variable may not choose the host: expected a URL such as https://host/${tool}"
        )
    return template


def _read_headers(spot: Spot) -> tuple[tuple[str, Template], ...]:
    headers = []
    for name, one in spot.members():
        if not _TOKEN.fullmatch(name):
            one.wrong(f"{name!r} cannot be the name of a header")
        headers.append((name, forms.TEMPLATE.read(one)))
    return tuple(headers)


def _plain_url(text: str) -> str:
    try:
        parts = urlsplit(text)
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise ValueError("expected a URL such as http://localhost:3001/mcp")
    return text


def _read_script(spot: Spot) -> str:
    return forms.parsed(spot.machine.find_script, "", example="./check.sh").read(spot)


def _read_merge_patch(spot: Spot) -> Action:
    patch = spot.node.to_json()
    if not isinstance(patch, Object):
        spot.wrong(f"expected a mapping, not {spot.node.kind}")
    return MergePatch(patch)


def _read_operation(spot: Spot) -> Operation:
    has_op = "op" in (spot.node.members or ())
    op = _OP.read(spot.inside("op")) if has_op else "test"
    needed = OPERATIONS[op] if has_op else ("path",)
    # RFC 6902: members that an operation does not define are ignored; a misspelt one is not.
    found = spot.table(["op", *needed], [one for one in ("value", "from") if one not in needed])
    return Operation(
        op,
        _POINTER.read(found["path"]),
        _POINTER.read(found["from"]) if "from" in needed else (),
        forms.ANY.read(found["value"]) if "value" in needed else None,
    )


def _steps(pointer: str) -> tuple[PathStep, ...]:
    return tuple(map(Token, parse_pointer(pointer)))


def _read_function(spot: Spot) -> Action:
    def parse(name: str) -> Action:
        if not _FUNCTION.fullmatch(name):
            raise ValueError("expected module:function")
        function = spot.machine.import_object(name)
        if not callable(function):
            raise ValueError(f"{name} cannot be called")
        return CallFunction(name, function)

    return forms.parsed(parse, _NOTHING, example="package.module:function").read(spot)


_NO_STEPS: tuple[PathStep, ...] = ()
_OP = forms.one_of(*OPERATIONS)
_POINTER = forms.parsed(_steps, _NO_STEPS, example="/name")
_OPERATION = Form(
    forms.object_schema(
        {"op": _OP.schema, "path": forms.TEXT.schema},
        {"from": forms.TEXT.schema, "value": forms.ANY.schema},
    ),
    _read_operation,
)
_TRANSFORMS: dict[str, Form[Action]] = {
    "merge_patch": Form({"type": "object"}, _read_merge_patch),
    "json_patch": forms.listed(_OPERATION, "a list of operations").made(JsonPatch),
    "python": Form({"type": "string", "description": "module:function"}, _read_function),
}


def _read_transform(spot: Spot) -> Action:
    expected = f"one of {', '.join(_TRANSFORMS)}"
    return forms.named(spot, _TRANSFORMS, "transform", expected) or _NOTHING


_FIELD_AND_VALUE = {"field": forms.FIELD, "value": forms.JSON_TEMPLATE}

ACTIONS: dict[str, Form[Action]] = {
    "allow": Form({"enum": [None, True, {}]}, _read_allow),
    "block": forms.TEMPLATE.made(Block),
    "inject_error": forms.mapping(
        InjectError,
        {"code": forms.whole(-(2**31), 2**31 - 1), "message": forms.TEMPLATE},
        {"data": (forms.JSON_TEMPLATE, None)},
    ),
    "delay": forms.duration(most=LONGEST_DELAY).made(Wait),
    "set_param": forms.mapping(partial(SetField, "params"), _FIELD_AND_VALUE),
    "remove_param": forms.FIELD.made(RemoveField),
    "set_result": forms.mapping(partial(SetField, "result"), _FIELD_AND_VALUE),
    "transform": Form({"oneOf": forms.named_schemas(_TRANSFORMS)}, _read_transform),
    "redact": forms.mapping(
        _redact,
        {"pattern": forms.PATTERN_OF},
        {
            "ignore_case": (forms.BOOLEAN, False),
            "field": (forms.FIELD, None),
            "with": (forms.TEMPLATE, Template(("***",))),
        },
    ),
    "log": forms.mapping(
        Log, {"message": forms.TEMPLATE}, {"level": (forms.one_of(*LEVELS), "info")}
    ),
    "metric": forms.mapping(
        Metric,
        {"name": forms.filled()},
        {"value": (Form({"type": ["number", "string"]}, _read_metric_value), Template(("1",)))},
    ),
    "webhook": forms.mapping(
        Webhook,
        {"url": forms.parsed(_http_url, Template(()), example="https://host/path")},
        {
            "include_message": (forms.BOOLEAN, False),
            "headers": (
                Form({"type": "object", "additionalProperties": forms.TEXT.schema}, _read_headers),
                (),
            ),
            "timeout": (forms.TIMEOUT, 5.0),
        },
    ),
    "run_script": forms.mapping(
        Script,
        {"path": Form(forms.TEXT.schema, _read_script)},
        {
            "args": (forms.listed(forms.TEMPLATE), ()),
            "timeout": (forms.TIMEOUT, 5.0),
            "decides": (forms.BOOLEAN, False),
        },
    ),
    "fork": forms.mapping(
        Fork,
        {},
        {
            "copies": (forms.whole(1, 100), 1),
            "to": (forms.parsed(_plain_url, "", example="https://host/mcp"), None),
        },
    ),
    "cache": forms.mapping(
        Cache,
        {"key": forms.TEMPLATE, "ttl": forms.TIMEOUT},
        {"max_entries": (forms.whole(1, _MOST), 1000)},
    ),
    "rate_limit": forms.mapping(
        RateLimit, {"key": forms.TEMPLATE, "limit": forms.whole(0, _MOST), "window": forms.TIMEOUT}
    ),
}
"""What an action may be, and how a file writes it. ``perform`` carries it out."""

SCHEMA: Schema = {"oneOf": [{"const": "allow"}, *forms.named_schemas(ACTIONS)]}


def _read_action(spot: Spot) -> tuple[str, Action] | None:
    """Read an action and its name; None after a mistake."""
    if spot.node.value == "allow":
        return "allow", Allow()
    action = forms.named(spot, ACTIONS, "action", 'one action, such as block: "reason"')
    return None if action is None else (next(iter(spot.node.members or ())), action)


NAMED = Form({"$ref": "#/$defs/action"}, _read_action)
"""An action with its name."""
