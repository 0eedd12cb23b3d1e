"""Method interceptors: built-in checks of one method, and users' own classes.

One of them finds out which file or URL a resource's URI means, and whether it is inside an allowed
place. Servers read one URI differently: they resolve ``..`` before or after they decode, decode
once or twice, and take a backslash for a separator or a letter. We follow every such reading. A URI
is inside a place only if all its readings are, and a glob denies it if one of them matches.

>>> [is_inside(parse_uri(uri), parse_entry("/workspace")) for uri in (
...     "file:///workspace/a", "file:///workspace/%2e%2e/etc", "file:///workspace-evil")]
[True, False, False]
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any
from unicodedata import normalize
from urllib.parse import unquote

from mcp_tool_filter.rules import forms
from mcp_tool_filter.rules.fields import Json, Number, Object, parse_field
from mcp_tool_filter.rules.forms import Form, Spot, unknown_choice
from mcp_tool_filter.rules.subject import Subject

# RFC 3986, appendix B, with a required scheme.
_URI = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(?://([^/?#]*))?([^?#]*)(\?[^#]*)?(#.*)?", re.DOTALL)
_CONTROL = re.compile(r"[\0-\x1f\x7f]")
_ESCAPED_DOT = re.compile("%2e", re.IGNORECASE)
_ESCAPED_SLASH = re.compile("(%2f)", re.IGNORECASE)
_PATH_PARAM = re.compile(r";[^/]*")
_MOST_ROUNDS = 5
_MOST_READINGS = 200
_MOST_WORK = 1_000_000  # characters of all readings together
_LONGEST = 64 * 1024  # characters of a path that needs any reading
_AMBIGUOUS = re.compile(r"[%\\;]|/\.|\.\.")
_HERE = frozenset({"", "localhost"})


class UnclearUri(Exception):
    """A URI that cannot be judged."""


@dataclass(frozen=True, slots=True)
class ResourceUri:
    """A parsed URI; ``others`` are more paths that some reader could understand."""

    scheme: str
    host: str
    parts: tuple[str, ...]
    others: tuple[tuple[str, ...], ...] = ()

    @property
    def readings(self) -> tuple[tuple[str, ...], ...]:
        return (self.parts, *self.others)


def parse_uri(text: str) -> ResourceUri:
    """Parse a resource's URI like the most lenient server. Raises UnclearUri."""
    scheme, colon, rest = text.partition(":")
    if "/" not in rest:  # no server takes all the backslashes for letters
        rest = rest.replace("\\", "/")
    found = _URI.fullmatch(scheme + colon + rest)
    if found is None:
        raise UnclearUri("not an absolute URI")
    if _CONTROL.search(text):
        raise UnclearUri("a control character")
    if len(text) > _LONGEST and _AMBIGUOUS.search(text):
        raise UnclearUri("too long")
    authority, path = found[2] or "", found[3]
    scheme, host, plain = scheme.lower(), _decoded(authority).lower(), _decoded(path)
    if scheme == "file":
        if host not in _HERE:
            raise UnclearUri("a file on another host")
        if not plain.startswith("/"):
            raise UnclearUri("a relative path")
        host = ""
    paths = [path]
    if "\\" in authority:  # for browsers the host ends there, for others at the first slash
        paths.append("/" + authority.partition("\\")[2] + path)
    query = (found[4] or "") + (found[5] or "")
    if ".." in _decoded(query):  # a server that does not know queries would follow it
        paths.append(path + query)
    others = _readings(paths)
    parts = _resolved(plain)
    others.discard(parts)
    return ResourceUri(scheme, host, parts, tuple(sorted(others)))


def _readings(paths: list[str]) -> set[tuple[str, ...]]:
    """Return the places that servers could read in these paths."""
    known = dict.fromkeys(paths)
    waiting, work = list(known), 0
    while waiting:
        path = waiting.pop()
        work += len(path)
        if len(known) > _MOST_READINGS or (work > _MOST_WORK and len(known) > 1):
            raise UnclearUri("too many readings")
        for other in _next_readings(path):
            if other not in known:
                known[other] = None
                waiting.append(other)
    return {tuple(map(_decoded, _resolved(path))) for path in known}


def _next_readings(path: str) -> tuple[str, ...]:
    """Return what one more step of some server makes of a path."""
    kept_slashes = _ESCAPED_SLASH.split(path)
    kept_slashes[::2] = map(unquote, kept_slashes[::2])
    return (
        unquote(path),
        "".join(kept_slashes),
        _ESCAPED_DOT.sub(".", path),
        path.replace("\\", "/"),
        _PATH_PARAM.sub("", path),
        re.split(r"[?#]", path, maxsplit=1)[0],
        *(_without_dots(path, counts_empty=counts) for counts in (False, True)),
    )


def _without_dots(path: str, *, counts_empty: bool) -> str:
    """Resolve ``..`` as a server does before it decodes; browsers' URLs count empty parts."""
    if "/." not in path:
        return path
    parts: list[str] = []
    for part in path.removeprefix("/").split("/"):
        if part == "..":
            if parts:
                parts.pop()
        elif part != "." and (part or counts_empty):
            parts.append(part)
    return "/" + "/".join(parts)


def parse_entry(text: str) -> ResourceUri:
    """Parse an allowed place: a path, or a URI. Raises ValueError."""
    try:
        return parse_uri(f"file://{text}" if text.startswith("/") else text)
    except UnclearUri:
        raise ValueError(
            "expected a path that begins with /, or a URI such as https://host/folder"
        ) from None


def is_inside(uri: ResourceUri, place: ResourceUri) -> bool:
    """Tell whether a resource is the place, or below it."""
    return (uri.scheme, uri.host) == (place.scheme, place.host) and all(
        parts[: len(place.parts)] == place.parts for parts in uri.readings
    )


def matches_glob(uri: ResourceUri, glob: str) -> bool:
    """Tell whether a glob fits the whole path or its last part, ignoring case."""
    wanted = _same(glob)
    readings = uri.readings
    if uri.scheme == "file":
        readings += tuple(tuple(map(_read_by_windows, parts)) for parts in readings)
    for parts in readings:
        path = "/" + "/".join(parts)
        for text in (path, path[1:], parts[-1] if parts else ""):
            if fnmatchcase(_same(text), wanted):
                return True
    return False


def _same(text: str) -> str:
    """Return a spelling that is the same for names that some file system takes for one."""
    return text.casefold() if text.isascii() else normalize("NFKC", text).casefold()


def _read_by_windows(part: str) -> str:
    """Return which file Windows opens: it drops dots and spaces at the end, and ``::$DATA``.

    >>> _read_by_windows("a.key. "), _read_by_windows("a.key::$DATA")
    ('a.key', 'a.key')
    """
    return part.partition(":")[0].rstrip(" .") or part


def _decoded(text: str) -> str:
    """Decode escapes until nothing changes."""
    for _ in range(_MOST_ROUNDS + 1):
        try:
            plain = unquote(text, errors="strict").replace("\\", "/")
        except UnicodeDecodeError:
            raise UnclearUri("not UTF-8") from None
        if plain == text:
            break
        text = plain
    else:
        raise UnclearUri(f"escaped more than {_MOST_ROUNDS} times")
    if _CONTROL.search(text):
        raise UnclearUri("a control character")
    return text


def _resolved(path: str) -> tuple[str, ...]:
    parts: list[str] = []
    for part in path.split("/"):
        if part == "..":
            if parts:
                parts.pop()
        elif part not in ("", "."):
            if not part.strip(" ."):  # Windows could take it for "." or ".."
                raise UnclearUri("a part of dots and spaces")
            parts.append(part)
    return tuple(parts)


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

    def problem_in(self, subject: Subject) -> str | None:
        """Return why a call is blocked, or None. Raises Unjudgeable."""
        found = subject.find("params", _NAME)
        name = found[0].text if found else None
        if self.allowed_tools is not None and name not in self.allowed_tools:
            return f"Tool '{name}' not allowed"
        return None


@dataclass(frozen=True, slots=True)
class ResourceAccessInterceptor:
    """Allows only resources in some places, except those that a glob denies."""

    allowed: tuple[ResourceUri, ...] | None = None
    denied: tuple[str, ...] = ()

    def problem_in(self, subject: Subject) -> str | None:
        """Return why a request is blocked, or None. Raises Unjudgeable."""
        found = subject.find("params", _URI_FIELD)
        try:
            uri = parse_uri((found[0].text if found else None) or "")
        except UnclearUri:
            return "Resource not allowed"
        inside = self.allowed is None or any(is_inside(uri, place) for place in self.allowed)
        if not inside or any(matches_glob(uri, glob) for glob in self.denied):
            return "Resource not allowed"
        return None


@dataclass(frozen=True, slots=True)
class UserInterceptor:
    """A user's object with ``request`` or ``response``, each of which may be async."""

    name: str
    instance: Any = field(compare=False)


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
    return tuple((one, per) for one, per in zip(counts, periods, strict=True) if one is not None)


_RATES = forms.mapping(_limits, {}, dict.fromkeys(PERIODS, (forms.whole(0), None)))


def _read_rates(spot: Spot) -> tuple[tuple[int, float], ...]:
    limits = _RATES.read(spot)
    if not limits:
        spot.wrong(f"expected one of {', '.join(PERIODS)}")
    return limits


_TOOL_CALLS = forms.mapping(
    ToolCallInterceptor,
    {},
    {
        "allowed_tools": (forms.listed(forms.TEXT, "a list of tools").made(frozenset), None),
        "rate_limit": (Form(_RATES.schema, _read_rates), ()),
    },
)
_PLACE = forms.parsed(parse_entry, _NO_PLACE, example="/workspace")
_RESOURCES = forms.mapping(
    ResourceAccessInterceptor,
    {},
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
    found = ((method, _read_interceptor(method, inner)) for method, inner in spot.members())
    return {method: interceptor for method, interceptor in found if interceptor is not None}


INTERCEPTORS = Form({"type": "object", "additionalProperties": SCHEMA}, _read_interceptors)


def _read_interceptor(method: str, spot: Spot) -> MethodInterceptor | None:
    found = spot.table(["class"], ["config"])
    of_class, config = found["class"], found.get("config")
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
