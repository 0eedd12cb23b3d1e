"""All settings, as values that were checked once (``cli/parsing``) and are trusted afterwards.

A reverse proxy rewrites Host, so the upstream cannot detect DNS rebinding any more (a web page
whose name resolves to a local address). We check instead.

>>> hosts = AllowedHosts(frozenset({"tools.example"}))
>>> [hosts.has_host(host) for host in ("localhost:80", "[::1]:80", "Tools.Example", "a.example")]
[True, True, True, False]
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain
from typing import TYPE_CHECKING

from mcp_tool_filter.core.errors import EmptyList, InvalidOption, StartError
from mcp_tool_filter.core.messages.limits import Limits
from mcp_tool_filter.core.policy.choice import EVERYTHING, READ_ONLY, Choice
from mcp_tool_filter.core.policy.patterns import OF_CATALOG, Pattern

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
