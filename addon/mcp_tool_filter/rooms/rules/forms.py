"""How a rules file writes each kind of value: a ``Form`` reads it, and knows its JSON schema.

What a file may say is declared once, as a table of forms: the reader and the schema for editors
both derive from it.

>>> form = mapping(range, {"from": whole(0), "to": whole(0), "step": (whole(1), 1)})
>>> form.schema["required"], list(form.schema["properties"])
(['from', 'to'], ['from', 'to', 'step'])

A form reads a ``Spot``, a place of the file, and notes every mistake there. After a mistake we
continue with a harmless value, so that we find all mistakes. The result is used only if there are
none.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from mcp_tool_filter.core.errors import InvalidPattern, UnsafePattern
from mcp_tool_filter.core.policy.patterns import hint
from mcp_tool_filter.rooms.rules.fields import (
    Field,
    Json,
    Number,
    RulePattern,
    parse_field,
    parse_rule_pattern,
)
from mcp_tool_filter.rooms.rules.source import (
    MistakeAt,
    Mistaken,
    YamlNode,
    inner_path,
    read_source,
)
from mcp_tool_filter.rooms.rules.templates import Template, parse_json_template, parse_template

# A place in the file


class Machine:
    """The machine that a policy will run on; this one has neither scripts nor Python objects."""

    def import_object(self, name: str) -> object:
        """Return the object ``module:name``. Raises ValueError, which says what is wrong."""
        raise ValueError(f"{name} cannot be imported here")

    def find_script(self, path: str) -> str:
        """Return a script's absolute path. Raises ValueError if it cannot be executed."""
        raise ValueError(f"{path} cannot be run here")


@dataclass(frozen=True, slots=True)
class Spot:
    """A place in the file, and the list to which mistakes are added."""

    node: YamlNode
    path: str
    mistakes: list[MistakeAt]
    machine: Machine
    level: int = 0
    """How many conditions are around it."""

    def at(self, node: YamlNode, path: str) -> Spot:
        """Return a place inside."""
        return Spot(node, path, self.mistakes, self.machine, self.level)

    def wrong(self, text: str) -> None:
        self.mistakes.append(MistakeAt(self.node.line, self.node.column, self.path, text))

    def wrong_key(self, key: str, text: str) -> None:
        line, column = self.node.keys[key]
        self.mistakes.append(MistakeAt(line, column, self.path, text))

    def expected(self, what: str, example: str = "") -> None:
        such = f", such as {example}" if example else ""
        self.wrong(f"expected {what}{such}, not {self.node.kind}")

    def tried[V, T](self, parse: Callable[[V], T], value: V, default: T) -> T:
        """Parse a value with a function that raises ValueError."""
        try:
            return parse(value)
        except ValueError as error:
            self.wrong(str(error))
            return default

    def items(self, *, what: str = "a list") -> Iterator[Spot]:
        if self.node.items is None:
            self.expected(what)
            return
        for number, item in enumerate(self.node.items):
            yield self.at(item, f"{self.path}[{number}]")

    def member(self, key: str, node: YamlNode) -> Spot:
        return self.at(node, inner_path(self.path, key))

    def members(self) -> Iterator[tuple[str, Spot]]:
        """Yield a mapping's members, whatever their keys."""
        if self.node.members is None:
            self.expected("a mapping")
            return
        for key, node in self.node.members.items():
            yield key, self.member(key, node)

    def inside(self, key: str) -> Spot:
        """Return a member of this mapping if it has it, else the mapping."""
        members = self.node.members or {}
        return self.member(key, members[key]) if key in members else self

    def table(self, required: Sequence[str] = (), optional: Sequence[str] = ()) -> dict[str, Spot]:
        """Read a mapping; every key must be one of these.

        A required member that is missing (noted already) reads as empty.
        """
        members, known = self.node.members, [*required, *optional]
        if members is None:
            self.expected(f"a mapping with {', '.join(known)}" if known else "a mapping")
            members = {}
        else:
            for key in members:
                if key not in known:
                    self.wrong_key(key, _unknown_key(key, known))
            missing = [key for key in required if key not in members]
            if missing:
                problem = f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing"
                self.wrong(problem)
        empty = {key: Spot(YamlNode(1, 1), key, [], self.machine) for key in required}
        return empty | {key: self.member(key, members[key]) for key in known if key in members}


def _unknown_key(key: str, known: Sequence[str]) -> str:
    guess = _did_you_mean(key, known)
    listed = "" if guess or not known else f"; the keys here are {', '.join(known)}"
    return f"unknown key {key!r}{guess}{listed}"


def _did_you_mean(text: object, choices: Sequence[str]) -> str:
    if not isinstance(text, str):
        return ""
    plain = text.lower().replace("-", "_")
    close = get_close_matches(plain, choices, n=1, cutoff=0.6) or get_close_matches(
        plain.replace("_", ""), choices, n=1, cutoff=0.6
    )
    return f"; did you mean {close[0]!r}?" if close else ""


def unknown_choice(what: str, text: str, choices: Sequence[str]) -> str:
    """Return a sentence that there is no such choice, and what the user may have meant."""
    guess = _did_you_mean(text, choices)
    return f"there is no {what} {text!r}{guess or f'; there are {", ".join(choices)}'}"


# Forms

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


@dataclass(frozen=True, slots=True)
class Term[T]:
    """A condition or an action: its form, and what people read about it.

    The reference, the schema, editors and ``rules --help`` say nothing else.
    """

    means: str
    """A sentence."""
    example: str
    """A value of the form, in YAML."""
    form: Form[T]

    def described(self, name: str) -> Schema:
        """Return the schema of a member of this name, as an editor shows it."""
        also = self.form.schema.get("description")
        means = f"{self.means} It is {also}." if also else self.means
        return {**self.form.schema, "description": f"{means} Example: {name}: {self.example}"}


def read_file[T](raw: bytes, begins: str, form: Form[T], machine: Machine) -> T:
    """Read a whole file, whose first key is ``begins``. Raises Mistaken with every mistake."""
    root, mistakes = read_source(raw, begins)
    value = form.read(Spot(root, "", mistakes, machine))
    if mistakes:
        raise Mistaken(*mistakes)
    return value


# Mappings and lists


def mapping[T](make: Callable[..., T], members: Mapping[str, Form[Any] | Optional]) -> Form[T]:
    """Return the form of a mapping with these members; ``make`` gets them in this order."""
    required = {key: form for key, form in members.items() if isinstance(form, Form)}
    optional = {key: form for key, form in members.items() if not isinstance(form, Form)}

    def read(spot: Spot) -> T:
        spots = spot.table([*required], [*optional])
        values = [form.read(spots[key]) for key, form in required.items()]
        values += [
            form.read(spots[key]) if key in spots else default
            for key, (form, default) in optional.items()
        ]
        return make(*values)

    return Form(
        object_schema(
            {key: form.schema for key, form in required.items()},
            {key: form.schema for key, (form, _) in optional.items()},
        ),
        read,
    )


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


def named[T](spot: Spot, terms: Mapping[str, Term[T]], what: str, expected: str) -> T | None:
    """Read a mapping with one member, whose name says its form; None after a mistake."""
    if spot.node.members is None or len(spot.node.members) != 1:
        spot.wrong(f"expected {expected}")
        return None
    ((name, inner),) = spot.members()
    if name not in terms:
        spot.wrong_key(name, unknown_choice(what, name, [*terms]))
        return None
    return terms[name].form.read(inner)


def members_of(form: Form[Any]) -> dict[str, Schema]:
    """Return the schemas of a mapping's members."""
    members = form.schema["properties"]
    assert isinstance(members, dict)
    return members


def named_schemas(terms: Mapping[str, Term[Any]]) -> list[Schema]:
    return [object_schema({name: term.described(name)}, {}) for name, term in terms.items()]


# Scalars

_DURATION = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,12})?)\s*(ms|s|m|h|d)?")
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_LONGEST = 3650 * 86400.0  # seconds that a duration may have
_MANY = 2**53
_LARGE = 1_000_000  # the schema does not mention such limits
_SECONDS: Schema = {
    "description": "such as 5s, 200ms, 1m, 2h, 1d, or a number of seconds",
    "anyOf": [
        {"type": "number", "minimum": 0},
        {"type": "string", "pattern": r"^\d+(\.\d+)?\s*(ms|s|m|h|d)?$"},
    ],
}


def _scalar[T](type: str, kind: type[T], what: str, default: T) -> Form[T]:
    def read(spot: Spot) -> T:
        if isinstance(spot.node.value, kind):
            return spot.node.value
        spot.expected(what)
        return default

    return Form({"type": type}, read)


BOOLEAN = _scalar("boolean", bool, "true or false", False)
NUMBER = _scalar("number", Number, "a number", Number("0"))
ANY: Form[Json] = Form({}, lambda spot: spot.node.to_json())


def parsed[T](
    parse: Callable[[str], T], default: T, *, example: str = "", schema: Schema | None = None
) -> Form[T]:
    """Return the form of a text that ``parse`` reads; it raises ValueError."""

    def read(spot: Spot) -> T:
        if isinstance(spot.node.value, str):
            return spot.tried(parse, spot.node.value, default)
        spot.expected("a text", example)
        return default

    return Form({"type": "string"} if schema is None else schema, read)


def filled(example: str = "") -> Form[str]:
    """Return the form of a text that is not empty."""
    return parsed(_not_empty, "", example=example, schema={"type": "string", "minLength": 1})


def _not_empty(text: str) -> str:
    if not text:
        raise ValueError("expected a text that is not empty")
    return text


def one_of(*choices: str) -> Form[str]:
    def read(spot: Spot) -> str:
        text = spot.node.value
        if isinstance(text, str) and text in choices:
            return text
        listed = " or ".join([", ".join(choices[:-1]), choices[-1]])
        shown = f", not {text!r}" if isinstance(text, str) else f", not {spot.node.kind}"
        spot.wrong(f"expected {listed}{shown}{_did_you_mean(text, choices)}")
        return choices[0]

    return Form({"enum": list(choices)}, read)


def whole(least: int = -_MANY, most: int = _MANY) -> Form[int]:
    """Return the form of a whole number."""
    bounds = f" of {least} or more" if most == _MANY else f" from {least} to {most}"

    def read(spot: Spot) -> int:
        number = NUMBER.read(spot)
        if not isinstance(spot.node.value, Number):
            return least
        try:
            value = int(number.text)
        except ValueError:
            value = None
        if value is None or not least <= value <= most:
            spot.wrong(f"expected a whole number{bounds if least > -_MANY else ''}")
            return least
        return value

    schema: Schema = {"type": "integer"}
    if least > -_LARGE:
        schema["minimum"] = least
    if most < _LARGE:
        schema["maximum"] = most
    return Form(schema, read)


def duration(*, least: float = 0.0, most: float = _LONGEST) -> Form[float]:
    """Return the form of seconds: a number, or a text such as 200ms."""

    def read(spot: Spot) -> float:
        value = spot.node.value
        duration = _DURATION.fullmatch(value) if isinstance(value, str) else None
        if isinstance(value, Number):
            seconds = float(value.text)
        elif duration is None:
            spot.expected("a duration", "5s, 200ms, 1m, 2h, 1d, or a number of seconds")
            return 1.0
        else:
            seconds = float(duration[1]) * _UNITS[duration[2] or "s"]
        if not least <= seconds <= most:
            spot.wrong(f"expected a duration from {_seconds(least)} to {_seconds(most)}")
            return 1.0
        return seconds

    return Form(_SECONDS, read)


def _seconds(value: float) -> str:
    return f"{value:g}s" if value < 3600 else f"{value / 3600:g}h"


DURATION = duration()
TIMEOUT = duration(least=0.001)
INTEGER = whole()
TEXT = parsed(str, "")
TEXTS = listed(TEXT, "a list of texts", or_else="expected a list that is not empty")
TEMPLATE = parsed(parse_template, Template(()))
JSON_TEMPLATE = Form(
    ANY.schema, lambda spot: spot.tried(parse_json_template, ANY.read(spot), Template(()))
)
FIELD = parsed(
    parse_field,
    Field("", ()),
    example="arguments.path",
    schema={
        "type": "string",
        "minLength": 1,
        "description": "a path such as arguments.path, content[*].text, or a JSON pointer",
    },
)

# Patterns

_REGEX: Schema = {"type": "string", "description": "a JavaScript regex"}
_NO_PATTERN = parse_rule_pattern("(?!)")


def _regex(ignore_case: bool) -> Form[RulePattern]:
    """Return the form of a JavaScript regex, which must be safe."""

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

    return parsed(parse, _NO_PATTERN, example="^file:", schema=_REGEX)


_EXACT, _ANY_CASE = _regex(False), _regex(True)

type PatternOf = Callable[[bool], RulePattern]
"""Reads a pattern, once we know whether it ignores case."""


def _pattern_of(spot: Spot) -> PatternOf:
    """Read a text, or a mapping that may ignore case."""

    def read(ignore_case: bool) -> RulePattern:
        if spot.node.members is not None:
            return _CASED.read(spot)
        return (_ANY_CASE if ignore_case else _EXACT).read(spot)

    return read


_CASED: Form[RulePattern] = mapping(
    lambda pattern, ignore_case: pattern(ignore_case),
    {"pattern": Form(_REGEX, _pattern_of), "ignore_case": (BOOLEAN, False)},
)
PATTERN_OF: Form[PatternOf] = Form({"anyOf": [_REGEX, _CASED.schema]}, _pattern_of)
"""A pattern beside an ``ignore_case``."""
PATTERN = PATTERN_OF.made(lambda pattern: pattern(False))
