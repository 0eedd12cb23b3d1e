"""Read the method interceptors in a rules file."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from mcp_tool_filter.policy.rules.interceptors import (
    PERIODS,
    RESOURCE_METHODS,
    MethodInterceptor,
    ResourceAccessInterceptor,
    ToolCallInterceptor,
    UserInterceptor,
)
from mcp_tool_filter.policy.rules.reading import Spot, unknown_choice
from mcp_tool_filter.policy.rules.uris import ResourceUri, parse_entry
from mcp_tool_filter.policy.rules.values import Json, Number, Object

if TYPE_CHECKING:
    from mcp_tool_filter.policy.rules.load import Machine

OURS = ("ToolCallInterceptor", "ResourceAccessInterceptor")
_USERS = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
_NOWHERE = ResourceUri("", "", ())


def read_interceptors(spot: Spot, machine: Machine) -> dict[str, MethodInterceptor]:
    """Read the interceptors by method."""
    found: dict[str, MethodInterceptor] = {}
    for method, inner in spot.members():
        interceptor = _read_interceptor(method, inner, machine)
        if interceptor is not None:
            found[method] = interceptor
    return found


def _read_interceptor(method: str, spot: Spot, machine: Machine) -> MethodInterceptor | None:
    table = spot.table(["class"], ["config"])
    name = table["class"].text(example="ToolCallInterceptor") if "class" in table else ""
    config = table.find("config")
    if name == "ToolCallInterceptor":
        if method != "tools/call":
            table["class"].wrong("ToolCallInterceptor is for tools/call")
        return _tool_calls(config) if config else ToolCallInterceptor()
    if name == "ResourceAccessInterceptor":
        if method not in RESOURCE_METHODS:
            table["class"].wrong(
                f"ResourceAccessInterceptor is for {' and '.join(RESOURCE_METHODS)}"
            )
        return _resources(config) if config else ResourceAccessInterceptor()
    if not name:
        return None
    if not _USERS.fullmatch(name):
        known = unknown_choice("class", name, OURS)
        table["class"].wrong(f"{known}; a class of your own is written package.module:Class")
        return None
    return _user_class(name, table["class"], config, machine)


def _tool_calls(spot: Spot) -> ToolCallInterceptor:
    table = spot.table(optional=["allowed_tools", "rate_limit"])
    tools = (
        frozenset(one.text() for one in table["allowed_tools"].items(what="a list of tools"))
        if "allowed_tools" in table
        else None
    )
    limits = []
    if "rate_limit" in table:
        rates = table["rate_limit"].table(optional=tuple(PERIODS))
        limits = [(rates[key].integer(0), PERIODS[key]) for key in PERIODS if key in rates]
        if not limits:
            table["rate_limit"].wrong(f"expected one of {', '.join(PERIODS)}")
    return ToolCallInterceptor(tools, tuple(limits))


def _resources(spot: Spot) -> ResourceAccessInterceptor:
    table = spot.table(optional=["allowed_paths", "deny_patterns"])
    allowed = (
        tuple(
            one.parsed(parse_entry, _NOWHERE, example="/workspace")
            for one in table["allowed_paths"].items(what="a list of paths")
        )
        if "allowed_paths" in table
        else None
    )
    denied = [
        one.text() for one in (table["deny_patterns"].items() if "deny_patterns" in table else ())
    ]
    return ResourceAccessInterceptor(allowed, tuple(denied))


def _user_class(
    name: str, spot: Spot, config: Spot | None, machine: Machine
) -> UserInterceptor | None:
    try:
        made = machine.import_object(name)
    except ValueError as error:
        spot.wrong(str(error))
        return None
    if not callable(made):
        spot.wrong(f"{name} is not a class")
        return None
    try:
        instance = made(to_plain(config.json()) if config else {})
    except Exception as error:
        spot.wrong(f"{name} cannot be created: {type(error).__name__}: {error}")
        return None
    if not any(callable(getattr(instance, one, None)) for one in ("request", "response")):
        spot.wrong(f"{name} has neither request nor response")
        return None
    return UserInterceptor(name, instance)


def to_plain(value: Json) -> object:
    """Return a value as plain Python types."""
    match value:
        case Number():
            return int(value.text) if value.text.lstrip("-").isdecimal() else float(value.text)
        case tuple():
            return [to_plain(one) for one in value]
        case Object(members):
            return {key: to_plain(one) for key, one in members}
        case _:
            return value
