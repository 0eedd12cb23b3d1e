"""The conditions of rules: each tells whether it holds for a message; and how a file says it.

``reads`` says what a condition depends on: the method, the tool, or anything. Conditions on the
method and the tool alone are evaluated once for each pair, not for each message.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from typing import ClassVar, Protocol

from mcp_tool_filter.errors import InvalidPattern, UnsafePattern
from mcp_tool_filter.jsregex.hints import hint
from mcp_tool_filter.policy.rules.fields import (
    Document,
    Field,
    Json,
    Number,
    RulePattern,
    equals,
    find_member,
    number_in,
    parse_field,
    parse_rule_pattern,
    render_json,
)
from mcp_tool_filter.policy.rules.source import Spot, Table, unknown_choice
from mcp_tool_filter.policy.rules.subject import Subject
from mcp_tool_filter.protocol.scan import Value

_LONG = 64 * 1024  # characters of a message that one condition may work on for a while
_MANY = 64


class Reads(IntEnum):
    """What a condition depends on; each includes those before it."""

    METHOD = 0
    TOOL = 1
    MESSAGE = 2


class Condition(Protocol):
    @property
    def reads(self) -> Reads: ...

    @property
    def of_response(self) -> bool:
        """True if it refers to a response."""

    @property
    def of_request(self) -> bool:
        """True if it refers to a request, or to the request that a response answers."""

    def holds(self, subject: Subject, now: float) -> bool: ...


class _OfMethod:
    """A condition on the method."""

    __slots__ = ()
    reads: ClassVar = Reads.METHOD
    of_response: ClassVar = False
    of_request: ClassVar = True


class _OfTool:
    """A condition on the called tool."""

    __slots__ = ()
    reads: ClassVar = Reads.TOOL
    of_response: ClassVar = False
    of_request: ClassVar = True


class _OfError:
    """A condition on the error that answers a request."""

    __slots__ = ()
    reads: ClassVar = Reads.MESSAGE
    of_response: ClassVar = True
    of_request: ClassVar = False


class _OfClient:
    """A condition on the client."""

    __slots__ = ()
    reads: ClassVar = Reads.MESSAGE
    of_response: ClassVar = False
    of_request: ClassVar = False


@dataclass(frozen=True, slots=True)
class MethodIs(_OfMethod):
    names: frozenset[str]

    def holds(self, subject: Subject, now: float) -> bool:
        return subject.method in self.names


@dataclass(frozen=True, slots=True)
class MethodStarts(_OfMethod):
    text: str

    def holds(self, subject: Subject, now: float) -> bool:
        return subject.method is not None and subject.method.startswith(self.text)


@dataclass(frozen=True, slots=True)
class MethodEnds(_OfMethod):
    text: str

    def holds(self, subject: Subject, now: float) -> bool:
        return subject.method is not None and subject.method.endswith(self.text)


@dataclass(frozen=True, slots=True)
class MethodMatches(_OfMethod):
    pattern: RulePattern

    def holds(self, subject: Subject, now: float) -> bool:
        return subject.method is not None and self.pattern.is_in(subject.method, subject.budget)


@dataclass(frozen=True, slots=True)
class ToolIs(_OfTool):
    names: frozenset[str]

    def holds(self, subject: Subject, now: float) -> bool:
        return subject.tool in self.names


@dataclass(frozen=True, slots=True)
class ToolMatches(_OfTool):
    pattern: RulePattern

    def holds(self, subject: Subject, now: float) -> bool:
        return subject.tool is not None and self.pattern.is_in(subject.tool, subject.budget)


@dataclass(frozen=True, slots=True)
class _OfField:
    """A condition on the value of a field of ``params`` or ``result``."""

    part: str
    field: Field
    reads: ClassVar = Reads.MESSAGE

    @property
    def of_response(self) -> bool:
        return self.part == "result"

    @property
    def of_request(self) -> bool:
        return self.part == "params"

    def holds(self, subject: Subject, now: float) -> bool:
        document = subject.document(self.part)
        found = subject.find(self.part, self.field)
        # We judge each value even after one satisfies the condition: whether the message can be
        # judged must not depend on the order of a list's elements.
        judged = [self.satisfied_by(document, value) for value in found]
        if len(document.text) > _LONG:
            subject.look()
        return any(judged)

    def satisfied_by(self, document: Document, value: Value) -> bool:
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Exists(_OfField):
    def satisfied_by(self, document: Document, value: Value) -> bool:
        return True


@dataclass(frozen=True, slots=True)
class IsOneOf(_OfField):
    values: tuple[Json, ...]

    def satisfied_by(self, document: Document, value: Value) -> bool:
        return any(equals(document, value, wanted) for wanted in self.values)


@dataclass(frozen=True, slots=True)
class Matches(_OfField):
    pattern: RulePattern

    def holds(self, subject: Subject, now: float) -> bool:
        budget = subject.budget
        texts = [value.text for value in subject.find(self.part, self.field)]
        judged = [text is not None and self.pattern.is_in(text, budget) for text in texts]
        if len(texts) > _MANY:
            subject.look()
        return any(judged)


@dataclass(frozen=True, slots=True)
class Greater(_OfField):
    than: Number

    def satisfied_by(self, document: Document, value: Value) -> bool:
        number = number_in(document, value)
        return number is not None and number > self.than


@dataclass(frozen=True, slots=True)
class Less(_OfField):
    than: Number

    def satisfied_by(self, document: Document, value: Value) -> bool:
        number = number_in(document, value)
        return number is not None and number < self.than


@dataclass(frozen=True, slots=True)
class IsNull(_OfField):
    def satisfied_by(self, document: Document, value: Value) -> bool:
        return document.text[value.start] == "n"


@dataclass(frozen=True, slots=True)
class IsArray(_OfField):
    def satisfied_by(self, document: Document, value: Value) -> bool:
        return document.text[value.start] == "["


@dataclass(frozen=True, slots=True)
class ErrorCodeIs(_OfError):
    code: Number

    def holds(self, subject: Subject, now: float) -> bool:
        code = _in_error(subject, "code")
        return code is not None and equals(subject.document("error"), code, self.code)


@dataclass(frozen=True, slots=True)
class ErrorSays(_OfError):
    text: str

    def holds(self, subject: Subject, now: float) -> bool:
        message = _in_error(subject, "message")
        return message is not None and self.text in (message.text or "")


def _in_error(subject: Subject, key: str) -> Value | None:
    """Return a member of a response's error, or None. Raises Unjudgeable."""
    error = subject.part("error")
    member = find_member(error.members or (), key) if error else None
    return member.value if member else None


@dataclass(frozen=True, slots=True)
class SessionIs(_OfClient):
    id: str

    def holds(self, subject: Subject, now: float) -> bool:
        return self.id in (subject.about.session_id, subject.about.claimed_session_id)


@dataclass(frozen=True, slots=True)
class SessionOlder(_OfClient):
    than: float

    def holds(self, subject: Subject, now: float) -> bool:
        return now - subject.about.session_started > self.than


@dataclass(frozen=True, slots=True)
class From(_OfClient):
    client: bool

    def holds(self, subject: Subject, now: float) -> bool:
        return subject.about.from_client == self.client


@dataclass(frozen=True, slots=True)
class _Several:
    """Several conditions, the cheap ones first."""

    conditions: tuple[Condition, ...]

    @property
    def reads(self) -> Reads:
        return max((one.reads for one in self.conditions), default=Reads.METHOD)

    @property
    def of_response(self) -> bool:
        return any(one.of_response for one in self.conditions)

    @property
    def of_request(self) -> bool:
        return any(one.of_request for one in self.conditions)


@dataclass(frozen=True, slots=True)
class AllOf(_Several):
    def holds(self, subject: Subject, now: float) -> bool:
        return all(one.holds(subject, now) for one in self.conditions)


@dataclass(frozen=True, slots=True)
class AnyOf(_Several):
    def holds(self, subject: Subject, now: float) -> bool:
        return any(one.holds(subject, now) for one in self.conditions)


@dataclass(frozen=True, slots=True)
class Not:
    condition: Condition

    @property
    def reads(self) -> Reads:
        return self.condition.reads

    @property
    def of_response(self) -> bool:
        return self.condition.of_response

    @property
    def of_request(self) -> bool:
        return self.condition.of_request

    def holds(self, subject: Subject, now: float) -> bool:
        return not self.condition.holds(subject, now)


def in_order(conditions: list[Condition]) -> tuple[Condition, ...]:
    """Return the conditions on the method or tool alone first, the rest in the order given."""
    return tuple(sorted(conditions, key=lambda one: one.reads))


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
