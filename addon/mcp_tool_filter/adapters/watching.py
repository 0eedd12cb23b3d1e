"""Tells all who watch what became of each message; never breaks or delays one."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from mcp_tool_filter.conversation.conversation import Judged
from mcp_tool_filter.observers.audit.entries import Arguments, Auditor, Entry
from mcp_tool_filter.policy.config import Audit

log = logging.getLogger(__name__)

type Sink = Callable[[Entry], None]
"""Gets an entry for each message that matters: the terminal, the audit log, the metrics."""


class Watching:
    """Observes until it is closed. Raises StartError if the audit log cannot be written."""

    def __init__(
        self,
        audit: Audit | None,
        sinks: Sequence[Sink] = (),
        client_of: Callable[[object], str] = lambda _origin: "",
    ) -> None:
        self._close_log: Callable[[], None] | None = None
        self._sinks = [*sinks, *self._open_log(audit)]
        self._auditor = Auditor(
            self._tell,
            instance=secrets.token_hex(4),
            clock=time.monotonic,
            client_of=client_of,
            arguments=Arguments(audit.arguments) if audit else Arguments.NONE,
        )
        self._has_failed = False

    def _open_log(self, audit: Audit | None) -> list[Sink]:
        if audit is None:
            return []
        from mcp_tool_filter.adapters.audit.writer import AuditFile, AuditWriter, Sync

        file = AuditFile(
            path=Path(audit.file),
            largest=audit.largest,
            oldest=audit.oldest,
            sync=Sync(audit.fsync),
        )
        writer = AuditWriter(file)
        self._close_log = writer.close
        return [writer.write]

    def observe(self, judged: Judged) -> None:
        try:
            self._auditor.note(judged)
        except Exception:
            if not self._has_failed:
                self._has_failed = True
                log.exception("cannot tell what became of a message")

    def _tell(self, entry: Entry) -> None:
        for sink in self._sinks:
            sink(entry)

    def close(self) -> None:
        """Tell of what is unanswered, and write all of the log."""
        self._auditor.close()
        if self._close_log:
            self._close_log()
