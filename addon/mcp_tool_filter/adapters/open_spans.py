"""Requests of either side whose spans have not ended."""

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
    """A request that has no answer yet. It holds on to what its key is made of."""

    span: Span
    client: Client
    id: str
    """As it was written."""
    exchange: Exchange | None
    """None if the upstream asks: only ids tell which answer is whose."""
    in_header: bool = False
    """The upstream is to read our span in the header."""

    @property
    def key(self) -> _Key:
        return id(self.exchange) if self.exchange else _key_of(self.client, self.id)


class OpenSpans:
    """Remembers so many of them."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._open: OrderedDict[_Key, OpenSpan] = OrderedDict()
        self._of_client: dict[int, dict[_Key, OpenSpan]] = {}

    def __len__(self) -> int:
        return len(self._open)

    def add(self, one: OpenSpan) -> Iterator[OpenSpan]:
        """Remember a request; yield those that are forgotten instead."""
        if (same := self._take(one.key)) is not None:  # an id that the upstream uses again
            yield same
        self._open[one.key] = one
        self._of_client.setdefault(id(one.client), {})[one.key] = one
        if len(self._open) > self._most:
            yield from self.take_oldest()

    def of(self, exchange: Exchange) -> OpenSpan | None:
        return self._open.get(id(exchange))

    def of_upstream(self, client: Client, id: str) -> OpenSpan | None:
        """Return the request that the upstream has sent to a client with this id."""
        return self._open.get(_key_of(client, id))

    def take(self, exchange: Exchange) -> OpenSpan | None:
        """Return a client's request, and forget it: it is answered."""
        return self._take(id(exchange))

    def take_of_upstream(self, client: Client, id: str) -> OpenSpan | None:
        return self._take(_key_of(client, id))

    def take_of_client(self, client: Client, id: str) -> OpenSpan | None:
        """Return a client's request with this id, and forget it."""
        numbered, value = _numbering_of(client), id_value(id)
        for key, one in self._open.items():
            is_same = one.exchange and _numbering_of(one.client) == numbered
            if is_same and id_value(one.id) == value:
                return self._take(key)
        return None

    def take_all_with(self, client: Client) -> Iterator[OpenSpan]:
        """Yield what this client has asked and was asked, and forget it."""
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
    """Tell apart those whose ids may be the same: sessions, or else connections."""
    if client.via is Via.STDIO:
        return 0
    return id(client.session or client)
