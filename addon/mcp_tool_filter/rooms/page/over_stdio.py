"""The page of a session over stdio, which the page of another process asks for.

A session is the whole process, and has no event loop: a thread answers, and the lock keeps it apart
from the threads that observe messages.
"""

from __future__ import annotations

import secrets
import sys
import time
from collections.abc import Callable, Iterable
from threading import RLock

from mcp_tool_filter.cli.line_session import LineSession
from mcp_tool_filter.core.conversation.memory import Fetched
from mcp_tool_filter.core.conversation.policy_in_force import Judged
from mcp_tool_filter.core.http.listener import Listener, open_listener
from mcp_tool_filter.core.process.statistics import JsonObject, Statistics
from mcp_tool_filter.rooms.audit.entries import Auditor, Wanted
from mcp_tool_filter.rooms.page.dashboard import Dashboard, Overview, Switches, answer_other
from mcp_tool_filter.rooms.page.saving import FileOfPatterns
from mcp_tool_filter.rooms.secrets.shown import shown_words

type Seen = tuple[Judged, float, float]
"""A message, and the time by both clocks."""
_UNSEEN = 10.0  # seconds without a question until nobody looks any more


class SessionPage:
    """What other processes see and change of a session."""

    def __init__(self, session: LineSession, counted: Statistics) -> None:
        """The lines of the session are judged already."""
        assert session.policy
        self._session, self._policy = session, session.policy
        self.lock = RLock()
        self._name = session.name or "stdio://"  # what the server calls itself is shown then
        self._shown: tuple[object, Listener] | None = None
        self._overview = Overview({}, {self._name: counted}, names=lambda: [self._name])
        file = FileOfPatterns(session.sources) if session.sources else None
        switches = Switches(
            lambda: session.config,
            lambda: [self._listener().snapshot],
            session.edit_deny,
            savings=file.of(session.name) if file else None,
            policies=lambda: [self._policy],
            adopt=session.adopt,
        )
        self._board = Dashboard(self._state, switches, definition=self._overview.definition)
        self._times: tuple[float, float] | None = None
        self._asked_at = 0.0
        self._until_unseen: Callable[[], None] = lambda: None
        self._auditor = self._new_auditor()

    def _new_auditor(self) -> Auditor:
        return Auditor(
            self._board.timeline.note,
            Wanted(for_people=True, with_calls=True),
            instance=secrets.token_hex(4),
            now=lambda: self._times[0] if self._times else time.time(),
            clock=lambda: self._times[1] if self._times else time.monotonic(),
        )

    # What it observes

    def take(self, kept: Iterable[Seen], *, until_unseen: Callable[[], None]) -> None:
        """Take what was kept until now; observe from now on, until nobody looks."""
        self._auditor, self._until_unseen = self._new_auditor(), until_unseen
        self._asked_at = time.monotonic()
        for judged, now, clock in kept:
            self._times = now, clock
            self._auditor.note(judged)
        self._times = None

    def observe(self, judged: Judged) -> None:
        with self.lock:
            self._auditor.note(judged)
            if time.monotonic() - self._asked_at > _UNSEEN:
                self._until_unseen()

    # What it answers

    def answer_other(self, question: JsonObject, described: JsonObject) -> JsonObject | bytes:
        self._asked_at = time.monotonic()
        if "do" in question:  # it may wait for a thread that observes, so it holds no lock
            return answer_other(self._board, question, described)
        with self.lock:
            return answer_other(self._board, question, described)

    def _state(self) -> dict[str, object]:
        self._overview.listeners = {self._name: self._listener()}
        [shown] = self._overview.render()
        client = next((str(one["client"]) for one in self._board.timeline.callers()), "")
        revision = self._session.revision()
        session = {"id": "stdio", "client": client, "revision": revision or "?"}
        shown |= {"transport": "stdio", "revision": revision, "entry": _entry()}
        shown["sessions"] = [session | {"seconds_ago": None, "waiting": 0}]
        return {"listeners": [shown], "refused_edit": ""}

    def _listener(self) -> Listener:
        """Return a listener with the tools that are known now; nobody is connected to it."""
        listed, config = self._policy.kinds.start.listed, self._session.config
        pages = listed.pages if listed else ()
        if self._shown is None or self._shown[0] != (pages, id(config)):
            called, server = self._session.called(), self._session.server()
            fetched = Fetched(endpoint="", server_name=server, pages=pages, is_listed=bool(pages))
            listener = open_listener(
                upstream="http://stdio.invalid", config=config, fetched=fetched
            )
            listener.called = called
            self._shown = (pages, id(config)), listener
        return self._shown[1]


def _entry() -> JsonObject | None:
    """Return what starts this session in a client's file; None if a secret is in it."""
    words = sys.argv[1:]
    is_open = shown_words(words) == words
    return {"command": "mcp-tool-filter", "args": words} if is_open else None
