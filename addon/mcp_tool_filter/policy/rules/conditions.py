"""The conditions of rules: each tells whether it holds for a message.

``reads`` says what a condition depends on: the method, the tool, or anything. Conditions on the
method and the tool alone are evaluated once for each pair, not for each message.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import ClassVar, Protocol

from mcp_tool_filter.policy.rules.equality import equals, number_in
from mcp_tool_filter.policy.rules.fields import Document, Field, find_member
from mcp_tool_filter.policy.rules.patterns import RulePattern
from mcp_tool_filter.policy.rules.subject import Subject
from mcp_tool_filter.policy.rules.values import Json, Number
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
