"""Remember the requests that wait for an answer."""

from __future__ import annotations

from typing import NamedTuple

from mcp_tool_filter.observers.audit.entry import Entry
from mcp_tool_filter.observers.audit.gathering import Noted
from mcp_tool_filter.observers.request_ids import RequestKey, key_of
from mcp_tool_filter.policy.exchange import Client, Exchange


class OpenRequest(NamedTuple):
    """A request without an answer yet. It references the objects that its keys are made of."""

    exchange: Exchange
    kept: Noted | Entry
    """The message as noted, or already its entry."""
    since: float
    origin: object
    client: Client
    by_id: RequestKey


class OpenRequests:
    """The open requests, oldest first. Finding one never searches the others."""

    __slots__ = ("_by_id", "_open")

    def __init__(self) -> None:
        self._open: dict[int, OpenRequest] = {}
        self._by_id: dict[RequestKey, int] = {}

    def __len__(self) -> int:
        return len(self._open)

    @property
    def all(self) -> list[OpenRequest]:
        return list(self._open.values())

    def add(self, request: OpenRequest) -> None:
        key = id(request.exchange)
        self._open[key] = request
        self._by_id[request.by_id] = key

    def take(self, exchange: Exchange) -> OpenRequest | None:
        """Return and forget the request of this exchange."""
        return self._take(id(exchange))

    def take_by_id(self, client: Client, id: str) -> OpenRequest | None:
        """Return and forget a client's request with this id."""
        key = self._by_id.get(key_of(client, id))
        return None if key is None else self._take(key)

    def take_oldest(self) -> OpenRequest | None:
        return self._take(next(iter(self._open))) if self._open else None

    def _take(self, key: int) -> OpenRequest | None:
        request = self._open.pop(key, None)
        if request is not None and self._by_id.get(request.by_id) == key:  # not a later one's
            del self._by_id[request.by_id]
        return request
