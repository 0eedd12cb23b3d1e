"""Method interceptors: built-in checks of one method, and users' own classes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from mcp_tool_filter.core.policy.effects import Deciding
from mcp_tool_filter.rooms.catalog.uris import (
    ResourceUri,
    UnclearUri,
    is_inside,
    matches_glob,
    parse_entry,
    parse_uri,
)
from mcp_tool_filter.rooms.rules import forms
from mcp_tool_filter.rooms.rules.actions import count_use, text_from_python
from mcp_tool_filter.rooms.rules.edits import to_python
from mcp_tool_filter.rooms.rules.fields import Json, Number, Object, parse_field
from mcp_tool_filter.rooms.rules.forms import Form, Spot, unknown_choice
from mcp_tool_filter.rooms.rules.rule_effects import CallPython
from mcp_tool_filter.rooms.rules.subject import Subject

if TYPE_CHECKING:
    from mcp_tool_filter.rooms.rules.chain import Run

_URI_FIELD = parse_field("uri")
_NAME = parse_field("name")
PERIODS = {"per_second": 1.0, "per_minute": 60.0, "per_hour": 3600.0}
RESOURCE_METHODS = ("resources/read", "resources/subscribe")


@dataclass(frozen=True, slots=True)
class ToolCallInterceptor:
    """Allows only calls of some tools, at a limited rate per session and tool."""

    allowed_tools: frozenset[str] | None = None
    limits: tuple[tuple[int, float], ...] = ()
    """Pairs: how many calls in how many seconds."""
    name: ClassVar = ""

    def intercept(self, run: Run) -> Deciding[None]:
        subject = run.subject
        names = subject.find("params", _NAME)
        name = names[0].text if names else None
        if self.allowed_tools is not None and name not in self.allowed_tools:
            run.refuse(f"Tool '{name}' not allowed", "block")
        elif self.limits:
            key = ("tool", subject.about.session_id, subject.tool or "")
            yield from count_use(run, key, self.limits)


@dataclass(frozen=True, slots=True)
class ResourceAccessInterceptor:
    """Allows only resources in some places, except those that a glob denies."""

    allowed: tuple[ResourceUri, ...] | None = None
    denied: tuple[str, ...] = ()
    name: ClassVar = ""

    def intercept(self, run: Run) -> Deciding[None]:
        if not self._allows(run.subject):
            run.refuse("Resource not allowed", "block")
        yield from ()

    def _allows(self, subject: Subject) -> bool:
        uris = subject.find("params", _URI_FIELD)
        try:
            uri = parse_uri((uris[0].text if uris else None) or "")
        except UnclearUri:
            return False
        inside = self.allowed is None or any(is_inside(uri, place) for place in self.allowed)
        return inside and not any(matches_glob(uri, glob) for glob in self.denied)


@dataclass(frozen=True, slots=True)
class UserInterceptor:
    """A user's object with ``request`` or ``response``, each of which may be async."""

    name: str
    instance: Any = field(compare=False)

    def intercept(self, run: Run) -> Deciding[None]:
        subject, about = run.subject, run.subject.about
        function = getattr(self.instance, "response" if subject.is_response else "request", None)
        if function is None:
            return
        who = yield from run.credential()
        message = request = _as_dict(subject.text)
        if subject.is_response:
            asked = subject.request and subject.request.place
            request = _as_dict(asked.text[asked.start : asked.end]) if asked else None
        exchange = InterceptedExchange(
            message=message or {},
            request=request,
            method=subject.method,
            tool=subject.tool,
            session_id=about.session_id,
            session=about.session,
            credential=who,
        )
        made = yield CallPython(function, exchange, run.left())
        if isinstance(made, str):
            run.refuse(made, "block")
        elif (text := text_from_python(run, made)) is not None:
            run.change(text)


def _as_dict(text: str) -> dict[str, object] | None:
    read = to_python(text)
    return read if isinstance(read, dict) else None


type MethodInterceptor = ToolCallInterceptor | ResourceAccessInterceptor | UserInterceptor


@dataclass(slots=True, kw_only=True)
class InterceptedExchange:
    """What a user's class gets."""

    message: dict[str, object]
    """The judged message; the class may change and return it."""
    request: dict[str, object] | None
    """The request that a response answers; for a request, the request itself."""
    method: str | None
    tool: str | None
    session_id: str
    session: dict[str, object]
    """For the class to use; kept as long as the session."""
    credential: str
    """Identifies the asker without revealing a credential."""


_CLASS = forms.filled("ToolCallInterceptor")
_USERS = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
_NO_PLACE = ResourceUri("", "", ())


def _limits(*counts: int | None) -> tuple[tuple[int, float], ...]:
    periods = PERIODS.values()
    return tuple(
        (count, per) for count, per in zip(counts, periods, strict=True) if count is not None
    )


_RATES = forms.mapping(_limits, dict.fromkeys(PERIODS, (forms.whole(0), None)))


def _read_rates(spot: Spot) -> tuple[tuple[int, float], ...]:
    limits = _RATES.read(spot)
    if not limits:
        spot.wrong(f"expected one of {', '.join(PERIODS)}")
    return limits


_TOOL_CALLS = forms.mapping(
    ToolCallInterceptor,
    {
        "allowed_tools": (forms.listed(forms.TEXT, "a list of tools").made(frozenset), None),
        "rate_limit": (Form(_RATES.schema, _read_rates), ()),
    },
)
_PLACE = forms.parsed(parse_entry, _NO_PLACE, example="/workspace")
_RESOURCES = forms.mapping(
    ResourceAccessInterceptor,
    {
        "allowed_paths": (forms.listed(_PLACE, "a list of paths"), None),
        "deny_patterns": (forms.listed(forms.TEXT), ()),
    },
)
_OURS: dict[str, tuple[Sequence[str], Form[Any], MethodInterceptor]] = {
    "ToolCallInterceptor": (("tools/call",), _TOOL_CALLS, ToolCallInterceptor()),
    "ResourceAccessInterceptor": (RESOURCE_METHODS, _RESOURCES, ResourceAccessInterceptor()),
}
"""Each class of ours: its methods, its config, and what it is without one."""
_CONFIGS = {**forms.members_of(_TOOL_CALLS), **forms.members_of(_RESOURCES)}
SCHEMA = forms.object_schema(
    {"class": {"type": "string", "description": "ours, or package.module:Class"}},
    {"config": {"type": "object", "properties": _CONFIGS}},
)


def _read_interceptors(spot: Spot) -> dict[str, MethodInterceptor]:
    """Read the interceptors by method."""
    interceptors = ((method, _read_interceptor(method, inner)) for method, inner in spot.members())
    return {method: interceptor for method, interceptor in interceptors if interceptor is not None}


INTERCEPTORS = Form({"type": "object", "additionalProperties": SCHEMA}, _read_interceptors)


def _read_interceptor(method: str, spot: Spot) -> MethodInterceptor | None:
    members = spot.table(["class"], ["config"])
    of_class, config = members["class"], members.get("config")
    name = _CLASS.read(of_class)
    if name in _OURS:
        methods, form, default = _OURS[name]
        if method not in methods:
            of_class.wrong(f"{name} is for {' and '.join(methods)}")
        return form.read(config) if config else default
    if not name:
        return None
    if not _USERS.fullmatch(name):
        known = unknown_choice("class", name, [*_OURS])
        of_class.wrong(f"{known}; a class of your own is written package.module:Class")
        return None
    return _user_class(name, of_class, config)


def _user_class(name: str, spot: Spot, config: Spot | None) -> UserInterceptor | None:
    if (made := spot.tried(spot.machine.import_object, name, None)) is None:
        return None
    if not callable(made):
        spot.wrong(f"{name} is not a class")
        return None
    try:
        instance = made(to_plain(config.node.to_json()) if config else {})
    except Exception as error:
        spot.wrong(f"{name} cannot be created: {type(error).__name__}: {error}")
        return None
    if not any(callable(getattr(instance, method, None)) for method in ("request", "response")):
        spot.wrong(f"{name} has neither request nor response")
        return None
    return UserInterceptor(name, instance)


def to_plain(value: Json) -> object:
    """Return a value as plain Python types."""
    match value:
        case Number():
            return int(value.text) if value.text.lstrip("-").isdecimal() else float(value.text)
        case tuple():
            return [to_plain(element) for element in value]
        case Object(members):
            return {key: to_plain(member) for key, member in members}
        case _:
            return value
