r"""Remember judged tool lists, because an upstream sends the same list again and again.

Two answers with the same bytes except for a simple id parse the same: before the id, after it (what
follows the id begins with neither a digit nor a quote), and to the end. The id does not affect the
verdict. So both get the same verdict, each with its own id:

>>> from mcp_tool_filter.policy.snapshot import take_snapshot
>>> from mcp_tool_filter.policy.verdict import Why
>>> judged, snapshot = JudgedLists(), take_snapshot([], deny=[])
>>> hidden = Rewrite(b'{"id":1,"result":{"tools":[]}}', Reason(Why.HIDDEN, ("a",)))
>>> judged.remember(b'{"id":1,"result":{"tools":["a"]}}', hidden, snapshot)
>>> response, verdict = judged.recall(b'{"id":"x","result":{"tools":["a"]}}', snapshot)
>>> response.id, verdict.text
('"x"', b'{"id":"x","result":{"tools":[]}}')
"""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass

from mcp_tool_filter.errors import ProtocolError
from mcp_tool_filter.policy.snapshot import Snapshot
from mcp_tool_filter.policy.verdict import Forward, Reason, Rewrite
from mcp_tool_filter.protocol.large import SIMPLE_ID
from mcp_tool_filter.protocol.limits import MEBIBYTE, Limits
from mcp_tool_filter.protocol.messages import Place, Response
from mcp_tool_filter.protocol.scan import Value, scan

_SPACE = " \t\n\r"
_LONGEST_ID = 66  # bytes
_is_simple = re.compile(SIMPLE_ID).fullmatch
# Most responses begin like this, and then this must be the id.
_begin = re.compile(
    rb'[%(s)b]*{[%(s)b]*"jsonrpc"[%(s)b]*:[%(s)b]*"2\.0"[%(s)b]*,[%(s)b]*"id"[%(s)b]*:[%(s)b]*'
    rb"(?P<id>%(id)b)(?=[%(s)b,}])" % {b"s": _SPACE.encode(), b"id": SIMPLE_ID}
).match


@dataclass(frozen=True, slots=True)
class _Around:
    """The text of a message around its id."""

    before: bytes
    after: bytes

    def id_in(self, raw: bytes) -> str | None:
        """Return the id if a message is otherwise the same; None if it differs."""
        start, end = len(self.before), len(raw) - len(self.after)
        if not 0 < end - start <= _LONGEST_ID or not raw.startswith(self.before):
            return None
        id = raw[start:end]
        return id.decode() if _is_simple(id) and raw.endswith(self.after) else None

    def with_id(self, id: str) -> bytes:
        return b"".join([self.before, id.encode(), self.after])

    def __len__(self) -> int:
        return len(self.before) + len(self.after)


@dataclass(frozen=True, slots=True, eq=False)
class _Judged:
    snapshot: Snapshot
    said: _Around
    told: tuple[_Around, Reason] | None
    """The rewritten text and the reason; None if the message is forwarded unchanged."""

    def verdict_for(self, id: str) -> Forward | Rewrite:
        if self.told is None:
            return Forward()
        text, reason = self.told
        return Rewrite(text.with_id(id), reason)

    def __len__(self) -> int:
        return len(self.said) + (len(self.told[0]) if self.told else 0)


class JudgedLists:
    """The judged lists of one listener. It forgets the least recently used first."""

    def __init__(self, *, most: int = 100, most_bytes: int = 16 * MEBIBYTE) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._lists: deque[_Judged] = deque()

    def recall(self, raw: bytes, snapshot: Snapshot) -> tuple[Response, Forward | Rewrite] | None:
        """Return a known list, without parsing its result, and its verdict."""
        for judged in self._lists:
            if judged.snapshot is snapshot and (id := judged.said.id_in(raw)) is not None:
                self._lists.remove(judged)
                self._lists.appendleft(judged)
                return Response(id, Value(0, 0), _place(raw.decode())), judged.verdict_for(id)
        return None

    def remember(self, raw: bytes, verdict: Forward | Rewrite, snapshot: Snapshot) -> None:
        """Remember the verdict on an answer to tools/list."""
        said = _around_id(raw)
        told = _around_id(verdict.text) if isinstance(verdict, Rewrite) else said
        if said is None or told is None:
            return
        reason = (told, verdict.reason) if isinstance(verdict, Rewrite) else None
        judged = _Judged(snapshot, said, reason)
        if len(judged) <= self._most_bytes:
            self._lists.appendleft(judged)
            self._forget()

    def _forget(self) -> None:
        while len(self._lists) > self._most or sum(map(len, self._lists)) > self._most_bytes:
            self._lists.pop()


def _around_id(raw: bytes) -> _Around | None:
    """Split a message at its id; None if the id is not simple."""
    if begun := _begin(raw):
        return _Around(raw[: begun.start("id")], raw[begun.end("id") :])
    try:
        text, root = scan(raw, {}, Limits(message=len(raw)))
    except ProtocolError:
        return None
    id = root.get("id")
    if id is None or not _is_simple(text[id.start : id.end].encode()):
        return None
    return _Around(text[: id.start].encode(), text[id.end :].encode())


def _place(text: str) -> Place:
    return Place(text, len(text) - len(text.lstrip(_SPACE)), len(text.rstrip(_SPACE)))
