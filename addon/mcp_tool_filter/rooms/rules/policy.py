"""The policy: a rules file that has been read and checked. It is never changed.

All mistakes of a file are reported together. Its JSON schema derives from what reads it;
``load_policy`` also checks what a schema cannot express.

Rules are found by an index, without evaluating each of them. Conditions on the method and the tool
are evaluated once for each pair. Most of the remaining rules begin with a condition that a field
has one of some texts, or matches a pattern: we find these rules by the field's text. A rule that we
leave out would not have matched and would have read nothing more. So the outcome, including
refusals, is as if we had evaluated all rules in order.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby
from operator import itemgetter

from mcp_tool_filter.cli.switching import common_beginning
from mcp_tool_filter.core.errors import ProtocolError, StartError
from mcp_tool_filter.core.messages.messages import Request
from mcp_tool_filter.core.messages.sizes import NAME
from mcp_tool_filter.rooms.rules import actions, conditions, forms
from mcp_tool_filter.rooms.rules.actions import ACTION, Action
from mcp_tool_filter.rooms.rules.conditions import (
    LABELLED,
    Condition,
    DependsOn,
    field_matches,
    is_one_of,
)
from mcp_tool_filter.rooms.rules.fields import Field, Json, PatternGivenUp
from mcp_tool_filter.rooms.rules.forms import Form, Machine, Schema, Spot, read_file
from mcp_tool_filter.rooms.rules.interceptors import (
    INTERCEPTORS,
    RESOURCE_METHODS,
    MethodInterceptor,
    ResourceAccessInterceptor,
    UserInterceptor,
)
from mcp_tool_filter.rooms.rules.source import Mistaken
from mcp_tool_filter.rooms.rules.subject import Subject, TooSlow

AUDIT = "audit"
"""The mode of a rule that is only evaluated: what it would do is reported."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule as the file has it."""

    id: str
    actions: tuple[Action, ...]
    name: Json
    enabled: bool
    mode: str
    priority: int
    on: str | None
    conditions: tuple[Condition, ...]
    metadata: Json

    @property
    def changes_message(self) -> bool:
        return self.mode != AUDIT and any(action.kind.changes for action in self.actions)

    @property
    def of_response(self) -> list[str]:
        """What refers to the response."""
        labels = [condition.label for condition in self.conditions if "result" in condition.parts]
        return labels + [action.name for action in self.actions if action.is_of_response]

    @property
    def for_requests(self) -> bool:
        return self.on in ("request", "any") if self.on else not self.of_response

    @property
    def for_responses(self) -> bool:
        return self.on in ("response", "any") if self.on else bool(self.of_response)


_MOST_KNOWN = 4096  # pairs of method and tool whose rules we remember
_LONGEST_LITERAL = 32  # characters of each literal that the first search looks for
_FEW = 8  # rules; evaluating so few is as quick


@dataclass(frozen=True, slots=True)
class Candidate:
    """A rule that could match, and its conditions that are not evaluated yet."""

    rule: Rule
    order: int
    rest: tuple[Condition, ...]


@dataclass(slots=True)
class _OnField:
    """The candidates whose first condition is on one field, by their position."""

    part: str
    at: Field
    texts: dict[str, list[int]] = field(default_factory=dict)
    literals: list[tuple[str, int]] = field(default_factory=list)
    """A text that each match of a candidate's pattern contains, and the candidate."""
    all: list[int] = field(default_factory=list)
    _any_literal: re.Pattern[str] | None = None

    def positions(self, subject: Subject) -> Sequence[int]:
        """Return the candidates that could match a message."""
        try:
            values = subject.find(self.part, self.at)
        except (ProtocolError, TooSlow):
            return self.all  # each of them will refuse the message when its turn comes
        positions: list[int] = []
        for text in (value.text for value in values):
            if text is not None:
                positions += self.texts.get(text, ())
                if self.literals:
                    positions += self._with_literal_in(text)
        return positions

    def _with_literal_in(self, text: str) -> Sequence[int]:
        if len(self.literals) > _FEW:
            if self._any_literal is None:
                self._any_literal = re.compile(any_of([literal for literal, _ in self.literals]))
            if self._any_literal.search(text) is None:  # quicker than searching for each of them
                return ()
        return [at for literal, at in self.literals if literal in text]


class Candidates:
    """The rules that could match messages of one method and tool, in order."""

    __slots__ = ("_by_field", "_others", "each")

    def __init__(self, each: Sequence[Candidate]) -> None:
        self.each = tuple(each)
        self._by_field: dict[tuple[str, Field], _OnField] = {}
        self._others = [
            at for at, candidate in enumerate(self.each) if not self._index(at, candidate.rest)
        ]

    def _index(self, position: int, conditions: Sequence[Condition]) -> bool:
        """Index a candidate by the text that its first condition wants; False if there is none."""
        texts: tuple[Json, ...] = ()
        literal = ""
        first = conditions[0] if conditions else None
        if first is not None and first.test is field_matches:
            part, field, pattern = first.args
            literal = pattern.required
        elif first is not None and first.args[2:3] == (is_one_of,):
            part, field, _, texts = first.args
        wanted = [value for value in texts if isinstance(value, str)]
        if not literal and (not texts or len(wanted) < len(texts)):
            return False
        on_field = self._by_field.setdefault((part, field), _OnField(part, field))
        on_field.all.append(position)
        for text in wanted:
            on_field.texts.setdefault(text, []).append(position)
        if literal:
            on_field.literals.append((literal, position))
        return True

    def possible(self, subject: Subject) -> Sequence[Candidate]:
        """Return the candidates that could match this message."""
        if len(self.each) <= _FEW or not self._by_field:
            return self.each
        more: list[int] = []
        for on_field in self._by_field.values():
            more += on_field.positions(subject)
        if not more and not self._others:
            return ()
        positions = {*self._others, *more}
        if len(positions) == len(self.each):
            return self.each
        return tuple(self.each[position] for position in sorted(positions))


def any_of(texts: Iterable[str]) -> str:
    """Return a regex that finds the beginnings of these texts and tries each place only once.

    >>> any_of(["secret1", "secret2", "sea"])
    'se(?:a|cret(?:1|2))'
    """
    return _branch(sorted({text[:_LONGEST_LITERAL] for text in texts}))


def _branch(texts: Sequence[str]) -> str:
    """Render sorted, distinct texts with each common prefix written once."""
    prefix = common_beginning(texts[0], texts[-1])
    if prefix == texts[0]:  # finding it is enough
        return re.escape(prefix)
    tails = [text[len(prefix) :] for text in texts]
    branches = [_branch(list(group)) for _, group in groupby(tails, key=itemgetter(0))]
    return f"{re.escape(prefix)}(?:{'|'.join(branches)})"


_NONE = Candidates(())


class RuleIndex:
    """The rules of one direction."""

    def __init__(self, rules: tuple[Rule, ...]) -> None:
        self.rules = rules
        self._known: dict[tuple[str | None, str | None], Candidates] = {}

    def candidates(self, subject: Subject) -> Candidates:
        """Return the rules that could match by method and tool."""
        if not self.rules:
            return _NONE
        key = subject.method, subject.tool
        known = self._known.get(key)
        if known is None:
            known = Candidates(self._choose(subject))
            if len(subject.method or "") + len(subject.tool or "") <= NAME:
                if len(self._known) >= _MOST_KNOWN:
                    self._known.clear()
                self._known[key] = known
        return known

    def _choose(self, subject: Subject) -> list[Candidate]:
        chosen = []
        for order, rule in enumerate(self.rules):
            conditions = rule.conditions
            static = [condition for condition in conditions if condition.reads < DependsOn.MESSAGE]
            try:
                holds = all(condition.holds(subject, 0.0) for condition in static)
            except PatternGivenUp:  # the rule will fail when its turn comes
                chosen.append(Candidate(rule, order, conditions))
                continue
            if holds:
                chosen.append(Candidate(rule, order, conditions[len(static) :]))
        return chosen


@dataclass(frozen=True, slots=True)
class ChainSettings:
    fail_fast: bool = True
    parallel: bool = False
    timeout: float = 5.0
    default_block: bool = False
    allow_on_error: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSettings:
    """Where to keep rate limits and caches; without a URL, in memory."""

    url: str | None = None
    prefix: str = "mcp:"


@dataclass(frozen=True, kw_only=True)
class Policy:
    """A policy; ``rules`` are the enabled ones, in order of evaluation.

    If it is off as a whole, it has no more than its rules, which nothing evaluates.
    """

    rules: tuple[Rule, ...] = ()
    chain: ChainSettings = field(default_factory=ChainSettings)
    interceptors: dict[str, MethodInterceptor] = field(default_factory=dict)
    state: StateSettings = field(default_factory=StateSettings)
    session_ttl: float = 3600.0
    warnings: tuple[str, ...] = ()
    enabled: bool = True
    _judged: dict[tuple[str, ...], bool] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    @cached_property
    def requests(self) -> RuleIndex:
        on = self.rules if self.enabled else ()
        return RuleIndex(tuple(rule for rule in on if rule.for_requests))

    @cached_property
    def responses(self) -> RuleIndex:
        on = self.rules if self.enabled else ()
        return RuleIndex(tuple(rule for rule in on if rule.for_responses))

    @cached_property
    def _has_users(self) -> bool:
        """True if a user's own class sees messages, in both directions."""
        return any(
            isinstance(interceptor, UserInterceptor) for interceptor in self.interceptors.values()
        )

    @cached_property
    def reads_requests(self) -> bool:
        """True if anything in the policy looks at requests."""
        return bool(self.requests.rules or self.interceptors or self.chain.default_block)

    @cached_property
    def reads_responses(self) -> bool:
        """True if anything in the policy looks at responses."""
        return bool(self.responses.rules) or self._has_users

    @cached_property
    def reads_requests_of_responses(self) -> bool:
        """True if a rule for responses also depends on the request."""
        conditions = (condition for rule in self.responses.rules for condition in rule.conditions)
        return self._has_users or any("params" in condition.parts for condition in conditions)

    def concerns(self, subject: Subject) -> bool:
        """Tell whether anything in the policy concerns a message."""
        return bool(
            self.possible(subject)
            or self.interceptor_for(subject)
            or (
                self.chain.default_block
                and not subject.is_response
                and not subject.about.is_carried
            )
        )

    def possible(self, subject: Subject) -> Sequence[Candidate]:
        """Return the rules that could match a message; they are looked up once."""
        if subject.possible is None:
            subject.possible = self.candidates(subject).possible(subject)
        return subject.possible

    def candidates(self, subject: Subject) -> Candidates:
        """Return the rules that could match by method and tool."""
        return (self.responses if subject.is_response else self.requests).candidates(subject)

    def every_rule(self, subject: Subject) -> Sequence[Candidate]:
        """Return the rules for messages of this direction, also those that cannot match."""
        rules = (self.responses if subject.is_response else self.requests).rules
        return [Candidate(rule, at, rule.conditions) for at, rule in enumerate(rules)]

    def interceptor_for(self, subject: Subject) -> MethodInterceptor | None:
        if not self.interceptors or subject.method is None or subject.about.is_own_error:
            return None
        interceptor = self.interceptors.get(subject.method)
        if interceptor is None and subject.method in RESOURCE_METHODS:
            others = map(self.interceptors.get, RESOURCE_METHODS)
            interceptor = next(
                (
                    interceptor
                    for interceptor in others
                    if isinstance(interceptor, ResourceAccessInterceptor)
                ),
                None,
            )
        if subject.is_response and not isinstance(interceptor, UserInterceptor):
            return None
        return interceptor

    def may_judge(self, *methods: str) -> bool:
        """Tell whether anything but the default action could concern requests of these methods, or
        their answers."""
        known = self._judged.get(methods)
        if known is None:
            known = self._judged[methods] = any(map(self._may_judge, methods))
        return known

    def _may_judge(self, method: str) -> bool:
        asked = Subject(Request(method, "0"))
        same = RESOURCE_METHODS if method in RESOURCE_METHODS else (method,)
        return bool(
            self.requests.candidates(asked).each or self.responses.candidates(asked).each
        ) or not self.interceptors.keys().isdisjoint(same)


# Reading it


class InvalidRules(StartError):
    """All mistakes of a file, in the order of the file."""

    def __init__(self, file: str, found: Mistaken) -> None:
        count = len(found.mistakes)
        mistakes = "1 mistake" if count == 1 else f"{count} mistakes"
        super().__init__(f"Invalid rules file: {file} has {mistakes}", why=found.shown(file))


def load_policy(raw: bytes, file: str = "rules", machine: Machine | None = None) -> Policy:
    """Read a policy. Raises InvalidRules with every mistake in it."""
    try:
        return read_file(raw, "interceptor", _FILE, machine or Machine())
    except Mistaken as found:
        raise InvalidRules(file, found) from None


def json_schema() -> Schema:
    """Return the schema of rules files, for editors."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Rules of mcp-tool-filter",
        **_FILE.schema,
        "$defs": {"condition": conditions.SCHEMA, "action": actions.SCHEMA},
    }


# Rules


_RULE = forms.mapping(
    Rule,
    {
        "id": forms.filled("no-deletes"),
        "actions": forms.listed(
            ACTION, "a list of actions", or_else="expected at least one action"
        ),
        "name": (forms.ANY, None),
        "enabled": forms.with_default(forms.BOOLEAN, True),
        "mode": forms.with_default(forms.one_of("enforce", "audit"), "enforce"),
        "priority": forms.with_default(forms.INTEGER, 0),
        "on": (forms.one_of("request", "response", "any"), None),
        "conditions": (LABELLED, ()),
        "metadata": (forms.ANY, None),
    },
)


def _read_rules(spot: Spot) -> tuple[Rule, ...]:
    ids: dict[str, str] = {}
    rules: list[Rule] = []
    for inner in spot.items(what="a list of rules"):
        rule = _RULE.read(inner)
        _check_direction(rule, inner.inside("on"))
        if rule.id and rule.id in ids:
            inner.inside("id").wrong(f"the id {rule.id!r} is taken by {ids[rule.id]}")
        ids.setdefault(rule.id, inner.path)
        rules.append(rule)
    return tuple(sorted((one for one in rules if one.enabled), key=lambda rule: -rule.priority))


_RULES = Form({"type": "array", "items": _RULE.schema}, _read_rules)


def _check_direction(rule: Rule, where: Spot) -> None:
    of_request = [action.name for action in rule.actions if action.kind.part == "params"]
    if rule.on == "request" and rule.of_response:
        label = rule.of_response[0]
        where.wrong(f"a rule on requests cannot refer to the response ({label})")
    if of_request and not rule.for_requests:
        where.wrong(
            f"{of_request[0]} is for requests, but this rule is on responses; "
            "write on: any, or make two rules"
        )


def shadowed_rules(rules: tuple[Rule, ...], *, fail_fast: bool) -> Iterator[str]:
    """Yield a warning for each rule that can never match because an earlier one ends the chain."""
    ending: list[tuple[frozenset[object], Rule]] = []
    for rule in rules:
        wanted = frozenset[object](rule.conditions)
        for known, earlier in ending:
            if (
                known <= wanted
                and earlier.for_requests >= rule.for_requests
                and earlier.for_responses >= rule.for_responses
            ):
                yield (
                    f"the rule {rule.id!r} can never match: {earlier.id!r} comes before it and "
                    "ends the chain under the same conditions"
                )
                break
        ends = (
            action.kind.ends and (fail_fast or action.name == "allow") for action in rule.actions
        )
        if rule.mode != AUDIT and any(ends):
            ending.append((wanted, rule))


# The rest of the file


def _redis_url(text: str) -> str:
    if not text.startswith(("redis://", "rediss://", "unix://")):
        raise ValueError("expected a URL such as redis://localhost:6379/0")
    try:
        from redis.asyncio.connection import parse_url  # as the start reads it
    except ImportError:
        return text
    try:
        parse_url(text)
    except ValueError as error:
        why = str(error).partition(" as ")[0]  # what follows may be a part of the password
        raise ValueError(f"the URL cannot be used: {why}") from None
    return text


def _policy(
    enabled: bool,
    mode: str,
    chain: ChainSettings,
    rules: tuple[Rule, ...],
    interceptors: dict[str, MethodInterceptor],
    state: tuple[StateSettings, float | None],
    session_ttl: float,
) -> Policy:
    settings, ttl_in_state = state
    kept = Policy(
        rules=rules,
        state=settings,
        session_ttl=session_ttl if ttl_in_state is None else ttl_in_state,
        enabled=enabled and mode == "mcp",
    )
    if kept.enabled:
        warnings = tuple(shadowed_rules(rules, fail_fast=chain.fail_fast))
        return replace(kept, chain=chain, interceptors=interceptors, warnings=warnings)
    why = "mode transport does not look at messages" if enabled else "enabled is false"
    return replace(kept, warnings=(f"the rules are off: {why}",))


_TTL = forms.duration(least=1)
_CHAIN = forms.mapping(
    ChainSettings,
    {
        "fail_fast": forms.with_default(forms.BOOLEAN, True),
        "parallel": forms.with_default(forms.BOOLEAN, False),
        "timeout": (forms.TIMEOUT, 5.0),
        "default_action": (forms.one_of("allow", "block").made("block".__eq__), False),
        "on_error": (forms.one_of("block", "allow").made("allow".__eq__), False),
    },
)
_STATE = forms.mapping(
    lambda url, prefix, ttl: (StateSettings(url=url or None, prefix=prefix), ttl),
    {
        "url": (forms.parsed(_redis_url, ""), None),
        "prefix": (forms.TEXT, "mcp:"),
        "session_ttl": (_TTL, None),
    },
)


_FILE: Form[Policy] = forms.mapping(
    lambda policy: policy,
    {
        "interceptor": forms.mapping(
            _policy,
            {
                "enabled": forms.with_default(forms.BOOLEAN, True),
                "mode": (forms.one_of("mcp", "transport"), "mcp"),
                "chain": (_CHAIN, ChainSettings()),
                "rules": (_RULES, ()),
                "method_interceptors": (INTERCEPTORS, {}),
                "state": (_STATE, (StateSettings(), None)),
                "session_ttl": (_TTL, 3600.0),
            },
        )
    },
)
