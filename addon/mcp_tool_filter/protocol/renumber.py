r"""Give requests of several clients unique ids on one connection, and restore them in answers.

Two clients of a stateless upstream may use the same id, the same progress token, the same
subscription. Only these are changed; every other byte stays:

>>> numbers = Numbers()
>>> numbers.renumber(b'{"jsonrpc":"2.0","id":"a","method":"ping"}')
(1, b'{"jsonrpc":"2.0","id":1,"method":"ping"}')
>>> numbers.restore(b'{"jsonrpc":"2.0","id":1,"result":{}}')
(1, b'{"jsonrpc":"2.0","id":"a","result":{}}')
"""

from __future__ import annotations

from dataclasses import dataclass

from mcp_tool_filter.protocol.limits import Limits
from mcp_tool_filter.protocol.scan import Outline, Value, scan

_SUBSCRIPTION = "io.modelcontextprotocol/subscriptionId"
_OUTLINE: Outline = {"params": {"_meta": {}}, "result": {"_meta": {}}}


@dataclass(frozen=True, slots=True)
class _Original:
    id: str
    token: str | None


class Numbers:
    """The ids of one shared connection."""

    def __init__(self) -> None:
        self._last = 0
        self._originals: dict[int, _Original] = {}

    def renumber(self, request: bytes) -> tuple[int, bytes]:
        """Return a new number, and the request with this number as its id."""
        text, root = scan(request, _OUTLINE, Limits(message=max(1, len(request))))
        self._last += 1
        token = _within(root, "params", "_meta", "progressToken")
        self._originals[self._last] = _Original(_cut(text, root["id"]), _cut_some(text, token))
        places = [root["id"], *([token] if token else [])]
        return self._last, _replaced(text, [(place, str(self._last)) for place in places])

    def restore(self, message: bytes) -> tuple[int | None, bytes]:
        """Return the number of the message's request, and the message with the client's own ids.

        The number is None if the message belongs to no request, and 0 if the request is forgotten.
        """
        text, root = scan(message, _OUTLINE, Limits(message=max(1, len(message))))
        changes: list[tuple[Value, str]] = []
        found: int | None = None
        if (id := root.get("id")) and (number := self._number(text, id)):
            found = number
            changes.append((id, self._originals[number].id))
        token = _within(root, "params", "progressToken")
        if token:
            found = self._number(text, token) or 0
            if found:
                changes.append((token, self._originals[found].token or str(found)))
        for holder in ("params", "result"):
            named = _within(root, holder, "_meta", _SUBSCRIPTION)
            if named:
                found = self._number(text, named) or found or 0
                if found:
                    changes.append((named, self._originals[found].id))
        return found, _replaced(text, changes) if changes else message

    def forget(self, number: int) -> None:
        """Forget a request that has been answered."""
        self._originals.pop(number, None)

    def _number(self, text: str, value: Value) -> int | None:
        # Some upstreams write a subscription's id as a string.
        written = _cut(text, value).strip('"')
        number = int(written) if written.isdecimal() and len(written) < 16 else None
        return number if number in self._originals else None


def _within(root: Value, *keys: str) -> Value | None:
    found: Value | None = root
    for key in keys:
        found = found.get(key) if found else None
    return found


def _cut(text: str, value: Value) -> str:
    return text[value.start : value.end]


def _cut_some(text: str, value: Value | None) -> str | None:
    return _cut(text, value) if value else None


def _replaced(text: str, changes: list[tuple[Value, str]]) -> bytes:
    for value, new in sorted(changes, key=lambda change: -change[0].start):
        text = text[: value.start] + new + text[value.end :]
    return text.encode()
