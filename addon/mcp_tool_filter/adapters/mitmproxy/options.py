"""Our options in mitmproxy: declare and read them, and detect those without effect.

We declare every option as text, so that mitmproxy cannot fail to parse it and then lose the addon
(mitmproxy issue 8013). ``parse_config`` checks the text.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from mcp_tool_filter.adapters.mitmproxy.settings import was_set
from mcp_tool_filter.errors import EmptyList, InvalidOption, StartError, UnknownOption
from mcp_tool_filter.policy.config import Config, parse_config

if TYPE_CHECKING:
    from mitmproxy.addonmanager import Loader
    from mitmproxy.options import Options


type Texts = str | Sequence[str] | None
"""The typed value of an option: one text, or several; None if it is not set."""


class _Option(NamedTuple):
    name: str
    default: str | None
    """None: the option can be repeated."""
    help: str


_OPTIONS = (
    _Option(
        "deny", None, "JavaScript regex: matching tools are removed. Separate several with commas."
    ),
    _Option("allow", None, "JavaScript regex: only matching tools remain."),
    _Option("deny_glob", None, "Glob such as write_*: tools whose whole name matches are removed."),
    _Option("ignore_case", "false", "Patterns ignore upper and lower case."),
    _Option(
        "require_list", "false", "Do not start if the upstream lists its tools only after a login."
    ),
    _Option(
        "new_tools", "hide", "Tools that appear later: hide them, or judge them by the patterns."
    ),
    _Option(
        "strict", "false", "Do not start if a pattern matches no tool, or without any pattern."
    ),
    _Option("tools_list", "auto", "Answer tools/list from the snapshot: auto, cache, or upstream."),
    _Option("endpoint", "", "The upstream's MCP path, such as /mcp. Default: detected."),
    _Option(
        "upstream_headers",
        None,
        'Add a header to requests to the MCP endpoint: "Name: value", $VAR is expanded.',
    ),
    _Option(
        "header_paths",
        None,
        "Also add upstream_headers on these paths: /path, /below/*, or * for all.",
    ),
    _Option(
        "header_override", "false", "Replace a client's own credentials with upstream_headers."
    ),
    _Option("login", "auto", "Use the login stored by `mcp-tool-filter login URL`: auto, or off."),
    _Option("login_through", "auto", "Clients log in through the proxy: auto, plain, or off."),
    _Option("show_secrets", "false", "Show tokens in mitmweb, in recordings, and in the terminal."),
    _Option("connection_timeout", "30000", "Milliseconds to wait for the upstream at start."),
    _Option("tool_list_timeout", "10000", "Milliseconds to wait for its tool list."),
    _Option("message_limit", "10MB", "The largest message that passes."),
    _Option(
        "allowed_hosts", None, "Accept these Host and Origin names too; loopback names always pass."
    ),
    _Option(
        "raw_hosts", None, "Forward proxies: pass what is neither TLS nor HTTP to these hosts."
    ),
    _Option("paths", "all", "Which paths pass: all, or mcp for the MCP endpoint and logins only."),
    _Option(
        "max_clients",
        "auto",
        "How many clients may connect. Default: as many as file descriptors allow.",
    ),
    _Option("rules", "", "YAML file with rules on messages: block, change, limit, cache, ..."),
    _Option(
        "fast",
        os.environ.get("MCP_TOOL_FILTER_FAST", "true"),
        "Use our speed-ups. Set it to false to find out if one of them causes a problem.",
    ),
    _Option("audit_log", "", "Append an audit log (JSON lines) to this file."),
    _Option(
        "audit_arguments",
        "hash",
        "How the audit log keeps arguments and results: none, hash, or full.",
    ),
    _Option(
        "audit_rotate", "100MB,1d", "Size and age at which the audit log is rotated and compressed."
    ),
    _Option("dashboard", "", "Serve the page /mcp on this local port, without mitmweb."),
    _Option("otel", "false", "Trace requests with OpenTelemetry; OTEL_* variables configure it."),
    _Option("metrics_port", "", "Serve Prometheus metrics on this local port."),
    _Option("audit_fsync", "interval", "When to fsync the audit log: never, interval, or always."),
    _Option("fail_fast", "true", "End the process with exit code 1 when the upstream is lost."),
)
NAMES = frozenset(option.name for option in _OPTIONS)
_PATTERNS = ("deny", "allow", "deny_glob")


def declare_options(loader: Loader) -> None:
    """Declare our options to mitmproxy, also for its ``--options`` and its web page."""
    for option in _OPTIONS:
        default = () if option.default is None else (option.default,)
        loader.add_option(option.name, Sequence[str], default, option.help)


class ConfigReader:
    """Checks our options, the same texts only once."""

    def __init__(self, texts: Mapping[str, Texts] | None = None, config: Config | None = None):
        """``config`` is the already checked meaning of the ``texts``, if any."""
        self._config = config
        self._texts = {option.name: _default(option) for option in _OPTIONS} | dict(texts or {})

    def read(self, options: Options) -> Config:
        """Return the configuration. Raises StartError, which quotes the wrong text."""
        given = {option.name: _read(options, option) for option in _OPTIONS}
        if self._config is None or given != self._texts:
            self._config = parse_config(**given)  # type: ignore[arg-type]  # text or list, as its default
            self._texts = given
        return self._config


def unknown_option(deferred: Iterable[str]) -> UnknownOption | None:
    """Return an error for an undeclared option, which mitmproxy would silently ignore."""
    for name in deferred:
        close = get_close_matches(name, NAMES, n=1)
        why = f"Did you mean {close[0]}?" if close else "mitmdump --options lists all options"
        return UnknownOption(name, why=why)
    return None


def overruled_option(options: Options, argv: Sequence[str]) -> StartError | None:
    """Return an error for an option of ours that was typed but has no effect.

    mitmproxy silently prefers its file config.yaml to ``--set``; and it drops a ``--set deny``
    without a value if there is another one with a value.
    """
    typed: dict[str, list[str]] = {}
    for text in _sets_in(argv):
        name, equals, value = text.partition("=")
        if equals and name in NAMES:
            typed.setdefault(name, []).append(value)
        elif name in _PATTERNS:
            return EmptyList(name, source=f"--set {name}")
    for name, values in typed.items():
        if list(getattr(options, name)) != values:
            why = f"config.yaml in {options.confdir} has another value, and mitmproxy prefers it"
            return InvalidOption(f"--set {name}", ", ".join(values), why=why)
    return None


def _sets_in(argv: Sequence[str]) -> Iterator[str]:
    for flag, text in pairwise([*argv, ""]):
        if flag == "--set":
            yield text
        elif flag.startswith("--set="):
            yield flag.removeprefix("--set=")


def _default(option: _Option) -> Texts:
    if option.name in _PATTERNS:
        return None
    return () if option.default is None else option.default


def _read(options: Options, option: _Option) -> Texts:
    if option.name in _PATTERNS and not was_set(options, option.name):
        return None
    values: Sequence[str] = getattr(options, option.name)
    if option.default is None:
        return tuple(values)
    if len(values) > 1:
        raise InvalidOption(option.name, ", ".join(values), why="It can be given only once")
    return values[0] if values else option.default
