r"""Bytes in, filtered bytes out: one event stream from the upstream to a client.

An event that we agree with leaves as it came. One that we cannot judge does not leave; who waits
for it gets an error instead. What is not of MCP (comments, empty events) passes.

>>> from mcp_tool_filter.policy.chain import Situation
>>> from mcp_tool_filter.policy.snapshot import take_snapshot
>>> situation = Situation(snapshot=take_snapshot([], deny=[]))
>>> stream = FilteredStream(lambda: situation, Exchanges())
>>> stream.feed(b": ping\n\ndata: not JSON\n\ndata: {\"jsonrpc\":\"2.0\",\"method\":\"x\"}\n\n")
b': ping\n\ndata: {"jsonrpc":"2.0","method":"x"}\n\n'
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import assert_never

from mcp_tool_filter.conversation.session import Exchanges
from mcp_tool_filter.errors import ProtocolError
from mcp_tool_filter.http.other_answers import could_show_tool
from mcp_tool_filter.policy.chain import Situation, decide_from_upstream
from mcp_tool_filter.policy.verdict import Drop, Forward, Reason, Reply, Rewrite, Verdict, Why
from mcp_tool_filter.protocol.limits import Limits
from mcp_tool_filter.protocol.messages import (
    INTERNAL_ERROR,
    Message,
    ids_guessed_in,
    parse_message,
    render_error,
)
from mcp_tool_filter.protocol.sse import (
    Event,
    EventParser,
    Oversized,
    parse_event,
    render_event,
    with_data,
)

INVALID_ANSWER = "The server sent an invalid response"
_LIMITS = Limits()
_URL = re.compile(rb"""[^\0-\x20"<>{|}^`\x7f]+""")
_CR_ALONE = re.compile(rb"[^\r\n]\r(?!\n)")  # ends a line


type OnVerdict = Callable[[Message | None, Verdict, str | None], None]
"""Told of each message (None: it could not be read), its verdict, and the method it answers."""
type Decide = Callable[[bytes], tuple[Message, Verdict]]
"""Reads a message and decides on it. Raises ProtocolError."""


def _ignore(message: Message | None, verdict: Verdict, asked: str | None) -> None:
    """Nobody watches."""


def _refuse_endpoint(url: str) -> str | None:
    """Only the older transport names an endpoint; elsewhere it could only lead clients away."""
    return None


class FilteredStream:
    """One for each response body. It does not raise: what it stumbles over, it shuts on."""

    def __init__(
        self,
        situation: Callable[[], Situation],
        exchanges: Exchanges,
        *,
        limits: Limits = _LIMITS,
        on_endpoint: Callable[[str], str | None] = _refuse_endpoint,
        on_verdict: OnVerdict = _ignore,
        decide: Decide | None = None,
    ) -> None:
        self._situation = situation
        self._exchanges = exchanges
        self._limits = limits
        self._on_endpoint = on_endpoint
        self._on_verdict = on_verdict
        self._decide = decide
        self._parser = EventParser(max_pending=limits.pending)
        self._is_damaged = False  # something was kept back, and may have been an answer
        self.failure: Exception | None = None

    def feed(self, chunk: bytes) -> bytes:
        """Take what the upstream sent; return what the client may see of it."""
        if self.failure is not None:
            return b""
        try:
            return b"".join([self._judge(event) for event in self._parser.feed(chunk)])
        except Exception as failure:  # a bug of ours must not let the rest through
            self.failure = failure
            return b""

    def finish(self) -> bytes:
        """Return what may be seen of an event that the upstream did not finish."""
        if self.failure is not None:
            return b""
        try:
            rest = self._parser.finish()
            seen = self._judge(parse_event(rest)) if rest else b""
            errors = _errors(self._exchanges.take_all()) if self._is_damaged else b""
            return b"\n\n".join(filter(None, [seen, errors]))
        except Exception as failure:
            self.failure = failure
            return b""

    def _judge(self, event: Event | Oversized) -> bytes:
        if isinstance(event, Oversized):
            why = f"an event longer than {self._limits.pending} bytes"
            return self._refuse(why, event.beginning, is_cut=True)
        if event.hides_a_line() or not _is_harmless(event.others):
            return self._refuse("a line that only some readers see", event.data or b"")
        if event.name.strip().lower() == b"endpoint":
            return self._judge_endpoint(event)
        if not event.data:
            return event.raw
        try:
            return self._judge_message(event, event.data)
        except ProtocolError as error:
            if not event.is_message and self._may_pass(event.data):
                return event.raw
            return self._refuse(str(error), event.data)

    def _judge_message(self, event: Event, data: bytes) -> bytes:
        message, verdict = self._decide(data) if self._decide else self._judge_data(data)
        asked = self._exchanges.method_of(message)
        self._exchanges.note_answered(message)
        self._on_verdict(message, verdict, asked)
        match verdict:
            case Forward():
                return event.raw
            case Rewrite(text):
                return with_data(event, text)
            case Reply() | Drop():
                return b""
            case unexpected:
                assert_never(unexpected)

    def _judge_data(self, data: bytes) -> tuple[Message, Verdict]:
        message = parse_message(data, self._limits)
        return message, decide_from_upstream(message, self._situation(), self._exchanges.method_of)

    def _judge_endpoint(self, event: Event) -> bytes:
        data = event.data or b""
        is_url = _URL.fullmatch(data.strip()) is not None
        kept = self._on_endpoint(data.decode("utf-8", "replace").strip()) if is_url else None
        if kept is None:
            return self._refuse("an endpoint that leads round us")
        if _CR_ALONE.search(event.raw):  # whoever knows no CR would read the URL on behind it
            return b"event: endpoint\n" + render_event(kept.encode())
        return event.raw if kept.encode() == data else with_data(event, kept.encode())

    def _may_pass(self, data: bytes) -> bool:
        """Judge the data of an event by a name of its own, which no client takes for a message."""
        return _is_harmless(data) and not could_show_tool(
            data, self._situation().snapshot.denied, self._limits
        )

    def _refuse(self, why: str, said: bytes = b"", *, is_cut: bool = False) -> bytes:
        """Keep an event back, and tell those who wait for what it ``said``."""
        ids = self._exchanges.take(ids_guessed_in(said))
        if not ids and len(self._exchanges) == 1 and (is_cut or b'"id"' in said):
            ids = self._exchanges.take_all()  # it can only have been for this one
        self._is_damaged = True
        self._on_verdict(None, Drop(Reason(Why.INVALID, detail=why)), None)
        return _errors(ids)


def _errors(ids: list[str]) -> bytes:
    return b"".join(render_event(render_error(id, INTERNAL_ERROR, INVALID_ANSWER)) for id in ids)


def _is_harmless(raw: bytes) -> bool:
    """Tell whether bytes that are no message show no definition either."""
    if b'"' not in raw:
        return True
    bare = raw.replace(b"\0", b"").lower()
    return b"\\u" not in bare and b"schema" not in bare
