r"""Filter one event stream from the upstream to a client: bytes in, filtered bytes out.

The idea: the stream is a list of events, and each is judged alone. An accepted event is forwarded
in its original bytes. An event that we cannot judge is dropped, and the waiting client gets an
error. Comments and empty events pass.

    passing ──► waiting     a rule must wait: this event and those behind it are held back
            ◄──             it has decided (``take``)
    any ──► failed          after any error: nothing more comes out

The cost: each byte is searched once for the end of its event, and each message is read once. Only
an unfinished event and held events stay in memory, up to a limit.

>>> from mcp_tool_filter.core.conversation.memory import example
>>> from mcp_tool_filter.core.conversation.policy_in_force import PolicyInForce
>>> from mcp_tool_filter.core.policy.config import Config
>>> policy = PolicyInForce(config=Config(), fetched=example())
>>> stream = EventStream(Conversation(policy))
>>> stream.feed(b": ping\n\ndata: not JSON\n\ndata: {\"jsonrpc\":\"2.0\",\"method\":\"x\"}\n\n")
b': ping\n\ndata: {"jsonrpc":"2.0","method":"x"}\n\n'
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import partial
from typing import assert_never

from mcp_tool_filter.core.conversation.conversation import Conversation
from mcp_tool_filter.core.conversation.policy_in_force import Judged
from mcp_tool_filter.core.errors import ProtocolError
from mcp_tool_filter.core.http.bodies import could_show_tool
from mcp_tool_filter.core.messages.sse import (
    Event,
    EventParser,
    Oversized,
    parse_event,
    render_event,
    with_data,
)
from mcp_tool_filter.core.policy.effects import InOrder
from mcp_tool_filter.core.policy.verdict import Drop, Forward, Reply, Rewrite

_URL = re.compile(rb"""[^\0-\x20"<>{|}^`\x7f]+""")
_CR_ALONE = re.compile(rb"[^\r\n]\r(?!\n)")  # ends a line


def _no_endpoint(url: str) -> str | None:
    """Accept no endpoint: only the older transport names one, elsewhere it would lead clients
    away."""
    return None


class EventStream:
    """Filters one response body. It does not raise: any error closes the stream."""

    def __init__(
        self,
        conversation: Conversation,
        *,
        on_endpoint: Callable[[str], str | None] = _no_endpoint,
        owed: Iterable[bytes] = (),
        make_queue: Callable[[], InOrder[bytes]] | None = None,
    ) -> None:
        """The stream begins with the replies that are ``owed``. ``make_queue`` is called when a
        decision waits; the queue tells when there is more to ``take``."""
        limits = conversation.policy.config.limits
        self.conversation = conversation
        self.failure: Exception | None = None
        self._limits = limits
        self._on_endpoint = on_endpoint
        self._begins_with = b"".join(map(render_event, owed))
        self._parser = EventParser(max_pending=limits.pending)
        self._is_damaged = False  # something was dropped, and it may have been an answer
        self._make_queue = make_queue
        self._held: InOrder[bytes] | None = None  # few streams ever hold anything back

    @property
    def is_waiting(self) -> bool:
        """Whether anything is held back."""
        return self._held is not None and bool(self._held.held) and self.failure is None

    @property
    def held_bytes(self) -> int:
        """Bytes received but not forwarded yet."""
        return self._parser.pending + (self._held.size if self._held else 0)

    def feed(self, chunk: bytes, origin: object = None) -> bytes:
        """Take the upstream's next bytes; return the bytes that the client may see."""
        if self.failure is not None:
            return b""
        try:
            begins_with, self._begins_with = self._begins_with, b""
            judge = self._judge
            pieces = [judge(event, origin) for event in self._parser.feed(chunk)]
            return b"".join([begins_with, *pieces] if begins_with else pieces)  # one is not copied
        except Exception as failure:  # a bug in our code must not let the rest through
            return self._fail(failure)

    def take(self) -> bytes:
        """Return the held-back bytes that are decided by now."""
        if self._held is None or self.failure is not None:
            return b""
        try:
            return b"".join(self._held.take())
        except Exception as failure:
            return self._fail(failure)

    def finish(self, origin: object = None) -> bytes | None:
        """Return what the client may see of an unfinished last event; None while something is held
        back: then finish it later."""
        if self.is_waiting:
            return None
        if self.failure is not None:
            return b""
        try:
            rest = self._parser.finish() if self._parser.pending else b""
            begins_with, self._begins_with = self._begins_with, b""
            seen = self._judge(parse_event(rest), origin) if rest else b""
            waiting = self.conversation.exchanges.take_all() if self._is_damaged else []
            errors = self._errors(self.conversation.fail(waiting, _CUT)) if waiting else b""
            return begins_with + b"\n\n".join(filter(None, [seen, errors]))
        except Exception as failure:
            return self._fail(failure)

    def abandon(self) -> None:
        """Drop what is held back: the client has left, or the stream is lost."""
        # Now, not when the garbage collector finds this: an unfinished event may be of 20 MB.
        self._parser = EventParser(max_pending=self._limits.pending)
        if self._held:
            self._held.abandon()

    def _fail(self, failure: Exception) -> bytes:
        self.failure = failure
        self.abandon()
        return b""

    def _judge(self, event: Event | Oversized, origin: object) -> bytes:
        held = self._held
        if held is None or not held.held:
            return self._judge_next(event, origin)
        if piece := self._judge_next(event, origin):  # it is forwarded after the one that waits
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
        conversation = self.conversation
        if not event.data:
            return event.raw
        if conversation.ours and conversation.take_ours(event.data):
            return b""
        try:
            judged = conversation.from_upstream(event.data, origin)
        except ProtocolError as error:
            return self._decided(event, origin, error)
        if isinstance(judged, Judged):
            return _render(event, judged)
        if self._make_queue is None:
            raise RuntimeError("nobody carries out effects")
        self._held = self._held or self._make_queue()
        self._held.wait(judged, len(event.raw), partial(self._decided, event, origin))
        return b""

    def _decided(self, event: Event, origin: object, outcome: Judged | Exception) -> bytes:
        """Render an event; if its decision failed, drop it, except for one that is no message."""
        data = event.data or b""
        if isinstance(outcome, Judged):
            return _render(event, outcome)
        is_other = isinstance(outcome, ProtocolError) and not event.is_message
        if is_other and self._may_pass(data):
            return event.raw
        return self._refuse(str(outcome), data, origin)

    def _judge_endpoint(self, event: Event, origin: object) -> bytes:
        data = event.data or b""
        is_url = _URL.fullmatch(data.strip()) is not None
        kept = self._on_endpoint(data.decode("utf-8", "replace").strip()) if is_url else None
        if kept is None:
            return self._refuse("an endpoint that lets clients bypass us", b"", origin)
        if _CR_ALONE.search(event.raw):  # a reader that does not know CR would read more as the URL
            return b"event: endpoint\n" + render_event(kept.encode())
        return event.raw if kept.encode() == data else with_data(event, kept.encode())

    def _may_pass(self, data: bytes) -> bool:
        """Tell whether an event may pass whose name is not ``message``: clients do not read it as a
        message."""
        names, known = self.conversation.never_shown, self.conversation.hidden_names
        return _is_harmless(data) and not could_show_tool(data, names, self._limits, in_text=known)

    def _refuse(self, why: str, said: bytes, origin: object, *, is_cut: bool = False) -> bytes:
        """Drop an event, and return errors for the requests that it may have answered."""
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
    """Tell whether bytes that are not a message are harmless: JSON without a message, or not
    JSON."""
    if b'"' not in raw:
        return True
    bare = raw.replace(b"\0", b"").lower()
    return b"\\u" not in bare and b"schema" not in bare
