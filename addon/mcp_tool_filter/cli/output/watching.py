"""The observers of a stdio session: audit log, metrics, and activity lines on stderr with -v."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mcp_tool_filter.cli.settings.settings import Settings

if TYPE_CHECKING:
    from mcp_tool_filter.conversation.judged import Judged
    from mcp_tool_filter.conversation.policy_in_force import Observer, Propagate
    from mcp_tool_filter.policy.rule_effects import WriteLog

_READY = {"ready": 1.0, "upstream_up": 1.0, "sessions": 1.0}


def _nothing_to_end() -> None:
    """Nobody watches."""


def _ignore(_judged: object) -> None:
    """Nobody watches."""


def _enter_nowhere(_effect: WriteLog) -> None:
    pass


@dataclass(frozen=True, slots=True)
class SessionWatch:
    """The observers of a session; by default none."""

    observe: Observer = _ignore
    end: Callable[[], None] = _nothing_to_end
    enter_log: Callable[[WriteLog], None] = _enter_nowhere
    """Called with the log entries of rules."""
    propagate: Propagate | None = None


def watch_session(settings: Settings, write: Callable[[str], None]) -> SessionWatch:
    """Return what watches a session; ``write`` gets its lines.

    Raises StartError if the audit log cannot be written.
    """
    config = settings.config()
    is_shown = settings.verbosity > 0 and settings.log_format != "none"
    is_watched = config.audit is not None or config.metrics_port is not None or is_shown
    if not is_watched:
        return _traced(SessionWatch()) if config.otel else SessionWatch()
    from mcp_tool_filter.adapters.watch.watching import Watching
    from mcp_tool_filter.cli.output.activity import Activity
    from mcp_tool_filter.cli.output.log import as_said

    is_json = settings.log_format == "json"
    activity = Activity(sys.stderr, write, lambda flush: flush(), as_json=is_json)
    watching = Watching(
        config.audit,
        [activity.show] if is_shown else [],
        metrics_port=config.metrics_port,
        hosts=config.allowed_hosts,
        state=lambda: _READY,
        say=lambda text: write(as_said(text)),
    )

    def end() -> None:
        watching.close()
        if is_shown and (summary := activity.end()):
            write(summary)

    watch = SessionWatch(watching.observe, end=end, enter_log=watching.enter_log)
    return _traced(watch) if config.otel else watch


def _traced(watch: SessionWatch) -> SessionWatch:
    """Add tracing. Raises StartError without OpenTelemetry."""
    from mcp_tool_filter.adapters.watch.tracing import Tracer

    tracer = Tracer()

    def observe(judged: Judged) -> None:
        watch.observe(judged)
        tracer.observe(judged)

    def end() -> None:
        watch.end()
        tracer.close()

    return SessionWatch(observe, end, watch.enter_log, tracer.propagate)
