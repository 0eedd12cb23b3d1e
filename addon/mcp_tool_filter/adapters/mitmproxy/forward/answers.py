"""Judge the upstream's answers: heads, bodies, and the streams that they open."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from mitmproxy.connection import Client
from mitmproxy.exceptions import AddonHalt
from mitmproxy.http import HTTPFlow, Response

from mcp_tool_filter.adapters.effects.carry_out import Effects
from mcp_tool_filter.adapters.mitmproxy.forward.errors import (
    invalid_answer,
)
from mcp_tool_filter.adapters.mitmproxy.forward.event_streams import (
    filter_whole_stream,
    frame_as_stream,
    through_stream,
)
from mcp_tool_filter.adapters.mitmproxy.forward.failing_closed import fail_closed
from mcp_tool_filter.adapters.mitmproxy.forward.flows import (
    head_of,
    learn_cors,
    learn_login,
    learn_login_document,
    put_answer,
    remove_description,
    replace_answer,
    secure_answer_head,
)
from mcp_tool_filter.adapters.mitmproxy.forward.hidden import Hidden, real_request
from mcp_tool_filter.adapters.mitmproxy.forward.known import Known, KnownFlows
from mcp_tool_filter.adapters.mitmproxy.forward.login_through import LoginsThrough
from mcp_tool_filter.adapters.mitmproxy.forward.logins import (
    Logins,
    Sent,
    renew,
)
from mcp_tool_filter.adapters.mitmproxy.forward.requests import Requests
from mcp_tool_filter.adapters.mitmproxy.forward.safe.last_look import Parts, parts_of_answer
from mcp_tool_filter.adapters.mitmproxy.forward.safe.stream import SafeStream, stream_of
from mcp_tool_filter.adapters.mitmproxy.forward.streams import (
    cut,
    end,
    injector,
    is_made_here,
    send_again,
    settle_answer,
)
from mcp_tool_filter.adapters.mitmproxy.forward.views import FlowObserver
from mcp_tool_filter.errors import ProtocolError, StartError
from mcp_tool_filter.http.event_stream import EventStream
from mcp_tool_filter.http.exchange import Answered
from mcp_tool_filter.http.head import is_websocket
from mcp_tool_filter.http.media_type import is_event_stream
from mcp_tool_filter.http.other_answers import refuse_partial
from mcp_tool_filter.policy.effects import Deciding, Decision

log = logging.getLogger(__name__)


class Answers:
    """Judges each answer, and forwards or replaces it."""

    def __init__(
        self,
        requests: Requests,
        known: KnownFlows,
        *,
        effects: Effects,
        logins: Logins,
        through: LoginsThrough,
        views: FlowObserver,
        hidden: Hidden,
        suspect: Callable[[Client], None],
        note_end: Callable[[Client], None],
    ) -> None:
        """``suspect`` gets the client whose upstream may be lost, ``note_end`` the one whose stream
        ended."""
        self._requests = requests
        self._known = known
        self._effects = effects
        self._logins = logins
        self._through = through
        self._views = views
        self._hidden = hidden
        self._suspect = suspect
        self._note_end = note_end

    def judge_head(self, flow: HTTPFlow) -> None:
        stream, response = stream_of(flow), flow.response
        try:
            if response and self._logins.is_on and self._logins.note_refusal(flow, response):
                response.stream = False
            elif response and not (stream is not None and stream.is_answer_settled):
                if self._views.is_watched:
                    self._views.note_head(flow, self._hidden.hidden_head(flow, response))
                known = self._known.get(flow) or self._known.of(flow)
                self._judge_new_head(flow, response, known)
            if self._hidden.is_on and not (stream is not None and stream.is_answer_settled):
                self._hidden.hide_answer_head(flow)
        except Exception as error:
            fail_closed(flow, error, self._refuse_head)
        if self._views.is_watched:
            self._views.follow_stream(flow)
        if stream is not None:
            stream.settle_head()
            if flow.response:  # no later addon may choose the stream callable
                stream.held = [flow.response.stream]

    def _judge_new_head(self, flow: HTTPFlow, response: Response, known: Known) -> None:
        status = response.status_code
        if status == 101 and not is_websocket(head_of(flow.request)):
            raise ProtocolError("an upgrade that was not requested")
        response.stream = False  # another addon may have set it
        listener, exchange = known.listener, known.exchange
        stays = secure_answer_head(response, None if listener.is_forward else listener.names)
        if b"origin" in exchange.head.names.places:
            learn_cors(listener.cors, flow.request, response)
        if status in (401, 403):
            self._through.rewrite_head(flow, response)
        listener.note_answer_head(exchange, status, response.headers.get("mcp-session-id"))
        if not stays and exchange.waits:
            raise ProtocolError("a redirect that leads away from us")
        if listener.policy.config.only_mcp or self._hidden.is_on:
            learn_login(listener.logins, flow.request, response)
        is_stream = is_event_stream(response.headers.get("content-type", ""))
        if is_stream and status not in (204, 304) and flow.request.method != "HEAD":
            self._open_stream(flow, response, known)

    def _open_stream(self, flow: HTTPFlow, response: Response, known: Known) -> None:
        if response.headers.get("content-encoding", "identity").strip().lower() != "identity":
            raise ProtocolError("an event stream in a coding that was not requested")
        refuse_partial(response.status_code, response.headers.get("content-type", ""))
        remove_description(response)  # lists in it may be rewritten
        frame_as_stream(flow, response)
        send = injector(flow) if flow.request.method == "GET" else None
        request = real_request(flow) if self._hidden.was_on else flow.request
        stream = known.listener.open_stream(known.exchange, request.path, send)
        known.stream = stream
        response.stream = through_stream(flow, stream, self._effects)

    def _refuse_head(self, flow: HTTPFlow) -> None:
        """Answer ourselves, and ignore the rest of the upstream's answer."""
        assert flow.response
        status, body = self._invalid(flow)
        if is_made_here(flow):
            replace_answer(flow.response, status, body)
            settle_answer(flow)
            return
        replace_answer(flow.response, status, b"")
        frame_as_stream(flow, flow.response)
        flow.response.stream = lambda _chunk: []
        if not end(flow, body):
            cut(flow)

    def judge(self, flow: HTTPFlow) -> Awaitable[None] | None:
        stream, response = stream_of(flow), flow.response
        try:
            if flow.websocket and stream is not None and stream.is_head_settled:
                stream.settle_answer()
            is_settled = stream is not None and stream.is_answer_settled
            if response is None or flow.websocket or is_settled:
                return None
            if self._logins.is_on and (sent := self._logins.take_refused(flow)):
                return self._ask_again(flow, response, sent)
            if self._views.is_watched:
                self._views.note_body(flow, self._hidden.hidden_body(flow, response))
            known = self._known.get(flow) or self._known.of(flow)
            has_left = stream is not None and stream.has_begun
            if not has_left and not (stream is not None and stream.is_head_settled):
                self.judge_changed_head(response, known)
            if known.stream:
                if stream is not None and not has_left:
                    return self._pass_whole_stream(flow, response, known, known.stream)
                self._end_stream(flow, known)
            elif flow.request.method == "HEAD":
                response.data.content = b""
            elif not has_left:
                answered = self.judge_body(flow, response, known)
                if not (answered is None or isinstance(answered, Answered)):
                    parts = parts_of_answer(response)
                    return self._answer_later(flow, response, known, answered, parts)
                self.replace(flow, response, known, answered)
            if self._hidden.is_on:
                self._hidden.hide_answer(flow)
        except Exception as error:
            fail_closed(flow, error, self.refuse_body)
        self._settle(flow, stream)
        return None

    def _settle(self, flow: HTTPFlow, stream: SafeStream | None) -> None:
        """Note that this answer is final."""
        if stream is not None:
            stream.settle_answer()
        if self._views.is_watched:
            self._views.finish(flow)

    async def _ask_again(self, flow: HTTPFlow, refusal: Response, sent: Sent) -> None:
        """Send a request again whose token the upstream refused, or tell the client what to do."""
        try:
            try:
                self._logins.add(flow, sent, await renew(sent, refusal))
                # Let mitmproxy finish with the refusal first, even if we have not waited.
                await asyncio.sleep(0)
                send_again(flow)
            except StartError as error:
                self._requests.answer_without_login(flow, self._known.of(flow), error)
        except Exception as error:
            fail_closed(flow, error, self._requests.refuse)
        stream = stream_of(flow)
        if stream is not None and stream.is_answer_settled:
            self._views.finish(flow)
        else:
            raise AddonHalt  # other addons need not see this answer

    async def _pass_whole_stream(
        self, flow: HTTPFlow, response: Response, known: Known, stream: EventStream
    ) -> None:
        try:
            await filter_whole_stream(response, stream, self._effects)
            self._end_stream(flow, known)
        except Exception as error:
            fail_closed(flow, error, self.refuse_body)
        self._settle(flow, stream_of(flow))

    def judge_body(
        self, flow: HTTPFlow, response: Response, known: Known
    ) -> Decision[Answered | None]:
        raw = response.raw_content
        if response.stream or raw is None:
            raise ProtocolError("an answer passed before it could be judged")
        return known.listener.judge_answer(
            known.exchange,
            response.status_code,
            response.headers.get("content-type", ""),
            ", ".join(response.headers.get_all("content-encoding")),
            raw,
            flow,
        )

    async def _answer_later(
        self,
        flow: HTTPFlow,
        response: Response,
        known: Known,
        answered: Deciding[Answered | None],
        judged: Parts,
    ) -> None:
        try:
            decided = await self._effects.outcome_of(answered)
            if flow.response is not response or parts_of_answer(response) != judged:
                raise ProtocolError("an answer that was changed while it waited")
            self.replace(flow, response, known, decided)
            self._hidden.hide_answer(flow)
        except Exception as error:
            fail_closed(flow, error, self.refuse_body)
        self._settle(flow, stream_of(flow))

    def replace(
        self, flow: HTTPFlow, response: Response, known: Known, answered: Answered | None
    ) -> None:
        put_answer(response, answered)
        if self._through.has_begun:
            self._through.rewrite_body(flow, response)
        if known.listener.policy.config.only_mcp or self._hidden.is_on:
            learn_login_document(known.listener.logins, flow.request, response)

    def _end_stream(self, flow: HTTPFlow, known: Known) -> None:
        known.listener.close_stream(known.exchange)
        known.stream = None
        if known.exchange.is_legacy:
            self._suspect(flow.client_conn)
        elif flow.request.method == "GET":
            self._note_end(flow.client_conn)

    def refuse_body(self, flow: HTTPFlow) -> None:
        stream = stream_of(flow)
        if stream is not None and stream.has_begun:  # the head that the client has frames the rest
            cut(flow)
        elif flow.response:
            replace_answer(flow.response, *self._invalid(flow))

    def _invalid(self, flow: HTTPFlow) -> tuple[int, bytes]:
        known = self._known.get(flow)
        if known is None:
            return invalid_answer(flow, None, None)
        return invalid_answer(flow, known.listener, known.exchange)

    def judge_changed_head(self, response: Response, known: Known) -> None:
        if response.status_code == 101:
            raise ProtocolError("an upgrade that was not requested")
        coding = response.headers.get("content-encoding", "identity")
        if known.stream and coding.strip().lower() != "identity":
            raise ProtocolError("an event stream in a coding that was not requested")
        listener = known.listener
        # Through a forward proxy every URL leads to us; and we have chosen a login's redirect
        # ourselves.
        is_login = known.login_at and response.headers.get("location") == known.login_at
        leads_to_us = listener.is_forward or is_login
        stays = secure_answer_head(response, None if leads_to_us else listener.names)
        if not stays and known.exchange.waits:
            raise ProtocolError("a redirect that leads away from us")
