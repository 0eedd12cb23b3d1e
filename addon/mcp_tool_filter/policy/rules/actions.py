"""The actions of rules, as values, and how a rules file says them. ``perform`` carries them out."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from mcp_tool_filter.policy.rules.conditions import read_field, read_pattern_in
from mcp_tool_filter.policy.rules.edits import OPERATIONS, Operation
from mcp_tool_filter.policy.rules.fields import (
    Field,
    Json,
    Number,
    Object,
    PathStep,
    RulePattern,
    Token,
    parse_pointer,
)
from mcp_tool_filter.policy.rules.source import Spot, unknown_choice
from mcp_tool_filter.policy.rules.templates import (
    JsonTemplate,
    Template,
    parse_json_template,
    parse_template,
)

if TYPE_CHECKING:
    from mcp_tool_filter.policy.rules.load import Machine


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


LONGEST_DELAY = 600.0
LEVELS = ("debug", "info", "warn", "error")
TRANSFORMS = ("merge_patch", "json_patch", "python")
_NO_TEMPLATE = Template(())
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
_ORIGIN = re.compile(r"https?://[^/?#]+[/?#]")
_MOST = 1_000_000_000

type Named = tuple[str, Action, bool, bool]
"""A name, the action, whether it refers to a response, and whether it is for requests only."""


def read_action(spot: Spot, machine: Machine) -> Named | None:
    """Read one action; None after a mistake."""
    if spot.node.value == "allow":
        return "allow", Allow(), False, False
    if (member := spot.only_member('one action, such as block: "reason"')) is None:
        return None
    name, inner = member
    if name not in ACTION_NAMES:
        spot.wrong_key(name, unknown_choice("action", name, ACTION_NAMES))
        return None
    if name == "run_script":
        action: Action | None = _script(inner, machine)
    elif name == "transform":
        action = _transform(inner, machine)
    else:
        action = SIMPLE[name](inner)
    if action is None:
        return None
    return name, action, is_of_response(action), is_of_request(action)


def _template(spot: Spot) -> Template:
    return spot.parsed(parse_template, _NO_TEMPLATE)


def _json_template(spot: Spot) -> JsonTemplate:
    return spot.parsed_json(parse_json_template, JsonTemplate(()))


def _allow(spot: Spot) -> Action:
    if spot.node.value not in (None, True) and spot.node.members != {}:
        spot.wrong("allow takes no value")
    return Allow()


def _inject_error(spot: Spot) -> Action:
    table = spot.table(["code", "message"], ["data"])
    return InjectError(
        table["code"].integer(-(2**31), 2**31 - 1),
        _template(table["message"]),
        _json_template(table["data"]) if "data" in table else None,
    )


def _set_field(part: str, spot: Spot) -> Action:
    table = spot.table(["field", "value"])
    return SetField(part, read_field(table["field"]), _json_template(table["value"]))


def _redact(spot: Spot) -> Action:
    table = spot.table(["pattern"], ["ignore_case", "field", "with"])
    return Redact(
        table.read("field", read_field, None),
        read_pattern_in(table),
        table.read("with", _template, Template(("***",))),
    )


def _log(spot: Spot) -> Action:
    table = spot.table(["message"], ["level"])
    level = table.read("level", lambda one: one.one_of(LEVELS), "info")
    return Log(level, _template(table["message"]))


def _metric(spot: Spot) -> Action:
    table = spot.table(["name"], ["value"])

    def value(one: Spot) -> Template:
        if isinstance(one.node.value, Number):
            if one.real() < 0:
                one.wrong("expected a number that is not negative: counters only grow")
            return Template((one.node.value.text,))
        return _template(one)

    return Metric(table["name"].name(), table.read("value", value, Template(("1",))))


def _webhook(spot: Spot) -> Action:
    table = spot.table(["url"], ["include_message", "headers", "timeout"])
    url = table["url"].parsed(_http_url, _NO_TEMPLATE, example="https://host/path")
    headers = [
        (_header_name(one, name), _template(one))
        for name, one in (table["headers"].members() if "headers" in table else ())
    ]
    return Webhook(
        url,
        table.read("include_message", Spot.boolean, False),
        tuple(headers),
        table.read("timeout", partial(Spot.duration, least=0.001), 5.0),
    )


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


def _header_name(spot: Spot, name: str) -> str:
    if not _TOKEN.fullmatch(name):
        spot.wrong(f"{name!r} cannot be the name of a header")
    return name


def _fork(spot: Spot) -> Action:
    table = spot.table([], ["copies", "to"])
    to = table.read("to", lambda one: one.parsed(_plain_url, "", example="https://host/mcp"), "")
    return Fork(table.read("copies", lambda one: one.integer(1, 100), 1), to or None)


def _plain_url(text: str) -> str:
    try:
        parts = urlsplit(text)
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise ValueError("expected a URL such as http://localhost:3001/mcp")
    return text


def _cache(spot: Spot) -> Action:
    table = spot.table(["key", "ttl"], ["max_entries"])
    return Cache(
        _template(table["key"]),
        table["ttl"].duration(least=0.001),
        table.read("max_entries", lambda one: one.integer(1, _MOST), 1000),
    )


def _rate_limit(spot: Spot) -> Action:
    table = spot.table(["key", "limit", "window"])
    return RateLimit(
        _template(table["key"]),
        table["limit"].integer(0, _MOST),
        table["window"].duration(least=0.001),
    )


def _script(spot: Spot, machine: Machine) -> Action:
    table = spot.table(["path"], ["args", "timeout", "decides"])
    args = [_template(one) for one in (table["args"].items() if "args" in table else ())]
    return Script(
        table["path"].parsed(machine.find_script, "", example="./check.sh"),
        tuple(args),
        table.read("timeout", partial(Spot.duration, least=0.001), 5.0),
        table.read("decides", Spot.boolean, False),
    )


def _transform(spot: Spot, machine: Machine) -> Action | None:
    if (member := spot.only_member(f"one of {', '.join(TRANSFORMS)}")) is None:
        return None
    name, inner = member
    match name:
        case "merge_patch":
            patch = inner.json()
            if not isinstance(patch, Object):
                inner.wrong(f"expected a mapping, not {inner.node.kind}")
            return MergePatch(patch)
        case "json_patch":
            return JsonPatch(tuple(map(_operation, inner.items(what="a list of operations"))))
        case "python":
            return _function(inner, machine)
    spot.wrong_key(name, unknown_choice("transform", name, TRANSFORMS))
    return None


def _operation(spot: Spot) -> Operation:
    members = spot.node.members or {}
    op = spot.member("op", members["op"]).one_of(tuple(OPERATIONS)) if "op" in members else "test"
    needed = OPERATIONS[op] if "op" in members else ("path",)
    # RFC 6902: members that an operation does not define are ignored; a misspelt one is not.
    table = spot.table(["op", *needed], [one for one in ("value", "from") if one not in needed])
    return Operation(
        op,
        _pointer(table["path"]),
        _pointer(table["from"]) if "from" in needed else (),
        table["value"].json() if "value" in needed else None,
    )


def _pointer(spot: Spot) -> tuple[PathStep, ...]:
    empty: tuple[PathStep, ...] = ()
    return spot.parsed(lambda text: tuple(map(Token, parse_pointer(text))), empty, example="/name")


def _function(spot: Spot, machine: Machine) -> Action | None:
    name = spot.text(example="package.module:function")
    if not name:
        return None
    try:
        if not _FUNCTION.fullmatch(name):
            raise ValueError("expected module:function")
        function = machine.import_object(name)
        if not callable(function):
            raise ValueError(f"{name} cannot be called")
    except ValueError as error:
        spot.wrong(str(error))
        return None
    return CallFunction(name, function)


SIMPLE: dict[str, Callable[[Spot], Action]] = {
    "allow": _allow,
    "block": lambda spot: Block(_template(spot)),
    "inject_error": _inject_error,
    "delay": lambda spot: Wait(spot.duration(most=LONGEST_DELAY)),
    "set_param": partial(_set_field, "params"),
    "remove_param": lambda spot: RemoveField(read_field(spot)),
    "set_result": partial(_set_field, "result"),
    "redact": _redact,
    "log": _log,
    "metric": _metric,
    "webhook": _webhook,
    "fork": _fork,
    "cache": _cache,
    "rate_limit": _rate_limit,
}
ACTION_NAMES = (*SIMPLE, "transform", "run_script")
