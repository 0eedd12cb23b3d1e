r"""Find the requests that another one carries in its params, as one for a task does.

No revision says where such a request stands. So each object counts that has a ``method`` about
something we filter, and ``params``, at any depth and in any list:

>>> from mcp_tool_filter.core.messages.messages import parse_message
>>> inside = b'{"a":[{"m\\u0065thod":"tools/call","params":{"name":"rm"}}]}'
>>> text = b'{"jsonrpc":"2.0","id":1,"method":"tasks/create","params":%b}' % inside
>>> [one.params["name"].text for one in requests_within(parse_message(text))]
['rm']

The ``arguments`` of a call are not searched: they are the tool's own data. Nearly all params lack
the words for such a request. Of others, the C scanner of the standard library tells whether an
object asks for something (``may_carry``). Only then are they opened, at every depth, which takes
thirty times as long. Both have a bound.
"""

from __future__ import annotations

import json
import re
import sys
from collections import deque
from collections.abc import Iterator
from typing import Any, Final

from mcp_tool_filter.core.errors import ProtocolError
from mcp_tool_filter.core.messages.limits import MOST_IN_BATCH, MOST_PARTS, MOST_SEARCHED, OverLimit
from mcp_tool_filter.core.messages.messages import (
    Notification,
    Place,
    Request,
    Response,
    Single,
    is_like_a_call,
    refuse_lookalike,
)
from mcp_tool_filter.core.messages.methods import topic_of
from mcp_tool_filter.core.messages.scan import PartBudget, Value, read_value
from mcp_tool_filter.core.messages.tools import fold_key

CALL: Final = "tools/call"
_USUAL: Final = frozenset({"name", "arguments"})
_TOPICS: Final = ("tools", "prompts", "resources", "skills", "completion")
# A key with an escape or beyond ASCII can be read as "method". One that has an escaped quote
# cannot, but what follows a NUL does not count.
_ODD_KEY = re.compile(r'"(?=[^"]*+"[ \t\n\r]*+:)[ !#-\[\]-~]*+[^"]|\\u0000')


class _Everything(dict[str, Any]):
    """An outline that opens all members, except those of one key."""

    def __init__(self, inside: _Everything | None = None, shut: str = "") -> None:
        super().__init__({"[]": inside or self})
        self._inside, self._shut = inside or self, shut

    def get(self, key: str, default: object = None) -> Any:
        return default if key == self._shut else self._inside


_ALL = _Everything()
_ALL_OF_A_CALL = _Everything(_ALL, shut="arguments")


def may_carry(message: Single) -> bool:
    """Tell whether an object in a message's params has a method that we filter."""
    if isinstance(message, Response) or message.params is None:
        return False
    params, text = message.params, message.place.text
    if message.method != CALL:
        searched = text[params.start : params.end]
    elif params.members is None or _USUAL.issuperset(params.named):
        return False
    else:
        others = [member for member in params.members if member.key not in _USUAL]
        searched = ",".join([text[other.start : other.value.end] for other in others])
    return _has_words(searched) and _has_method(
        searched if searched[0] in "{[" else f"{{{searched}}}"
    )


def _has_words(json_text: str) -> bool:
    lower = json_text.lower()
    has_method = "method" in lower
    if "\\" in lower or "\x7f" in lower or not lower.isascii():
        return has_method or _ODD_KEY.search(json_text) is not None
    return has_method and ("%" in lower or any(topic in lower for topic in _TOPICS))


class _Found(Exception):
    """An object has a method that we filter."""


def _has_method(json_text: str) -> bool:
    others: set[str] = set()
    left = MOST_SEARCHED

    def look(members: list[tuple[str, object]]) -> None:
        nonlocal left
        left -= 1 + len(members)
        if left < 0:
            raise OverLimit(
                f"more than {MOST_SEARCHED} members in a request that may carry another"
            )
        for key, value in members:
            if key in others or value.__class__ is not str:
                continue
            if fold_key(key) != "method":
                others.add(key)
            elif _is_filtered(str(value)):
                raise _Found

    try:
        json.loads(json_text, object_pairs_hook=look, parse_int=bool, parse_float=bool)
    except _Found:
        return True
    return False


def requests_within(message: Single) -> Iterator[Request | Notification]:
    """Yield the requests that a message carries. Raises ProtocolError if two readers could read one
    differently, or if it is too much to search."""
    if not may_carry(message):
        return
    assert not isinstance(message, Response)
    assert message.params is not None
    for number, one in enumerate(_search(message, message.params)):
        if number == MOST_IN_BATCH:
            raise OverLimit(f"more than {MOST_IN_BATCH} requests in one")
        yield one


def _search(message: Request | Notification, params: Value) -> Iterator[Request | Notification]:
    is_call = message.method == CALL
    outline = _ALL_OF_A_CALL if is_call else _ALL
    text = message.place.text
    budget = PartBudget(MOST_PARTS)
    try:
        root = read_value(text, params.start, outline, sys.maxsize, budget)
    except RecursionError:
        raise OverLimit("nested too deeply") from None
    waiting = deque([(root, is_call)])
    while waiting:
        value, is_of_call = waiting.popleft()
        waiting.extend((one, False) for one in value.elements or ())
        if not value.members:
            continue
        carried = _request_in(message, value)
        if carried is not None:
            yield carried
        called = carried.params if carried is not None and carried.method == CALL else None
        for member in value.members:
            inner = member.value
            if (inner.members or inner.elements) and not (is_of_call and member.key == "arguments"):
                waiting.append((inner, inner is called))


def _request_in(message: Request | Notification, holder: Value) -> Request | Notification | None:
    """Return the request that an object is; None if it is none that we filter."""
    text, members = message.place.text, holder.members or ()
    methods = [
        member.text for member in members if member.text and fold_key(member.key) == "method"
    ]
    if not any(_is_filtered(method) for method in methods):
        return None
    asked = [member.value for member in members if fold_key(member.key) == "params"]
    if all(text[one.start] != "{" for one in asked):
        return None
    if len(methods) > 1 or len(asked) > 1:
        raise ProtocolError("a request within a request that could be read in two ways")
    method, params = methods[0], asked[0]
    refuse_lookalike(method)
    place = Place(text, holder.start, holder.end)
    if isinstance(message, Notification):
        return Notification(method, params, place)
    return Request(method, message.id, params, place)


def _is_filtered(method: str) -> bool:
    """Tell whether a method may show or run what is hidden. The answer to a list is filtered."""
    return method != "tools/list" and (topic_of(method) != "" or is_like_a_call(method))
