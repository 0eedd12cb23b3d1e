"""Tell all observers about each message, without breaking or delaying any."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mcp_tool_filter.core.conversation.policy_in_force import Judged, PlainObserver
from mcp_tool_filter.core.policy.config import Config
from mcp_tool_filter.rooms.audit.contents import Arguments
from mcp_tool_filter.rooms.audit.entries import (
    Auditor,
    Class,
    EndOf,
    OriginOf,
    Soon,
    Wanted,
)
from mcp_tool_filter.rooms.audit.entry import Entry

if TYPE_CHECKING:
    from mcp_tool_filter.core.policy.effects import WriteLog
    from mcp_tool_filter.rooms.audit.audit_log import AuditWriter

type Sink = Callable[[Entry], None]
"""Gets an entry for each message that matters: the terminal, the audit log, the metrics."""


@dataclass(frozen=True, slots=True)
class Surveyed:
    """What the metrics tell beside messages."""

    state: Callable[[], Mapping[str, float | Mapping[str, float]]]
    say: Callable[[str], None]
    """Gets their address if the user cannot know it."""
    names_servers: bool = False
    """True if each entry names one server of several."""


class Watching:
    """Observes messages until closed. Raises StartError if the audit log cannot be written."""

    def __init__(
        self,
        config: Config,
        sinks: Sequence[Sink] = (),
        *,
        surveyed: Surveyed | None = None,
        keep: Sequence[Sink] = (),
        page: Sink | None = None,
        origin_of: OriginOf = lambda _origin: {},
        soon: Soon | None = None,
    ) -> None:
        """``keep`` get all that the audit log gets. ``page`` gets entries with arguments and
        results, which people may look at.

        ``soon`` delays what only the audit log gets. If it is None, nothing waits.
        """
        self._closing: list[Callable[[], None]] = []
        self._writer: AuditWriter | None = None
        self._count: Sink | None = None
        if config.metrics is not None and surveyed is not None:
            from mcp_tool_filter.rooms.telemetry.metrics import Metrics, serve_metrics

            metrics = Metrics(surveyed.state, names_servers=surveyed.names_servers)
            self._count = metrics.show
            close = serve_metrics(metrics, config.metrics, config.allowed_hosts, surveyed.say)
            self._closing.append(close)
        self._kept = list(keep)
        if (audit := config.audit) is not None:
            from mcp_tool_filter.rooms.audit.audit_log import AuditWriter

            self._writer = AuditWriter(Path(audit.file), largest=audit.largest, oldest=audit.oldest)
            self._kept.insert(0, self._writer.write)
            self._closing.append(self._writer.close)
        self._sinks = [*sinks, *([page] if page else []), *self._kept]
        is_kept_only = self._sinks == self._kept and not self._count
        self._auditor = Auditor(
            self._kept[0] if is_kept_only and len(self._kept) == 1 else self._tell,
            Wanted(
                origin_of=origin_of,
                arguments=Arguments(audit.arguments) if audit else Arguments.NONE,
                with_passed=self._count is not None,
                for_people=len(self._sinks) > len(self._kept),
                with_calls=page is not None,
            ),
            instance=secrets.token_hex(4),
            soon=soon if is_kept_only else None,
        )

    @property
    def audit_log(self) -> str | None:
        """The path of the file that is written now."""
        return self._writer.path if self._writer else None

    @property
    def of_plain_calls(self) -> PlainObserver | None:
        """What observes calls that nobody reads; None if the audit log or the traces read them."""
        return None if self._kept else self._auditor

    def observe(self, judged: Judged) -> None:
        self._auditor.note(judged)

    def give_up(self, end_of: EndOf) -> None:
        """Tell of requests that will not be answered; ``end_of`` knows them."""
        self._auditor.give_up(end_of)

    def enter_log(self, effect: WriteLog) -> None:
        """Add a rule's log entry to the audit log, if there is one."""
        if self._kept:
            self._auditor.note_log(effect)

    def _tell(self, entry: Entry) -> None:
        if "event" in entry:  # the terminal and the metrics show only messages
            for keep in self._kept:
                keep(entry)
            return
        if self._count:
            self._count(entry)
            if entry.get("class") == Class.PASS.value and entry.get("verdict") == "forwarded":
                return
        for sink in self._sinks:
            sink(entry)

    def close(self) -> None:
        """Log the unanswered requests, and flush the log."""
        self._auditor.close()
        for close in self._closing:
            close()
