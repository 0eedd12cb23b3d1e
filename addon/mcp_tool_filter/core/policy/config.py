"""All settings, checked once on entry and trusted afterwards.

mitmproxy's options and our own flags both arrive here as the text that was typed:

>>> parse_config(deny=["^file_,^db_"], message_limit="1 MB").limits.message
1048576

A reverse proxy rewrites Host, so the upstream cannot detect DNS rebinding any more (a web page
whose name resolves to a local address). We check instead.

>>> hosts = AllowedHosts(frozenset({"tools.example"}))
>>> [hosts.has_host(host) for host in ("localhost:80", "[::1]:80", "Tools.Example", "a.example")]
[True, True, True, False]
"""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from itertools import chain
from types import MappingProxyType
from typing import TYPE_CHECKING

from mcp_tool_filter.core.errors import (
    EmptyList,
    InvalidOption,
    NothingDenied,
    StartError,
    UnsetVariable,
)
from mcp_tool_filter.core.messages.limits import HTTP_TOKEN, MEBIBYTE, Limits
from mcp_tool_filter.core.options import KEYS, SWITCH, Texts
from mcp_tool_filter.core.policy.choice import EVERYTHING, READ_ONLY, Choice
from mcp_tool_filter.core.policy.patterns import (
    DENY_GLOB,
    EXCEPT,
    OF_CATALOG,
    Pattern,
    parse_glob,
    parse_pattern,
    split_patterns,
)

if TYPE_CHECKING:
    from mcp_tool_filter.core.policy.situation import Catalog, Editor

_MISLEADING = re.compile(r"//|/\.{1,2}(?:[/;]|$)|\\|%2[ef]|%5c|%25|;", re.IGNORECASE)


def is_misleading(path: str) -> bool:
    """Tell whether some server could resolve the path to a different one."""
    return _MISLEADING.search(path) is not None


def plain_path(target: str) -> str:
    """Return the path of a target, without its query and without a trailing slash.

    >>> plain_path("/mcp/?a=1"), plain_path("/")
    ('/mcp', '/')
    """
    path = target.partition("?")[0]
    return path[:-1] if path.endswith("/") and len(path) > 1 else path


def _parse_several(
    values: Sequence[str], option: str, form: re.Pattern[str], why: str
) -> list[str]:
    """Split at commas; raise InvalidOption if one of the texts has another form."""
    texts = [text for value in values for part in value.split(",") if (text := part.strip())]
    if bad := next((text for text in texts if not form.fullmatch(text)), None):
        raise InvalidOption(option, bad, why=why)
    return texts


LOOPBACK = "127.0.0.1"
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\[\]:/?#@\s\\]+)(?::([0-9]{1,5}))?")


@dataclass(frozen=True, slots=True)
class AllowedHosts:
    """Loopback names always pass; ``extra`` holds hosts, host:port, whole origins, or ``*``."""

    extra: frozenset[str] = frozenset()

    @property
    def has_all(self) -> bool:
        """Tell whether the user has switched these checks off with ``*``."""
        return "*" in self.extra

    def has_host(self, host: str, own: str = "") -> bool:
        """Judge a Host header; ``own`` is our address to which the client has connected."""
        if self.has_all:
            return True
        if not (match := _HOST.fullmatch(host)):
            return False
        name = match[1].strip("[]").lower().rstrip(".")
        return (
            is_loopback(name)
            or _is_same_address(name, own)
            or not self.extra.isdisjoint({name, match[1].lower(), host.lower()})
        )

    def has_https(self, host: str) -> bool:
        """Tell whether the user allows this host as an https origin, such as that of a balancer."""
        return f"https://{host.lower()}" in self.extra

    def has_origin(self, origin: str, own: str = "") -> bool:
        """Judge an Origin header: a page may reach us if its host may."""
        if self.has_all or origin.lower() in self.extra:
            return True
        scheme, separator, host = origin.partition("://")
        return bool(separator) and scheme.lower() in ("http", "https") and self.has_host(host, own)


@lru_cache(64)
def is_loopback(name: str) -> bool:
    """Tell whether a host name certainly means this machine."""
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return parse_address(name).is_loopback
    except ValueError:
        return False


def parse_address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """Parse an IP address; an IPv4-mapped IPv6 address counts as IPv4."""
    address = ipaddress.ip_address(text)
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped:
        return address.ipv4_mapped
    return address


def _is_same_address(name: str, own: str) -> bool:
    """Compare IP addresses only: a host name that resolves to ours could be an attack."""
    try:
        return parse_address(name) == parse_address(own)
    except ValueError:
        return False


_UNFINISHED = Limits().unfinished
_UNITS = {"": 1, "k": 1024, "m": MEBIBYTE, "g": 1024 * MEBIBYTE}
_SIZE = re.compile(r"(\d{1,12})\s*([kmg]?)i?b?", re.IGNORECASE)
_AGE = re.compile(r"(\d{1,6})([smhd])")
_AGES = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+)|\$)")
_TOKEN = re.compile(f"{HTTP_TOKEN}+")
# Headers that the HTTP connection sets itself.
_NOT_TO_SET = frozenset({
    "host", "content-length", "transfer-encoding", "connection", "upgrade", "accept-encoding",
    "content-encoding", "content-type", "range",
})  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """The audit log; see ``rooms/audit``."""

    file: str
    arguments: str
    largest: int
    """The file is rotated at so many bytes."""
    oldest: float
    """And at this age in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsAt:
    """Where the metrics are served, and to whom they name tools."""

    port: int
    host: str = LOOPBACK
    token: str = field(default="", repr=False)
    """Empty: they name no tools."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    choice: Choice = EVERYTHING
    """Globs are among its deny patterns."""
    of_catalog: tuple[tuple[Pattern, ...], ...] = ()
    """The patterns for prompts, resources and skills, as in ``OF_CATALOG``; empty if there
    are none."""
    catalog: Catalog | None = None
    """The filter of these; a room makes it of the patterns."""
    strict: bool = False
    """Refuse to start without patterns, or with one that matches no tool."""
    shadow: bool = False
    """Report what the policy would do, and forward everything unchanged."""
    judges_new_tools: bool = False
    """Expose a tool that appears later if the patterns allow it."""
    endpoint: str | None = None
    upstream_headers: tuple[tuple[str, str], ...] = ()
    """Requests to the MCP endpoint get them, without credentials of their own."""
    uses_login: bool = True
    """Use a stored login for the upstream, if there is one."""
    login_through: str = "auto"
    """Whether clients log in through us: auto, plain (rewrite only the metadata), or off."""
    shows_secrets: bool = False
    """Show tokens in mitmweb, recordings and mitmdump's output."""
    connection_timeout: float = 30.0  # seconds
    tool_list_timeout: float = 10.0
    limits: Limits = field(default_factory=Limits)
    allowed_hosts: AllowedHosts = field(default_factory=AllowedHosts)
    hosts: tuple[str, ...] = ()
    """Forward proxies: the hosts whose traffic is filtered, perhaps with a port."""
    only_mcp: bool = False
    """Serve only the MCP endpoint and logins."""
    fail_fast: bool = True
    drain: float | None = None
    """Seconds for open calls when the process ends; None if the user has not said."""
    max_clients: int | None = None
    """None: as many as the file descriptors allow."""
    rules: str = ""
    """The path of a rules file; empty means no rules."""
    edits: str = ""
    """The path of a file with edits of definitions."""
    edit_tables: tuple[str, ...] = ()
    """Edits from the config file, as JSON; those of one server come before those for all."""
    editor: Editor | None = None
    """What makes these edits; a room makes it of the tables."""
    lock: str = ""
    """The path of a lock; ``rooms/lock/lock_file`` reads it into the ``choice``."""
    audit: Audit | None = None
    metrics: MetricsAt | None = None
    otel: bool = False
    """Trace requests with OpenTelemetry."""
    dashboard: int | None = None
    """The port that serves the page ``/mcp`` without mitmweb."""
    takes_news: bool = field(init=False)
    """A tool that appears later may be exposed. (No property: each list asks.)"""

    def __post_init__(self) -> None:
        object.__setattr__(self, "takes_news", self.judges_new_tools or self.is_locked)

    @property
    def is_locked(self) -> bool:
        """Tell whether a lock pins the tools: then each list is judged as it is."""
        return self.choice.lock is not None

    @property
    def denies_nothing(self) -> bool:
        """Tell whether no filter is set."""
        return self.choice.hides_nothing and not self.of_catalog and not self.lock

    @property
    def patterns(self) -> list[Pattern]:
        """All patterns, for tools and for the catalog."""
        return [*self.choice.patterns, *chain.from_iterable(self.of_catalog)]

    def refuse_unread(self) -> None:
        """Refuse what it names and nobody has read or made: without that, all would pass."""
        lacks_lock = self.lock and self.choice.lock is None
        lacks_editor = (self.edits or self.edit_tables) and self.editor is None
        if lacks_lock or lacks_editor or (self.of_catalog and self.catalog is None):
            what = "--lock" if lacks_lock else "Patterns for prompts, resources or skills"
            what = "Edits of tools" if lacks_editor else what
            raise StartError(f"{what} cannot be used", why="The room for it is not installed")


class _Given:
    """The texts of all options, by their keys."""

    def __init__(self, texts: Mapping[str, Texts]) -> None:
        self._texts = {**{key: option.text for key, option in KEYS.items()}, **texts}
        assert self._texts.keys() == KEYS.keys()

    def one(self, key: str) -> str:
        text = self._texts[key]
        assert isinstance(text, str)
        return text

    def many(self, key: str) -> Sequence[str]:
        return self._texts[key] or ()

    def is_on(self, key: str) -> bool:
        if (is_on := SWITCH.get(self.one(key).strip().lower())) is None:
            raise InvalidOption(key, self.one(key), why="It must be true or false")
        return is_on

    def choice(self, key: str) -> str:
        text, choices = self.one(key), KEYS[key].choices
        if text not in choices:
            raise InvalidOption(key, text, why="It must be one of: " + ", ".join(choices))
        return text

    def seconds(self, key: str) -> float:
        text = self.one(key)
        if not re.fullmatch(r"\d{1,9}", text) or int(text) == 0:
            raise InvalidOption(key, text, why="It must be a number of milliseconds, 1 or more")
        return int(text) / 1000

    def port(self, key: str) -> int | None:
        text = self.one(key)
        if text and (not re.fullmatch(r"\d{1,5}", text) or int(text) > 65535):
            raise InvalidOption(key, text, why="It must be a number from 0 to 65535")
        return int(text) if text else None

    def patterns(self, key: str, parse: Callable[[str], Pattern]) -> tuple[Pattern, ...]:
        values = self._texts[key]
        if values is None:
            return ()
        if not values:
            raise EmptyList(key)
        return _parse_patterns(values, key, parse)

    def hints(self, key: str) -> tuple[str, ...]:
        """Return the hints, in the order of their choices."""
        values, choices = self._texts[key], KEYS[key].choices
        if values is None:
            return ()
        texts = [text.strip() for value in values for text in value.split(",")]
        if not any(texts):
            raise EmptyList(key)
        if bad := [text for text in texts if text not in choices]:
            from difflib import get_close_matches  # slow to import, and seldom needed

            close = get_close_matches(bad[0].lower(), choices, n=1)
            why = f"It must be {', '.join(choices[:-1])} or {choices[-1]}"
            if close:
                why = f"Did you mean {close[0]}?"
            elif bad[0].lower().replace("_", "-") == READ_ONLY:
                why = "read-only is an option of its own"
            raise InvalidOption(key, bad[0], why=why)
        return tuple(choice for choice in choices if choice in texts)


def parse_config(
    texts: Mapping[str, Texts] = MappingProxyType({}),
    /,
    *,
    environment: Mapping[str, str] = os.environ,
    allow_too: Sequence[str] = (),
    edit_tables: Sequence[str] = (),
    **more: Texts,
) -> Config:
    """Check the user's settings. Raises StartError, which quotes the wrong text.

    ``texts`` and ``more`` are the options' values by their keys. ``None`` means that ``deny`` or
    ``allow`` is not set; an empty list is an error. ``allow_too`` is another list that a tool must
    match. ``edit_tables`` are ``[tools]`` tables as JSON.
    """
    given = _Given({**texts, **more})
    config = Config(
        choice=_parse_choice(given, allow_too),
        of_catalog=_parse_of_catalog(given),
        strict=given.is_on("strict"),
        shadow=given.is_on("shadow"),
        judges_new_tools=_parse_new_tools(given.one("new_tools")),
        endpoint=_parse_endpoint(given.one("endpoint")),
        upstream_headers=tuple(
            parse_header(text, environment) for text in given.many("upstream_headers")
        ),
        uses_login=given.choice("login") == "auto",
        login_through=given.choice("login_through"),
        shows_secrets=given.is_on("show_secrets"),
        connection_timeout=given.seconds("connection_timeout"),
        tool_list_timeout=given.seconds("tool_list_timeout"),
        limits=_parse_limits(given.one("message_limit")),
        allowed_hosts=_parse_hosts(given.many("allowed_hosts")),
        hosts=_parse_named_hosts(given.many("hosts")),
        only_mcp=given.choice("paths") == "mcp",
        fail_fast=given.is_on("fail_fast"),
        drain=_parse_drain(given.one("drain")),
        max_clients=_parse_max_clients(given.one("max_clients")),
        rules=given.one("rules"),
        lock=given.one("lock"),
        edits=given.one("edits"),
        edit_tables=tuple(edit_tables),
        audit=_parse_audit(given),
        metrics=_parse_metrics(given, environment),
        otel=given.is_on("otel"),
        dashboard=given.port("dashboard"),
    )
    if config.strict and config.denies_nothing:
        raise NothingDenied
    return config


def _parse_patterns(
    values: Sequence[str], key: str, parse: Callable[[str], Pattern]
) -> tuple[Pattern, ...]:
    texts = [text for value in values for text in split_patterns(value, option=key)]
    return tuple(map(parse, dict.fromkeys(texts)))


def _parse_choice(given: _Given, allow_too: Sequence[str]) -> Choice:
    no_case = given.is_on("ignore_case")
    parse = partial(parse_pattern, ignore_case=no_case)
    return Choice(
        deny=(
            *given.patterns("deny", parse),
            *given.patterns(DENY_GLOB, partial(parse_glob, ignore_case=no_case)),
        ),
        allow=given.patterns("allow", partial(parse, option="allow")),
        allow_too=_parse_patterns(allow_too, "allow", partial(parse, option="allow")),
        exceptions=given.patterns(EXCEPT, partial(parse, option=EXCEPT)),
        hints=(*((READ_ONLY,) if given.is_on("read_only") else ()), *given.hints("deny_hint")),
    )


def _parse_of_catalog(given: _Given) -> tuple[tuple[Pattern, ...], ...]:
    no_case = given.is_on("ignore_case")
    parsed = tuple(
        tuple(given.patterns(key, partial(parse_pattern, option=key, ignore_case=no_case)))
        for key in OF_CATALOG
    )
    return parsed if any(parsed) else ()


def _parse_audit(given: _Given) -> Audit | None:
    file, rotate = given.one("audit_log"), given.one("audit_rotate")
    size, comma, age = rotate.partition(",")
    largest, oldest = _size(size), _AGE.fullmatch(age.strip() if comma else "1d")
    if largest < 1024 or not oldest or not int(oldest[1]):
        why = "It must be a size and an age, such as 100MB,1d (m: minutes, h: hours, d: days)"
        raise InvalidOption("audit_rotate", rotate, why=why)
    audit = Audit(
        file=file,
        arguments=given.choice("audit_arguments"),
        largest=largest,
        oldest=int(oldest[1]) * _AGES[oldest[2]],
    )
    return audit if file else None


def _parse_drain(text: str) -> float | None:
    if text and not re.fullmatch(r"\d{1,5}(?:\.\d{1,3})?", text):
        raise InvalidOption("drain", text, why="It must be a number of seconds, such as 30")
    return float(text) if text else None


def _parse_metrics(given: _Given, environment: Mapping[str, str]) -> MetricsAt | None:
    port, host = given.port("metrics_port"), given.one("metrics_host").strip().lower()
    if not _NAME_OR_ADDRESS.fullmatch(host):
        raise InvalidOption("metrics_host", host, why="It must be an address, such as 127.0.0.1")
    typed = given.one("metrics_token")
    token = expand_variables(typed, environment, option="metrics_token", given="…").strip()
    if typed and not _VISIBLE.fullmatch(token):
        why = "It must be one word of visible ASCII characters"
        raise InvalidOption("metrics_token", "…", why=why)
    return None if port is None else MetricsAt(port=port, host=host, token=token)


def _size(text: str) -> int:
    match = _SIZE.fullmatch(text.strip())
    return int(match[1]) * _UNITS[match[2].lower()] if match else 0


def refuse_to_open(old: Config, new: Config) -> None:
    """Refuse a change that removes the last pattern: a slip must not open a running filter."""
    was, now = old.choice, new.choice
    if old.lock and not new.lock:
        raise InvalidOption("lock", "", why="A running filter keeps its lock")
    for option, before, after in (
        ("deny", was.deny, now.deny),
        ("allow", was.allow, now.allow),
        ("deny_hint", {*was.hints} - {READ_ONLY}, {*now.hints} - {READ_ONLY}),
        *((key, _of_catalog(old, key), _of_catalog(new, key)) for key in OF_CATALOG),
    ):
        if before and not after:
            raise EmptyList(option)


def _of_catalog(config: Config, key: str) -> Sequence[Pattern]:
    return config.of_catalog[OF_CATALOG.index(key)] if config.of_catalog else ()


def parse_header(text: str, environment: Mapping[str, str]) -> tuple[str, str]:
    """Parse ``Name: value``, with $VAR and ${VAR} expanded ($$ is a dollar).

    No error text quotes the value.
    """
    name, colon, value = text.partition(":")
    name = name.strip()
    if not colon or not _TOKEN.fullmatch(name):
        why = 'Write a header as "Name: value"'
        raise InvalidOption("upstream_headers", name if colon else "…", why=why)
    if name.lower() in _NOT_TO_SET:
        raise InvalidOption("upstream_headers", name, why="This header is set by the connection")

    expanded = expand_variables(value, environment, option="upstream_headers", given=name).strip()
    if not expanded.isascii() or not expanded.isprintable():
        why = "Its value has characters that are not allowed in a header"
        raise InvalidOption("upstream_headers", name, why=why)
    return name, expanded


def expand_variables(text: str, environment: Mapping[str, str], *, option: str, given: str) -> str:
    """Expand $VAR and ${VAR} ($$ is a dollar). Raises UnsetVariable, which quotes ``given``."""

    def look_up(variable: re.Match[str]) -> str:
        wanted = variable[1] or variable[2]
        if wanted is None:
            return "$"
        if wanted not in environment:
            why = f"The environment variable {wanted} is not set"
            raise UnsetVariable(option, given, why=why)
        return environment[wanted]

    return _VARIABLE.sub(look_up, text)


def _parse_endpoint(text: str) -> str | None:
    if not text:
        return None
    if not text.startswith("/") or text.startswith("//") or not re.fullmatch(r"[!-~]+", text):
        why = "It must be a path on the upstream, for example /mcp"
        raise InvalidOption("endpoint", text, why=why)
    return text.partition("#")[0]


def _parse_new_tools(text: str) -> bool:
    if text not in KEYS["new_tools"].choices:
        why = "It must be " + " or ".join(KEYS["new_tools"].choices)
        raise InvalidOption("new_tools", text, why=why)
    return text == "judge"


_MESSAGE_LIMIT = "It must be a size of at least 1KB with its unit, such as 500KB or 10MB"


def _parse_limits(text: str) -> Limits:
    size = _size(text)
    if size < 1024:
        raise InvalidOption("message_limit", text, why=_MESSAGE_LIMIT)
    return Limits(message=size, pending=2 * size, unfinished=max(_UNFINISHED, 8 * size))


_VISIBLE = re.compile(r"[!-~]+")
_NAME_OR_ADDRESS = re.compile(r"[a-z0-9._-]+|[0-9a-f:.]+")
_HOST_AND_PORT = re.compile(r"(?:[^\s/@:\[\]]{1,253}|\[[0-9a-f:.]+\])(?::[0-9]{1,5})?|[0-9a-f:.]+")


def _parse_hosts(values: Sequence[str]) -> AllowedHosts:
    why = "It must be a host name, host:port, an origin, or *"
    hosts = _parse_several([one.lower() for one in values], "allowed_hosts", _VISIBLE, why)
    return AllowedHosts(frozenset(host.rstrip("/") for host in hosts))


def _parse_named_hosts(values: Sequence[str]) -> tuple[str, ...]:
    why = "It must be a host name or an address, or one with a port"
    return tuple(_parse_several([one.lower() for one in values], "hosts", _HOST_AND_PORT, why))


def _parse_max_clients(text: str) -> int | None:
    if text.strip().lower() == "auto":
        return None
    if not re.fullmatch(r"\d{1,6}", text) or int(text) == 0:
        raise InvalidOption("max_clients", text, why="It must be a number of clients, 1 or more")
    return int(text)
