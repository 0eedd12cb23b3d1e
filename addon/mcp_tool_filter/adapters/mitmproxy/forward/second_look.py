"""Judge again what another script has changed after us (see ``safe/last_look.py``)."""

from __future__ import annotations

import logging

from mitmproxy.http import HTTPFlow
from mitmproxy.websocket import WebSocketMessage

from mcp_tool_filter.adapters.mitmproxy.forward.answers import Answers
from mcp_tool_filter.adapters.mitmproxy.forward.event_streams import frame_as_stream
from mcp_tool_filter.adapters.mitmproxy.forward.failing_closed import fail_closed, once
from mcp_tool_filter.adapters.mitmproxy.forward.hidden import Hidden
from mcp_tool_filter.adapters.mitmproxy.forward.known import Known, KnownFlows
from mcp_tool_filter.adapters.mitmproxy.forward.requests import Requests
from mcp_tool_filter.adapters.mitmproxy.forward.safe.stream import stream_of
from mcp_tool_filter.adapters.mitmproxy.forward.websocket import judge_or_drop
from mcp_tool_filter.errors import ProtocolError
from mcp_tool_filter.http.media_type import is_event_stream
from mcp_tool_filter.observers.redaction.shown import shown_url
from mcp_tool_filter.policy.effects import waits

log = logging.getLogger(__name__)


class SecondLook:
    def __init__(
        self, requests: Requests, answers: Answers, known: KnownFlows, hidden: Hidden
    ) -> None:
        self._requests = requests
        self._answers = answers
        self._known = known
        self._hidden = hidden

    def judge_request_again(self, flow: HTTPFlow) -> None:
        try:
            if not self._requests.is_admitted(flow):
                raise ProtocolError("a request that another script hid from us")
            flow.response = None
            if self._requests.judge_admitted(flow) is not None:
                raise ProtocolError("a changed request that has to wait for a decision")
        except Exception as error:
            fail_closed(flow, error, self._requests.refuse)

    def judge_head_again(self, flow: HTTPFlow) -> bool:
        try:
            assert flow.response
            known = self._known.of(flow)
            self._answers.judge_changed_head(flow.response, known)
            kind = flow.response.headers.get("content-type", "")
            if known.stream and not is_event_stream(kind):
                raise ProtocolError("an event stream by another name")
            frame_as_stream(flow, flow.response)
        except Exception as error:
            once.log(log, logging.WARNING, "Refused %s: %s", shown_url(flow.request.path), error)
            return False
        if (stream := stream_of(flow)) is not None:
            stream.settle_head()
        return True

    def judge_answer_again(self, flow: HTTPFlow) -> None:
        stream = stream_of(flow)
        try:
            assert flow.response
            self._hidden.show_answer(flow)
            response, known = flow.response, self._known.of(flow)
            self._answers.judge_changed_head(response, known)
            response.stream = False
            again = Known(known.listener, known.listener.unasked())
            if flow.request.method == "HEAD":
                response.data.content = b""
            elif is_event_stream(response.headers.get("content-type", "")):
                raise ProtocolError("an event stream that came too late to be judged")
            else:
                answered = self._answers.judge_body(flow, response, again)
                if waits(answered):
                    raise ProtocolError("a changed answer that has to wait for a decision")
                self._answers.replace(flow, response, again, answered)
            self._hidden.hide_answer(flow)
        except Exception as error:
            fail_closed(flow, error, self._answers.refuse_body)
        if stream is not None:
            stream.settle_answer()

    def may_say(self, flow: HTTPFlow, message: WebSocketMessage) -> bool:
        before = message.content
        judge_or_drop(self._known.socket_of(flow), flow, message)
        return not message.dropped and message.content is before
