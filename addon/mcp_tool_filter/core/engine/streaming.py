"""An event stream that answers an exchange, on its way to the client.

``EventStream`` filters the bytes; here is what belongs to the connection: the head goes first, what
waits for a decision follows later, our own messages go between the events, and the end is told.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from itertools import islice
from typing import TYPE_CHECKING

from mcp_tool_filter.core.errors import ProtocolError
from mcp_tool_filter.core.http.bodies import refuse_partial
from mcp_tool_filter.core.http.head import AnswerNotes, without_body
from mcp_tool_filter.core.messages.sse import render_event
from mcp_tool_filter.core.policy.effects import InOrder

if TYPE_CHECKING:
    from mcp_tool_filter.core.engine.exchange import Exchange
    from mcp_tool_filter.core.engine.steps import Answer
    from mcp_tool_filter.core.http.asked import HttpExchange


_LINE_END = re.compile(rb"[\r\n]")


def open_stream(
    exchange: Exchange, asked: HttpExchange, answer: Answer, notes: AnswerNotes
) -> StreamedAnswer:
    """Return the stream that an answer's head announces. Raises ProtocolError."""
    if notes.coding.strip().lower() not in ("", "identity"):
        raise ProtocolError("an event stream in a coding that was not requested")
    refuse_partial(answer.status, notes.kind)
    return StreamedAnswer(exchange, asked, answer)


def _cut_after_lines(data: bytes, most: int) -> tuple[bytes, bytes]:
    """Cut bytes after so many line ends; CRLF counts as two."""
    if data.count(b"\n") + data.count(b"\r") <= most:
        return data, b""
    ends = islice(_LINE_END.finditer(data), most - 1, None)
    at = next(ends).end()
    return data[:at], data[at:]


class StreamedAnswer:
    """The event stream of one exchange."""

    def __init__(self, exchange: Exchange, asked: HttpExchange, answer: Answer) -> None:
        self._exchange, self._asked = exchange, asked
        self._is_get = exchange.head.method == "GET"
        self.transform: Callable[[bytes], bytes | Iterable[bytes]] | None = None
        """What another program makes of its bytes; that is judged."""
        self._later = b""
        """What has come, and is read when others were served."""
        self._is_lost = False
        """True if it ended because the upstream was lost."""
        listener = exchange.service.listener
        if not listener.policy.config.shadow:  # which changes nothing
            answer.fields = without_body(answer.fields)
        send = self.inject if self._is_get else None
        self._events = listener.open_stream(asked, exchange.head.target, send, self._make_queue)

    def _make_queue(self) -> InOrder[bytes]:
        exchange = self._exchange
        most = exchange.service.listener.policy.config.limits.pending
        wake = exchange.when_ready(self._wake)
        return InOrder(exchange.service.effects.carry_out, wake, most=most)

    @property
    def held_bytes(self) -> int:
        return self._events.held_bytes + len(self._later)

    # What the upstream says

    def feed(self, data: bytes, head: Answer | None = None) -> None:
        """Filter bytes of the stream, and send what may pass; the first with the head."""
        if data and self.transform is not None:
            made = self.transform(data)
            data = made if isinstance(made, bytes) else b"".join(made)
        if self._later:
            self._later += data
            self._hold_upstream(True)
        else:
            self._read(data, head)

    def _read(self, data: bytes, head: Answer | None = None) -> None:
        """Read some lines; the others wait until other connections were served."""
        exchange = self._exchange
        data, self._later = _cut_after_lines(data, exchange.service.limits.turn)
        if self._later:
            self._hold_upstream(True)
            exchange.down.host.call_later(0, exchange.when_ready(self._go_on))
        self._pass_on(self._events.feed(data, exchange) if data else b"", head)

    def _go_on(self) -> None:
        """Continue after other connections were served."""
        if self._exchange.stream is not self:  # another addon answers instead
            return
        data, self._later = self._later, b""
        self._hold_upstream(False)
        self._read(data)

    def _hold_upstream(self, on: bool) -> None:
        if (up := self._exchange.up) is not None:
            up.slow_down(on or self._exchange.down.is_slow)

    def waits_after_loss(self) -> bool:
        """Note that the upstream is lost; True if the end waits for events that came before. (A
        second loss does not wait: the process ends.)"""
        waits = self._is_waiting and not self._is_lost
        self._is_lost = self._is_lost or waits
        return waits

    @property
    def _is_waiting(self) -> bool:
        return bool(self._later) or self._events.is_waiting

    def _wake(self) -> None:
        """Some waiting events are decided now."""
        if self._exchange.has_begun:
            self._pass_on(self._events.take())

    def _pass_on(self, seen: bytes, head: Answer | None = None) -> None:
        """Send what may be seen of the stream; end with it, once nothing waits."""
        exchange, events = self._exchange, self._events
        is_whole = exchange.is_answered and not self._later
        last = events.finish(exchange) if is_whole else None
        if last is None or events.failure is not None:
            if seen or head is not None:
                exchange.say(seen, head)
            if events.failure is not None:
                exchange.refuse_answer(events.failure)
            elif self._is_lost and not self._is_waiting:
                exchange.lose(exchange.why)
            return
        if self._asked.is_legacy:
            self.close()
            exchange.service.suspect()
        elif self._is_get:
            exchange.service.note_end_of_stream()
        exchange.end_stream(seen + last, head)

    # What we say

    def inject(self, data: bytes) -> bool:
        """Send our own bytes on the stream; return False if it is not open."""
        if not self._exchange.has_begun:
            return False
        self._exchange.say(data)
        self._exchange.down.host.wake()
        return True

    def tell_list_changed(self) -> None:
        """Tell the client, if that is suitable, that its list has changed."""
        # Not in the answer to a POST, unless the client has subscribed with it.
        notices = self._events.conversation.list_changed_notices(in_session=self._is_get)
        for notice in notices:
            self.inject(render_event(notice))

    def close(self) -> None:
        """Forget what waits: the stream is over."""
        self._later = b""
        self._events.abandon()
        if self._asked.is_legacy:
            self._exchange.service.listener.close_stream(self._asked)
