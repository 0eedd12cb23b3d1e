"""``mcp-tool-filter --upstream URL``: choose how to run the filter."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from types import FrameType
from typing import TYPE_CHECKING

from mcp_tool_filter import __version__
from mcp_tool_filter.cli.flags import Given, UsageError, parse_flags

if TYPE_CHECKING:  # --help need not import it
    from mcp_tool_filter.cli.settings import Settings

_FOR_URLS = ("header", "header-paths", "header-override", "login", "login-through", "endpoint",
             "ca", "client-cert", "insecure")  # fmt: skip
_FOR_FETCHES = ("require-list", "connection-timeout", "tool-list-timeout", "keep-running")
_FOR_PROXIES = ("host", "allowed-hosts", "raw-hosts", "paths", "cert", "max-clients",
                "max-children", "header-paths", "header-override", "login-through",
                "require-list", "no-browser", "show-secrets", "fast", "set")  # fmt: skip


def run(argv: Sequence[str]) -> int:
    """Run what the flags ask for; return the exit status. Raises StartError."""
    typed = parse_flags(argv)
    if "version" in typed:
        print(f"mcp-tool-filter {__version__}")
        return 0
    if "help" in typed:
        return _show_help()
    from mcp_tool_filter.cli.settings import gather, settle

    given = gather(typed, os.environ)
    if not argv and not {"upstream", "upstream-cmd"} & given.keys():
        return _show_help()
    settings = settle(given)
    if how := _way_to_look(given):
        return int(import_module("mcp_tool_filter.cli.commands.look").show_tools(settings, how))
    if settings.is_stdio:
        refuse_what_needs_http(given)
    warn_about_unused(typed, settings)
    signal.signal(signal.SIGTERM, _leave)
    try:
        return int(import_module(f"mcp_tool_filter.cli.commands.{_way(settings)}").run(settings))
    except KeyboardInterrupt:
        return 0


def _way_to_look(given: Given) -> str | None:
    """Return the format of a preview, if the filter should not run at all."""
    prints_json = "json" in given
    if "dry-run" in given:
        return "report-json" if prints_json else "report"
    if "list-tools" in given or "format" in given:
        return "json" if prints_json else given.get("format", ["table"])[-1]
    if prints_json:
        raise UsageError("--json needs --list-tools or --dry-run")
    return None


def refuse_what_needs_http(given: Given) -> None:
    """Refuse flags that have no effect over stdio."""
    for name in ("dashboard",):
        if name in given:
            why = (
                "Add --port to serve HTTP, or leave it out; --audit-log FILE works over stdio, too"
            )
            raise UsageError(f"--{name} does not work over stdio", why=why)


def warn_about_unused(typed: Given, settings: Settings) -> None:
    """Warn about typed flags that change nothing: the user may rely on one."""
    groups = (
        (settings.command, _FOR_URLS, "with a command"),
        (settings.command and settings.is_stdio, _FOR_FETCHES, "with a command over stdio"),
        (settings.is_stdio, _FOR_PROXIES, "over stdio"),
    )
    named: set[str] = set()
    for is_unused, names, where in groups:
        for name in names:
            if is_unused and name in typed and name not in named:
                from mcp_tool_filter.cli.terminal import say  # seldom needed

                named.add(name)
                say(f"Warning: --{name} has no effect {where}")


def _way(settings: Settings) -> str:
    if not settings.is_stdio:
        return "http"
    return "relay" if settings.command else "pipe"


def _show_help() -> int:
    print(import_module("mcp_tool_filter.cli.help").render_help(), end="")
    return 0


def _leave(_number: int, _frame: FrameType | None) -> None:
    sys.exit(0)
