"""The requests that wait for a response, and the subscriptions among them.

Clients of 2026-07-28 subscribe to ``notifications/tools/list_changed``: they send
``subscriptions/listen``, and the upstream acknowledges and says which of the requested
notifications it will send. Each of these names the id of that request:

>>> notice("7")
b'{"jsonrpc":"2.0","method":"notifications/tools/list_changed",\
"params":{"_meta":{"io.modelcontextprotocol/subscriptionId":7}}}'
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from mcp_tool_filter.core.messages.limits import Limits
from mcp_tool_filter.core.messages.messages import Message, Notification, Place, Response, id_value
from mcp_tool_filter.core.messages.scan import Value, open_value
from mcp_tool_filter.core.messages.sizes import NAME
from mcp_tool_filter.core.policy.situation import RpcExchange

_LIMITS = Limits()
_LIST = "tools/list"
LIST_CHANGED = "notifications/tools/list_changed"
ACKNOWLEDGED = "notifications/subscriptions/acknowledged"
_SUBSCRIPTION = "io.modelcontextprotocol/subscriptionId"


@dataclass(slots=True, eq=False, kw_only=True)
class Exchanges:
    """The requests that wait for a response, by the value of their id.

    We compare ids by value, because an upstream may write ``"\\u0061"`` as ``"a"``, but keep each
    as the client wrote it. Both the number and the bytes of these requests are bounded.
    """

    most: int = _LIMITS.exchanges
    most_bytes: int = _LIMITS.exchange_bytes
    lists: int = 0
    """How many of them ask for a tool list."""
    _size: int = 0
    _waiting: dict[str, RpcExchange] = field(default_factory=dict)
    """The oldest comes first."""

    def open(self, exchange: RpcExchange) -> None:
        """Remember a forwarded request; forget the oldest ones if there are too many."""
        id, waiting = exchange.id, self._waiting
        if id is None:
            return
        value = exchange.key = id if id.isdigit() else id_value(id)
        if exchange.method == _LIST and self.lists:
            self._doubt_lists(exchange)
        if value in waiting:
            self._forget(value)
        waiting[value] = exchange
        self.lists += exchange.method == _LIST
        self._size += _size_of(exchange)
        while len(waiting) > self.most or self._size > self.most_bytes:
            self._forget(next(iter(waiting)))

    def _doubt_lists(self, new: RpcExchange) -> None:
        """Learn from no list if several are asked for at once, unless all are the same.

        Under one id, an answer may be taken for that of another request.
        """
        asked = [new, *(one for one in self._waiting.values() if one.method == _LIST)]
        if any(one.is_unusual or one.cursor != new.cursor for one in asked):
            for one in asked:
                one.is_unusual = True

    def is_taken(self, exchange: RpcExchange) -> bool:
        """Tell whether this id belongs to another open request that rules want to see with its
        response.

        We could not tell which of the two a response answers.
        """
        if not self._waiting or exchange.id is None:
            return False
        before = self._waiting.get(id_value(exchange.id))
        if before is None or before.request is None:
            return False
        return exchange.request is None or before.request.place.raw != exchange.request.place.raw

    def answered_by(self, message: Message) -> RpcExchange | None:
        """Return the exchange that a response answers, if we know it."""
        if isinstance(message, Response) and (id := message.id) is not None:
            return self._waiting.get(id if id.isdigit() else id_value(id))
        return None

    def close(self, exchange: RpcExchange) -> None:
        """Forget an answered request, unless another one uses its id by now."""
        if self._waiting.get(exchange.key) is exchange:
            self._forget(exchange.key)

    @property
    def methods(self) -> Collection[str]:
        return [exchange.method for exchange in self._waiting.values()]

    @property
    def subscriptions(self) -> list[str]:
        """The upstream's id of each request for notifications of list changes."""
        return [one.subscription for one in self._waiting.values() if one.subscription]

    @property
    def ids(self) -> list[str]:
        """The ids of all waiting requests, as they were written, oldest first."""
        return [exchange.id for exchange in self._waiting.values() if exchange.id is not None]

    def take(self, ids: list[str]) -> list[str]:
        """Forget the waiting requests with these ids; return their ids as they were written."""
        taken = [self._forget(id_value(id)) for id in ids]
        return [one.id for one in taken if one is not None and one.id is not None]

    def take_all(self, *, besides: Collection[str] = ()) -> list[str]:
        """Forget all waiting requests except those with these methods; return their ids."""
        if besides:
            due = [one for one in self._waiting.values() if one.method not in besides]
            return self.take([one.id for one in due if one.id is not None])
        ids = self.ids
        self._waiting.clear()
        self._size = self.lists = 0
        return ids

    def _forget(self, value: str) -> RpcExchange | None:
        exchange = self._waiting.pop(value, None)
        if exchange is not None:
            self._size -= _size_of(exchange)
            self.lists -= exchange.method == _LIST
        return exchange

    def __len__(self) -> int:
        return len(self._waiting)


def _size_of(exchange: RpcExchange) -> int:
    size = len(exchange.id) if exchange.id else 0
    return size + len(exchange.request.place.text) if exchange.request else size


def notice(subscription: str | None = None) -> bytes:
    """Render the notification, for a session or for the subscription with this id."""
    params = f',"params":{{"_meta":{{"{_SUBSCRIPTION}":{subscription}}}}}' if subscription else ""
    return f'{{"jsonrpc":"2.0","method":"{LIST_CHANGED}"{params}}}'.encode()


def agreed_subscription(message: Notification) -> str | None:
    """Return the id, as it was written, of a subscription to changes of the tool list.

    None if the message acknowledges no such subscription.
    """
    params = message.params
    meta = params.get("_meta") if params else None
    id = meta.get(_SUBSCRIPTION) if meta else None
    if params is None or id is None:
        return None
    written = message.place.cut(id)
    is_id = len(written) <= NAME and written[0] in '"-0123456789'
    agrees = is_true(message.place, params.get("notifications"), "toolsListChanged")
    return written if is_id and agrees else None


def note_subscription(exchanges: Exchanges, message: Notification) -> None:
    """Note that the upstream will tell the client about list changes, if the message says so."""
    if id := agreed_subscription(message):
        for spelling in (id, id.strip('"')):  # some upstreams write a number as a string
            asked = exchanges.answered_by(Response(spelling)) if spelling else None
            if asked is not None and asked.method == "subscriptions/listen":
                asked.subscription = id
                return


def is_true(place: Place, value: Value | None, *keys: str) -> bool:
    """Tell whether a value has a member, in these members, that is true. (Of two, most read the
    last.)"""
    for key in keys:
        members = (open_value(place.text, value).members or ()) if value else ()
        value = next((one.value for one in reversed(members) if one.key == key), None)
    return value is not None and place.cut(value) == "true"
