"""Decide on the upstream's HTTP answer: forward it unchanged, or replace it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import assert_never

from mcp_tool_filter.conversation.judged import INVALID_ANSWER, LOST_ANSWER, Judged
from mcp_tool_filter.errors import ProtocolError
from mcp_tool_filter.http.codings import decode_body
from mcp_tool_filter.http.exchange import Answered, HttpExchange
from mcp_tool_filter.http.media_type import may_be_event_stream
from mcp_tool_filter.http.one_upstream import OneUpstream
from mcp_tool_filter.http.other_answers import could_show_tool, refuse_non_text, refuse_partial
from mcp_tool_filter.policy.effects import Decision, then
from mcp_tool_filter.policy.verdict import Drop, Forward, Reply, Rewrite
from mcp_tool_filter.protocol.limits import OverLimit
from mcp_tool_filter.protocol.messages import (
    INTERNAL_ERROR,
    UPSTREAM_LOST,
    ids_in,
    render_batch,
    render_error,
)
from mcp_tool_filter.protocol.sse import render_event


class JudgesAnswers(OneUpstream):
    """Decides on each answer before the client sees any of it."""

    __slots__ = ()

    def note_answer_head(self, exchange: HttpExchange, status: int, session_id: str | None) -> None:
        """Learn from an answer's head which session was opened or closed."""
        conversation = exchange.conversation
        if session_id and "initialize" in conversation.exchanges.methods:
            session = self.sessions.open(session_id, self.policy.clock())
            session.is_like_the_fetch = exchange.is_like_the_fetch
            conversation.client.session = session
        if exchange.is_endpoint and (named := exchange.head.said.session_id):
            # Upstreams without a GET stream, or that end no sessions, refuse these two methods.
            ended = {"POST": status == 404, "DELETE": 200 <= status < 300 or status == 404}
            if ended.get(exchange.head.method):
                self.sessions.close(named)

    def judge_answer(
        self,
        exchange: HttpExchange,
        status: int,
        content_type: str,
        coding: str,
        raw: bytes,
        origin: object = None,
    ) -> Decision[Answered | None]:
        """Decide on a complete answer; None forwards it unchanged."""
        limit = self.policy.config.limits.message
        try:
            body = decode_body(raw, coding, limit=limit) if coding else raw
            if len(body) > limit:
                raise OverLimit(f"longer than {limit} bytes")
            refuse_partial(status, content_type)
            if not body and exchange.waits and status == 200:
                raise ProtocolError("an empty answer")
        except ProtocolError as error:
            return self.invalid_answer(exchange, str(error), origin)
        answer = _Answer(exchange, status, content_type, raw, body, origin)
        if not body:
            return self._pay_alone(answer)
        try:
            judged = exchange.conversation.from_upstream(body, origin)
        except ProtocolError as error:
            return self._judge_other_answer(answer, error)
        if isinstance(judged, Judged):
            return self._carry_back(answer, judged)
        return then(judged, partial(self._carry_back, answer))

    def _carry_back(self, answer: _Answer, judged: Judged) -> Answered | None:
        match judged.verdict:
            case Forward():
                owed = answer.exchange.owed
                return answer.with_owed(answer.body) if owed else answer.as_it_came
            case Rewrite(text):
                return answer.with_owed(text)
            case Reply() | Drop():
                why = "an answer that may not be seen"
                return self.invalid_answer(answer.exchange, why, answer.origin)
            case unexpected:
                assert_never(unexpected)

    def _judge_other_answer(self, answer: _Answer, error: ProtocolError) -> Answered | None:
        """Forward an answer that is not a message and shows no tool."""
        exchange, status = answer.exchange, answer.status
        try:
            if exchange.waits and 200 <= status < 300 and status not in (202, 204):
                raise error
            if may_be_event_stream(answer.content_type):
                raise error
            refuse_non_text(answer.content_type, answer.body)
            denied = exchange.conversation.kind.snapshot.denied
            if could_show_tool(answer.body, denied, self.config.limits):
                raise error
        except ProtocolError as why:
            return self.invalid_answer(exchange, str(why), answer.origin)
        return self._pay_alone(answer)

    def _pay_alone(self, answer: _Answer) -> Answered | None:
        """Answer a batch with only our own replies, because the rest gets no answer."""
        owed = answer.exchange.owed
        if not owed or answer.status >= 300:
            return answer.as_it_came
        return Answered(200, render_batch(list(owed)))

    def invalid_answer(
        self, exchange: HttpExchange, why: str = "not HTTP", origin: object = None
    ) -> Answered:
        """Answer the waiting requests with errors, because the upstream's answer cannot be
        forwarded."""
        conversation = exchange.conversation
        ids = [] if exchange.is_legacy else conversation.exchanges.take_all()
        verdict = conversation.fail(ids, why, origin=origin).verdict
        errors = (verdict.text, *verdict.owed) if isinstance(verdict, Rewrite) else ()
        replies = [*errors, *exchange.owed]
        if not replies:
            return Answered(502, render_error(None, INTERNAL_ERROR, INVALID_ANSWER))
        return Answered(200, replies[0] if len(replies) == 1 else render_batch(replies))

    def lost_replies(self, exchange: HttpExchange) -> tuple[bytes, ...]:
        """Return the errors for a client that still waits when the upstream is lost."""
        replies = exchange.conversation.lose()
        return (*replies, *exchange.owed) if replies else ()

    def tell_of_loss(self, target: str, raw: bytes) -> None:
        """Tell a client of the older transport, on its stream, that a POST was lost."""
        if stream := self.legacy.stream_of(target):
            for id in stream.conversation.exchanges.take(ids_in(raw)):
                stream.send(render_event(render_error(id, UPSTREAM_LOST, LOST_ANSWER)))


@dataclass(slots=True, eq=False)
class _Answer:
    """The upstream's answer."""

    exchange: HttpExchange
    status: int
    content_type: str
    raw: bytes
    body: bytes
    """The decoded body."""
    origin: object

    @property
    def as_it_came(self) -> Answered | None:
        """Forward the answer: unchanged, or decoded if nobody asked for its coding."""
        if self.body is self.raw:
            return None
        return Answered(self.status, self.body, content_type=self.content_type)

    def with_owed(self, body: bytes) -> Answered:
        return Answered(self.status, self.exchange.with_owed(body))
