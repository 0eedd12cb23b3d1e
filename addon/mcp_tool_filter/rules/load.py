"""Read and check a rules file: all mistakes are reported together.

A file's JSON schema derives from what reads it. ``load_policy`` also checks what a schema cannot
express.
"""

from __future__ import annotations

from typing import NamedTuple

from mcp_tool_filter.rules import actions, conditions, forms
from mcp_tool_filter.rules.actions import NAMED, Action, is_of_request, is_of_response
from mcp_tool_filter.rules.conditions import LABELLED, Labelled
from mcp_tool_filter.rules.fields import Json, render_json
from mcp_tool_filter.rules.forms import Form, Schema
from mcp_tool_filter.rules.interceptors import INTERCEPTORS, MethodInterceptor
from mcp_tool_filter.rules.model import ChainSettings, Policy, Rule, StateSettings
from mcp_tool_filter.rules.source import (
    InvalidRules,
    Machine,
    NoMachine,
    Spot,
    Unreadable,
    read_source,
)


def load_policy(raw: bytes, file: str = "rules", machine: Machine | None = None) -> Policy:
    """Read a policy. Raises InvalidRules with every mistake in it."""
    try:
        root, mistakes = read_source(raw)
    except Unreadable as error:
        raise InvalidRules(file, error.mistakes) from None
    policy = _FILE.read(Spot(root, "", mistakes, machine or NoMachine()))
    if mistakes:
        raise InvalidRules(file, mistakes)
    return policy


def json_schema() -> Schema:
    """Return the schema of rules files, for editors."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Rules of mcp-tool-filter",
        **_FILE.schema,
        "$defs": {"condition": conditions.SCHEMA, "action": actions.SCHEMA},
    }


# Rules


class _Written(NamedTuple):
    """A rule as the file has it."""

    id: str
    actions: tuple[tuple[str, Action] | None, ...]
    name: str
    enabled: bool
    priority: int
    on: str | None
    conditions: tuple[Labelled, ...]
    metadata: Json


def _read_name(spot: Spot) -> str:
    """Read what a rule is called: free-form, so it need not be a text."""
    name = spot.json()
    return name if isinstance(name, str) else render_json(name)


def _read_id(spot: Spot) -> str:
    return spot.name(example="no-deletes")


_RULE = forms.mapping(
    _Written,
    {
        "id": Form({"type": "string", "minLength": 1}, _read_id),
        "actions": forms.listed(NAMED, "a list of actions", or_else="expected at least one action"),
    },
    {
        "name": (Form({}, _read_name), ""),
        "enabled": forms.with_default(forms.BOOLEAN, True),
        "priority": forms.with_default(forms.INTEGER, 0),
        "on": (forms.one_of("request", "response", "any"), None),
        "conditions": (LABELLED, ()),
        "metadata": (forms.ANY, None),
    },
)


def _read_rules(spot: Spot) -> tuple[Rule, ...]:
    ids: dict[str, str] = {}
    read: list[Rule] = []
    for one in spot.items(what="a list of rules"):
        written = _RULE.read(one)
        rule = _rule_of(written, one)
        if rule.id and rule.id in ids:
            one.inside("id").wrong(f"the id {rule.id!r} is taken by {ids[rule.id]}")
        ids.setdefault(rule.id, one.path)
        if written.enabled:
            read.append(rule)
    return tuple(sorted(read, key=lambda one: -one.priority))


_RULES = Form({"type": "array", "items": _RULE.schema}, _read_rules)


def _rule_of(written: _Written, spot: Spot) -> Rule:
    named = [one for one in written.actions if one is not None]
    for_requests, for_responses = _direction_of(written, named, spot)
    return Rule(
        id=written.id,
        name=written.name,
        priority=written.priority,
        conditions=tuple(condition for condition, _ in written.conditions),
        labels=tuple(label for _, label in written.conditions),
        actions=tuple(action for _, action in named),
        action_names=tuple(name for name, _ in named),
        for_requests=for_requests,
        for_responses=for_responses,
    )


def _direction_of(
    written: _Written, named: list[tuple[str, Action]], spot: Spot
) -> tuple[bool, bool]:
    """Return whether a rule is for requests, and whether it is for responses."""
    of_response = [label for one, label in written.conditions if one.of_response]
    of_response += [name for name, action in named if is_of_response(action)]
    of_request = [name for name, action in named if is_of_request(action)]
    on = written.on or ("response" if of_response else "request")
    where = spot.inside("on")
    if on == "request" and of_response:
        where.wrong(f"a rule on requests cannot refer to the response ({of_response[0]})")
    if on == "response" and of_request:
        where.wrong(
            f"{of_request[0]} is for requests, but this rule is on responses; "
            "write on: any, or make two rules"
        )
    return on != "response", on != "request"


def shadowed_rules(rules: tuple[Rule, ...], *, fail_fast: bool) -> list[str]:
    """Return a warning for each rule that can never match because an earlier one ends the chain."""
    warnings = []
    ending: list[tuple[frozenset[object], Rule]] = []
    for rule in rules:
        wanted = frozenset[object](rule.conditions)
        for known, earlier in ending:
            if known <= wanted and _covers(earlier, rule):
                warnings.append(
                    f"the rule {rule.id!r} can never match: {earlier.id!r} comes before it and "
                    "ends the chain under the same conditions"
                )
                break
        if rule.always_ends and (fail_fast or "allow" in rule.action_names):
            ending.append((wanted, rule))
    return warnings


def _covers(earlier: Rule, later: Rule) -> bool:
    return (earlier.for_requests or not later.for_requests) and (
        earlier.for_responses or not later.for_responses
    )


# The rest of the file


def _chain(
    fail_fast: bool, parallel: bool, timeout: float, default_action: str, on_error: str
) -> ChainSettings:
    return ChainSettings(
        fail_fast=fail_fast,
        parallel=parallel,
        timeout=timeout,
        default_block=default_action == "block",
        allow_on_error=on_error == "allow",
    )


def _redis_url(text: str) -> str:
    if not text.startswith(("redis://", "rediss://", "unix://")):
        raise ValueError("expected a URL such as redis://localhost:6379/0")
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
    warnings = []
    if not enabled:
        warnings.append("the rules are off: enabled is false")
    elif mode == "transport":
        warnings.append("the rules are off: mode transport does not look at messages")
    else:
        warnings += shadowed_rules(rules, fail_fast=chain.fail_fast)
    return Policy(
        rules=rules,
        chain=chain,
        interceptors=interceptors,
        state=settings,
        session_ttl=session_ttl if ttl_in_state is None else ttl_in_state,
        warnings=tuple(warnings),
        enabled=enabled and mode == "mcp",
    )


_TTL = forms.duration(least=1)
_CHAIN = forms.mapping(
    _chain,
    {},
    {
        "fail_fast": forms.with_default(forms.BOOLEAN, True),
        "parallel": forms.with_default(forms.BOOLEAN, False),
        "timeout": (forms.TIMEOUT, 5.0),
        "default_action": (forms.one_of("allow", "block"), "allow"),
        "on_error": (forms.one_of("block", "allow"), "block"),
    },
)
_STATE = forms.mapping(
    lambda url, prefix, ttl: (StateSettings(url=url or None, prefix=prefix), ttl),
    {},
    {
        "url": (forms.parsed(_redis_url, ""), None),
        "prefix": (forms.TEXT, "mcp:"),
        "session_ttl": (_TTL, None),
    },
)


def _only(policy: Policy) -> Policy:
    return policy


_FILE = forms.mapping(
    _only,
    {
        "interceptor": forms.mapping(
            _policy,
            {},
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
