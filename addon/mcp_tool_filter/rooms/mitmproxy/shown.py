"""An exchange in which mitmproxy's other addons take part.

They see it at named points: requestheaders, request, responseheaders, response, error; at
``answered`` the client has all of the answer. Between two points they may change the request,
answer it themselves, or change the answer. What they change is judged again before it leaves:

    a changed head or body      judged like the client's, since the point comes before the judge
    an answer of their own      judged as if the upstream had sent it (``made``)
    a changed answer            judged once more; the requests that it answers are unknown then
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Protocol, cast

from mcp_tool_filter.core.engine.exchange import Exchange, Phase, notes_on
from mcp_tool_filter.core.engine.service import Host, nothing
from mcp_tool_filter.core.engine.steps import Answer, Outcome
from mcp_tool_filter.core.engine.wire import AnswerHead
from mcp_tool_filter.core.errors import ProtocolError
from mcp_tool_filter.core.http.asked import Answered, HttpExchange, Passed
from mcp_tool_filter.core.http.bodies import is_event_stream
from mcp_tool_filter.core.http.head import AnswerNotes, Fields, RequestNotes, links_in
from mcp_tool_filter.core.http.urls import WITH_URLS
from mcp_tool_filter.core.messages.sse import render_event

_NOTHING_THERE = 400
"""From this status on, another addon's answer replaces our own refusal."""


class Tap(Protocol):
    """Sees what comes and goes, for a host that shows it."""

    def head(self, status: int, fields: Fields) -> None:
        """The upstream's head has come."""

    def data(self, data: bytes) -> None:
        """Bytes of the upstream's body have come; none are its end."""

    def said(self, data: bytes) -> None:
        """The client gets these bytes of a stream."""


class ShowingHost(Host, Protocol):
    """A host with other addons."""

    def point(self, name: str, exchange: ShownExchange, go_on: Callable[[], None]) -> None:
        """Let the other addons see an exchange at a point, then call ``go_on``."""


class ShownExchange(Exchange):
    """One request and its answer, with other addons between the steps."""

    tap: Tap | None = None
    made: tuple[AnswerHead, bytes] | None = None
    """Another addon's answer instead of the upstream's. It may come before the request's body."""
    was_changed = False
    """True if another addon has changed the answer since it was judged."""
    _links: Fields = ()  # the links of the answer before another addon has changed it
    _was_shown = False  # other addons have seen the answer, and see no other

    def point(self, name: str, go_on: Callable[[], None]) -> None:
        cast("ShowingHost", self.down.host).point(name, self, self.once(go_on))

    def tell(self, name: str) -> None:
        cast("ShowingHost", self.down.host).point(name, self, nothing)

    # What another addon changes

    def change_head(self, method: str, target: str, fields: Fields) -> None:
        """Send another head than the client's."""
        self.head = replace(
            self.head, method=method, target=target, fields=fields, authority=None,
            notes=RequestNotes(),
        )  # fmt: skip

    def change_stream_head(self, status: int, fields: Fields) -> None:
        """Change the head of an event stream before it is sent."""
        assert self.answer is not None
        self._links = links_in(self.answer.fields)
        self.answer.status, self.answer.fields, self.was_changed = status, fields, True

    def change_answer(self, status: int, reason: bytes, fields: Fields, body: bytes) -> None:
        """Replace an answer before it is sent; also an event stream, which then ends."""
        if self.stream is not None:
            self._let_go()
            self.stream = None
        if self.answer is not None and not self.was_changed:
            self._links = links_in(self.answer.fields)
        self.answer, self.was_changed = Answer(status, reason, fields, body), True

    def kill(self) -> None:
        """The user wants the exchange to end."""
        if not self.is_over:
            self.cut("Connection killed.")

    # Another addon answers

    def _invite_body(self) -> None:
        if self.made is not None:
            self._play_made(self.service.listener.unasked())
        else:
            super()._invite_body()

    def take(self, data: bytes) -> None:
        super().take(data)
        if self.made is not None:  # nobody will read it
            self._came.take()

    def end_of_request(self) -> None:
        if self.made is None or self.phase is not Phase.COLLECTING:
            super().end_of_request()
            return
        self.has_all = True
        self._play_made(self.service.listener.unasked())

    def _judged(self, outcome: Passed | Answered) -> None:
        is_refused = isinstance(outcome, Answered)
        if is_refused and self.made is not None and self.made[0].status >= _NOTHING_THERE:
            self._play_made(self.service.listener.unasked())
        else:
            super()._judged(outcome)

    def _go_out(self) -> None:
        if self.made is not None and self.asked is not None:
            self._play_made(self.asked)
        else:
            super()._go_out()

    def _play_made(self, asked: HttpExchange) -> None:
        """Judge another addon's answer as if the upstream had sent it."""
        assert self.made is not None
        self._came.take()  # the request's body: nobody will read it
        self.asked, self.phase = asked, Phase.ASKING
        self.on_answer(*self.made)

    # What is shown besides

    def on_head(self, head: AnswerHead, body: bytes = b"") -> None:
        if self.tap is not None:
            self.tap.head(head.status, head.fields)
            if body:
                self.tap.data(body)
            if self.is_answered:
                self.tap.data(b"")
        super().on_head(head, body)

    def on_data(self, data: bytes) -> None:
        if self.tap is not None:
            self.tap.data(data)
        super().on_data(data)

    def on_end(self) -> None:
        if self.tap is not None and not self.is_over and not self.is_answered:
            self.tap.data(b"")
        super().on_end()

    def say(self, data: bytes, head: Answer | None = None) -> None:
        if data and self.tap is not None:
            self.tap.said(data)
        super().say(data, head)

    def end_stream_with(self, replies: Iterable[bytes], outcome: Outcome) -> None:
        replies = [*replies]
        if replies and self.tap is not None:
            self.tap.said(b"".join(map(render_event, replies)))
        super().end_stream_with(replies, outcome)

    # Another addon changes the answer

    def end_stream(self, last: bytes = b"", head: Answer | None = None) -> None:
        self.say(last, head)
        self.point("response", super().end_stream)

    def _begin_stream(self) -> None:
        if self.was_changed:
            if self.stream is None:
                return self._judge_changed()
            assert self.answer is not None
            self.was_changed = False
            if not is_event_stream(self._judge_changed_head(self.answer).kind):
                raise ProtocolError("an event stream under another name")
        return super()._begin_stream()

    def _deliver(self) -> None:
        if self.outcome not in (None, Outcome.ANSWERED):
            return self.point("error", super()._deliver)
        if self._was_shown:
            return super()._deliver()
        self._was_shown = True
        return self.point("responseheaders", partial(self.point, "response", self._looked_at))

    def _looked_at(self) -> None:
        if self.was_changed:
            self._judge_changed()
        else:
            self._deliver()

    def _judge_changed(self) -> None:
        """Judge an answer that another addon has changed; the requests it answers are unknown."""
        answer = self.answer
        assert answer is not None
        self.was_changed = False
        notes = self._notes = self._judge_changed_head(answer)
        if is_event_stream(notes.kind):
            raise ProtocolError("an event stream that came too late to be judged")
        self.asked = self.service.listener.unasked()
        self._judge_body(answer.body, self._deliver)

    def _judge_changed_head(self, answer: Answer) -> AnswerNotes:
        if answer.status == 101:
            raise ProtocolError("an upgrade that was not requested")
        head = AnswerHead(answer.status, answer.reason or b"", answer.fields)
        notes = notes_on(head, self.service.listener)
        links = links_in(answer.fields)
        if links == self._links:  # they were judged, or are our own
            kept = [field for field in notes.fields if field[0].lower() not in WITH_URLS]
            notes.fields = (*kept, *links)
        elif not notes.stays and self.asked is not None and self.asked.waits:
            raise ProtocolError("a redirect that leads away from us")
        if self.stream is not None and notes.coding.strip().lower() not in ("", "identity"):
            raise ProtocolError("an event stream in a coding that was not requested")
        answer.fields, answer.reason = notes.fields, notes.reason or None
        return notes
