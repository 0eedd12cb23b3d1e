"""What rules remember of sessions, and of requests until their responses arrive.

It is bounded in number, bytes and time; the least recently used is forgotten first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field

from mcp_tool_filter.core.messages.messages import Request

_MOST_SESSIONS = 10_000
_MOST_REQUESTS = 10_000
_MOST_REQUEST_BYTES = 64 * 1024 * 1024
_CLEAN_EVERY = 60.0  # seconds


@dataclass(slots=True)
class RuleSession:
    """A session as rules see it."""

    id: str
    started: float
    used: float
    messages: int = 0
    responses: int = 0
    errors: int = 0
    seconds: float = 0.0
    """The total time from requests to their responses."""
    custom: dict[str, object] = field(default_factory=dict)
    """For users' own classes."""


class RuleSessions:
    """The sessions, the most recently used last."""

    def __init__(self, ttl: float = 3600.0, *, most: int = _MOST_SESSIONS) -> None:
        self.ttl = ttl
        self._most = most
        self._sessions: OrderedDict[Hashable, RuleSession] = OrderedDict()
        self._cleaned = 0.0

    def get(
        self, key: Hashable, name: Callable[[], str], started: float | None, now: float
    ) -> RuleSession:
        """Return the session of this key, and count one more message; a new one gets the name as
        its id.

        It starts now, or at ``started`` if that is known.
        """
        session = self._sessions.get(key)
        if session is None or now - session.used > self.ttl:
            session = RuleSession(name(), now if started is None else started, now)
            self._sessions[key] = session
            while len(self._sessions) > self._most:
                self._sessions.popitem(last=False)
        session.used = now
        session.messages += 1
        self._sessions.move_to_end(key)
        if now - self._cleaned > _CLEAN_EVERY:
            self._cleaned = now
            while now - next(iter(self._sessions.values())).used > self.ttl:
                self._sessions.popitem(last=False)
        return session

    def __iter__(self) -> Iterator[RuleSession]:
        return iter(list(self._sessions.values()))


class AskedBefore:
    """Requests by session and id, for responses that come on another stream, or again.

    The sender chooses the ids. With ``is_strict``, an id that was used for different requests finds
    none, because we cannot tell which of them a response answers.
    """

    def __init__(
        self,
        *,
        is_strict: bool = False,
        most: int = _MOST_REQUESTS,
        most_bytes: int = _MOST_REQUEST_BYTES,
    ) -> None:
        self._is_strict = is_strict
        self._most, self._most_bytes = most, most_bytes
        self._requests: OrderedDict[tuple[str, str], tuple[Request | None, int]] = OrderedDict()
        self._bytes = 0

    def note(self, session: str, id: str, request: Request) -> None:
        key = session, id
        place = request.place
        kept: Request | None = request
        size = len(place.text)
        if key in self._requests:
            before, old_size = self._requests.pop(key)
            self._bytes -= old_size
            if self._is_strict and (before is None or before.place.raw != place.raw):
                kept, size = None, 0
        self._requests[key] = kept, size
        self._bytes += size
        while len(self._requests) > self._most or self._bytes > self._most_bytes:
            _, (_, gone) = self._requests.popitem(last=False)
            self._bytes -= gone

    def find(self, session: str, id: str) -> Request | None:
        request, _ = self._requests.get((session, id), (None, 0))
        return request
