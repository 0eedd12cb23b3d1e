"""The conditions of rules: each tells whether it holds for a message; and how a file says it.

``reads`` says what a condition depends on: the method, the tool, or anything. Conditions on the
method and the tool alone are evaluated once for each pair, not for each message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import partial
from typing import Any, ClassVar, Protocol

from mcp_tool_filter.protocol.scan import Value
from mcp_tool_filter.rules import forms
from mcp_tool_filter.rules.fields import (
    Document,
    Field,
    Json,
    Number,
    RulePattern,
    equals,
    find_member,
    number_in,
    render_json,
)
from mcp_tool_filter.rules.forms import Form, Spot
from mcp_tool_filter.rules.subject import Subject

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
    def parts(self) -> frozenset[str]:
        """What it refers to: ``params`` is a request, or the one that a response answers;
        ``result`` is a response."""

    def holds(self, subject: Subject, now: float) -> bool: ...


class _OfError:
    """A condition on the error that answers a request."""

    __slots__ = ()
    reads: ClassVar = Reads.MESSAGE
    parts: ClassVar = frozenset({"result"})


class _OfClient:
    """A condition on the client."""

    __slots__ = ()
    reads: ClassVar = Reads.MESSAGE
    parts: ClassVar = frozenset[str]()


@dataclass(frozen=True, slots=True)
class _OfName:
    """A condition on the method, or on the called tool."""

    reads: Reads
    parts: ClassVar = frozenset({"params"})

    def holds(self, subject: Subject, now: float) -> bool:
        name = subject.method if self.reads is Reads.METHOD else subject.tool
        return name is not None and self.fits(name, subject)

    def fits(self, name: str, subject: Subject) -> bool:
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class NameIs(_OfName):
    names: frozenset[str]

    def fits(self, name: str, subject: Subject) -> bool:
        return name in self.names


@dataclass(frozen=True, slots=True)
class NameStarts(_OfName):
    text: str

    def fits(self, name: str, subject: Subject) -> bool:
        return name.startswith(self.text)


@dataclass(frozen=True, slots=True)
class NameEnds(_OfName):
    text: str

    def fits(self, name: str, subject: Subject) -> bool:
        return name.endswith(self.text)


@dataclass(frozen=True, slots=True)
class NameMatches(_OfName):
    pattern: RulePattern

    def fits(self, name: str, subject: Subject) -> bool:
        return self.pattern.is_in(name, subject.budget)


@dataclass(frozen=True, slots=True)
class _OfField:
    """A condition on the value of a field of ``params`` or ``result``."""

    part: str
    field: Field
    reads: ClassVar = Reads.MESSAGE

    @property
    def parts(self) -> frozenset[str]:
        return frozenset({self.part})

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
class Compares(_OfField):
    than: Number
    is_greater: bool

    def satisfied_by(self, document: Document, value: Value) -> bool:
        number = number_in(document, value)
        if number is None:
            return False
        return number > self.than if self.is_greater else number < self.than


@dataclass(frozen=True, slots=True)
class Begins(_OfField):
    """Tells by its first character whether a value is null, or a list."""

    first: str

    def satisfied_by(self, document: Document, value: Value) -> bool:
        return document.text[value.start] == self.first


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
    def parts(self) -> frozenset[str]:
        return frozenset[str]().union(*(one.parts for one in self.conditions))


@dataclass(frozen=True, slots=True)
class AllOf(_Several):
    def holds(self, subject: Subject, now: float) -> bool:
        return all(one.holds(subject, now) for one in self.conditions)


@dataclass(frozen=True, slots=True)
class AnyOf(_Several):
    def holds(self, subject: Subject, now: float) -> bool:
        return any(one.holds(subject, now) for one in self.conditions)


@dataclass(frozen=True, slots=True)
class Not(_Several):
    """Its only condition does not hold."""

    def holds(self, subject: Subject, now: float) -> bool:
        return not self.conditions[0].holds(subject, now)


def in_order(conditions: Iterable[Condition]) -> tuple[Condition, ...]:
    """Return the conditions on the method or tool alone first, the rest in the order given."""
    return tuple(sorted(conditions, key=lambda one: one.reads))


MOST_LEVELS = 32
_LONGEST_LABEL = 120
_NOTHING = AllOf(())
"""What we read after a mistake. (The file is not used.)"""


def _read_condition(spot: Spot) -> Condition:
    inside = replace(spot, level=spot.level + 1)
    if inside.level > MOST_LEVELS and len(spot.node.members or ()) == 1:
        spot.wrong(f"conditions are nested more than {MOST_LEVELS} deep")
        return _NOTHING
    expected = "one condition, such as method_equals: tools/call"
    return forms.named(inside, CONDITIONS, "condition", expected) or _NOTHING


def label_of(spot: Spot) -> str:
    """Render a condition in one line, as the rules file has it."""
    (name, node), *_ = (spot.node.members or {"": spot.node}).items()
    value = node.to_json()
    text = f"{name}: {value if isinstance(value, str) else render_json(value)}"
    return text if len(text) <= _LONGEST_LABEL else f"{text[:_LONGEST_LABEL]}…"


type Labelled = tuple[Condition, str]
"""A condition, and how the rules file has it."""


def _sorted(pairs: Iterable[Labelled]) -> tuple[Labelled, ...]:
    return tuple(sorted(pairs, key=lambda pair: pair[0].reads))


def _on_value(make: Callable[..., Condition], part: str, value: Form[Any]) -> Form[Condition]:
    """Return the form of a condition that compares a field with a value."""
    return forms.mapping(partial(make, part), {"field": forms.FIELD, "value": value})


def _equals(part: str) -> Form[Condition]:
    return _on_value(IsOneOf, part, forms.ANY.made(lambda value: (value,)))


def _of_pattern(part: str) -> Form[Condition]:
    return forms.mapping(
        lambda field, pattern, ignore_case: Matches(part, field, pattern(ignore_case)),
        {"field": forms.FIELD, "pattern": forms.PATTERN_OF},
        {"ignore_case": (forms.BOOLEAN, False)},
    )


_CONDITION: Form[Condition] = Form({"$ref": "#/$defs/condition"}, _read_condition)
_SEVERAL = forms.listed(
    _CONDITION, "a list of conditions", or_else="expected at least one condition"
)
_VALUES = forms.listed(forms.ANY, "a list of values", or_else="expected a list that is not empty")
_NAME = forms.TEXT.made(lambda text: frozenset([text]))
_NAMES = forms.TEXTS.made(frozenset)

CONDITIONS: dict[str, Form[Condition]] = {
    "method_equals": _NAME.made(partial(NameIs, Reads.METHOD)),
    "method_starts_with": forms.TEXT.made(partial(NameStarts, Reads.METHOD)),
    "method_ends_with": forms.TEXT.made(partial(NameEnds, Reads.METHOD)),
    "method_matches": forms.PATTERN.made(partial(NameMatches, Reads.METHOD)),
    "method_in": _NAMES.made(partial(NameIs, Reads.METHOD)),
    "tool_equals": _NAME.made(partial(NameIs, Reads.TOOL)),
    "tool_in": _NAMES.made(partial(NameIs, Reads.TOOL)),
    "tool_matches": forms.PATTERN.made(partial(NameMatches, Reads.TOOL)),
    "param_exists": forms.FIELD.made(partial(Exists, "params")),
    "param_equals": _equals("params"),
    "param_in": forms.mapping(
        partial(IsOneOf, "params"), {"field": forms.FIELD, "values": _VALUES}
    ),
    "param_matches": _of_pattern("params"),
    "param_greater_than": _on_value(partial(Compares, is_greater=True), "params", forms.NUMBER),
    "param_less_than": _on_value(partial(Compares, is_greater=False), "params", forms.NUMBER),
    "param_is_null": forms.FIELD.made(partial(Begins, "params", first="n")),
    "param_is_array": forms.FIELD.made(partial(Begins, "params", first="[")),
    "result_exists": forms.FIELD.made(partial(Exists, "result")),
    "result_equals": _equals("result"),
    "result_matches": _of_pattern("result"),
    "error_code_equals": forms.INTEGER.made(lambda code: ErrorCodeIs(Number(str(code)))),
    "error_message_contains": forms.TEXT.made(ErrorSays),
    "session_id_equals": forms.TEXT.made(SessionIs),
    "session_age_greater_than": forms.DURATION.made(SessionOlder),
    "from": forms.one_of("client", "server").made(lambda who: From(who == "client")),
    "all": _SEVERAL.made(lambda several: AllOf(in_order(several))),
    "any": _SEVERAL.made(lambda several: AnyOf(in_order(several))),
    "not": Form(
        {**_CONDITION.schema, "description": f"nested at most {MOST_LEVELS} deep"},
        lambda spot: Not((_read_condition(spot),)),
    ),
}
"""What a condition may be: how a file writes it, and what tells whether it holds."""

SCHEMA = {"oneOf": forms.named_schemas(CONDITIONS)}
LABELLED = forms.listed(
    Form(_CONDITION.schema, lambda spot: (_read_condition(spot), label_of(spot))),
    "a list of conditions",
).made(_sorted)
"""A rule's conditions in the order of evaluation."""
