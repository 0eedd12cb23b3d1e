"""Let ``status`` and pages find a session over stdio, once it has started: that takes imports."""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Event, Lock, Thread
from typing import TYPE_CHECKING

from mcp_tool_filter.cli.line_session import LineSession

if TYPE_CHECKING:
    from mcp_tool_filter.core.conversation.policy_in_force import Judged, Observer

_UNLISTED = 1.0  # seconds from the start until the client has asked for the tools, or will not yet
_PAUSE = 0.05  # seconds in which the client gets the list


def announce_session(session: LineSession) -> None:
    presence = _Presence(session)
    session.observers.append(lambda judged: presence.note(judged))
    session.ends.callback(presence.end)
    session.on_ready.append(presence.begin)
    session.on_listed.append(presence.listed.set)


class _Presence:
    """What other programs learn about the session."""

    def __init__(self, session: LineSession) -> None:
        self._session = session
        self._started = time.time()
        self._early: list[Judged] = []
        self.note: Observer = self._early.append
        self.listed = Event()
        self._lock = Lock()
        self._is_over = False
        self._close: Callable[[], None] = lambda: None

    def begin(self) -> None:
        Thread(target=self._announce, daemon=True).start()

    def end(self) -> None:
        with self._lock:
            self._is_over = True
            self._close()

    def _announce(self) -> None:
        self.listed.wait(_UNLISTED)
        time.sleep(_PAUSE)
        from mcp_tool_filter.core.process.statistics import Statistics
        from mcp_tool_filter.rooms.status.running import (
            announce,
            describe_filter,
            describe_server,
        )

        session, counted = self._session, Statistics()
        self.note = lambda judged: counted.note(judged, time.time())
        while self._early:
            self.note(self._early.pop(0))

        def answer() -> dict[str, object]:
            server = describe_server(
                session.name or None,
                session.called(),
                session.snapshot,
                counted,
                server=session.server(),
                listens_at="stdio",
                has_login=session.has_login,
                config=session.config,
            )
            log = session.facts.get("audit_log", lambda: None)()
            return describe_filter(
                [server],
                started=self._started,
                config_file=session.config_file,
                audit_log=log,
            )

        with self._lock:
            if not self._is_over and (announced := announce(answer)):
                self._close = announced.close
