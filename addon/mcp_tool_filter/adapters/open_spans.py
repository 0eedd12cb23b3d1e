"""Remember the open spans of requests from both sides."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mcp_tool_filter.observers.request_ids import RequestKey, key_of
from mcp_tool_filter.policy.exchange import Client, Exchange

if TYPE_CHECKING:
    from opentelemetry.trace import Span

type _Key = int | RequestKey


@dataclass(slots=True, eq=False)
class OpenSpan:
    """A request without an answer yet. It references the objects that its key is made of."""

    span: Span
    client: Client
    id: str
    """The id as it was written."""
    exchange: Exchange | None
    """None for a request of the upstream, whose answer only the id identifies."""
    in_header: bool = False
    """True if the upstream should read our span in the header."""
    by_id: RequestKey | None = None
    """How a cancellation finds a client's request, since it was opened."""

    @property
    def key(self) -> _Key:
        return id(self.exchange) if self.exchange else key_of(self.client, self.id)


class OpenSpans:
    """A bounded set of open spans."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._open: OrderedDict[_Key, OpenSpan] = OrderedDict()
        self._of_client: dict[int, dict[_Key, OpenSpan]] = {}
        self._by_id: dict[RequestKey, _Key] = {}  # of clients' requests

    def __len__(self) -> int:
        return len(self._open)

    def add(self, one: OpenSpan) -> Iterator[OpenSpan]:
        """Remember a request; yield the ones that are forgotten for it."""
        if (same := self._take(one.key)) is not None:  # the upstream has reused an id
            yield same
        self._open[one.key] = one
        self._of_client.setdefault(id(one.client), {})[one.key] = one
        if one.exchange:
            one.by_id = key_of(one.client, one.id)
            self._by_id[one.by_id] = one.key
        if len(self._open) > self._most:
            yield from self.take_oldest()

    def of(self, exchange: Exchange) -> OpenSpan | None:
        return self._open.get(id(exchange))

    def of_upstream(self, client: Client, id: str) -> OpenSpan | None:
        """Return the upstream's request to a client with this id."""
        return self._open.get(key_of(client, id))

    def take(self, exchange: Exchange) -> OpenSpan | None:
        """Return and forget a client's request that was answered."""
        return self._take(id(exchange))

    def take_of_upstream(self, client: Client, id: str) -> OpenSpan | None:
        return self._take(key_of(client, id))

    def take_of_client(self, client: Client, id: str) -> OpenSpan | None:
        """Return and forget a client's request with this id."""
        key = self._by_id.get(key_of(client, id))
        return None if key is None else self._take(key)

    def take_all_with(self, client: Client) -> Iterator[OpenSpan]:
        """Yield and forget all requests from and to this client."""
        for key in list(self._of_client.get(id(client), ())):
            if one := self._take(key):
                yield one

    def take_oldest(self) -> Iterator[OpenSpan]:
        if self._open and (one := self._take(next(iter(self._open)))):
            yield one

    def _take(self, key: _Key) -> OpenSpan | None:
        one = self._open.pop(key, None)
        if one is not None:
            if one.by_id and self._by_id.get(one.by_id) == key:  # not that of a later request
                del self._by_id[one.by_id]
            others = self._of_client[id(one.client)]
            del others[key]
            if not others:
                del self._of_client[id(one.client)]
        return one
