"""``mcp-tool-filter --upstream URL``: choose how to run the filter."""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING

from mcp_tool_filter import __version__
from mcp_tool_filter.cli.flags import Given, UsageError, parse_flags
from mcp_tool_filter.cli.launcher import end_on_sigterm
from mcp_tool_filter.options import A_FETCH, A_URL, HTTP, OPTIONS

if TYPE_CHECKING:  # --help need not import it
    from mcp_tool_filter.cli.settings import Settings


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
        return _show_help("render_first_steps")
    settings = settle(given)
    if how := _way_to_look(given):
        return int(import_module("mcp_tool_filter.cli.commands.look").show_tools(settings, how))
    if settings.is_stdio:
        refuse_what_needs_http(given)
    warn_about_unused(typed, settings)
    end_on_sigterm(0)
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
    missing = {
        A_URL: settings.command and "with a command",
        A_FETCH: settings.command and settings.is_stdio and "with a command over stdio",
        HTTP: settings.is_stdio and "over stdio",
    }
    for name in filter(OPTIONS.__contains__, typed):
        if where := next(filter(None, map(missing.get, OPTIONS[name].needs)), None):
            from mcp_tool_filter.cli.terminal import say  # seldom needed

            say(f"Warning: --{name} has no effect {where}")


def _way(settings: Settings) -> str:
    if not settings.is_stdio:
        return "http"
    return "relay" if settings.command else "pipe"


def _show_help(what: str = "render_help") -> int:
    print(getattr(import_module("mcp_tool_filter.cli.help"), what)(), end="")
    return 0
