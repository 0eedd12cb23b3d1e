"""Read and check a rules file: all mistakes are reported together."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from mcp_tool_filter.policy.rules.actions import read_action
from mcp_tool_filter.policy.rules.conditions import read_conditions
from mcp_tool_filter.policy.rules.fields import render_json
from mcp_tool_filter.policy.rules.interceptors import read_interceptors
from mcp_tool_filter.policy.rules.model import ChainSettings, Policy, Rule, StateSettings
from mcp_tool_filter.policy.rules.source import InvalidRules, Spot, Table, Unreadable, read_source

RULE_KEYS = ("name", "enabled", "priority", "on", "conditions", "metadata")
TOP_KEYS = (
    "enabled",
    "mode",
    "chain",
    "rules",
    "method_interceptors",
    "state",
    "session_ttl",
)
CHAIN_KEYS = ("fail_fast", "parallel", "timeout", "default_action", "on_error")
STATE_KEYS = ("url", "prefix", "session_ttl")


class Machine(Protocol):
    """What loading a policy needs to know about the machine it will run on."""

    def import_object(self, name: str) -> object:
        """Return the object ``module:name``. Raises ValueError, which says what is wrong."""

    def find_script(self, path: str) -> str:
        """Return a script's absolute path. Raises ValueError if it cannot be executed."""


class NoMachine:
    """For reading a policy that uses neither scripts nor Python."""

    def import_object(self, name: str) -> object:
        raise ValueError(f"{name} cannot be imported here")

    def find_script(self, path: str) -> str:
        raise ValueError(f"{path} cannot be run here")


def load_policy(raw: bytes, file: str = "rules", machine: Machine | None = None) -> Policy:
    """Read a policy. Raises InvalidRules with every mistake in it."""
    try:
        root, mistakes = read_source(raw)
    except Unreadable as error:
        raise InvalidRules(file, error.mistakes) from None
    top = Spot(root, "", mistakes).table(["interceptor"])
    policy = _read_policy(top["interceptor"], machine or NoMachine())
    if mistakes:
        raise InvalidRules(file, mistakes)
    return policy


def _read_policy(spot: Spot, machine: Machine) -> Policy:
    table = spot.table(optional=TOP_KEYS)
    enabled = table.read("enabled", Spot.boolean, True)
    mode = table.read("mode", lambda one: one.one_of(("mcp", "transport")), "mcp")
    chain = _read_chain(table["chain"]) if "chain" in table else ChainSettings()
    rules = _read_rules(table, machine)
    interceptors = (
        read_interceptors(table["method_interceptors"], machine)
        if "method_interceptors" in table
        else {}
    )
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
        state=_read_state(table["state"]) if "state" in table else StateSettings(),
        session_ttl=_read_session_ttl(table),
        warnings=tuple(warnings),
        enabled=enabled and mode == "mcp",
    )


def _read_chain(spot: Spot) -> ChainSettings:
    table = spot.table(optional=CHAIN_KEYS)

    def is_block(key: str, default: str) -> bool:
        return table.read(key, lambda one: one.one_of(("allow", "block")), default) == "block"

    return ChainSettings(
        fail_fast=table.read("fail_fast", Spot.boolean, True),
        parallel=table.read("parallel", Spot.boolean, False),
        timeout=table.read("timeout", lambda one: one.duration(least=0.001), 5.0),
        default_block=is_block("default_action", "allow"),
        allow_on_error=not is_block("on_error", "block"),
    )


def _read_state(spot: Spot) -> StateSettings:
    table = spot.table(optional=STATE_KEYS)
    return StateSettings(
        url=table.read("url", lambda one: one.parsed(_redis_url, ""), "") or None,
        prefix=table.read("prefix", Spot.text, "mcp:"),
    )


def _read_session_ttl(table: Table) -> float:
    """Read how long an idle session is remembered; the key may also be under ``state``."""
    state = table.find("state")
    in_state = state is not None and "session_ttl" in (state.node.members or {})
    holder = state.table(optional=STATE_KEYS) if state and in_state else table
    return holder.read("session_ttl", lambda one: one.duration(least=1), 3600.0)


def _redis_url(text: str) -> str:
    if not text.startswith(("redis://", "rediss://", "unix://")):
        raise ValueError("expected a URL such as redis://localhost:6379/0")
    return text


def _read_rules(table: Table, machine: Machine) -> tuple[Rule, ...]:
    if "rules" not in table:
        return ()
    ids: dict[str, str] = {}
    read: list[Rule] = []
    for spot in table["rules"].items(what="a list of rules"):
        rule, is_enabled = _read_rule(spot, machine)
        if rule.id and rule.id in ids:
            _id_spot(spot).wrong(f"the id {rule.id!r} is taken by {ids[rule.id]}")
        ids.setdefault(rule.id, spot.path)
        if is_enabled:
            read.append(rule)
    return tuple(sorted(read, key=lambda one: -one.priority))


def _id_spot(spot: Spot) -> Spot:
    members = spot.node.members or {}
    return spot.member("id", members["id"]) if "id" in members else spot


@dataclass(slots=True)
class _Direction:
    """Which parts of a rule refer to the response, and which only to requests."""

    of_response: list[str] = field(default_factory=list)
    of_request: list[str] = field(default_factory=list)


def _read_rule(spot: Spot, machine: Machine) -> tuple[Rule, bool]:
    table = spot.table(["id", "actions"], RULE_KEYS)
    conditions, labels = read_conditions(table["conditions"]) if "conditions" in table else ((), ())
    if "actions" in table and table["actions"].node.items == []:
        table["actions"].wrong("expected at least one action")
    actions = [
        read_action(one, machine)
        for one in (table["actions"].items(what="a list of actions") if "actions" in table else ())
    ]
    found = [one for one in actions if one is not None]
    direction = _Direction(
        [label for one, label in zip(conditions, labels, strict=True) if one.of_response]
        + [name for name, _, of_response, _ in found if of_response],
        [name for name, _, _, of_request in found if of_request],
    )
    for_requests, for_responses = _read_direction(table, direction)
    rule = Rule(
        id=table["id"].name(example="no-deletes") if "id" in table else "",
        name=table.read("name", _name, ""),
        priority=table.read("priority", Spot.integer, 0),
        conditions=conditions,
        labels=labels,
        actions=tuple(action for _, action, _, _ in found),
        action_names=tuple(name for name, _, _, _ in found),
        for_requests=for_requests,
        for_responses=for_responses,
    )
    return rule, table.read("enabled", Spot.boolean, True)


def _read_direction(table: Table, direction: _Direction) -> tuple[bool, bool]:
    """Return whether a rule is for requests, and whether it is for responses."""
    default = "response" if direction.of_response else "request"
    on = table.read("on", lambda one: one.one_of(("request", "response", "any")), default)
    where = table.find("on") or table.spot
    if on == "request" and direction.of_response:
        where.wrong(f"a rule on requests cannot refer to the response ({direction.of_response[0]})")
    if on == "response" and direction.of_request:
        where.wrong(
            f"{direction.of_request[0]} is for requests, but this rule is on responses; "
            "write on: any, or make two rules"
        )
    return on != "response", on != "request"


def shadowed_rules(rules: tuple[Rule, ...], *, fail_fast: bool) -> list[str]:
    """Return a warning for each rule that can never match because an earlier one ends the chain."""
    warnings = []
    ending: list[tuple[frozenset[object], Rule]] = []
    for rule in rules:
        wanted = frozenset[object](rule.conditions)
        for conditions, earlier in ending:
            if conditions <= wanted and _covers(earlier, rule):
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


def _name(spot: Spot) -> str:
    """Read what a rule is called: free-form, so it need not be a text."""
    name = spot.json()
    return name if isinstance(name, str) else render_json(name)
