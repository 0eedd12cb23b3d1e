"""Read the conditions in a rules file."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from mcp_tool_filter.errors import InvalidPattern, UnsafePattern
from mcp_tool_filter.jsregex.hints import hint
from mcp_tool_filter.policy.rules.conditions import (
    AllOf,
    AnyOf,
    Condition,
    ErrorCodeIs,
    ErrorSays,
    Exists,
    From,
    Greater,
    IsArray,
    IsNull,
    IsOneOf,
    Less,
    Matches,
    MethodEnds,
    MethodIs,
    MethodMatches,
    MethodStarts,
    Not,
    SessionIs,
    SessionOlder,
    ToolIs,
    ToolMatches,
    in_order,
)
from mcp_tool_filter.policy.rules.fields import Field, parse_field
from mcp_tool_filter.policy.rules.patterns import RulePattern, parse_rule_pattern
from mcp_tool_filter.policy.rules.reading import Spot, Table, unknown_choice
from mcp_tool_filter.policy.rules.values import Json, Number, render_json

MOST_LEVELS = 32
_NO_FIELD = Field("", ())
_NO_PATTERN = parse_rule_pattern("(?!)")
_LONGEST_LABEL = 120


def read_conditions(spot: Spot) -> tuple[tuple[Condition, ...], tuple[str, ...]]:
    """Read a list of conditions and their labels, in the order of evaluation."""
    pairs = []
    for one in spot.items(what="a list of conditions"):
        condition = read_condition(one)
        if condition is not None:
            pairs.append((condition, label_of(one)))
    pairs.sort(key=lambda pair: pair[0].reads)
    return tuple(condition for condition, _ in pairs), tuple(label for _, label in pairs)


def label_of(spot: Spot) -> str:
    """Render a condition in one line, as the rules file has it."""
    (name, node), *_ = (spot.node.members or {"": spot.node}).items()
    text = f"{name}: {_shown(node.to_json())}"
    return text if len(text) <= _LONGEST_LABEL else f"{text[:_LONGEST_LABEL]}…"


def _shown(value: Json) -> str:
    return value if isinstance(value, str) else render_json(value)


def read_field(spot: Spot) -> Field:
    return spot.parsed(parse_field, _NO_FIELD, example="arguments.path")


def read_pattern(spot: Spot, *, ignore_case: bool = False) -> RulePattern:
    """Read a JavaScript regex, which must be safe: a text, or a mapping that may ignore case."""
    if spot.node.members is not None:
        return read_pattern_in(spot.table(["pattern"], ["ignore_case"]))

    def parse(text: str) -> RulePattern:
        try:
            return parse_rule_pattern(text, ignore_case=ignore_case)
        except InvalidPattern as error:
            advice = hint(text, in_rules=True)
            more = f". {advice}" if advice else ""
            why = error.__cause__ or "it cannot be read"
            raise ValueError(f"not a valid JavaScript regex: {text!r}: {why}{more}") from None
        except UnsafePattern:
            raise ValueError(
                f"an unsafe regex: {text!r} could cause catastrophic backtracking"
            ) from None

    return spot.parsed(parse, _NO_PATTERN, example="^file:")


def read_pattern_in(table: Table) -> RulePattern:
    """Read the ``pattern`` of a mapping, and ``ignore_case`` beside it."""
    if "pattern" not in table:
        return _NO_PATTERN
    ignore_case = table.read("ignore_case", Spot.boolean, False)
    return read_pattern(table["pattern"], ignore_case=ignore_case)


def read_condition(spot: Spot, level: int = 1) -> Condition | None:
    """Read one condition; None after a mistake."""
    if (member := spot.only_member("one condition, such as method_equals: tools/call")) is None:
        return None
    name, inner = member
    if level > MOST_LEVELS:
        spot.wrong(f"conditions are nested more than {MOST_LEVELS} deep")
        return None
    if name in ("all", "any"):
        found = [read_condition(one, level + 1) for one in inner.items(what="a list of conditions")]
        if inner.node.items == []:
            inner.wrong("expected at least one condition")
        several = in_order([one for one in found if one is not None])
        return AllOf(several) if name == "all" else AnyOf(several)
    if name == "not":
        condition = read_condition(inner, level + 1)
        return None if condition is None else Not(condition)
    if name not in SIMPLE:
        spot.wrong_key(name, unknown_choice("condition", name, CONDITION_NAMES))
        return None
    return SIMPLE[name](inner)


def _one_name(spot: Spot) -> frozenset[str]:
    return frozenset([spot.text()])


def _names(spot: Spot) -> frozenset[str]:
    return frozenset(spot.texts())


def _field_only(part: str, kind: type[Exists | IsNull | IsArray], spot: Spot) -> Condition:
    return kind(part, read_field(spot))


def _equals(part: str, spot: Spot) -> Condition:
    table = spot.table(["field", "value"])
    return IsOneOf(part, read_field(table["field"]), (table["value"].json(),))


def _is_in(part: str, spot: Spot) -> Condition:
    table = spot.table(["field", "values"])
    values = tuple(one.json() for one in table["values"].items(what="a list of values"))
    if not values and table["values"].node.items is not None:
        table["values"].wrong("expected a list that is not empty")
    return IsOneOf(part, read_field(table["field"]), values)


def _matches(part: str, spot: Spot) -> Condition:
    table = spot.table(["field", "pattern"], ["ignore_case"])
    return Matches(part, read_field(table["field"]), read_pattern_in(table))


def _compares(kind: type[Greater | Less], spot: Spot) -> Condition:
    table = spot.table(["field", "value"])
    return kind("params", read_field(table["field"]), table["value"].number())


def _error_code(spot: Spot) -> Condition:
    return ErrorCodeIs(Number(str(spot.integer())))


SIMPLE: dict[str, Callable[[Spot], Condition]] = {
    "method_equals": lambda spot: MethodIs(_one_name(spot)),
    "method_starts_with": lambda spot: MethodStarts(spot.text()),
    "method_ends_with": lambda spot: MethodEnds(spot.text()),
    "method_matches": lambda spot: MethodMatches(read_pattern(spot)),
    "method_in": lambda spot: MethodIs(_names(spot)),
    "tool_equals": lambda spot: ToolIs(_one_name(spot)),
    "tool_in": lambda spot: ToolIs(_names(spot)),
    "tool_matches": lambda spot: ToolMatches(read_pattern(spot)),
    "param_exists": partial(_field_only, "params", Exists),
    "param_equals": partial(_equals, "params"),
    "param_in": partial(_is_in, "params"),
    "param_matches": partial(_matches, "params"),
    "param_greater_than": partial(_compares, Greater),
    "param_less_than": partial(_compares, Less),
    "param_is_null": partial(_field_only, "params", IsNull),
    "param_is_array": partial(_field_only, "params", IsArray),
    "result_exists": partial(_field_only, "result", Exists),
    "result_equals": partial(_equals, "result"),
    "result_matches": partial(_matches, "result"),
    "error_code_equals": _error_code,
    "error_message_contains": lambda spot: ErrorSays(spot.text()),
    "session_id_equals": lambda spot: SessionIs(spot.text()),
    "session_age_greater_than": lambda spot: SessionOlder(spot.duration()),
    "from": lambda spot: From(spot.one_of(("client", "server")) == "client"),
}
CONDITION_NAMES = (*SIMPLE, "all", "any", "not")
