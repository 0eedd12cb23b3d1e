"""The conditions of rules: each tells whether it holds for a message; and how a file says it.

``CONDITIONS`` declares each of them once: the reader, the schema, the index and the evaluation
derive from it. ``reads`` says what a condition depends on: the method, the tool, or anything.
Conditions on the method and the tool alone are evaluated once for each pair, not for each message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import partial
from typing import Any

from mcp_tool_filter.core.messages.scan import Value
from mcp_tool_filter.rooms.rules import forms
from mcp_tool_filter.rooms.rules.fields import (
    Field,
    Json,
    Number,
    RulePattern,
    equals,
    number_in,
    parse_field,
    render_json,
)
from mcp_tool_filter.rooms.rules.forms import Form, PatternOf, Spot, Term
from mcp_tool_filter.rooms.rules.subject import Subject

_LONG = 64 * 1024  # characters, or
_MANY = 64  # values, on which one condition may work for a while


class DependsOn(IntEnum):
    """What a condition depends on; each includes those before it."""

    METHOD = 0
    TOOL = 1
    MESSAGE = 2


@dataclass(frozen=True, slots=True)
class Condition:
    """Two conditions are equal if they always hold for the same messages, as far as we can tell."""

    test: Callable[..., bool]
    """Gets the message, the time and ``args``."""
    args: tuple[Any, ...]
    reads: DependsOn = DependsOn.MESSAGE
    parts: frozenset[str] = frozenset()
    """What it refers to: ``params`` is a request, or the one that a response answers;
    ``result`` is a response."""
    label: str = field(default="", compare=False)
    """How the rules file has it."""

    def holds(self, subject: Subject, now: float) -> bool:
        return self.test(subject, now, *self.args)


# Conditions on the method, or on the called tool


def _name_fits(
    subject: Subject, _now: float, of_tool: bool, fits: Callable[..., bool], wanted: object
) -> bool:
    name = subject.tool if of_tool else subject.method
    return name is not None and fits(name, wanted)


def _name_matches(subject: Subject, now: float, of_tool: bool, pattern: RulePattern) -> bool:
    return _name_fits(subject, now, of_tool, pattern.is_in, subject.budget)


def _is_in(name: str, names: frozenset[str]) -> bool:
    return name in names


# Conditions on the value of a field of ``params``, ``result`` or ``error``


def field_satisfies(
    subject: Subject,
    _now: float,
    part: str,
    at: Field,
    satisfies: Callable[..., bool],
    wanted: object,
) -> bool:
    values = subject.find(part, at)
    # We judge each value even after one satisfies the condition: whether the message can be
    # judged must not depend on the order of a list's elements.
    judged = [satisfies(subject, part, value, wanted) for value in values]
    if values and (len(values) > _MANY or values[-1].end > _LONG):
        subject.look()
    return True in judged


def _exists(_subject: Subject, _part: str, _value: Value, _wanted: None) -> bool:
    return True


def is_one_of(subject: Subject, part: str, value: Value, wanted: tuple[Json]) -> bool:
    document = subject.document(part)
    return any(equals(document, value, wish) for wish in wanted)


def field_matches(
    subject: Subject, _now: float, part: str, at: Field, pattern: RulePattern
) -> bool:
    """The condition that most rules have; so it does not call a function for each value."""
    texts = [value.text for value in subject.find(part, at)]
    judged = [text is not None and pattern.is_in(text, subject.budget) for text in texts]
    if len(judged) > _MANY:
        subject.look()
    return True in judged


def _is_greater(subject: Subject, part: str, value: Value, than: Number) -> bool:
    number = number_in(subject.document(part), value)
    return number is not None and number > than


def _is_less(subject: Subject, part: str, value: Value, than: Number) -> bool:
    number = number_in(subject.document(part), value)
    return number is not None and number < than


def _begins(subject: Subject, part: str, value: Value, first: str) -> bool:
    """Tell by its first character whether a value is null, or a list."""
    return subject.document(part).text[value.start] == first


def _contains(_subject: Subject, _part: str, value: Value, text: str) -> bool:
    return text in (value.text or "")


# Conditions on the client


def _is_session(subject: Subject, _now: float, id: str) -> bool:
    return id in (subject.about.session_id, subject.about.claimed_session_id)


def _is_older(subject: Subject, now: float, than: float) -> bool:
    return now - subject.about.session_started > than


def _is_from(subject: Subject, _now: float, who: str) -> bool:
    return subject.about.from_client == (who == "client")


# Several conditions


def _all_hold(subject: Subject, now: float, *conditions: Condition) -> bool:
    return all(condition.holds(subject, now) for condition in conditions)


def _any_holds(subject: Subject, now: float, *conditions: Condition) -> bool:
    return any(condition.holds(subject, now) for condition in conditions)


def _does_not_hold(subject: Subject, now: float, condition: Condition) -> bool:
    return not condition.holds(subject, now)


def _several(test: Callable[..., bool], conditions: Iterable[Condition]) -> Condition:
    ordered = in_order(conditions)
    reads = max((condition.reads for condition in ordered), default=DependsOn.METHOD)
    parts = frozenset[str]().union(*(condition.parts for condition in ordered))
    return Condition(test, ordered, reads, parts)


def in_order(conditions: Iterable[Condition]) -> tuple[Condition, ...]:
    """Return the conditions on the method or tool alone first, the rest in the order given."""
    return tuple(sorted(conditions, key=lambda condition: condition.reads))


# Reading them

MOST_LEVELS = 32
_LONGEST_LABEL = 120
_NOTHING = _several(_all_hold, ())
"""What we read after a mistake. (The file is not used.)"""


def _read_condition(spot: Spot) -> Condition:
    inside = replace(spot, level=spot.level + 1)
    if inside.level > MOST_LEVELS and len(spot.node.members or ()) == 1:
        spot.wrong(f"conditions are nested more than {MOST_LEVELS} deep")
        return _NOTHING
    expected = "one condition, such as method_equals: tools/call"
    return forms.named(inside, CONDITIONS, "condition", expected) or _NOTHING


def _read_labelled(spot: Spot) -> Condition:
    """Read a condition of a rule, with a label: one line, as the rules file has it."""
    (name, node), *_ = (spot.node.members or {"": spot.node}).items()
    value = node.to_json()
    label = f"{name}: {value if isinstance(value, str) else render_json(value)}"
    if len(label) > _LONGEST_LABEL:
        label = f"{label[:_LONGEST_LABEL]}…"
    return replace(_read_condition(spot), label=label)


def _on_name(
    reads: DependsOn, form: Form[Any], test: Callable[..., bool], *given: object
) -> Form[Condition]:
    def make(wanted: object) -> Condition:
        args = reads is DependsOn.TOOL, *given, wanted
        return Condition(test, args, reads, frozenset({"params"}))

    return form.made(make)


def _on_field(
    part: str, satisfies: Callable[..., bool], field: Field, wanted: object = None
) -> Condition:
    of = frozenset({"result" if part == "error" else part})
    return Condition(field_satisfies, (part, field, satisfies, wanted), parts=of)


def _compared(part: str, satisfies: Callable[..., bool], **members: Form[Any]) -> Form[Condition]:
    """Return the form of a condition that compares a field with something."""
    return forms.mapping(partial(_on_field, part, satisfies), {"field": forms.FIELD, **members})


def _matching(part: str) -> Form[Condition]:
    def make(field: Field, pattern: PatternOf, ignore_case: bool) -> Condition:
        return Condition(
            field_matches, (part, field, pattern(ignore_case)), parts=frozenset({part})
        )

    return forms.mapping(
        make,
        {
            "field": forms.FIELD,
            "pattern": forms.PATTERN_OF,
            "ignore_case": (forms.BOOLEAN, False),
        },
    )


def _on_client(test: Callable[..., bool], form: Form[Any]) -> Form[Condition]:
    return form.made(lambda wanted: Condition(test, (wanted,)))


_CONDITION: Form[Condition] = Form({"$ref": "#/$defs/condition"}, _read_condition)
_SEVERAL = forms.listed(
    _CONDITION, "a list of conditions", or_else="expected at least one condition"
)
_VALUE = forms.ANY.made(lambda value: (value,))
_VALUES = forms.listed(forms.ANY, "a list of values", or_else="expected a list that is not empty")
_NAME = forms.TEXT.made(lambda text: frozenset([text]))
_NAMES = forms.TEXTS.made(frozenset)
_CODE = forms.INTEGER.made(lambda code: (Number(str(code)),))
_ERROR_CODE, _ERROR_MESSAGE = parse_field("code"), parse_field("message")

CONDITIONS: dict[str, Term[Condition]] = {
    "method_equals": Term(
        "The message has this method; a response, the method of its request.",
        "tools/call",
        _on_name(DependsOn.METHOD, _NAME, _name_fits, _is_in),
    ),
    "method_starts_with": Term(
        "The method begins with this text.",
        "tools/",
        _on_name(DependsOn.METHOD, forms.TEXT, _name_fits, str.startswith),
    ),
    "method_ends_with": Term(
        "The method ends with this text.",
        "/list",
        _on_name(DependsOn.METHOD, forms.TEXT, _name_fits, str.endswith),
    ),
    "method_matches": Term(
        "The pattern is found in the method.",
        "^(tools|prompts)/",
        _on_name(DependsOn.METHOD, forms.PATTERN, _name_matches),
    ),
    "method_in": Term(
        "The method is one of these.",
        "[tools/call, resources/read]",
        _on_name(DependsOn.METHOD, _NAMES, _name_fits, _is_in),
    ),
    "tool_equals": Term(
        "The message calls this tool.",
        "delete_file",
        _on_name(DependsOn.TOOL, _NAME, _name_fits, _is_in),
    ),
    "tool_in": Term(
        "The message calls one of these tools.",
        "[delete_file, move_file]",
        _on_name(DependsOn.TOOL, _NAMES, _name_fits, _is_in),
    ),
    "tool_matches": Term(
        "The message calls a tool, and the pattern is found in the tool's name.",
        "^(delete|drop)_",
        _on_name(DependsOn.TOOL, forms.PATTERN, _name_matches),
    ),
    "param_exists": Term(
        "This field of the params exists, even as null.",
        "arguments.path",
        forms.FIELD.made(partial(_on_field, "params", _exists)),
    ),
    "param_equals": Term(
        "This field of the params has this JSON value: 1 is 1.0, and true is not 1.",
        "{field: arguments.force, value: true}",
        _compared("params", is_one_of, value=_VALUE),
    ),
    "param_in": Term(
        "This field of the params has one of these JSON values.",
        "{field: arguments.branch, values: [main, release]}",
        _compared("params", is_one_of, values=_VALUES),
    ),
    "param_matches": Term(
        "This field of the params is a text in which the pattern is found.",
        "{field: arguments.sql, pattern: '^drop ', ignore_case: true}",
        _matching("params"),
    ),
    "param_greater_than": Term(
        "This field of the params is a number greater than the value.",
        "{field: arguments.limit, value: 100}",
        _compared("params", _is_greater, value=forms.NUMBER),
    ),
    "param_less_than": Term(
        "This field of the params is a number less than the value.",
        "{field: arguments.limit, value: 1}",
        _compared("params", _is_less, value=forms.NUMBER),
    ),
    "param_is_null": Term(
        "This field of the params exists and is null.",
        "arguments.filter",
        forms.FIELD.made(partial(_on_field, "params", _begins, wanted="n")),
    ),
    "param_is_array": Term(
        "This field of the params exists and is an array.",
        "arguments.paths",
        forms.FIELD.made(partial(_on_field, "params", _begins, wanted="[")),
    ),
    "result_exists": Term(
        "This field of the result exists, even as null.",
        "structuredContent",
        forms.FIELD.made(partial(_on_field, "result", _exists)),
    ),
    "result_equals": Term(
        "This field of the result has this JSON value.",
        "{field: isError, value: true}",
        _compared("result", is_one_of, value=_VALUE),
    ),
    "result_matches": Term(
        "This field of the result is a text in which the pattern is found.",
        "{field: 'content[*].text', pattern: BEGIN PRIVATE KEY}",
        _matching("result"),
    ),
    "error_code_equals": Term(
        "The response is an error with this code.",
        "-32603",
        _CODE.made(partial(_on_field, "error", is_one_of, _ERROR_CODE)),
    ),
    "error_message_contains": Term(
        "The response is an error, and its message contains this text.",
        "timed out",
        forms.TEXT.made(partial(_on_field, "error", _contains, _ERROR_MESSAGE)),
    ),
    "session_id_equals": Term(
        "The message belongs to the session with this id.",
        "4f2a9c",
        _on_client(_is_session, forms.TEXT),
    ),
    "session_age_greater_than": Term(
        "The session of the message is older than this.",
        "1h",
        _on_client(_is_older, forms.DURATION),
    ),
    "from": Term(
        "The client, or the server, has sent the message.",
        "server",
        _on_client(_is_from, forms.one_of("client", "server")),
    ),
    "all": Term(
        "All of these conditions hold.",
        "[{tool_equals: push}, {param_exists: arguments.force}]",
        _SEVERAL.made(partial(_several, _all_hold)),
    ),
    "any": Term(
        "At least one of these conditions holds.",
        "[{tool_equals: push}, {tool_equals: merge}]",
        _SEVERAL.made(partial(_several, _any_holds)),
    ),
    "not": Term(
        "This condition does not hold.",
        "{tool_matches: ^read_}",
        Form(
            {**_CONDITION.schema, "description": f"nested at most {MOST_LEVELS} deep"},
            lambda spot: _several(_does_not_hold, (_read_condition(spot),)),
        ),
    ),
}
"""What a condition may be: what it means, how a file writes it, and what tells whether it holds."""

SCHEMA = {"oneOf": forms.named_schemas(CONDITIONS)}
LABELLED = forms.listed(
    Form(_CONDITION.schema, _read_labelled), "a list of conditions"
).made(in_order)  # fmt: skip
"""A rule's conditions in the order of evaluation."""
