"""Remember the open spans of requests from both sides."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mcp_tool_filter.policy.exchange import Client, Exchange, Via
from mcp_tool_filter.protocol.messages import id_value

if TYPE_CHECKING:
    from opentelemetry.trace import Span

type _Key = int | tuple[int, str]


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

    @property
    def key(self) -> _Key:
        return id(self.exchange) if self.exchange else _key_of(self.client, self.id)


class OpenSpans:
    """A bounded set of open spans."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._open: OrderedDict[_Key, OpenSpan] = OrderedDict()
        self._of_client: dict[int, dict[_Key, OpenSpan]] = {}

    def __len__(self) -> int:
        return len(self._open)

    def add(self, one: OpenSpan) -> Iterator[OpenSpan]:
        """Remember a request; yield the ones that are forgotten for it."""
        if (same := self._take(one.key)) is not None:  # the upstream has reused an id
            yield same
        self._open[one.key] = one
        self._of_client.setdefault(id(one.client), {})[one.key] = one
        if len(self._open) > self._most:
            yield from self.take_oldest()

    def of(self, exchange: Exchange) -> OpenSpan | None:
        return self._open.get(id(exchange))

    def of_upstream(self, client: Client, id: str) -> OpenSpan | None:
        """Return the upstream's request to a client with this id."""
        return self._open.get(_key_of(client, id))

    def take(self, exchange: Exchange) -> OpenSpan | None:
        """Return and forget a client's request that was answered."""
        return self._take(id(exchange))

    def take_of_upstream(self, client: Client, id: str) -> OpenSpan | None:
        return self._take(_key_of(client, id))

    def take_of_client(self, client: Client, id: str) -> OpenSpan | None:
        """Return and forget a client's request with this id."""
        numbered, value = _numbering_of(client), id_value(id)
        for key, one in self._open.items():
            is_same = one.exchange and _numbering_of(one.client) == numbered
            if is_same and id_value(one.id) == value:
                return self._take(key)
        return None

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
            others = self._of_client[id(one.client)]
            del others[key]
            if not others:
                del self._of_client[id(one.client)]
        return one


def _key_of(client: Client, id: str) -> tuple[int, str]:
    return _numbering_of(client), id_value(id)


def _numbering_of(client: Client) -> int:
    """Return a key for the scope of ids: the session, or else the connection."""
    if client.via is Via.STDIO:
        return 0
    return id(client.session or client)
