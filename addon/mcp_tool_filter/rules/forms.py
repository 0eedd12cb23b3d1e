"""How a rules file writes each kind of value: a ``Form`` reads it, and knows its JSON schema.

What a file may say is declared once, as a table of forms: the reader and the schema for editors
both derive from it.

>>> form = mapping(range, {"from": whole(0), "to": whole(0)}, {"step": (whole(1), 1)})
>>> form.schema["required"], list(form.schema["properties"])
(['from', 'to'], ['from', 'to', 'step'])
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from mcp_tool_filter.errors import InvalidPattern, UnsafePattern
from mcp_tool_filter.jsregex.hints import hint
from mcp_tool_filter.rules.fields import (
    Field,
    Json,
    RulePattern,
    parse_field,
    parse_rule_pattern,
)
from mcp_tool_filter.rules.source import LONGEST, Spot, unknown_choice
from mcp_tool_filter.rules.templates import (
    JsonTemplate,
    Template,
    parse_json_template,
    parse_template,
)

type Schema = dict[str, object]
type Optional = tuple[Form[Any], object]
"""The form of a member that may be missing, and its default."""


@dataclass(frozen=True, slots=True)
class Form[T]:
    schema: Schema
    read: Callable[[Spot], T]

    def made[U](self, make: Callable[[T], U]) -> Form[U]:
        """Return a form that is written the same, and becomes something else."""
        read = self.read
        return Form(self.schema, lambda spot: make(read(spot)))


def mapping[T](
    make: Callable[..., T],
    required: Mapping[str, Form[Any]],
    optional: Mapping[str, Optional] | None = None,
) -> Form[T]:
    """Return the form of a mapping with these members; ``make`` gets them in this order."""
    more = optional or {}

    def read(spot: Spot) -> T:
        table = spot.table([*required], [*more])
        values = [form.read(table[key]) for key, form in required.items()]
        values += [table.read(key, form.read, default) for key, (form, default) in more.items()]
        return make(*values)

    schemas = {key: form.schema for key, form in required.items()}
    return Form(object_schema(schemas, {key: form.schema for key, (form, _) in more.items()}), read)


def object_schema(required: dict[str, Schema], optional: dict[str, Schema]) -> Schema:
    schema: Schema = {
        "type": "object",
        "properties": {**required, **optional},
        "additionalProperties": False,
    }
    return {**schema, "required": list(required)} if required else schema


def with_default[T](form: Form[T], default: T) -> Optional:
    """Return an optional member whose default editors show."""
    return Form({**form.schema, "default": default}, form.read), default


def listed[T](form: Form[T], what: str = "a list", *, or_else: str = "") -> Form[tuple[T, ...]]:
    """Return the form of a list; ``or_else`` says that it may not be empty."""

    def read(spot: Spot) -> tuple[T, ...]:
        if or_else and spot.node.items == []:
            spot.wrong(or_else)
        return tuple(map(form.read, spot.items(what=what)))

    schema: Schema = {"type": "array"}
    if form.schema:
        schema["items"] = form.schema
    if or_else:
        schema["minItems"] = 1
    return Form(schema, read)


def named[T](spot: Spot, forms: Mapping[str, Form[T]], what: str, expected: str) -> T | None:
    """Read a mapping with one member, whose name says its form; None after a mistake."""
    if (member := spot.only_member(expected)) is None:
        return None
    name, inner = member
    if name not in forms:
        spot.wrong_key(name, unknown_choice(what, name, [*forms]))
        return None
    return forms[name].read(inner)


def members_of(form: Form[Any]) -> dict[str, Schema]:
    """Return the schemas of a mapping's members."""
    members = form.schema["properties"]
    assert isinstance(members, dict)
    return members


def named_schemas(forms: Mapping[str, Form[Any]]) -> list[Schema]:
    return [object_schema({name: form.schema}, {}) for name, form in forms.items()]


def one_of(*choices: str) -> Form[str]:
    return Form({"enum": list(choices)}, lambda spot: spot.one_of(choices))


def whole(least: int, most: int = 2**53) -> Form[int]:
    schema: Schema = {"type": "integer", "minimum": least}
    if most < _LARGE:
        schema["maximum"] = most
    return Form(schema, partial(Spot.integer, least=least, most=most))


_LARGE = 1_000_000  # the schema does not mention such limits
_SECONDS: Schema = {
    "description": "such as 5s, 200ms, 1m, 2h, 1d, or a number of seconds",
    "anyOf": [
        {"type": "number", "minimum": 0},
        {"type": "string", "pattern": r"^\d+(\.\d+)?\s*(ms|s|m|h|d)?$"},
    ],
}


def duration(*, least: float = 0.0, most: float = LONGEST) -> Form[float]:
    return Form(_SECONDS, partial(Spot.duration, least=least, most=most))


DURATION = duration()
TIMEOUT = duration(least=0.001)
ANY = Form[Json]({}, Spot.json)
BOOLEAN = Form({"type": "boolean"}, Spot.boolean)
INTEGER = Form({"type": "integer"}, Spot.integer)
NUMBER = Form({"type": "number"}, Spot.number)
TEXT = Form({"type": "string"}, Spot.text)
NAME = Form({"type": "string"}, Spot.name)
TEXTS = listed(TEXT, "a list of texts", or_else="expected a list that is not empty")


def parsed[T](parse: Callable[[str], T], default: T, *, example: str = "") -> Form[T]:
    """Return the form of a text that ``parse`` reads; it raises ValueError."""
    return Form(
        {"type": "string"}, partial(Spot.parsed, parse=parse, default=default, example=example)
    )


TEMPLATE = parsed(parse_template, Template(()))
JSON_TEMPLATE = Form(
    ANY.schema, partial(Spot.parsed_json, parse=parse_json_template, default=JsonTemplate(()))
)
FIELD = Form[Field](
    {
        "type": "string",
        "minLength": 1,
        "description": "a path such as arguments.path, content[*].text, or a JSON pointer",
    },
    partial(Spot.parsed, parse=parse_field, default=Field("", ()), example="arguments.path"),
)

_REGEX: Schema = {"type": "string", "description": "a JavaScript regex"}
_NO_PATTERN = parse_rule_pattern("(?!)")


def _read_pattern(spot: Spot, *, ignore_case: bool = False) -> RulePattern:
    """Read a JavaScript regex, which must be safe: a text, or a mapping that may ignore case."""
    if spot.node.members is not None:
        return _CASED.read(spot)

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


type PatternOf = Callable[[bool], RulePattern]


def _pattern_of(spot: Spot) -> PatternOf:
    """Return how to read the pattern, once we know whether it ignores case."""
    return lambda ignore_case: _read_pattern(spot, ignore_case=ignore_case)


def _cased(pattern: PatternOf, ignore_case: bool) -> RulePattern:
    return pattern(ignore_case)


_CASED = mapping(
    _cased,
    {"pattern": Form(_REGEX, _pattern_of)},
    {"ignore_case": (BOOLEAN, False)},
)
PATTERN = Form[RulePattern]({"anyOf": [_REGEX, _CASED.schema]}, _read_pattern)
PATTERN_OF = Form[PatternOf](PATTERN.schema, _pattern_of)
"""A pattern beside an ``ignore_case``."""
