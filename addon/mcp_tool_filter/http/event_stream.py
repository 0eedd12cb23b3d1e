r"""Bytes in, filtered bytes out: one event stream from the upstream to a client.

An event that may pass leaves as it came. One that we cannot judge does not leave; the waiting
client gets an error instead. What is not MCP (comments, empty events) passes. An event whose
decision waits is held back, and what comes behind it, until it is decided.

>>> from mcp_tool_filter.conversation.fetched import example
>>> from mcp_tool_filter.conversation.policy_in_force import PolicyInForce
>>> from mcp_tool_filter.policy.config import Config
>>> policy = PolicyInForce(config=Config(), fetched=example())
>>> stream = EventStream(Conversation(policy))
>>> stream.feed(b": ping\n\ndata: not JSON\n\ndata: {\"jsonrpc\":\"2.0\",\"method\":\"x\"}\n\n")
b': ping\n\ndata: {"jsonrpc":"2.0","method":"x"}\n\n'
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import assert_never

from mcp_tool_filter.conversation.conversation import Conversation
from mcp_tool_filter.conversation.in_order import CarryOut, InOrder
from mcp_tool_filter.conversation.judged import Judged
from mcp_tool_filter.errors import ProtocolError
from mcp_tool_filter.http.other_answers import could_show_tool
from mcp_tool_filter.policy.verdict import Drop, Forward, Reply, Rewrite
from mcp_tool_filter.protocol.sse import (
    Event,
    EventParser,
    Oversized,
    parse_event,
    render_event,
    with_data,
)

_URL = re.compile(rb"""[^\0-\x20"<>{|}^`\x7f]+""")
_CR_ALONE = re.compile(rb"[^\r\n]\r(?!\n)")  # ends a line


def _refuse_endpoint(url: str) -> str | None:
    """Only the older transport names an endpoint; elsewhere it could only lead clients away."""
    return None


class EventStream:
    """One for each response body. It does not raise: any error closes the stream."""

    def __init__(
        self,
        conversation: Conversation,
        *,
        on_endpoint: Callable[[str], str | None] = _refuse_endpoint,
        begins_with: bytes = b"",
    ) -> None:
        limits = conversation.policy.config.limits
        self.conversation = conversation
        self.failure: Exception | None = None
        self._limits = limits
        self._on_endpoint = on_endpoint
        self._begins_with = begins_with
        self._parser = EventParser(max_pending=limits.pending)
        self._is_damaged = False  # something was kept back, and may have been an answer
        self._hold: Callable[[], InOrder[bytes]] | None = None
        self._held: InOrder[bytes] | None = None  # few streams ever hold anything back

    def carry_out_with(self, carry_out: CarryOut, wake: Callable[[], None]) -> None:
        """Say who carries out effects; ``wake`` is called when there is more to ``take``."""
        self._hold = partial(InOrder[bytes], carry_out, wake, most=self._limits.pending)

    @property
    def is_waiting(self) -> bool:
        """Is anything held back?"""
        return self._held is not None and bool(self._held.held) and self.failure is None

    @property
    def held_bytes(self) -> int:
        """Bytes that have come and not left."""
        return self._parser.pending + (self._held.size if self._held else 0)

    def feed(self, chunk: bytes, origin: object = None) -> bytes:
        """Take what the upstream sent; return what the client may see of it."""
        if self.failure is not None:
            return b""
        try:
            begins_with, self._begins_with = self._begins_with, b""
            judge = self._judge
            pieces = [judge(event, origin) for event in self._parser.feed(chunk)]
            return b"".join([begins_with, *pieces] if begins_with else pieces)  # one is not copied
        except Exception as failure:  # a bug of ours must not let the rest through
            return self._fail(failure)

    def take(self) -> bytes:
        """Return what was held back and is decided by now."""
        if self._held is None or self.failure is not None:
            return b""
        try:
            return b"".join(self._held.take())
        except Exception as failure:
            return self._fail(failure)

    def finish(self, origin: object = None) -> bytes:
        """Return what may be seen of an event that the upstream did not finish.

        The host must not call this while something is held back.
        """
        if self.failure is not None:
            return b""
        try:
            rest = self._parser.finish()
            begins_with, self._begins_with = self._begins_with, b""
            seen = self._judge(parse_event(rest), origin) if rest else b""
            waiting = self.conversation.exchanges.take_all() if self._is_damaged else []
            errors = self._errors(self.conversation.fail(waiting, _CUT)) if waiting else b""
            return begins_with + b"\n\n".join(filter(None, [seen, errors]))
        except Exception as failure:
            return self._fail(failure)

    def abandon(self) -> None:
        """Forget what is held back: the client has left, or the stream is lost."""
        if self._held:
            self._held.abandon()

    def _fail(self, failure: Exception) -> bytes:
        self.failure = failure
        self.abandon()
        return b""

    def _judge(self, event: Event | Oversized, origin: object) -> bytes:
        if self._held is not None and self._held.held:
            return self._judge_behind(self._held, event, origin)
        return self._judge_next(event, origin)

    def _judge_behind(
        self, held: InOrder[bytes], event: Event | Oversized, origin: object
    ) -> bytes:
        """Judge what comes behind an event that waits; it leaves after that one."""
        piece = self._judge_next(event, origin)
        if piece:
            held.add(piece, len(piece))
        return b"".join(held.take())

    def _judge_next(self, event: Event | Oversized, origin: object) -> bytes:
        if isinstance(event, Oversized):
            why = f"an event longer than {self._limits.pending} bytes"
            return self._refuse(why, event.beginning, origin, is_cut=True)
        if event.others and (event.hides_a_line() or not _is_harmless(event.others)):
            why = "a line that only some readers see"
            return self._refuse(why, event.data or b"", origin)
        if event.name.strip().lower() == b"endpoint":
            return self._judge_endpoint(event, origin)
        if not event.data:
            return event.raw
        try:
            judged = self.conversation.from_upstream(event.data, origin)
        except ProtocolError as error:
            if not event.is_message and self._may_pass(event.data):
                return event.raw
            return self._refuse(str(error), event.data, origin)
        if isinstance(judged, Judged):
            return _render(event, judged)
        if self._hold is None:
            raise RuntimeError("nobody carries out effects")
        self._held = self._held or self._hold()
        self._held.wait(judged, len(event.raw), partial(self._decided, event, origin))
        return b""

    def _decided(self, event: Event, origin: object, outcome: Judged | Exception) -> bytes:
        """Render an event that has waited; if the decision failed, it does not leave."""
        if isinstance(outcome, Judged):
            return _render(event, outcome)
        return self._refuse(str(outcome), event.data or b"", origin)

    def _judge_endpoint(self, event: Event, origin: object) -> bytes:
        data = event.data or b""
        is_url = _URL.fullmatch(data.strip()) is not None
        kept = self._on_endpoint(data.decode("utf-8", "replace").strip()) if is_url else None
        if kept is None:
            return self._refuse("an endpoint that lets clients bypass us", b"", origin)
        if _CR_ALONE.search(event.raw):  # whoever knows no CR would read the URL on behind it
            return b"event: endpoint\n" + render_event(kept.encode())
        return event.raw if kept.encode() == data else with_data(event, kept.encode())

    def _may_pass(self, data: bytes) -> bool:
        """Judge the data of an event by a name of its own, which no client takes for a message."""
        denied = self.conversation.kind.snapshot.denied
        return _is_harmless(data) and not could_show_tool(data, denied, self._limits)

    def _refuse(self, why: str, said: bytes, origin: object, *, is_cut: bool = False) -> bytes:
        """Keep an event back, and tell those who wait for what it ``said``."""
        self._is_damaged = True
        return self._errors(
            self.conversation.unreadable_from_upstream(said, why, is_cut=is_cut, origin=origin)
        )

    def _errors(self, judged: Judged) -> bytes:
        match judged.verdict:
            case Rewrite(text, _, owed):
                return b"".join(map(render_event, (text, *owed)))
            case _:
                return b""


_CUT = "a stream that ends after an event that cannot be judged"


def _render(event: Event, judged: Judged) -> bytes:
    match judged.verdict:
        case Forward():
            return event.raw
        case Rewrite(text):
            return with_data(event, text)
        case Reply() | Drop():
            return b""
        case unexpected:
            assert_never(unexpected)


def _is_harmless(raw: bytes) -> bool:
    """Tell whether bytes that are no message show no definition either."""
    if b'"' not in raw:
        return True
    bare = raw.replace(b"\0", b"").lower()
    return b"\\u" not in bare and b"schema" not in bare
