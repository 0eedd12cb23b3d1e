"""The user's settings as one checked value.

>>> read_settings(["-u", "http://localhost:3000/mcp", "--deny", "^rm"], {}).endpoint
'/mcp'
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from mcp_tool_filter.cli.settings.flags import COMMAND, DEFAULT_PORT, FLAGS, Given, parse_flags
from mcp_tool_filter.cli.settings.sources import gather
from mcp_tool_filter.cli.settings.usage import UsageError
from mcp_tool_filter.cli.settings.values import (
    is_on,
    one_of,
    parse_count,
    parse_port,
    parse_variable,
    split_command,
    split_upstream,
)
from mcp_tool_filter.errors import InvalidOption

if TYPE_CHECKING:
    from mcp_tool_filter.policy.config import Config

_ONLY_FOR_COMMANDS = ("env", "cwd")
_AUDIT = {
    "audit-log": "",
    "audit-arguments": "hash",
    "audit-rotate": "100MB,1d",
    "audit-fsync": "interval",
    "metrics-port": "",
    "dashboard": "",
}
_FLAGS_OF_OPTIONS = {  # flags with another name than mitmproxy's option
    "upstream_headers": "header",
    "fail_fast": "keep-running",
    "mode": "upstream",
    "ssl_verify_upstream_trusted_ca": "ca",
    "client_certs": "client-cert",
}


@dataclass(frozen=True, kw_only=True, eq=False)  # generating __eq__ takes time
class Settings:
    """The settings. Values that mitmproxy or ``parse_config`` checks are still text."""

    origin: str
    """Scheme, host and port of the upstream."""
    endpoint: str
    """Path and query; empty if not given."""
    command: tuple[str, ...]
    """The words of the upstream's command; empty if the upstream is a URL."""
    env: Mapping[str, str] = field(repr=False)  # contains secrets
    cwd: str | None
    is_stdio: bool
    """True if our client has started us and talks over stdin and stdout."""
    max_children: int
    host: str
    port: int
    deny: tuple[str, ...]
    allow: tuple[str, ...]
    deny_glob: tuple[str, ...]
    ignore_case: bool
    strict: bool
    require_list: bool
    new_tools: str
    headers: tuple[str, ...]
    header_paths: tuple[str, ...]
    header_override: bool
    login: str
    login_through: str
    tools_list: str
    allowed_hosts: tuple[str, ...]
    paths: str
    connection_timeout: str
    tool_list_timeout: str
    message_limit: str
    max_clients: str
    keep_running: bool
    rules_file: str
    fast: str
    otel: bool
    audit: Mapping[str, str]
    """The options of the audit log."""
    ca: str | None
    client_cert: str | None
    cert: str | None
    insecure: bool
    show_secrets: bool
    inspect: bool
    browser: bool
    record: str | None
    log_format: str
    """text, json or none: how messages are shown."""
    verbosity: int
    """-1 for quiet, 0, 1, 2."""
    set: tuple[str, ...]

    @property
    def upstream(self) -> str:
        return shlex.join(self.command) if self.command else self.origin + self.endpoint

    @property
    def shown_upstream(self) -> str:
        """The same for people, without secrets."""
        from mcp_tool_filter.observers.redaction.shown import shown_command, shown_url

        return shown_command(self.command) if self.command else shown_url(self.upstream)

    @property
    def listens_at(self) -> str:
        return f"http://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"

    @property
    def is_quiet(self) -> bool:
        return self.verbosity < 0

    @cached_property
    def texts(self) -> dict[str, str | Sequence[str] | None]:
        """Our own options by their mitmproxy names: one text, several, or None if not set."""
        return {
            "deny": self.deny or None,
            "allow": self.allow or None,
            "deny_glob": self.deny_glob or None,
            "ignore_case": _text(self.ignore_case),
            "strict": _text(self.strict),
            "require_list": _text(self.require_list),
            "new_tools": self.new_tools,
            "tools_list": self.tools_list,
            "endpoint": self.endpoint,
            "upstream_headers": self.headers,
            "header_paths": self.header_paths,
            "header_override": _text(self.header_override),
            "login": self.login,
            "login_through": self.login_through,
            "show_secrets": _text(self.show_secrets),
            "connection_timeout": self.connection_timeout,
            "tool_list_timeout": self.tool_list_timeout,
            "message_limit": self.message_limit,
            "max_clients": self.max_clients,
            "allowed_hosts": self.allowed_hosts,
            "paths": self.paths,
            "fail_fast": _text(not self.keep_running),
            "rules": self.rules_file,
            "fast": self.fast,
            "otel": _text(self.otel),
            **self.audit,
        }

    def config(self) -> Config:
        """Check our own options, once. Raises StartError, which quotes the wrong text."""
        return self._config

    @cached_property
    def _config(self) -> Config:
        from mcp_tool_filter.policy.config import parse_config  # --help need not wait for it

        with in_our_words():
            return parse_config(**self.texts)  # type: ignore[arg-type]  # text or list, as its default


@contextmanager
def in_our_words() -> Iterator[None]:
    """Make errors name our flag instead of mitmproxy's option."""
    try:
        yield
    except InvalidOption as error:
        flag = f"--{_flag_of(error.option)}"
        raise InvalidOption(flag, error.given, why=error.why) from None


def _text(is_on: bool) -> str:
    return "true" if is_on else "false"


def _flag_of(option: str) -> str:
    return _FLAGS_OF_OPTIONS.get(option, option.replace("_", "-"))


def read_settings(argv: Sequence[str], environment: Mapping[str, str]) -> Settings:
    """Read the settings from all three sources. Raises UsageError."""
    return settle(gather(parse_flags(argv), environment))


def settle(given: Given) -> Settings:
    """Check the given settings, and fill in defaults."""
    one = {name: values[-1] for name, values in given.items() if values}
    many = {name: tuple(values) for name, values in given.items()}
    command = many.get(COMMAND) or split_command(one.get("upstream-cmd", ""))
    if is_on(one, "stdio") and not command and not one.get("upstream"):
        why = "mcp-tool-filter --stdio --upstream URL, or mcp-tool-filter -- COMMAND ARGS"
        raise UsageError("--stdio needs a server", why=why)
    origin, path = ("", "") if command else split_upstream(one.get("upstream", ""))
    if not command and (misplaced := next((n for n in _ONLY_FOR_COMMANDS if n in one), None)):
        raise UsageError(f"--{misplaced} is for an upstream that is a command")
    _refuse_own_options(many.get("set", ()))
    _refuse_no_file(one)
    return Settings(
        origin=origin,
        endpoint=one.get("endpoint", path),
        command=command,
        env=dict(map(parse_variable, many.get("env", ()))),
        cwd=one.get("cwd"),
        is_stdio=_is_stdio(one, is_command=bool(command)),
        max_children=parse_count("max-children", one.get("max-children", "32")),
        host=one.get("host", "127.0.0.1"),
        port=parse_port(one.get("port", str(DEFAULT_PORT))),
        deny=many.get("deny", ()),
        allow=many.get("allow", ()),
        deny_glob=many.get("deny-glob", ()),
        ignore_case=is_on(one, "ignore-case"),
        strict=is_on(one, "strict"),
        require_list=is_on(one, "require-list"),
        new_tools=one.get("new-tools", "hide"),
        headers=many.get("header", ()),
        header_paths=many.get("header-paths", ()),
        header_override=is_on(one, "header-override"),
        login=one.get("login", "auto"),
        login_through=one.get("login-through", "auto"),
        tools_list=one.get("tools-list", "auto"),
        allowed_hosts=many.get("allowed-hosts", ()),
        paths=one.get("paths", "all"),
        connection_timeout=one.get("connection-timeout", "30000"),
        tool_list_timeout=one.get("tool-list-timeout", "10000"),
        message_limit=one.get("message-limit", "10MB"),
        max_clients=one.get("max-clients", "auto"),
        keep_running=is_on(one, "keep-running"),
        rules_file=one.get("rules", ""),
        fast=one.get("fast", "true"),
        otel=is_on(one, "otel"),
        audit={name.replace("-", "_"): one.get(name, usual) for name, usual in _AUDIT.items()},
        ca=one.get("ca"),
        client_cert=one.get("client-cert"),
        cert=one.get("cert"),
        insecure=is_on(one, "insecure"),
        show_secrets=is_on(one, "show-secrets"),
        inspect=is_on(one, "inspect"),
        browser=not is_on(one, "no-browser"),
        record=one.get("record"),
        log_format=one_of("log-format", one.get("log-format", "text"), ("text", "json", "none")),
        verbosity=_verbosity(given),
        set=many.get("set", ()),
    )


def _is_stdio(one: Mapping[str, str], *, is_command: bool) -> bool:
    """Tell whether we talk over stdin and stdout instead of listening."""
    asked = is_on(one, "stdio")
    listens = "port" in one or is_on(one, "inspect")
    if asked and listens:
        other = "--port" if "port" in one else "--inspect"
        raise UsageError(f"--stdio listens on no port: leave out {other} or --stdio")
    return asked or (is_command and not listens)


def _refuse_no_file(one: Mapping[str, str]) -> None:
    """An unset variable, as in --rules "$RULES", must not start a filter without rules."""
    for name in ("rules", "audit-log"):
        if one.get(name) == "":
            raise UsageError(f"--{name} has no file", why="Name one, or leave the flag out")


def _refuse_own_options(sets: Iterable[str]) -> None:
    """Refuse our own options in --set: with two ways to set one, it is unclear which counts."""
    for option in (spec.partition("=")[0] for spec in sets):
        if (flag := _flag_of(option)) in FLAGS:
            raise UsageError(f"--set {option}=…: use --{flag} instead")


def _verbosity(given: Given) -> int:
    one = {name: values[-1] for name, values in given.items()}
    if is_on(one, "quiet"):
        return -1
    louder = given.get("verbose", [])
    return int(louder[0]) if louder and louder[0] in ("1", "2") else louder.count("true")
