"""The audit log of a running filter: an observer that never breaks or delays a message."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable
from pathlib import Path

from mcp_tool_filter.adapters.audit.writer import AuditFile, AuditWriter, Sync
from mcp_tool_filter.conversation.conversation import Judged
from mcp_tool_filter.observers.audit.entries import Arguments, Auditor
from mcp_tool_filter.policy.config import Audit

log = logging.getLogger(__name__)


class Auditing:
    """Observes until it is closed. Raises StartError if the file cannot be written."""

    def __init__(
        self, audit: Audit, client_of: Callable[[object], str] = lambda _origin: ""
    ) -> None:
        file = AuditFile(
            path=Path(audit.file),
            largest=audit.largest,
            oldest=audit.oldest,
            sync=Sync(audit.fsync),
        )
        self._writer = AuditWriter(file)
        self._auditor = Auditor(
            self._writer.write,
            instance=secrets.token_hex(4),
            clock=time.monotonic,
            client_of=client_of,
            arguments=Arguments(audit.arguments),
        )
        self._has_failed = False

    def observe(self, judged: Judged) -> None:
        try:
            self._auditor.note(judged)
        except Exception:
            if not self._has_failed:
                self._has_failed = True
                log.exception("cannot enter a message in the audit log")

    def close(self) -> None:
        """Enter what is unanswered, and write all of it."""
        self._auditor.close()
        self._writer.close()
