"""Let ``status`` and pages find a session over stdio, once it has started: that takes imports."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from threading import Event, Lock, Thread
from typing import TYPE_CHECKING

from mcp_tool_filter.cli.line_session import LineSession

if TYPE_CHECKING:
    from mcp_tool_filter.core.conversation.policy_in_force import Judged, Observer
    from mcp_tool_filter.core.process.statistics import Statistics
    from mcp_tool_filter.rooms.page.over_stdio import Seen, SessionPage

_MOST_KEPT = 1000  # messages, for a page that is opened later
_MOST_BYTES = 2 * 1024 * 1024
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
        self._kept: deque[Seen] = deque()
        self._size = 0
        self._early: list[Judged] = []
        self._counted: Statistics  # from the announcement on
        self._page: SessionPage | None = None
        self._observe: Observer = self._keep
        self.note: Observer = self._note_early
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

    def _note_early(self, judged: Judged) -> None:
        self._early.append(judged)
        self._keep(judged)

    def _keep(self, judged: Judged) -> None:
        """Keep a message for a page. (Its entry would take thirty times as long to make.)"""
        self._kept.append((judged, time.time(), time.monotonic()))
        self._size += judged.size
        while self._size > _MOST_BYTES or len(self._kept) > _MOST_KEPT:
            self._size -= self._kept.popleft()[0].size

    def _announce(self) -> None:
        self.listed.wait(_UNLISTED)
        time.sleep(_PAUSE)
        from mcp_tool_filter.core.process.statistics import Statistics
        from mcp_tool_filter.rooms.status.running import announce

        self._counted = Statistics()
        self.note = self._note
        while self._early:
            self._counted.note(self._early.pop(0), time.time())
        with self._lock:
            if not self._is_over and (announced := announce(self._answer, self._answer_page)):
                self._close = announced.close

    def _note(self, judged: Judged) -> None:
        self._counted.note(judged, time.time())
        self._observe(judged)

    def _answer(self) -> dict[str, object]:
        from mcp_tool_filter.rooms.status.running import describe_filter, describe_server

        session = self._session
        server = describe_server(
            session.name or None,
            session.called(),
            session.snapshot,
            self._counted,
            server=session.server(),
            listens_at="stdio",
            has_login=session.has_login,
            config=session.config,
        )
        log = session.facts.get("audit_log", lambda: None)()
        return describe_filter(
            [server], started=self._started, config_file=session.config_file, audit_log=log
        )

    def _answer_page(self, question: dict[str, object]) -> dict[str, object] | bytes:
        if self._page is None:  # the first that looks
            from mcp_tool_filter.rooms.page.over_stdio import SessionPage

            self._page = SessionPage(self._session, self._counted)
        page = self._page
        if self._observe != page.observe:
            with page.lock:  # what comes now waits for what was kept
                self._observe = page.observe
                kept, self._kept, self._size = self._kept, deque(), 0
                page.take(kept, until_unseen=self._keep_again)
        return page.answer_other(question, self._answer())

    def _keep_again(self) -> None:
        self._observe = self._keep
