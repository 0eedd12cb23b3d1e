"""What we remember: sessions and exchanges in flight, all within limits.

The filter does not need this; it lets us answer lists from the snapshot, and answer waiting clients
when the upstream fails. A forgotten session is judged as if it had never been known.

And what an upstream told our fetch about itself and its tools, unchanged (``Fetched``).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice

from mcp_tool_filter.core.messages.large import ResultEnvelope
from mcp_tool_filter.core.messages.limits import MEBIBYTE, NEWEST_WITH_INITIALIZE, Limits, Transport
from mcp_tool_filter.core.messages.messages import id_value
from mcp_tool_filter.core.policy.situation import Client, RpcExchange, Session
from mcp_tool_filter.core.policy.snapshot import Snapshot
from mcp_tool_filter.core.policy.verdict import Forward, Reason, Rewrite, Verdict

_LIMITS = Limits()
_LONGEST_KEY = 1024  # characters of a session's id


class HeldRequests:
    """The requests of all clients of a listener whose decision waits.

    The notification that cancels one may come on another connection. Over HTTP without a session it
    cancels nothing: any client could send it.
    """

    def __init__(self, most: int = _LIMITS.exchanges) -> None:
        self._most = most
        self.requests: dict[RpcExchange, tuple[object, str]] = {}
        """The session and the value of the id of each, the oldest first."""

    def add(self, client: Client, exchange: RpcExchange) -> None:
        if (who := _session_of(client)) is not None and exchange.id is not None:
            self.requests[exchange] = who, id_value(exchange.id)
            if len(self.requests) > self._most:
                del self.requests[next(iter(self.requests))]

    def cancel(self, client: Client, id: str) -> bool:
        """Cancel a client's request; return whether it was held."""
        who = _session_of(client)
        same = [one for one, named in self.requests.items() if named == (who, id_value(id))]
        for one in same:
            one.is_cancelled = True
        return bool(same)


def _session_of(client: Client) -> object:
    """Return what requests and cancellations of one client have in common; None if nothing has."""
    return client.session.serial if client.session is not None else client.claimed_session or None


class JudgedLists:
    r"""Judged tool lists, because an upstream sends the same list to each user again and again.

    It forgets the least recently used. Two answers that differ only in their envelope, which has
    nothing but jsonrpc and a simple id, get the same verdict, each with its own id:

    >>> from mcp_tool_filter.core.policy.taking import take_snapshot
    >>> from mcp_tool_filter.core.policy.verdict import Why
    >>> from mcp_tool_filter.core.messages.large import find_result_envelope
    >>> judged, snapshot = JudgedLists(), take_snapshot([])
    >>> one, other = (b'{"id":%d,"result":{"tools":["a"]},"jsonrpc":"2.0"}' % id for id in (1, 27))
    >>> hidden = Rewrite(one.replace(b'"a"', b""), Reason(Why.HIDDEN, ("a",)))
    >>> judged.remember(one, find_result_envelope(one), hidden, snapshot)
    >>> judged.recall(other, find_result_envelope(other), snapshot).text
    b'{"id":27,"result":{"tools":[]},"jsonrpc":"2.0"}'
    """

    def __init__(self, *, most: int = 100, most_bytes: int = 16 * MEBIBYTE) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._size = 0
        self._lists: OrderedDict[tuple[int, bytes], tuple[Snapshot, bytes, Reason | None]] = (
            OrderedDict()
        )
        """The snapshot that judged a result, what it became, and why if it was rewritten."""

    def recall(
        self, raw: bytes, envelope: ResultEnvelope, snapshot: Snapshot
    ) -> Forward | Rewrite | None:
        """Return the verdict on an answer with a known list."""
        key = id(snapshot), raw[envelope.start : envelope.end]
        known = self._lists.get(key)
        if known is None:
            return None
        self._lists.move_to_end(key)
        _, became, reason = known
        if reason is None:
            return Forward()
        return Rewrite(b"".join([raw[: envelope.start], became, raw[envelope.end :]]), reason)

    def remember(
        self, raw: bytes, envelope: ResultEnvelope, verdict: Verdict, snapshot: Snapshot
    ) -> None:
        """Remember the verdict on an answer to tools/list."""
        before, after = envelope.start, len(raw) - envelope.end
        result, became, reason = raw[before : envelope.end], b"", None
        if isinstance(verdict, Rewrite):
            became, reason = verdict.text[before : len(verdict.text) - after], verdict.reason
        elif not isinstance(verdict, Forward):
            return
        if len(result) + len(became) > self._most_bytes or (id(snapshot), result) in self._lists:
            return
        self._lists[id(snapshot), result] = snapshot, became, reason
        self._size += len(result) + len(became)
        while len(self._lists) > self._most or self._size > self._most_bytes:
            (_, result), (_, became, _) = self._lists.popitem(last=False)
            self._size -= len(result) + len(became)


class Sessions:
    """The sessions by key. It forgets the least recently used and those idle for too long."""

    def __init__(self, limits: Limits = _LIMITS) -> None:
        self._limits = limits
        self._sessions: OrderedDict[Hashable, tuple[float, Session]] = OrderedDict()

    def open(self, key: Hashable, now: float) -> Session:
        """Return a new session, which is remembered unless its key is too long."""
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
        """Yield key, time of last use and session, the most recently used one last."""
        for key, (last_used, session) in list(self._sessions.items()):
            yield key, last_used, session

    def _forget(self, now: float) -> None:
        while len(self._sessions) > self._limits.sessions:
            self._sessions.popitem(last=False)
        for key, (last_used, _) in list(islice(self._sessions.items(), 10)):
            if now - last_used > self._limits.idle:
                del self._sessions[key]

    def __len__(self) -> int:
        return len(self._sessions)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    transport: Transport = Transport.STREAMABLE
    revision: str = NEWEST_WITH_INITIALIZE
    endpoint: str = "/mcp"
    """The path and query that worked."""
    server_name: str = ""
    server_version: str = ""
    instructions: str | None = None
    offered: Mapping[str, object] = field(default_factory=dict)
    """Its capabilities, as it has declared them."""
    sessions: bool = True
    """Whether the upstream gave us an ``Mcp-Session-Id``."""
    pages: tuple[bytes, ...] = ()
    """Each answer to tools/list, unchanged."""
    others: Mapping[str, tuple[bytes, ...]] = field(default_factory=dict)
    """The answers to other methods that list something; only for the report."""
    is_for_all: bool = False
    """True if every kind of asker gets the same list, as in a recording."""
    is_listed: bool = True
    """False if the upstream lists its tools only to users who log in."""


def unlisted(path: str) -> Fetched:
    """Return what we know of an upstream that lists its tools only to logged-in users."""
    return Fetched(endpoint=path, is_listed=False)


def example(*names: str) -> Fetched:
    """Return what a fetch from an upstream with these tools gives; for doctests and examples."""
    tools = ",".join(f'{{"name":"{name}","inputSchema":{{}}}}' for name in names)
    page = f'{{"jsonrpc":"2.0","id":1,"result":{{"tools":[{tools}]}}}}'.encode()
    return Fetched(server_name="example", server_version="1", pages=(page,))
