"""The audit log, the metrics, the traces and the terminal of a session over stdio."""

from __future__ import annotations

from mcp_tool_filter.cli.line_session import LineSession
from mcp_tool_filter.core.policy.effects import WriteLog
from mcp_tool_filter.rooms.telemetry.watching import Sink, Surveyed, Watching


def watch(session: LineSession) -> None:
    """Observe a session. Raises StartError if the log cannot be written, or nothing can trace."""
    keep: list[Sink] = []
    if session.config.otel:
        from mcp_tool_filter.rooms.telemetry.tracing import Tracer

        tracer = Tracer()
        session.ends.callback(tracer.close)  # it gets the last entries, too
        session.observers.append(tracer.observe)
        session.propagate = tracer.propagate
        keep.append(tracer.show)
    surveyed = Surveyed(session.state, session.warn)
    watching = Watching(session.config, session.sinks, surveyed=surveyed, keep=keep)
    session.ends.callback(watching.close)
    session.observers.append(watching.observe)
    session.facts["audit_log"] = lambda: watching.audit_log

    def note(said: object) -> None:
        if isinstance(said, WriteLog):
            watching.enter_log(said)

    session.notes.append(note)
