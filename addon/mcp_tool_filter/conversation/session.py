"""What we remember: sessions, and the exchanges in flight. All of it is bounded.

Nothing here is needed to filter; it lets us answer lists from the snapshot, and tell those who
wait when the upstream fails them. What is forgotten is judged as if it had never been known.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Hashable, Iterator
from dataclasses import dataclass, field

from mcp_tool_filter.policy.exchange import Exchange, Session
from mcp_tool_filter.policy.tool_filter import Envelope
from mcp_tool_filter.policy.verdict import Reason, Reply, Why
from mcp_tool_filter.protocol.limits import Limits
from mcp_tool_filter.protocol.messages import (
    INVALID_REQUEST,
    Message,
    Response,
    id_value,
    render_error,
)
from mcp_tool_filter.protocol.tools import Listing

_LIMITS = Limits()
_LIST = "tools/list"
_LONGEST_KEY = 1024  # characters of a session's id
_LONGEST_ENVELOPE = 64 * 1024  # characters; without one, the upstream answers each list itself


@dataclass(slots=True, eq=False, kw_only=True)
class Exchanges:
    """Requests that wait for their response, by the value of their id.

    Ids are compared by value, for an upstream may write ``"\\u0061"`` as ``"a"``; but each is
    kept as the client wrote it. Both the number and the bytes of what is kept are bounded.
    """

    most: int = _LIMITS.exchanges
    most_bytes: int = _LIMITS.exchange_bytes
    lists: int = 0
    """How many ask for a tool list."""
    _size: int = 0
    _waiting: dict[str, Exchange] = field(default_factory=dict)
    """The oldest comes first."""

    def open(self, exchange: Exchange) -> None:
        """Remember a request that has been sent on; the oldest is forgotten if there are many."""
        id, waiting = exchange.id, self._waiting
        if id is None:
            return
        value = exchange.key = id if id.isdigit() else id_value(id)
        if value in waiting:
            self._forget(value)
        waiting[value] = exchange
        self.lists += exchange.method == _LIST
        self._size += _size_of(exchange)
        while len(waiting) > self.most or self._size > self.most_bytes:
            self._forget(next(iter(waiting)))

    def is_taken(self, exchange: Exchange) -> bool:
        """Tell whether another request, which rules want to see with its response, has this id.

        A response to either could not be told from one to the other.
        """
        if not self._waiting or exchange.id is None:
            return False
        before = self._waiting.get(id_value(exchange.id))
        if before is None or before.request is None:
            return False
        return exchange.request is None or before.request.place.raw != exchange.request.place.raw

    def answered_by(self, message: Message) -> Exchange | None:
        """Return what a response answers, if we know."""
        if isinstance(message, Response) and (id := message.id) is not None:
            return self._waiting.get(id if id.isdigit() else id_value(id))
        return None

    def close(self, exchange: Exchange) -> None:
        """Forget a request that is answered, unless another has its id by now."""
        if self._waiting.get(exchange.key) is exchange:
            self._forget(exchange.key)

    @property
    def methods(self) -> Collection[str]:
        return [exchange.method for exchange in self._waiting.values()]

    @property
    def subscriptions(self) -> list[str]:
        """What the upstream calls each request that it answers with changes of the tool list."""
        return [one.subscription for one in self._waiting.values() if one.subscription]

    @property
    def ids(self) -> list[str]:
        """All ids that somebody waits for, as they were written, oldest first."""
        return [exchange.id for exchange in self._waiting.values() if exchange.id is not None]

    def take(self, ids: list[str]) -> list[str]:
        """Return those of the ids that somebody waits for, who from now on waits no more."""
        taken = [self._forget(id_value(id)) for id in ids]
        return [one.id for one in taken if one is not None and one.id is not None]

    def take_all(self, *, besides: Collection[str] = ()) -> list[str]:
        """Return all ids that somebody waits for, who waits no more; not for these methods."""
        if besides:
            due = [one for one in self._waiting.values() if one.method not in besides]
            return self.take([one.id for one in due if one.id is not None])
        ids = self.ids
        self._waiting.clear()
        self._size = self.lists = 0
        return ids

    def _forget(self, value: str) -> Exchange | None:
        exchange = self._waiting.pop(value, None)
        if exchange is not None:
            self._size -= _size_of(exchange)
            self.lists -= exchange.method == _LIST
        return exchange

    def __len__(self) -> int:
        return len(self._waiting)


def _size_of(exchange: Exchange) -> int:
    size = len(exchange.id) if exchange.id else 0
    return size + len(exchange.request.place.text) if exchange.request else size


def refuse_taken(exchange: Exchange) -> Reply:
    """Refuse a request under an id that another one waits under."""
    text = render_error(exchange.id, INVALID_REQUEST, "Invalid Request")
    return Reply(text, Reason(Why.MALFORMED, detail="an id that another request waits under"))


class Sessions:
    """The sessions by key; the least recently used and the long silent are forgotten."""

    def __init__(self, limits: Limits = _LIMITS) -> None:
        self._limits = limits
        self._sessions: OrderedDict[Hashable, tuple[float, Session]] = OrderedDict()

    def open(self, key: Hashable, now: float) -> Session:
        """Return a new session under this key; it is not remembered if its key is too long."""
        session = Session(id=str(key), started=now)
        if len(session.id or "") > _LONGEST_KEY:
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

    def learn(self, revision: str, listing: Listing | None) -> None:
        """Keep the first one; later pages and later answers do not change it."""
        if listing and sum(map(len, listing.frame)) <= _LONGEST_ENVELOPE:
            self._by_revision.setdefault(revision, Envelope(*listing.frame))
