"""What we remember: sessions, and the exchanges in flight. All of it is bounded.

Nothing here is needed to filter; it lets us answer lists from the snapshot, and tell those who
wait when the upstream fails them. What is forgotten is judged as if it had never been known.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Hashable, Iterator
from dataclasses import dataclass, field

from mcp_tool_filter.policy.tool_filter import Envelope
from mcp_tool_filter.protocol.limits import Limits
from mcp_tool_filter.protocol.messages import Message, Request, Response, id_value, singles
from mcp_tool_filter.protocol.tools import Listing

_LIMITS = Limits()
_LONGEST_METHOD = 64  # characters; every method that matters to us is shorter
_LONGEST_KEY = 1024  # characters of a session's id
_LONGEST_ENVELOPE = 64 * 1024  # characters; without one, the upstream answers each list itself


class Exchanges:
    """Requests that wait for their response: the value of the id to id and method.

    Ids are compared by value, for an upstream may write ``"\\u0061"`` as ``"a"``; but each is
    kept as the client wrote it. Both the number and the bytes of what is kept are bounded.
    """

    def __init__(
        self, *, most: int = _LIMITS.exchanges, most_bytes: int = _LIMITS.exchange_bytes
    ) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._size = 0
        self._waiting: OrderedDict[str, tuple[str, str]] = OrderedDict()

    def note_asked(self, message: Message) -> None:
        for one in singles(message):
            if isinstance(one, Request):
                self._forget(id_value(one.id))
                self._waiting[id_value(one.id)] = one.id, one.method[:_LONGEST_METHOD]
                self._size += len(one.id)
        while len(self._waiting) > self._most or self._size > self._most_bytes:
            self._forget(next(iter(self._waiting)))

    def note_answered(self, message: Message) -> None:
        for one in singles(message):
            if isinstance(one, Response) and one.id is not None:
                self._forget(id_value(one.id))

    def method_of(self, message: Message) -> str | None:
        """Return what a response answers, if we know."""
        if isinstance(message, Response) and message.id is not None:
            waiting = self._waiting.get(id_value(message.id))
            return waiting[1] if waiting else None
        return None

    @property
    def methods(self) -> Collection[str]:
        return [method for _, method in self._waiting.values()]

    def take(self, ids: list[str]) -> list[str]:
        """Return those of the ids that somebody waits for, who from now on waits no more."""
        taken = [self._forget(id_value(id)) for id in ids]
        return [id for id in taken if id is not None]

    def take_all(self) -> list[str]:
        ids = [id for id, _ in self._waiting.values()]
        self._waiting.clear()
        self._size = 0
        return ids

    def _forget(self, value: str) -> str | None:
        """Forget who waits for this id; return the id as it was written."""
        waiting = self._waiting.pop(value, None)
        if waiting is None:
            return None
        self._size -= len(waiting[0])
        return waiting[0]

    def __len__(self) -> int:
        return len(self._waiting)


@dataclass(slots=True)
class Session:
    """A client's session with the upstream, opened through us."""

    revision: str | None = None
    exchanges: Exchanges = field(default_factory=Exchanges)
    is_like_the_fetch: bool = True
    """No request in it says more of its client than our own fetch says of us."""


class Sessions:
    """The sessions by key; the least recently used and the long silent are forgotten."""

    def __init__(self, limits: Limits = _LIMITS) -> None:
        self._limits = limits
        self._sessions: OrderedDict[Hashable, tuple[float, Session]] = OrderedDict()

    def open(self, key: Hashable, now: float) -> Session:
        """Return a new session under this key; it is not remembered if its key is too long."""
        session = Session(exchanges=Exchanges(most=self._limits.exchanges))
        if isinstance(key, str) and len(key) > _LONGEST_KEY:
            return session
        self._sessions[key] = (now, session)
        self._sessions.move_to_end(key)
        self._forget(now)
        return session

    def get(self, key: Hashable, now: float) -> Session | None:
        if key not in self._sessions:
            return None
        last_used, session = self._sessions[key]
        if now - last_used > self._limits.idle:
            del self._sessions[key]
            return None
        self._sessions[key] = (now, session)
        self._sessions.move_to_end(key)
        return session

    def close(self, key: Hashable) -> None:
        self._sessions.pop(key, None)

    def __iter__(self) -> Iterator[tuple[Hashable, float, Session]]:
        """Yield key, time of last use and session; the one used last comes last."""
        for key, (last_used, session) in list(self._sessions.items()):
            yield key, last_used, session

    def _forget(self, now: float) -> None:
        while len(self._sessions) > self._limits.sessions:
            self._sessions.popitem(last=False)
        for key, (last_used, _) in list(self._oldest(10)):
            if now - last_used > self._limits.idle:
                del self._sessions[key]

    def _oldest(self, most: int) -> Iterator[tuple[Hashable, tuple[float, Session]]]:
        for _, item in zip(range(most), self._sessions.items(), strict=False):
            yield item

    def __len__(self) -> int:
        return len(self._sessions)


class Envelopes:
    """What stands around the tools in each revision's list, from the first list that was seen."""

    def __init__(self) -> None:
        self._by_revision: dict[str, Envelope] = {}

    def get(self, revision: str | None) -> Envelope | None:
        return self._by_revision.get(revision) if revision else None

    def learn(self, revision: str, listing: Listing) -> None:
        """Keep the first one; later pages and later answers do not change it."""
        if sum(map(len, listing.frame)) <= _LONGEST_ENVELOPE:
            self._by_revision.setdefault(revision, Envelope(*listing.frame))
