"""Remember the requests that wait for an answer, and find one without searching the others.

A client's request is found by its exchange, and by who numbers it and its id:

>>> from mcp_tool_filter.core.policy.situation import Client
>>> client = Client()
>>> key_of(client, '"\\u0061"') == key_of(client, '"a"')
True
>>> key_of(client, "1") == key_of(Client(), "1")
False
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from mcp_tool_filter.core.conversation.policy_in_force import Judged, PlainCall
from mcp_tool_filter.core.messages.limits import Limits
from mcp_tool_filter.core.messages.messages import (
    Notification,
    Request,
    Response,
    id_value,
    parse_message,
)
from mcp_tool_filter.core.policy.situation import Client, Direction, RpcExchange, Via
from mcp_tool_filter.core.policy.verdict import Rewrite, Verdict

MOST = 10_000  # open requests

type RequestKey = tuple[int, str]
type _Key = int | RequestKey


def key_of(client: Client, written: str) -> RequestKey:
    """Return a key for a request, however its id is ``written``.

    The key is valid while the client is referenced: the numbers in it are those of objects.
    """
    scope = 0 if client.via is Via.STDIO else id(client.session or client)
    return scope, id_value(written)


class Waiting(Protocol):
    """A request without an answer yet. It references the objects that its keys are made of."""

    @property
    def exchange(self) -> RpcExchange | PlainCall | None:
        """None for a request of the upstream, whose answer only the id identifies."""

    @property
    def by_id(self) -> RequestKey: ...


class OpenRequests[T: Waiting]:
    """The open requests, oldest first."""

    __slots__ = ("_by_id", "_open")

    def __init__(self) -> None:
        self._open: dict[_Key, T] = {}
        self._by_id: dict[RequestKey, _Key] = {}  # of clients' requests

    def __len__(self) -> int:
        return len(self._open)

    @property
    def all(self) -> list[T]:
        return list(self._open.values())

    def add(self, request: T) -> Sequence[T]:
        """Remember a request; return those that are forgotten for it."""
        same = None
        if (exchange := request.exchange) is None:
            same = self._take(request.by_id)  # the upstream has reused an id
            self._open[request.by_id] = request
        else:
            key = id(exchange)
            self._open[key] = request
            self._by_id[request.by_id] = key
        if same is None and len(self._open) <= MOST:
            return ()
        oldest = self.take_oldest() if len(self._open) > MOST else None
        return [forgotten for forgotten in (same, oldest) if forgotten is not None]

    def of(self, exchange: RpcExchange | PlainCall) -> T | None:
        return self._open.get(id(exchange))

    def of_upstream(self, client: Client, id: str) -> T | None:
        """Return the upstream's request to a client with this id."""
        return self._open.get(key_of(client, id))

    def take(self, exchange: RpcExchange | PlainCall) -> T | None:
        """Return and forget a client's request, for example because it was answered."""
        return self._take(id(exchange))

    def take_of_upstream(self, client: Client, id: str) -> T | None:
        return self._take(key_of(client, id))

    def take_answered(self, judged: Judged, response: Response) -> T | None:
        """Return and forget the request that a response answers."""
        if judged.direction is Direction.FROM_UPSTREAM:
            return self.take(judged.exchange) if judged.exchange else None
        return self.take_of_upstream(judged.client, response.id or "null")

    def take_cancelled(self, judged: Judged, message: Request | Notification) -> T | None:
        """Return and forget the request that a message cancels, if it does."""
        wanted = message.params.get("requestId") if message.params else None
        if wanted is None or message.method != "notifications/cancelled":
            return None
        id = message.place.cut(wanted)
        if judged.direction is Direction.FROM_CLIENT:
            return self.take_by_id(judged.client, id)
        return self.take_of_upstream(judged.client, id)

    def take_unreadable(self, judged: Judged, verdict: Verdict) -> Iterator[tuple[T, bytes]]:
        """Yield and forget the requests that an unreadable message should have answered.

        Each comes with the error that its client gets instead.
        """
        if judged.message is not None or not isinstance(verdict, Rewrite):
            return
        for text in (verdict.text, *verdict.owed):
            error = parse_message(text, Limits(message=len(text)))
            assert isinstance(error, Response)
            id = error.id or "null"
            if (request := self.take_by_id(judged.client, id)) is not None:
                yield request, text

    def take_oldest(self) -> T | None:
        return self._take(next(iter(self._open))) if self._open else None

    def take_by_id(self, client: Client, id: str) -> T | None:
        key = self._by_id.get(key_of(client, id))
        return None if key is None else self._take(key)

    def _take(self, key: _Key) -> T | None:
        request = self._open.pop(key, None)
        if request is not None and self._by_id.get(request.by_id) == key:  # not a later one's
            del self._by_id[request.by_id]
        return request
